// x Wᵀ + b for few and for many rows of x, in 32 bits and in 8 bits.
//
// W is stored in panels of PANEL outputs and is therefore read sequentially. The inputs of an output are summed one
// after the other, in an order that is equal for every number of rows. A row's result thus never depends on other rows.
#pragma once

#include "team.h"
#include "vectors.h"

struct Matrix {
    int64_t n_in, n_out;  // n_out 0: no matrix; n_in 0: the output is the bias
    int64_t bits;         // 32 or 8
    const void* weight;   // in panels
    const float* scale;   // 8 bits: scale of each output
    const int32_t* sums;  // 8 bits: 128 times the sum of each output's weights
    const float* bias;    // or null
};

constexpr int64_t CHUNK = 16 * ROWS;  // rows whose inputs remain in the cache while all panels are read

inline int64_t panels(int64_t n_out) { return (n_out + PANEL - 1) / PANEL; }
inline int64_t quads(int64_t n_in) { return (n_in + 3) / 4; }

// Rows in 8 bits: numbers from -127 to 127 with an offset of 128, and the scale of each row.
struct Quantized {
    uint8_t* numbers;  // [rows][4 quads]
    float* scale;      // [rows]
};

inline void quantize(const float* x, int64_t n, uint8_t* numbers, float& scale) {
    Floats most{};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const Floats v = load(x + i);
        most = larger(most, larger(v, -v));
    }
    float size = largest(most);
    for (; i < n; i++) size = std::max(size, std::fabs(x[i]));
    scale = std::max(size, 1e-18f) / 127.0f;
    const Floats magic = all(12582912.0f), step = all(scale);
    for (i = 0; i < n; i += LANES) {
        float rest[LANES] = {};
        const float* from = x + i;
        const int64_t left = std::min(LANES, n - i);
        if (left < LANES) from = static_cast<float*>(std::memcpy(rest, from, sizeof(float) * left));
        const Ints rounded = __builtin_convertvector((load(from) / step + magic) - magic, Ints) + 128;
        typedef uint8_t Bytes __attribute__((vector_size(LANES)));
        const Bytes bytes = __builtin_convertvector(rounded, Bytes);
        std::memcpy(numbers + i, &bytes, left);
    }
    for (i = n; i < 4 * quads(n); i++) numbers[i] = 128;
}

// total plus, in each lane, the sum of the four products of the unsigned bytes a and the signed bytes b.
inline Ints dot4(Ints total, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)total, (__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)total, (__m256i)a, (__m256i)b);
#else
    typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));
    const Ints even = a & 0x00ff00ff, odd = (Ints)((a >> 8) & 0x00ff00ff);  // bytes 0, 2 and 1, 3 as 16 bits
    const Shorts b_even = (Shorts)((Shorts)b << 8) >> 8, b_odd = (Shorts)b >> 8;
#if defined(__AVX512BW__)
    return total + (Ints)_mm512_madd_epi16((__m512i)even, (__m512i)b_even) +
           (Ints)_mm512_madd_epi16((__m512i)odd, (__m512i)b_odd);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return total + (Ints)_mm256_madd_epi16((__m256i)even, (__m256i)b_even) +
           (Ints)_mm256_madd_epi16((__m256i)odd, (__m256i)b_odd);
#else
    int16_t x[2][2 * LANES], y[2][2 * LANES];
    std::memcpy(x[0], &even, sizeof even), std::memcpy(x[1], &odd, sizeof odd);
    std::memcpy(y[0], &b_even, sizeof b_even), std::memcpy(y[1], &b_odd, sizeof b_odd);
    for (int64_t i = 0; i < LANES; i++)
        for (int64_t half = 0; half < 2; half++)
            total[i] += x[half][2 * i] * y[half][2 * i] + x[half][2 * i + 1] * y[half][2 * i + 1];
    return total;
#endif
#endif
}

// R rows times one panel, in floats.
template <int R>
inline void multiply(const float* x, int64_t n_in, const float* panel, Floats (&total)[R][WIDE]) {
    for (auto& row : total)
        for (auto& lanes : row) lanes = Floats{};
    for (int64_t k = 0; k < n_in; k++, panel += PANEL) {
        Floats weights[WIDE];
        if (R > 1 && R < ROWS)  // enough work to hide the latency, and no later rows that reuse the panel
            for (int j = 0; j < WIDE; j++) __builtin_prefetch(panel + 48 * PANEL + j * LANES, 0, 3);
#pragma GCC unroll 4
        for (int j = 0; j < WIDE; j++) weights[j] = load(panel + j * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const Floats input = all(x[r * n_in + k]);
#pragma GCC unroll 4
            for (int j = 0; j < WIDE; j++) total[r][j] += input * weights[j];
        }
    }
}

