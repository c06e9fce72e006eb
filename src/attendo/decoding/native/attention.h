// softmax(q Kᵀ · scale + bias) V of one query over keys and values at a list of places, and normalization layers.
#pragma once

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
    const float* slopes;  // ALiBi: slope of each head, or null
    const float* turns;   // rotary positions: [positions][width / 2][cos, sin], or null
    const float* betas;   // factor of each head's scores, including the bias, or null for 1
    const float* gains;   // factor of each head's output, or null for 1
    const float* means;   // added to each head's output: [n][value_width], or null

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

// The places of the keys and values that a query attends to. Without `slots`, the positions follow each other from
// `base` on. With `slots`, position p is in slot `slots[p]`, because the rows of a beam share their common past.
struct Places {
    const float* base;
    int64_t stride;  // distance between positions, in numbers
    int64_t n;       // positions attended to: 0 .. n - 1
    const int32_t* slots;
    int64_t capacity;

    const float* operator()(int64_t position) const {
        return base + stride * (slots == nullptr ? position : slots[position] * capacity + position);
    }
};

// Computes e^(x - max x) in place, and returns 1 / the sum. Entries of -inf become 0. n is a multiple of LANES.
inline float softmax(float* x, int64_t n) {
    Floats most = all(-std::numeric_limits<float>::infinity()), total{};
    for (int64_t i = 0; i < n; i += LANES) most = larger(most, load(x + i));
    const float top = largest(most);
    for (int64_t i = 0; i < n; i += LANES) {
        const Floats power = exponential(load(x + i) - top);
        store(x + i, power);
        total += power;
    }
    return 1.0f / sum(total);
}

// At most 16 vectors of the weighted sums of values: VECTORS vectors of each head from `first` to `last` - 1, beginning
// at number `from` of the head. All heads of a position are read together, because they are adjacent in memory.
template <int VECTORS>
inline void mix_vectors(
    const Heads& heads, const float* weights, int64_t stride, const float* shares, const Places& at, int64_t first,
    int64_t last, int64_t from, float* out
) {
    Floats sums[16 / VECTORS][VECTORS] = {};
    const int64_t group = heads.n / heads.n_kv;
    for (int64_t t = 0; t < at.n; t++) {
        const float* values = at(t) + heads.keys() + from;
        for (int64_t head = first; head < last; head++) {
            const float* value = values + head / group * heads.value_width;
            for (int j = 0; j < VECTORS; j++)
                sums[head - first][j] += weights[head * stride + t] * load(value + j * LANES);
        }
    }
    for (int64_t head = first; head < last; head++)
        for (int j = 0; j < VECTORS; j++)
            store(out + head * heads.value_width + from + j * LANES, sums[head - first][j] * shares[head]);
}

template <int VECTORS>
inline int64_t mix_while(
    const Heads& heads, const float* weights, int64_t stride, const float* shares, const Places& at, int64_t from,
    float* out
) {
    constexpr int64_t together = 16 / VECTORS;
    for (; from + VECTORS * LANES <= heads.value_width; from += VECTORS * LANES) {
        int64_t head = 0;
        for (; head + together <= heads.n; head += together)
            mix_vectors<VECTORS>(heads, weights, stride, shares, at, head, head + together, from, out);
        if (head < heads.n) mix_vectors<VECTORS>(heads, weights, stride, shares, at, head, heads.n, from, out);
    }
    return from;
}

// The output of each head: the sum of the values times their weights, multiplied by the head's share.
inline void mix(
    const Heads& heads, const float* weights, int64_t stride, const float* shares, const Places& at, float* out
) {
    int64_t from = mix_while<4>(heads, weights, stride, shares, at, 0, out);
    from = mix_while<1>(heads, weights, stride, shares, at, from, out);
    for (int64_t head = 0; head < heads.n && from < heads.value_width; head++) {
        const int64_t value = heads.keys() + head / (heads.n / heads.n_kv) * heads.value_width;
        for (int64_t i = from; i < heads.value_width; i++) {
            float total = 0.0f;
            for (int64_t t = 0; t < at.n; t++) total += weights[head * stride + t] * at(t)[value + i];
            out[head * heads.value_width + i] = total * shares[head];
        }
    }
}

// Prefetches numbers that are read soon.
inline void fetch(const float* from, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(from + i, 0, 2);
}

// The attention of one query, for all heads. `room` is memory for the weights.
inline void attend(
    const Heads& heads, const float* query, int64_t position, const Places& at, float* out, std::vector<float>& room
) {
    const int64_t group = heads.n / heads.n_kv, stride = (at.n + LANES - 1) / LANES * LANES;
    const auto add_means = [&] {
        for (int64_t i = 0; heads.means != nullptr && i < heads.mixed(); i++) out[i] += heads.means[i];
    };
    if (at.n == 0) {  // a query without keys returns zeros
        std::memset(out, 0, sizeof(float) * heads.mixed());
        add_means();
        return;
    }
    if (static_cast<int64_t>(room.size()) < heads.n * (stride + 1)) room.resize(heads.n * (stride + 1));
    float *weights = room.data(), *shares = weights + heads.n * stride;
    const float scale = static_cast<float>(heads.scale);
    for (int64_t t = 0; t < at.n; t++) {
        const float* keys = at(t);
        if (t + 4 < at.n) fetch(at(t + 4), heads.memory());
        for (int64_t head = 0; head < heads.n; head++)
            weights[head * stride + t] =
                scale * dot(query + head * heads.width, keys + head / group * heads.width, heads.width);
    }
    for (int64_t head = 0; head < heads.n; head++) {
        float* row = weights + head * stride;
        if (heads.slopes != nullptr)
            for (int64_t t = 0; t < at.n; t++)
                row[t] -= heads.slopes[head] * std::fabs(static_cast<float>(position - t));
        if (heads.betas != nullptr)
            for (int64_t t = 0; t < at.n; t++) row[t] *= heads.betas[head];
        for (int64_t t = at.n; t < stride; t++) row[t] = -std::numeric_limits<float>::infinity();
        shares[head] = softmax(row, stride);
        if (heads.gains != nullptr) shares[head] *= heads.gains[head];
    }
    mix(heads, weights, stride, shares, at, out);
    add_means();
}
