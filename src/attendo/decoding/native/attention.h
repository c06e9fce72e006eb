// softmax(q Kᵀ · scale + bias) V of one query over keys and values at a list of places, and normalization layers.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "vectors.h"

struct Norm {
    int64_t kind;  // NONE, LAYER or RMS
    int64_t width;
    const float *gain, *bias;
    double eps;
};

enum NormKind : int64_t { NONE, LAYER, RMS };

inline void normalize(const Norm& norm, const float* x, float* out) {
    const int64_t n = norm.width;
    if (norm.kind == NONE) {
        if (out != x) std::memmove(out, x, sizeof(float) * n);
        return;
    }
    Floats total{}, squares{};
    float mean = 0.0f, square = 0.0f;
    int64_t i = 0;
    if (norm.kind == LAYER) {
        for (; i + LANES <= n; i += LANES) total += load(x + i);
        mean = sum(total);
        for (; i < n; i++) mean += x[i];
        mean /= n;
    }
    for (i = 0; i + LANES <= n; i += LANES) {
        const Floats apart = load(x + i) - mean;
        squares += apart * apart;
    }
    square = sum(squares);
    for (; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / std::sqrt(square / n + static_cast<float>(norm.eps));
    for (i = 0; i + LANES <= n; i += LANES) {
        Floats value = (load(x + i) - mean) * scale;
        if (norm.gain != nullptr) value *= load(norm.gain + i);
        if (norm.bias != nullptr) value += load(norm.bias + i);
        store(out + i, value);
    }
    for (; i < n; i++) {
        float value = (x[i] - mean) * scale;
        if (norm.gain != nullptr) value *= norm.gain[i];
        if (norm.bias != nullptr) value += norm.bias[i];
        out[i] = value;
    }
}

struct Heads {
    int64_t n, n_kv, width, value_width;  // query heads, key and value heads, width of a key, width of a value
    double scale;
    const float* biases;  // bias of each score by key position - query position: [n][2 span + 1], or null
    int64_t span;
    Norm query_norm, key_norm;  // of each head
    const float* turns;   // rotary positions: [positions][width / 2][cos, sin], or null
    const float* betas;   // factor of each head's scores, including the bias, or null for 1
    const float* gains;   // factor of each head's output, or null for 1
    const float* means;   // added to each head's output: [n][value_width], or null
    int64_t window;       // positions less than this far away are attended to, or 0 for all
    double softcap;       // limit c of the scores, c tanh(score / c), or 0

    int64_t queries() const { return n * width; }
    int64_t keys() const { return n_kv * width; }
    int64_t values() const { return n_kv * value_width; }
    int64_t memory() const { return keys() + values(); }  // numbers per position in the cache: keys, then values
    int64_t mixed() const { return n * value_width; }
};

// Rotates each pair of neighboring numbers of each head by the angle of its position.
inline void turn(const Heads& heads, int64_t n, float* x, int64_t position) {
    const float* angles = heads.turns + position * heads.width;
    for (int64_t head = 0; head < n; head++, x += heads.width)
        for (int64_t i = 0; i < heads.width; i += 2) {
            const float first = x[i], second = x[i + 1], cos = angles[i], sin = angles[i + 1];
            x[i] = first * cos - second * sin;
            x[i + 1] = first * sin + second * cos;
        }
}

// Normalizes and rotates the queries of a token, and the keys after them: `n` heads in total.
inline void prepare(const Heads& heads, int64_t n, float* x, int64_t position) {
    for (int64_t head = 0; head < n; head++) {
        float* own = x + head * heads.width;
        normalize(head < heads.n ? heads.query_norm : heads.key_norm, own, own);
    }
    if (heads.turns != nullptr) turn(heads, n, x, position);
}

// The places of the keys and values that a query attends to. Without `slots`, the positions follow each other from
// `base` on. With `slots`, position p is in slot `slots[p]`, because the rows of a beam share their common past.
template <class Number>
struct Places {
    const Number* base;
    int64_t stride;  // distance between positions, in numbers
    int64_t n;       // positions attended to: 0 .. n - 1
    const int32_t* slots;
    int64_t capacity;

    const Number* operator()(int64_t position) const {
        return base + stride * (slots == nullptr ? position : slots[position] * capacity + position);
    }
};

inline float largest(const float* x, int64_t n) {
    Floats most = load(x);
    for (int64_t i = LANES; i < n; i += LANES) most = larger(most, load(x + i));
    return largest(most);
}

// Computes e^(x - top) in place, and returns the sum. Entries of -inf become 0. n is a multiple of LANES.
inline float powers(float* x, int64_t n, float top) {
    Floats total{};
    for (int64_t i = 0; i < n; i += LANES) {
        const Floats power = exponential(load(x + i) - top);
        store(x + i, power);
        total += power;
    }
    return sum(total);
}

constexpr int64_t BLOCK = 16;  // positions whose keys and values are read together, so that they stay in the cache

// The attention of one query, for all heads, block by block with the softmax of the positions so far (Milakov &
// Gimelshein 2018). `room` is memory for the weights.
template <class Number>
class Attention {
   public:
    Attention(const Heads& heads, const Places<Number>& at, float* out, std::vector<float>& room)
        : heads_(heads), at_(at), group_(heads.n / heads.n_kv), out_(out) {
        const int64_t n = heads.n;
        if (static_cast<int64_t>(room.size()) < n * (BLOCK + 3)) room.resize(n * (BLOCK + 3));
        weights_ = room.data(), shares_ = weights_ + n * BLOCK, tops_ = shares_ + n, totals_ = tops_ + n;
        std::fill(tops_, tops_ + n, -std::numeric_limits<float>::infinity());
        std::fill(totals_, totals_ + n, 0.0f);
        std::fill(out, out + heads.mixed(), 0.0f);
    }

    void add(const float* query, int64_t position) {
        // with a window, the first block contains the first position of the window
        const int64_t window = heads_.window, end = window == 0 ? at_.n : std::min(at_.n, position + window);
        const int64_t start = window == 0 ? 0 : std::max<int64_t>(0, position - window + 1) / BLOCK * BLOCK;
        for (int64_t from = start; from < end; from += BLOCK) {
            first_ = from, last_ = std::min(from + BLOCK, end);
            scores(query);
            for (int64_t head = 0; head < heads_.n; head++) softmax(head, position);
            const int64_t i = mix_while<4>(0);
            mix_rest(mix_while<1>(i));
        }
    }

    // Divides by the sums. A query without keys has zeros.
    void end() {
        for (int64_t head = 0; head < heads_.n && at_.n > 0; head++) {
            const float share = (heads_.gains == nullptr ? 1.0f : heads_.gains[head]) / totals_[head];
            for (int64_t i = 0; i < heads_.value_width; i++) out_[head * heads_.value_width + i] *= share;
        }
        for (int64_t i = 0; heads_.means != nullptr && i < heads_.mixed(); i++) out_[i] += heads_.means[i];
    }

   private:
    void scores(const float* query) {
        const float scale = static_cast<float>(heads_.scale);
        int64_t t = first_;
        for (; t + LANES <= last_; t += LANES) {
            const Number* rows[LANES];
            for (int64_t j = 0; j < LANES; j++) {
                rows[j] = at_(t + j);
                const int64_t soon = t + LANES + j;
                if (soon < at_.n) fetch(at_(soon), heads_.memory());
            }
            for (int64_t head = 0; head < heads_.n; head++) {
                const float* q = query + head * heads_.width;
                store(weight(head, t), scale * dots(q, rows, head / group_ * heads_.width, heads_.width));
            }
        }
        for (; t < last_; t++)
            for (int64_t head = 0; head < heads_.n; head++) {
                const Number* key = at_(t) + head / group_ * heads_.width;
                *weight(head, t) = scale * dot(query + head * heads_.width, key, heads_.width);
            }
    }

    // Turns the scores of a block into powers relative to the largest score so far, and computes `shares_`, the factor
    // of what was summed before.
    void softmax(int64_t head, int64_t position) {
        float* row = weight(head, first_);
        const int64_t n = last_ - first_, padded = (n + LANES - 1) / LANES * LANES;
        if (heads_.softcap > 0.0) {
            const float cap = static_cast<float>(heads_.softcap);
            for (int64_t t = 0; t < padded; t += LANES) store(row + t, cap * hyperbolic_tangent(load(row + t) / cap));
        }
        if (heads_.biases != nullptr) {
            const float* bias = heads_.biases + head * (2 * heads_.span + 1) + heads_.span + first_ - position;
            for (int64_t t = 0; t < n; t++) row[t] += bias[t];
        }
        if (heads_.betas != nullptr)
            for (int64_t t = 0; t < n; t++) row[t] *= heads_.betas[head];
        std::fill(row + n, row + padded, -std::numeric_limits<float>::infinity());
        if (heads_.window > 0 && first_ <= position - heads_.window)
            std::fill(row, row + position - heads_.window + 1 - first_, -std::numeric_limits<float>::infinity());
        const float top = std::max(tops_[head], largest(row, padded));
        shares_[head] = std::exp(tops_[head] - top);
        tops_[head] = top;
        totals_[head] = totals_[head] * shares_[head] + powers(row, padded, top);
    }

    // Adds the weighted values of a block: VECTORS vectors of each head, beginning at number `from` of the head. Several
    // heads of a position are read together, because they are adjacent in memory.
    template <int VECTORS>
    int64_t mix_while(int64_t from) {
        constexpr int64_t together = 16 / VECTORS;
        for (; from + VECTORS * LANES <= heads_.value_width; from += VECTORS * LANES)
            for (int64_t head = 0; head < heads_.n; head += together)
                if (head + together <= heads_.n)
                    mix<VECTORS>(head, head + together, from);
                else
                    mix<VECTORS>(head, heads_.n, from);
        return from;
    }

    template <int VECTORS>
    __attribute__((always_inline)) void mix(int64_t first, int64_t last, int64_t from) {
        Floats sums[16 / VECTORS][VECTORS];
        for (int64_t head = first; head < last; head++)
            for (int j = 0; j < VECTORS; j++)
                sums[head - first][j] = load(output(head, from + j * LANES)) * shares_[head];
        for (int64_t t = first_; t < last_; t++) {
            const Number* values = at_(t) + heads_.keys() + from;
            for (int64_t head = first; head < last; head++) {
                const Number* value = values + head / group_ * heads_.value_width;
                for (int j = 0; j < VECTORS; j++)
                    sums[head - first][j] += *weight(head, t) * load(value + j * LANES);
            }
        }
        for (int64_t head = first; head < last; head++)
            for (int j = 0; j < VECTORS; j++) store(output(head, from + j * LANES), sums[head - first][j]);
    }

    void mix_rest(int64_t from) {
        for (int64_t head = 0; head < heads_.n; head++)
            for (int64_t i = from; i < heads_.value_width; i++) {
                const int64_t value = heads_.keys() + head / group_ * heads_.value_width + i;
                float total = *output(head, i) * shares_[head];
                for (int64_t t = first_; t < last_; t++) total += *weight(head, t) * at_(t)[value];
                *output(head, i) = total;
            }
    }

    // Prefetches numbers that are read soon.
    static void fetch(const Number* from, int64_t n) {
        for (int64_t i = 0; i < n; i += 64 / sizeof(Number)) __builtin_prefetch(from + i, 0, 2);
    }

    float* weight(int64_t head, int64_t t) { return weights_ + head * BLOCK + t - first_; }
    float* output(int64_t head, int64_t i) { return out_ + head * heads_.value_width + i; }

    const Heads& heads_;
    const Places<Number>& at_;
    int64_t group_, first_ = 0, last_ = 0;  // query heads per key head, and the positions of a block
    float *out_, *weights_, *shares_, *tops_, *totals_;
};
