// A pool of threads that work on one task together and wait for each other between its parts.
#pragma once

#if defined(__linux__)
#include <sched.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

// Loop iterations of a waiting thread before it yields its CPU core: a few microseconds. The loop has no pause
// instruction, because this instruction would trap in virtual machines.
constexpr int64_t SPINS = 4000;

// A thread of a team: its number, its share of the work, and a barrier to wait for the other threads.
class Member {
   public:
    Member(int64_t number, int64_t size, std::atomic<int64_t>* arrived)
        : number(number), size(size), arrived_(arrived) {}

    // Returns when all members have called this function.
    void wait() {
        if (size == 1) return;
        round_ += size;
        arrived_->fetch_add(1, std::memory_order_acq_rel);
        for (int64_t spins = 0; arrived_->load(std::memory_order_acquire) < round_; spins++)
            if (spins > SPINS) std::this_thread::yield();
    }

    // This member's share of n items: from `first` to `last` - 1.
    void share(int64_t n, int64_t& first, int64_t& last) const {
        first = n * number / size;
        last = n * (number + 1) / size;
    }

    const int64_t number, size;

   private:
    std::atomic<int64_t>* arrived_;
    int64_t round_ = 0;
};

// The threads of this process. Only one call uses them at a time. A call that finds them busy works alone.
class Team {
   public:
    template <class Work>
    static void work(int64_t size, Work work) {
        static Team* team = nullptr;
        static std::mutex creating;
        std::atomic<int64_t> arrived{0};
        if (size > 1) {
            std::lock_guard<std::mutex> lock(creating);
            if (team == nullptr || team->process_ != getpid()) team = new Team();  // a forked process has no threads
        }
        if (size < 2 || !team->busy_.try_lock()) {
            Member alone(0, 1, &arrived);
            work(alone);
            return;
        }
        std::lock_guard<std::mutex> lock(team->busy_, std::adopt_lock);
        team->go(size, &arrived, &work, [](void* context, Member& member) { (*static_cast<Work*>(context))(member); });
    }

   private:
    typedef void (*Entry)(void*, Member&);

    void go(int64_t size, std::atomic<int64_t>* arrived, void* context, Entry entry) {
        while (threads_ < size - 1) std::thread(&Team::serve, this, ++threads_, order_.load()).detach();
        left_.store(size - 1, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            size_ = size, arrived_ = arrived, context_ = context, entry_ = entry, processor_ = processor();
            order_.fetch_add(1, std::memory_order_release);
        }
        called_.notify_all();
        Member first(0, size, arrived);
        entry(context, first);
        for (int64_t spins = 0; left_.load(std::memory_order_acquire) > 0; spins++)
            if (spins > SPINS) std::this_thread::yield();
    }

    // The loop of a thread: waits for an order later than `done`, and does its part.
    void serve(int64_t number, int64_t done) {
        for (;;) {
            // Spin at first: the next order of a search comes soon, and a wake-up would take longer than the work.
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
            for (int64_t spins = 0; order_.load(std::memory_order_acquire) == done; spins++) {
                if (spins < SPINS) continue;
                if (std::chrono::steady_clock::now() > until) break;
                std::this_thread::yield();
            }
            {
                std::unique_lock<std::mutex> lock(mutex_);
                called_.wait(lock, [&] { return order_.load(std::memory_order_acquire) != done; });
                done = order_.load(std::memory_order_acquire);
                if (number >= size_) continue;
            }
            leave(processor_);
            Member member(number, size_, arrived_);
            entry_(context_, member);
            left_.fetch_sub(1, std::memory_order_acq_rel);
        }
    }

    static int processor() {
#if defined(__linux__)
        return sched_getcpu();
#else
        return -1;
#endif
    }

    // A thread is often woken on the CPU core of its caller, and would wait there. Move the thread to another core.
    static void leave(int taken) {
#if defined(__linux__)
        cpu_set_t allowed, others;
        if (taken < 0 || processor() != taken || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
        others = allowed;
        CPU_CLR(taken, &others);
        if (CPU_COUNT(&others) == 0) return;
        sched_setaffinity(0, sizeof others, &others);
        sched_setaffinity(0, sizeof allowed, &allowed);  // the system may move the thread again
#else
        (void)taken;
#endif
    }

    const pid_t process_ = getpid();
    std::mutex busy_, mutex_;
    std::condition_variable called_;
    std::atomic<int64_t> order_{0}, left_{0};
    std::atomic<int64_t>* arrived_ = nullptr;
    int64_t threads_ = 0, size_ = 0;
    int processor_ = -1;
    void* context_ = nullptr;
    Entry entry_ = nullptr;
};
