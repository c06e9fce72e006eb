// x Wᵀ + b for few and for many rows of x. W has 32 or 16 bits (floats), or 8 or 4 bits (integers).
//
// W is stored in panels of PANEL outputs and is therefore read sequentially. The inputs of an output are summed one
// after the other, in an order that is equal for every number of rows. A row's result thus never depends on other rows.
#pragma once

#include <algorithm>
#include <type_traits>

#include "team.h"
#include "vectors.h"

struct Matrix {
    int64_t n_in, n_out;  // n_out 0: no matrix; n_in 0: the output is the bias
    int64_t bits;         // 32, 16 (bfloat16), 8 or 4
    const void* weight;   // in panels
    const float* scale;   // 8 bits: scale of each output
    const float* bias;    // or null
};

constexpr int64_t MANY = 2 * ROWS;    // with more rows, bfloat16 is converted to floats first
constexpr int64_t CHUNK = 16 * ROWS;  // rows whose inputs remain in the cache while all panels are read
constexpr int64_t GROUP = 32;         // inputs with a common scale, in x and in W of 4 bits
constexpr int64_t DEPTH = 128;        // inputs of a part of a panel, which remains in the L1 cache

inline int64_t panels(int64_t n_out) { return (n_out + PANEL - 1) / PANEL; }
inline int64_t groups(int64_t n_in) { return (n_in + GROUP - 1) / GROUP; }

// The bytes of a panel. In 4 bits, the scales of each group follow its numbers, in bfloat16.
inline int64_t panel_bytes(int64_t n_in, int64_t bits) {
    if (bits >= 16) return n_in * PANEL * bits / 8;
    return groups(n_in) * (GROUP * PANEL * bits / 8 + (bits == 4 ? 2 * PANEL : 0));
}

// Rows in 8 bits: numbers from -127 to 127, and the scale of each group and the sum of its numbers.
struct Quantized {
    int8_t* numbers;  // [rows][groups][GROUP]
    float* scale;     // [rows][groups]
    int32_t* sums;    // [rows][groups]

    Quantized row(int64_t i, int64_t n_in) const {
        const int64_t n = i * groups(n_in);
        return {numbers + n * GROUP, scale + n, sums + n};
    }
};

inline float largest_size(const float* x, int64_t n) {
    Floats most{};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const Floats v = load(x + i);
        most = larger(most, larger(v, -v));
    }
    float size = largest(most);
    for (; i < n; i++) size = std::max(size, std::fabs(x[i]));
    return size;
}

inline void quantize(const float* x, int64_t n, const Quantized& to) {
    const Floats magic = all(12582912.0f);  // adding it rounds to an integer
    for (int64_t group = 0; group < groups(n); group++) {
        float some[GROUP] = {};
        std::memcpy(some, x + group * GROUP, sizeof(float) * std::min(GROUP, n - group * GROUP));
        const float scale = std::max(largest_size(some, GROUP), 1e-18f) / 127.0f;
        Ints total{};
        for (int64_t i = 0; i < GROUP; i += LANES) {
            const Ints rounded = __builtin_convertvector((load(some + i) / all(scale) + magic) - magic, Ints);
            typedef int8_t Bytes __attribute__((vector_size(LANES)));
            const Bytes bytes = __builtin_convertvector(rounded, Bytes);
            std::memcpy(to.numbers + group * GROUP + i, &bytes, LANES);
            total += rounded;
        }
        to.scale[group] = scale;
        to.sums[group] = 0;
        for (int64_t i = 0; i < LANES; i++) to.sums[group] += total[i];
    }
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

// The sums of a group of 8-bit or 4-bit weights. The weights of 4 bits are so small that 16 bits hold the sums, two per
// lane.
template <int64_t BITS>
struct Sums {
    static constexpr int32_t offset = 128;  // of the unsigned weights
    Ints lanes;
    void add(Ints weights, Ints x) { lanes = dot4(lanes, weights, x); }
    Ints whole() const { return lanes; }
};

template <>
struct Sums<4> {
    static constexpr int32_t offset = 8;
    Ints lanes;
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
    void add(Ints weights, Ints x) {
        lanes = (Ints)_mm256_add_epi16((__m256i)lanes, _mm256_maddubs_epi16((__m256i)weights, (__m256i)x));
    }
    Ints whole() const { return (Ints)_mm256_madd_epi16((__m256i)lanes, _mm256_set1_epi16(1)); }
#else
    void add(Ints weights, Ints x) { lanes = dot4(lanes, weights, x); }
    Ints whole() const { return lanes; }
#endif
};

// Adds R rows times n inputs of a panel of floats or of bfloat16. The rows have a distance of `stride`.
template <int R, class Number>
inline void multiply(const float* x, int64_t stride, int64_t n, const Number* panel, Floats (&total)[R][WIDE]) {
    for (int64_t k = 0; k < n; k++, panel += PANEL) {
        Floats weights[WIDE];
        if (R > 1 && R < ROWS)  // enough work to hide the latency, and no later rows that reuse the panel
            for (int j = 0; j < WIDE; j++) __builtin_prefetch(panel + 48 * PANEL + j * LANES, 0, 3);
        load_panel(panel, weights);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const Floats input = all(x[r * stride + k]);
#pragma GCC unroll 4
            for (int j = 0; j < WIDE; j++) total[r][j] += input * weights[j];
        }
    }
}

