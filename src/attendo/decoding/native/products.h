// x Wᵀ + b for few and for many rows of x. W has 32 or 16 bits (floats), or 8 or 4 bits (integers).
//
// W is stored in panels of PANEL outputs and is therefore read sequentially. The inputs of an output are summed one
// after the other, in an order that is equal for every number of rows. A row's result thus never depends on other rows.
#pragma once

#include <algorithm>

#include "team.h"
#include "vectors.h"

struct Matrix {
    int64_t n_in, n_out;  // n_out 0: no matrix; n_in 0: the output is the bias
    int64_t bits;         // 32, 16 (bfloat16), 8 or 4
    const void* weight;   // in panels
    const float* scale;   // 8 bits: scale of each output
    const float* bias;    // or null
};

constexpr int64_t CHUNK = 16 * ROWS;  // rows whose inputs remain in the cache while all panels are read
constexpr int64_t GROUP = 32;         // inputs with a common scale, in x and in W of 4 bits
constexpr int64_t DEPTH = 128;        // inputs of a part of a panel of floats, which remains in the L1 cache

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
    int16_t* pairs;   // [rows][groups][2][GROUP / 2]: numbers 0 and 2 of every four, then numbers 1 and 3
    float* scale;     // [rows][groups]
    int32_t* sums;    // [rows][groups]

    Quantized row(int64_t i, int64_t n_in) const {
        const int64_t n = i * groups(n_in);
        return {numbers + n * GROUP, pairs + n * GROUP, scale + n, sums + n};
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
        typedef int16_t Pairs __attribute__((vector_size(GROUP)));
        Pairs bytes;
        std::memcpy(&bytes, to.numbers + group * GROUP, GROUP);
        const Pairs even = (Pairs)(bytes << 8) >> 8, odd = bytes >> 8;
        std::memcpy(to.pairs + group * GROUP, &even, GROUP);
        std::memcpy(to.pairs + group * GROUP + GROUP / 2, &odd, GROUP);
        to.scale[group] = scale;
        to.sums[group] = 0;
        for (int64_t i = 0; i < LANES; i++) to.sums[group] += total[i];
    }
}

// In each lane, the same four numbers of a group of a row: bytes, or without an instruction for bytes, pairs of 16 bits.
struct Four {
    Ints bytes, even, odd;

    Four(const Quantized& x, int64_t group, int64_t i)
        : bytes(all(x.numbers + group * GROUP + 4 * i)),
          even(all(x.pairs + group * GROUP + 2 * i)),
          odd(all(x.pairs + group * GROUP + GROUP / 2 + 2 * i)) {}

    static Ints all(const void* from) {
        int32_t four;
        std::memcpy(&four, from, sizeof four);
        return four - Ints{};
    }
};

// total plus, in each lane, the sum of the four products of the unsigned bytes a and the numbers x.
inline Ints dot4(Ints total, Ints a, const Four& x) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)total, (__m512i)a, (__m512i)x.bytes);
#elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)total, (__m256i)a, (__m256i)x.bytes);
#else
    const Ints even = a & 0x00ff00ff, odd = (a >> 8) & 0x00ff00ff;  // bytes 0, 2 and 1, 3 as 16 bits
#if defined(__AVX512BW__)
    return total + (Ints)_mm512_madd_epi16((__m512i)even, (__m512i)x.even) +
           (Ints)_mm512_madd_epi16((__m512i)odd, (__m512i)x.odd);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return total + (Ints)_mm256_madd_epi16((__m256i)even, (__m256i)x.even) +
           (Ints)_mm256_madd_epi16((__m256i)odd, (__m256i)x.odd);
#else
    int16_t w[2][2 * LANES], y[2][2 * LANES];
    std::memcpy(w[0], &even, sizeof even), std::memcpy(w[1], &odd, sizeof odd);
    std::memcpy(y[0], &x.even, sizeof even), std::memcpy(y[1], &x.odd, sizeof odd);
    for (int64_t i = 0; i < LANES; i++)
        for (int64_t half = 0; half < 2; half++)
            total[i] += w[half][2 * i] * y[half][2 * i] + w[half][2 * i + 1] * y[half][2 * i + 1];
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
    void add(Ints weights, const Four& x) { lanes = dot4(lanes, weights, x); }
    Ints whole() const { return lanes; }
};

