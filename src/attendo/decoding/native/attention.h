// softmax(q Kᵀ · scale + bias) V of some queries over keys and values at a list of places, and normalization layers.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>
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

// A part of the cache in 8 bits: the scale of a group of keys or values in the first bytes, and then its integers.
struct Byte {
    int8_t bits;
};

constexpr int64_t GROUP_BYTES = sizeof(float) + GROUP;

// The length of the keys and values of a position in the cache.
template <class Number>
inline int64_t length_of(int64_t n) { return n; }
template <>
inline int64_t length_of<Byte>(int64_t n) { return groups(n) * GROUP_BYTES; }

inline void copy(Byte* to, const float* from, int64_t n) {
    for (int64_t at = 0; at < n; at += GROUP, to += GROUP_BYTES) {
        Ints total{};
        const float scale = round_group(from + at, n - at, 127, &to[sizeof(float)].bits, total);
        std::memcpy(to, &scale, sizeof scale);
    }
}

inline void unpack(const Byte* from, float* to, int64_t n) {
    for (int64_t at = 0; at < n; at += GROUP, from += GROUP_BYTES) {
        float scale;
        std::memcpy(&scale, from, sizeof scale);
        for (int64_t i = 0; i < GROUP; i += LANES) store(to + at + i, load(&from[sizeof scale + i].bits) * scale);
    }
}

// The places of the keys and values that queries attend to. Without `slots`, the positions follow each other from
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

    // Whether these places are the first ones of `later`.
    bool begin(const Places& later) const { return base == later.base && slots == later.slots && n <= later.n; }
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

constexpr int64_t BLOCK = 32;    // positions whose keys and values are read together, so that they stay in the cache
constexpr int64_t QUERIES = 12;  // tokens whose attention is computed together

// A head of a token, and the softmax of its positions so far.
struct Row {
    const float* query;
    float *out, *weights;
    int64_t head, position;
    int64_t first, n;  // positions attended to: first .. n - 1
    float top, total;
};

// The attention of some tokens, block by block with the softmax of the positions so far (Milakov & Gimelshein 2018). The
// rows that share a key head are computed together, as in a matrix multiplication. The order of each sum does not depend
// on the number of rows. For this, the products of single numbers are rounded as those of vectors are (std::fma).
template <class Number>
class Attention {
    static constexpr bool UNPACKED = std::is_same_v<Number, Byte>;  // converted to floats, a block of positions at a time
    using Read = std::conditional_t<UNPACKED, float, Number>;

   public:
    // `rows` and `room` are memory that is used again.
    Attention(
        const Heads& heads, const Places<Number>& at, int64_t tokens, std::vector<Row>& rows, std::vector<float>& room
    ) : heads_(heads), at_(at), group_(heads.n / heads.n_kv), per_head_(tokens * group_) {
        if (static_cast<int64_t>(rows.size()) < tokens * heads.n) rows.resize(tokens * heads.n);
        const int64_t weights = tokens * heads.n * BLOCK, unpacked = UNPACKED ? BLOCK * groups(heads.memory()) * GROUP : 0;
        if (static_cast<int64_t>(room.size()) < weights + unpacked) room.resize(weights + unpacked);
        rows_ = rows.data(), weights_ = room.data(), unpacked_ = room.data() + weights;
    }

    // Sets token `number`, which attends to the first `n` positions, or to those in its window. Tokens are in order.
    void set(int64_t number, const float* query, int64_t position, int64_t n, float* out) {
        int64_t first = 0;
        if (heads_.window > 0) first = std::max<int64_t>(0, position - heads_.window + 1), n = std::min(n, position + heads_.window);
        std::fill(out, out + heads_.mixed(), 0.0f);
        for (int64_t head = 0; head < heads_.n; head++) {
            const int64_t i = head / group_ * per_head_ + number * group_ + head % group_;
            rows_[i] = {query + head * heads_.width,
                        out + head * heads_.value_width,
                        weights_ + i * BLOCK,
                        head,
                        position,
                        first,
                        n,
                        -std::numeric_limits<float>::infinity(),
                        0.0f};
        }
    }