// Adds R rows times one panel of integers, in exact sums within a group.
template <int R, int64_t BITS>
inline void multiply(const Quantized (&x)[R], int64_t n_in, const uint8_t* panel, Floats (&total)[R][WIDE]) {
    constexpr int64_t parts = 8 / BITS;  // numbers per byte
    for (int64_t group = 0; group < groups(n_in); group++) {
        Sums<BITS> sums[R][WIDE] = {};
        for (int64_t at = 0; at < GROUP / 4; at += parts, panel += 4 * PANEL) {
            Ints input[R][parts];
            for (int r = 0; r < R; r++)
                for (int64_t part = 0; part < parts; part++) {
                    int32_t four;
                    std::memcpy(&four, x[r].numbers + group * GROUP + 4 * (at + part), 4);
                    input[r][part] = Ints{} + four;
                }
#pragma GCC unroll 4
            for (int64_t j = 0; j < WIDE; j++) {
                Ints weights;
                std::memcpy(&weights, panel + j * sizeof(Ints), sizeof(Ints));
                if (BITS == 8) {
#pragma GCC unroll 6
                    for (int r = 0; r < R; r++) sums[r][j].add(weights, input[r][0]);
                } else {
                    const Ints low = weights & 0x0f0f0f0f, high = (weights >> 4) & 0x0f0f0f0f;
#pragma GCC unroll 6
                    for (int r = 0; r < R; r++) sums[r][j].add(low, input[r][0]), sums[r][j].add(high, input[r][parts - 1]);
                }
            }
        }
#pragma GCC unroll 4
        for (int64_t j = 0; j < WIDE; j++)
#pragma GCC unroll 6
            for (int r = 0; r < R; r++) {
                const Ints whole = sums[r][j].whole() - Sums<BITS>::offset * x[r].sums[group];
                Floats scale = all(x[r].scale[group]);
                if (BITS == 4) scale *= load(reinterpret_cast<const Bfloat*>(panel) + j * LANES);
                total[r][j] += __builtin_convertvector(whole, Floats) * scale;
            }
        if (BITS == 4) panel += 2 * PANEL;
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

inline const uint8_t* panel_of(const Matrix& w, int64_t column) {
    return static_cast<const uint8_t*>(w.weight) + column / PANEL * panel_bytes(w.n_in, w.bits);
}

template <int R>
inline void finish(const Matrix& w, const Target& to, int64_t row, int64_t column, Floats (&total)[R][WIDE]) {
    for (int r = 0; r < R; r++) {
        for (int64_t j = 0; j < WIDE && w.bits == 8; j++) total[r][j] *= load(w.scale + column + j * LANES);
        finish(w, to, row + r, column, total[r]);
    }
}

template <int R>
inline void block(const Matrix& w, const float* x, int64_t row, int64_t column, const Target& to) {
    Floats total[R][WIDE] = {};
    const uint8_t* panel = panel_of(w, column);
    if (w.bits == 16)
        multiply<R>(x + row * w.n_in, w.n_in, w.n_in, reinterpret_cast<const Bfloat*>(panel), total);
    else
        multiply<R>(x + row * w.n_in, w.n_in, w.n_in, reinterpret_cast<const float*>(panel), total);
    finish<R>(w, to, row, column, total);
}

template <int R>
inline void block(const Matrix& w, const Quantized& x, int64_t row, int64_t column, const Target& to) {
    Floats total[R][WIDE] = {};
    Quantized rows[R];
    for (int r = 0; r < R; r++) rows[r] = x.row(row + r, w.n_in);
    if (w.bits == 4)
        multiply<R, 4>(rows, w.n_in, panel_of(w, column), total);
    else
        multiply<R, 8>(rows, w.n_in, panel_of(w, column), total);
    finish<R>(w, to, row, column, total);
}

// Prefetches part `part` of `parts` of the panel at `column` during the work on the panel before it.
inline void fetch_ahead(const Matrix& w, int64_t column, int64_t part, int64_t parts) {
    const int64_t bytes = panel_bytes(w.n_in, w.bits);
    const uint8_t* panel = panel_of(w, column);
    for (int64_t at = bytes * part / parts / 64 * 64; at < bytes * (part + 1) / parts; at += 64)
        __builtin_prefetch(panel + at, 0, 2);
}

// R rows times n inputs of a panel, of which `from` is the first. `totals` has the sums of the inputs before.
template <int R>
inline void block(
    const Matrix& w, const float* x, int64_t row, int64_t column, int64_t from, int64_t n, const float* panel,
    float (*totals)[PANEL], const Target& to
) {
    Floats total[R][WIDE] = {};
    for (int r = 0; r < R && from > 0; r++)
        for (int64_t j = 0; j < WIDE; j++) total[r][j] = load(totals[r] + j * LANES);
    multiply<R>(x + row * w.n_in + from, w.n_in, n, panel, total);
    if (from + n == w.n_in) {
        finish<R>(w, to, row, column, total);
        return;
    }
    for (int r = 0; r < R; r++)
        for (int64_t j = 0; j < WIDE; j++) store(totals[r] + j * LANES, total[r][j]);
}

// Many rows times a panel of bfloat16, whose parts are converted to floats once. The sums are those of rows_of_panel,
// bit for bit.
inline void many_rows(const Matrix& w, const float* x, int64_t first, int64_t last, int64_t column, const Target& to) {
    float part[DEPTH * PANEL], totals[CHUNK][PANEL];
    const Bfloat* panel = reinterpret_cast<const Bfloat*>(panel_of(w, column));
    for (int64_t from = 0; from < w.n_in; from += DEPTH) {
        const int64_t n = std::min(DEPTH, w.n_in - from);
        for (int64_t k = 0; k < n; k++) {
            Floats weights[WIDE];
            load_panel(panel + (from + k) * PANEL, weights);
            for (int64_t j = 0; j < WIDE; j++) store(part + k * PANEL + j * LANES, weights[j]);
        }
        int64_t row = first;
        for (; row + ROWS <= last; row += ROWS)
            block<ROWS>(w, x, row, column, from, n, part, totals + (row - first), to);
        for (; row < last; row++) block<1>(w, x, row, column, from, n, part, totals + (row - first), to);
    }
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
        for (int64_t panel = first; panel < last; panel++) {
            const int64_t end = std::min(rows, chunk + CHUNK);
            if constexpr (!std::is_same_v<Input, Quantized>) {
                if (w.bits == 16 && end - chunk > MANY) {
                    many_rows(w, x, chunk, end, panel * PANEL, to);
                    continue;
                }
            }
            rows_of_panel(w, x, chunk, end, panel * PANEL, to, panel + 1 < last);
        }
}