template <>
struct Sums<4> {
    static constexpr int32_t offset = 8;
    Ints lanes;
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
    void add(Ints weights, const Four& x) {
        lanes = (Ints)_mm256_add_epi16((__m256i)lanes, _mm256_maddubs_epi16((__m256i)weights, (__m256i)x.bytes));
    }
    Ints whole() const { return (Ints)_mm256_madd_epi16((__m256i)lanes, _mm256_set1_epi16(1)); }
#else
    void add(Ints weights, const Four& x) { lanes = dot4(lanes, weights, x); }
    Ints whole() const { return lanes; }
#endif
};

// Adds the products of inputs `first` to `last` - 1 of R rows with V vectors of a panel of floats or of bfloat16, from
// vector `from` on.
template <int R, int V, class Number>
inline void multiply(
    const float* x, int64_t n_in, int64_t first, int64_t last, const Number* panel, int64_t from, Floats (&total)[R][V]
) {
    panel += first * PANEL + from * LANES;
    for (int64_t k = first; k < last; k++, panel += PANEL) {
        Floats weights[V];
        if (R > 1 && R < ROWS)  // enough work to hide the latency, and no later rows that reuse the panel
            for (int j = 0; j < V; j++) __builtin_prefetch(panel + 48 * PANEL + j * LANES, 0, 3);
        load_panel(panel, weights);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const Floats input = all(x[r * n_in + k]);
#pragma GCC unroll 4
            for (int j = 0; j < V; j++) total[r][j] = multiply_add(input, weights[j], total[r][j]);
        }
    }
}