    void run() {
        const int64_t until = rows_[per_head_ - 1].n;
        for (first_ = rows_[0].first / BLOCK * BLOCK; first_ < until; first_ += BLOCK) {
            last_ = std::min(first_ + BLOCK, until);
            for (int64_t t = 0; t < BLOCK; t++) places_[t] = first_ + t < last_ ? place(first_ + t) : places_[t - 1];
            int64_t from = 0, to = per_head_;  // the rows of each head that attend to a position of this block
            while (rows_[from].n <= first_) from++;
            while (rows_[to - 1].first >= last_) to--;
            for (int64_t t = first_; t < last_; t += LANES) {  // heads within positions: in the order of the memory
                for (int64_t soon = t + LANES; !UNPACKED && soon < std::min(t + 2 * LANES, at_.n); soon++)
                    fetch(at_(soon), heads_.memory());
                for (int64_t head = 0; head < heads_.n_kv; head++)
                    scores(rows_ + head * per_head_ + from, rows_ + head * per_head_ + to, t - first_, head);
            }
            for (int64_t head = 0; head < heads_.n_kv; head++)
                for (int64_t i = from; i < to; i++) softmax(rows_[head * per_head_ + i]);
            if (per_head_ == 1)  // one row for each key head: several heads together
                mix<TILE, WIDE, false>(rows_, rows_ + heads_.n, 0);
            else
                for (int64_t head = 0; head < heads_.n_kv; head++)
                    mix<ROWS, TILE, true>(rows_ + head * per_head_ + from, rows_ + head * per_head_ + to, head);
        }
        for (int64_t i = 0; i < heads_.n_kv * per_head_; i++) end(rows_[i]);
    }

   private:
    const Read* place(int64_t position) {
        if constexpr (UNPACKED) {
            float* to = unpacked_ + (position - first_) * groups(heads_.memory()) * GROUP;
            unpack(at_(position), to, heads_.memory());
            return to;
        } else {
            return at_(position);
        }
    }

    // The scores of the rows of a key head at LANES positions from `t` on.
    void scores(const Row* row, const Row* end, int64_t t, int64_t head) {
        const int64_t key = head * heads_.width;
        for (; row + 3 <= end; row += 3) dots<3>(row, t, key);
        if (end - row == 2) dots<2>(row, t, key);
        if (end - row == 1) dots<1>(row, t, key);
    }

    // The scores of R rows at LANES positions from `t` on.
    template <int R>
    void dots(const Row* rows, int64_t t, int64_t key) {
        constexpr int64_t together = R == 1 ? 8 : 4;  // positions, so that the sums fit into the registers
        const int64_t whole = heads_.width / LANES * LANES;
        const float scale = static_cast<float>(heads_.scale);
        Floats totals[R][LANES];
        for (int64_t from = 0; from < LANES; from += together) {
            Floats some[R][together] = {};
            for (int64_t i = 0; i < whole; i += LANES) {
                Floats query[R];
                for (int r = 0; r < R; r++) query[r] = load(rows[r].query + i);
#pragma GCC unroll 8
                for (int64_t j = 0; j < together; j++) {
                    const Floats numbers = load(places_[t + from + j] + key + i);
#pragma GCC unroll 3
                    for (int r = 0; r < R; r++) some[r][j] = multiply_add(query[r], numbers, some[r][j]);
                }
            }
            for (int r = 0; r < R; r++)
                for (int64_t j = 0; j < together; j++) totals[r][from + j] = some[r][j];
        }
        for (int r = 0; r < R; r++) {
            Floats out = sums(totals[r]);
            for (int64_t i = whole; i < heads_.width; i++)
                for (int64_t j = 0; j < LANES; j++) out[j] = std::fma(rows[r].query[i], places_[t + j][key + i], out[j]);
            store(rows[r].weights + t, scale * out);
        }
    }

    // Turns the scores of a block into powers relative to the largest score so far.
    void softmax(Row& row) {
        const int64_t n = count(row), padded = (n + LANES - 1) / LANES * LANES;
        if (heads_.softcap > 0.0) {
            const float cap = static_cast<float>(heads_.softcap);
            for (int64_t t = 0; t < padded; t += LANES)
                store(row.weights + t, cap * hyperbolic_tangent(load(row.weights + t) / cap));
        }
        if (heads_.biases != nullptr) {
            const float* bias = heads_.biases + row.head * (2 * heads_.span + 1) + heads_.span + first_ - row.position;
            for (int64_t t = 0; t < n; t++) row.weights[t] += bias[t];
        }
        if (heads_.betas != nullptr)
            for (int64_t t = 0; t < n; t++) row.weights[t] *= heads_.betas[row.head];
        std::fill(row.weights + n, row.weights + padded, -std::numeric_limits<float>::infinity());
        if (row.first > first_)
            std::fill(row.weights, row.weights + row.first - first_, -std::numeric_limits<float>::infinity());
        const float top = std::max(row.top, largest(row.weights, padded));
        if (top != row.top) {  // what was summed before is smaller, relative to the new largest score
            const float share = std::exp(row.top - top);
            row.top = top, row.total *= share;
            for (int64_t i = 0; i < heads_.value_width; i++) row.out[i] *= share;
        }
        row.total += powers(row.weights, padded, top);
    }