// R rows times one panel, in exact integer sums.
template <int R>
inline void multiply(const uint8_t* x, int64_t n_quads, const int8_t* panel, Ints (&total)[R][WIDE]) {
    for (auto& row : total)
        for (auto& lanes : row) lanes = Ints{};
    for (int64_t k = 0; k < n_quads; k++, panel += 4 * PANEL) {
        Ints weights[WIDE];
#pragma GCC unroll 4
        for (int j = 0; j < WIDE; j++) std::memcpy(&weights[j], panel + j * sizeof(Ints), sizeof(Ints));
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            int32_t four;
            std::memcpy(&four, x + 4 * (r * n_quads + k), 4);
            const Ints input = Ints{} + four;
#pragma GCC unroll 4
            for (int j = 0; j < WIDE; j++) total[r][j] = dot4(total[r][j], input, weights[j]);
        }
    }
}

// The destination of the sums, and the numbers that are added to them.
struct Target {
    float* out;
    int64_t stride;
    const float* add;  // has the same stride; or null
};

inline void finish(const Matrix& w, const Target& to, int64_t row, int64_t column, const Floats (&sums)[WIDE]) {
    float* out = to.out + row * to.stride + column;
    const float* add = to.add == nullptr ? nullptr : to.add + row * to.stride + column;
    const float* bias = w.bias == nullptr ? nullptr : w.bias + column;
    for (int64_t j = 0, at = 0; j < WIDE && column + at < w.n_out; j++, at += LANES) {
        Floats value = sums[j];
        if (column + at + LANES <= w.n_out) {
            if (bias != nullptr) value += load(bias + at);
            if (add != nullptr) value += load(add + at);
            store(out + at, value);
            continue;
        }
        float lanes[LANES];
        store(lanes, value);
        for (int64_t i = 0; column + at + i < w.n_out; i++) {
            float one = lanes[i];
            if (bias != nullptr) one += bias[at + i];
            if (add != nullptr) one += add[at + i];
            out[at + i] = one;
        }
    }
}

template <int R>
inline void block(const Matrix& w, const float* x, int64_t row, int64_t column, const Target& to) {
    Floats total[R][WIDE];
    const float* panel = static_cast<const float*>(w.weight) + column * w.n_in;
    multiply<R>(x + row * w.n_in, w.n_in, panel, total);
    for (int r = 0; r < R; r++) finish(w, to, row + r, column, total[r]);
}

template <int R>
inline void block(const Matrix& w, const Quantized& x, int64_t row, int64_t column, const Target& to) {
    Ints total[R][WIDE];
    const int64_t n_quads = quads(w.n_in);
    const int8_t* panel = static_cast<const int8_t*>(w.weight) + column * 4 * n_quads;
    multiply<R>(x.numbers + row * 4 * n_quads, n_quads, panel, total);
    for (int r = 0; r < R; r++) {
        Floats scaled[WIDE];
        for (int64_t j = 0; j < WIDE; j++) {
            Ints offset;
            std::memcpy(&offset, w.sums + column + j * LANES, sizeof offset);
            const Floats whole = __builtin_convertvector(total[r][j] - offset, Floats);
            scaled[j] = whole * load(w.scale + column + j * LANES) * x.scale[row + r];
        }
        finish(w, to, row + r, column, scaled);
    }
}

// Prefetches part `part` of `parts` of the panel at `column` during the work on the panel before it.
inline void fetch_ahead(const Matrix& w, int64_t column, int64_t part, int64_t parts) {
    const int64_t bytes = w.bits == 8 ? 4 * quads(w.n_in) * PANEL : 4 * w.n_in * PANEL;
    const char* panel = static_cast<const char*>(w.weight) + column / PANEL * bytes;
    for (int64_t at = bytes * part / parts / 64 * 64; at < bytes * (part + 1) / parts; at += 64)
        __builtin_prefetch(panel + at, 0, 2);
}

template <class Input>
inline void rows_of_panel(
    const Matrix& w, const Input& x, int64_t first, int64_t last, int64_t column, const Target& to, bool more
) {
    int64_t row = first;
    const int64_t parts = (last - first) / ROWS;
    for (; row + ROWS <= last; row += ROWS) {
        if (more && parts > 1) fetch_ahead(w, column + PANEL, (row - first) / ROWS, parts);
        block<ROWS>(w, x, row, column, to);
    }
    switch (last - row) {
        case 5: block<5>(w, x, row, column, to); break;
        case 4: block<4>(w, x, row, column, to); break;
        case 3: block<3>(w, x, row, column, to); break;
        case 2: block<2>(w, x, row, column, to); break;
        case 1: block<1>(w, x, row, column, to); break;
    }
}

// A member's share of x Wᵀ + b: a range of panels for all rows.
template <class Input>
inline void product(const Member& member, const Matrix& w, const Input& x, int64_t rows, const Target& to) {
    int64_t first, last;
    member.share(panels(w.n_out), first, last);
    for (int64_t chunk = 0; chunk < rows; chunk += CHUNK)
        for (int64_t panel = first; panel < last; panel++)
            rows_of_panel(w, x, chunk, std::min(rows, chunk + CHUNK), panel * PANEL, to, panel + 1 < last);
}