// Adds the products of R rows with V vectors of a panel of integers, in exact sums within a group.
template <int R, int V, int64_t BITS>
inline void multiply(
    const Quantized (&x)[R], int64_t n_in, const uint8_t* panel, int64_t from, Floats (&total)[R][V]
) {
    constexpr int64_t parts = 8 / BITS;  // numbers per byte
    for (int64_t group = 0; group < groups(n_in); group++) {
        Sums<BITS> sums[R][V] = {};
        for (int64_t at = 0; at < GROUP / 4; at += parts, panel += 4 * PANEL) {
#pragma GCC unroll 4
            for (int64_t j = 0; j < V; j++) {
                Ints weights;
                std::memcpy(&weights, panel + (from + j) * sizeof weights, sizeof weights);
                for (int64_t part = 0; part < parts; part++) {
                    const Ints numbers = BITS == 8 ? weights : (weights >> 4 * part) & 0x0f0f0f0f;
#pragma GCC unroll 6
                    for (int r = 0; r < R; r++) sums[r][j].add(numbers, Four(x[r], group, at + part));
                }
            }
        }
#pragma GCC unroll 4
        for (int64_t j = 0; j < V; j++)
#pragma GCC unroll 6
            for (int r = 0; r < R; r++) {
                const Ints whole = sums[r][j].whole() - Sums<BITS>::offset * x[r].sums[group];
                Floats scale = all(x[r].scale[group]);
                if (BITS == 4) scale *= load(reinterpret_cast<const Bfloat*>(panel) + (from + j) * LANES);
                total[r][j] = multiply_add(__builtin_convertvector(whole, Floats), scale, total[r][j]);
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

inline void finish(const Matrix& w, const Target& to, int64_t row, int64_t column, const Floats* sums, int64_t n) {
    float* out = to.out + row * to.stride + column;
    const float* add = to.add == nullptr ? nullptr : to.add + row * to.stride + column;
    const float* bias = w.bias == nullptr ? nullptr : w.bias + column;
    for (int64_t j = 0, at = 0; j < n && column + at < w.n_out; j++, at += LANES) {
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

// A part of the inputs of some rows, and the memory of their sums. The last part finishes the sums.
struct Part {
    int64_t first, last;
    float (*totals)[PANEL];
};

template <int R, int V>
inline void add_products(
    const Matrix& w, const float* x, const Part& part, const uint8_t* panel, int64_t from, Floats (&total)[R][V]
) {
    if (w.bits == 16)
        multiply<R>(x, w.n_in, part.first, part.last, reinterpret_cast<const Bfloat*>(panel), from, total);
    else
        multiply<R>(x, w.n_in, part.first, part.last, reinterpret_cast<const float*>(panel), from, total);
}

template <int R, int V>
inline void add_products(
    const Matrix& w, const Quantized& x, const Part&, const uint8_t* panel, int64_t from, Floats (&total)[R][V]
) {
    Quantized rows[R];
    for (int r = 0; r < R; r++) rows[r] = x.row(r, w.n_in);
    if (w.bits == 4)
        multiply<R, V, 4>(rows, w.n_in, panel, from, total);
    else
        multiply<R, V, 8>(rows, w.n_in, panel, from, total);
}

inline const float* row_of(const float* x, int64_t row, int64_t n_in) { return x + row * n_in; }
inline Quantized row_of(const Quantized& x, int64_t row, int64_t n_in) { return x.row(row, n_in); }

// A part of R rows times a panel. Few rows read the panel sequentially, and more rows TILE vectors at a time, so that
// the sums fit into the registers.
template <int R, class Input>
inline void block(const Matrix& w, const Input& x, const Part& part, int64_t row, int64_t column, const Target& to) {
    constexpr int V = R * WIDE > ROWS * TILE ? TILE : WIDE;
    for (int64_t from = 0; from < WIDE && column + from * LANES < w.n_out; from += V) {
        Floats total[R][V] = {};
        for (int r = 0; r < R && part.first > 0; r++)
            for (int64_t j = 0; j < V; j++) total[r][j] = load(part.totals[r] + (from + j) * LANES);
        add_products<R, V>(w, row_of(x, row, w.n_in), part, panel_of(w, column), from, total);
        const int64_t first = column + from * LANES;
        for (int r = 0; r < R; r++) {
            for (int64_t j = 0; j < V && part.last < w.n_in; j++) store(part.totals[r] + (from + j) * LANES, total[r][j]);
            for (int64_t j = 0; j < V && w.bits == 8; j++) total[r][j] *= load(w.scale + first + j * LANES);
            if (part.last == w.n_in) finish(w, to, row + r, first, total[r], V);
        }
    }
}

// Prefetches part `part` of `parts` of the panel at `column` during the work on the panel before it.
inline void fetch_ahead(const Matrix& w, int64_t column, int64_t part, int64_t parts) {
    const int64_t bytes = panel_bytes(w.n_in, w.bits);
    const uint8_t* panel = panel_of(w, column);
    for (int64_t at = bytes * part / parts / 64 * 64; at < bytes * (part + 1) / parts; at += 64)
        __builtin_prefetch(panel + at, 0, 2);
}

template <class Input>
inline void rows_of_panel(
    const Matrix& w, const Input& x, int64_t first, int64_t last, int64_t column, const Target& to, bool more
) {
    float totals[CHUNK][PANEL];
    const int64_t depth = w.bits == 32 && last - first > ROWS ? DEPTH : std::max<int64_t>(w.n_in, 1);
    const int64_t parts = (last - first) / ROWS;
    Part part{0, 0, totals};
    do {
        part.first = part.last, part.last = std::min(w.n_in, part.first + depth), part.totals = totals;
        int64_t row = first;
        for (; row + ROWS <= last; row += ROWS, part.totals += ROWS) {
            if (more && parts > 1 && part.first == 0) fetch_ahead(w, column + PANEL, (row - first) / ROWS, parts);
            block<ROWS>(w, x, part, row, column, to);
        }
        switch (last - row) {
            case 5: block<5>(w, x, part, row, column, to); break;
            case 4: block<4>(w, x, part, row, column, to); break;
            case 3: block<3>(w, x, part, row, column, to); break;
            case 2: block<2>(w, x, part, row, column, to); break;
            case 1: block<1>(w, x, part, row, column, to); break;
        }
    } while (part.last < w.n_in);
}

// A member's share of x Wᵀ + b: a range of panels for all rows.
template <class Input>
inline void product(const Member& member, const Matrix& w, const Input& x, int64_t rows, const Target& to) {
    int64_t first, last;
    member.share(panels(w.n_out), first, last);
    for (int64_t chunk = 0; chunk < rows; chunk += CHUNK)
        for (int64_t panel = first; panel < last; panel++) {
            const int64_t end = std::min(rows, chunk + CHUNK);
            rows_of_panel(w, x, chunk, end, panel * PANEL, to, panel + 1 < last);
        }
}