    // Adds the weighted values of a block. SHARED: the rows share a head of the values. Otherwise, each row has its own.
    template <int R, int V, bool SHARED>
    void mix(Row* row, Row* end, int64_t head) {
        for (; row + R <= end; row += R, head += SHARED ? 0 : R) mix_rows<R, V, SHARED>(row, 0, head);
        if constexpr (R > 1)
            if (row < end) mix<R / 2, std::min<int>(2 * V, WIDE), SHARED>(row, end, head);
    }

    // Adds the values from position `first` of the block on.
    template <int R, int V, bool SHARED>
    void mix_rows(Row* rows, int64_t first, int64_t head) {
        const int64_t last = count(rows[0]), value = heads_.keys() + head * heads_.value_width;
        int64_t i = mix_while<R, V, SHARED>(rows, first, last, value, 0);
        i = mix_while<R, 1, SHARED>(rows, first, last, value, i);
        for (; i < heads_.value_width; i++)
            for (int r = 0; r < R; r++)
                for (int64_t t = first; t < last; t++) {
                    const Read* values = places_[t] + value + (SHARED ? 0 : r * heads_.value_width);
                    rows[r].out[i] = std::fma(rows[r].weights[t], values[i], rows[r].out[i]);
                }
        if constexpr (R > 1)  // later tokens attend to more positions
            for (int r = 1; r < R; r++)
                if (count(rows[r]) > last) mix_rows<1, WIDE, SHARED>(rows + r, last, head);
    }

    template <int R, int V, bool SHARED>
    int64_t mix_while(Row* rows, int64_t first, int64_t last, int64_t value, int64_t i) {
        for (; i + V * LANES <= heads_.value_width; i += V * LANES) {
            Floats sums[R][V];
            for (int r = 0; r < R; r++)
                for (int j = 0; j < V; j++) sums[r][j] = load(rows[r].out + i + j * LANES);
            const float* weights = rows[0].weights;
            for (int64_t t = first; t < last; t++) {
                const Read* values = places_[t] + value + i;
                Floats shared[V];
                for (int j = 0; j < V; j++) shared[j] = load(values + j * LANES);
#pragma GCC unroll 6
                for (int r = 0; r < R; r++) {
                    const Floats weight = all(weights[r * BLOCK + t]);
#pragma GCC unroll 4
                    for (int j = 0; j < V; j++) {
                        const Floats value = SHARED ? shared[j] : load(values + r * heads_.value_width + j * LANES);
                        sums[r][j] = multiply_add(weight, value, sums[r][j]);
                    }
                }
            }
            for (int r = 0; r < R; r++)
                for (int j = 0; j < V; j++) store(rows[r].out + i + j * LANES, sums[r][j]);
        }
        return i;
    }

    // Divides by the sums. A query without keys has zeros.
    void end(const Row& row) {
        const float share = row.n == 0 ? 0.0f : (heads_.gains == nullptr ? 1.0f : heads_.gains[row.head]) / row.total;
        for (int64_t i = 0; i < heads_.value_width; i++) {
            row.out[i] *= share;
            if (heads_.means != nullptr) row.out[i] += heads_.means[row.head * heads_.value_width + i];
        }
    }

    // Prefetches numbers that are read soon.
    static void fetch(const Number* from, int64_t n) {
        for (int64_t i = 0; i < n; i += 64 / sizeof(Number)) __builtin_prefetch(from + i, 0, 2);
    }

    // The positions of the block that a row attends to.
    int64_t count(const Row& row) const { return std::min(row.n, last_) - first_; }

    const Heads& heads_;
    const Places<Number>& at_;
    const int64_t group_, per_head_;  // query heads of each key head, and rows of each key head
    int64_t first_ = 0, last_ = 0;    // the positions of a block
    const Read* places_[BLOCK];
    Row* rows_;
    float *weights_, *unpacked_;
};
