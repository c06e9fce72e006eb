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

constexpr int64_t CHUNK = 96 * ROWS;  // rows that are multiplied by a panel before the next panel is read
constexpr int64_t SHORT = 16 * ROWS;  // the same in 16 bits, whose panels are small beside the rows
constexpr int64_t DEPTH = 128;        // inputs of a part of a panel of floats, which remains in the L1 cache
constexpr int64_t DEEP = 2048;        // the same for many rows, which remains in the L2 cache

inline int64_t panels(int64_t n_out) { return (n_out + PANEL - 1) / PANEL; }

// The bytes of a panel. In 4 bits, the scales of each group follow its numbers, in bfloat16.
inline int64_t panel_bytes(int64_t n_in, int64_t bits) {
    if (bits >= 16) return n_in * PANEL * bits / 8;
    return groups(n_in) * (GROUP * PANEL * bits / 8 + (bits == 4 ? 2 * PANEL : 0));
}

// Rows in 8 bits: small integers, and for each group their scale and -128 times their sum.
struct Quantized {
    int8_t* numbers;  // [rows][groups][GROUP]
    float* scale;     // [rows][groups]
    int32_t* offsets; // [rows][groups]

    Quantized row(int64_t i, int64_t n_in) const {
        const int64_t n = i * groups(n_in);
        return {numbers + n * GROUP, scale + n, offsets + n};
    }
};

// The largest number of a row that is multiplied by weights of 8 bits. Without an instruction that adds four products of
// bytes in 32 bits, two products are added in 16 bits, which must hold 2 · 255 · LARGEST.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr float LARGEST = 127;
#else
constexpr float LARGEST = 63;
#endif

inline void quantize(const Matrix& w, const float* x, const Quantized& to) {
    for (int64_t group = 0, at = 0; at < w.n_in; group++, at += GROUP) {
        Ints total{};
        to.scale[group] = round_group(x + at, w.n_in - at, w.bits == 8 ? LARGEST : 127, to.numbers + at, total);
        to.offsets[group] = 0;
        for (int64_t i = 0; i < LANES; i++) to.offsets[group] -= 128 * total[i];
    }
}

// In each lane, the same four bytes or the same number of 32 bits.
inline Ints same(const void* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return four - Ints{};
}

// total plus, in each lane, the sum of the four products of unsigned weights w and numbers x.
inline Ints dot4(Ints total, Ints w, Ints x) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)total, (__m512i)w, (__m512i)x);
#elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)total, (__m256i)w, (__m256i)x);
#elif defined(__AVX512BW__)
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)w, (__m512i)x);
    return total + (Ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)w, (__m256i)x);
    return total + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    uint8_t weights[4 * LANES];
    int8_t numbers[4 * LANES];
    std::memcpy(weights, &w, sizeof w), std::memcpy(numbers, &x, sizeof x);
    for (int64_t i = 0; i < 4 * LANES; i++) total[i / 4] += weights[i] * numbers[i];
    return total;
#endif
}

// The sums of a group of 8-bit or 4-bit weights. They start with the product of the numbers and the offset of the
// unsigned weights (128 or 8). The weights of 4 bits are so small that 16 bits hold the sums, two per lane.
template <int64_t BITS>
struct Sums {
    Ints lanes;
    void start(Ints offset) { lanes = offset >> (BITS == 4 ? 4 : 0); }
    void add(Ints w, Ints x) { lanes = dot4(lanes, w, x); }
    Ints whole() const { return lanes; }
};

#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
template <>
struct Sums<4> {
    Ints lanes;
    void start(Ints offset) { lanes = (offset >> 4) & 0xffff; }
    void add(Ints w, Ints x) {
        lanes = (Ints)_mm256_add_epi16((__m256i)lanes, _mm256_maddubs_epi16((__m256i)w, (__m256i)x));
    }
    Ints whole() const { return (Ints)_mm256_madd_epi16((__m256i)lanes, _mm256_set1_epi16(1)); }
};
#endif

// A part of the inputs of some rows, and the memory of their sums. The last part finishes the sums.
struct Part {
    int64_t first, last;
    bool once;  // no later block of ROWS rows reads the panel
    float (*totals)[PANEL];
};

// Adds the products of a part of the inputs of R rows with V vectors of a panel of floats or of bfloat16, from
// vector `from` on. More than WIDE vectors are in several panels, which are read at the same time.
template <int R, int V, class Number>
inline void multiply(
    const float* x, int64_t n_in, const Part& part, const Number* panel, int64_t from, Floats (&total)[R][V]
) {
    constexpr int OWN = V < WIDE ? V : WIDE;  // vectors in a panel
    panel += part.first * PANEL + from * LANES;
    for (int64_t k = part.first; k < part.last; k++, panel += PANEL) {
        if (R > 1 && part.once)  // enough work to hide the latency
            for (int j = 0; j < V; j++) __builtin_prefetch(panel + 48 * PANEL + j * LANES, 0, 3);
#pragma GCC unroll 3
        for (int64_t at = 0; at < V; at += OWN) {
            Floats weights[OWN];
            load_panel(panel + at / WIDE * n_in * PANEL, weights);
#pragma GCC unroll 6
            for (int r = 0; r < R; r++) {
                const Floats input = all(x[r * n_in + k]);
#pragma GCC unroll 4
                for (int j = 0; j < OWN; j++) total[r][at + j] = multiply_add(input, weights[j], total[r][at + j]);
            }
        }
    }
}

// Adds the products of R rows with V vectors of a panel of integers, in exact sums within a group.
template <int R, int V, int64_t BITS>
inline void multiply(
    const Quantized (&x)[R], int64_t n_in, const uint8_t* panel, int64_t from, Floats (&total)[R][V]
) {
    constexpr int64_t parts = 8 / BITS;  // numbers per byte
    const int64_t bytes = panel_bytes(n_in, BITS);
    for (int64_t group = 0; group < groups(n_in); group++) {
        Sums<BITS> sums[R][V];
#pragma GCC unroll 6
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int64_t j = 0; j < V; j++) sums[r][j].start(same(x[r].offsets + group));
        for (int64_t at = 0; at < GROUP / 4; at += parts, panel += 4 * PANEL)
#pragma GCC unroll 2
            for (int64_t part = 0; part < parts; part++) {
                if (V < WIDE && from == 0 && part == 0)  // the CPU does not detect that every second line is read
                    for (int64_t i = 0; i < 4 * PANEL; i += 64) __builtin_prefetch(panel + 64 * PANEL + i);
                Ints weights[V];
#pragma GCC unroll 8
                for (int64_t j = 0; j < V; j++) {
                    const uint8_t* own = panel + j / WIDE * bytes;
                    std::memcpy(&weights[j], own + (from + j % WIDE) * sizeof weights[j], sizeof weights[j]);
                    if (BITS == 4) weights[j] = (weights[j] >> 4 * part) & 0x0f0f0f0f;
                }
#pragma GCC unroll 6
                for (int r = 0; r < R; r++) {
                    const Ints four = same(x[r].numbers + group * GROUP + 4 * (at + part));
#pragma GCC unroll 8
                    for (int64_t j = 0; j < V; j++) sums[r][j].add(weights[j], four);
                }
            }
#pragma GCC unroll 8
        for (int64_t j = 0; j < V; j++)
#pragma GCC unroll 6
            for (int r = 0; r < R; r++) {
                Floats scale = all(x[r].scale[group]);
                const Bfloat* scales = reinterpret_cast<const Bfloat*>(panel + j / WIDE * bytes);
                if (BITS == 4) scale *= load(scales + (from + j % WIDE) * LANES);
                total[r][j] = multiply_add(__builtin_convertvector(sums[r][j].whole(), Floats), scale, total[r][j]);
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

template <int64_t BITS, int R, int V, class Input>
inline void add_products(
    const Input& x, int64_t n_in, const Part& part, const uint8_t* panel, int64_t from, Floats (&total)[R][V]
) {
    if constexpr (BITS == 32) {
        multiply<R>(x, n_in, part, reinterpret_cast<const float*>(panel), from, total);
    } else if constexpr (BITS == 16) {
        multiply<R>(x, n_in, part, reinterpret_cast<const Bfloat*>(panel), from, total);
    } else {
        Quantized rows[R];
        for (int r = 0; r < R; r++) rows[r] = x.row(r, n_in);
        multiply<R, V, BITS>(rows, n_in, panel, from, total);
    }
}

inline const float* row_of(const float* x, int64_t row, int64_t n_in) { return x + row * n_in; }
inline Quantized row_of(const Quantized& x, int64_t row, int64_t n_in) { return x.row(row, n_in); }

// A part of R rows times V vectors of a panel at a time, or several panels. Few rows read the panel sequentially, and
// more rows TILE vectors at a time, so that the sums fit into the registers.
template <int64_t BITS, int R, int V = (R * WIDE > ROWS * TILE ? TILE : WIDE), class Input>
inline void block(const Matrix& w, const Input& x, const Part& part, int64_t row, int64_t column, const Target& to) {
    for (int64_t from = 0; from < WIDE && column + from * LANES < w.n_out; from += V) {
        Floats total[R][V] = {};
        for (int r = 0; r < R && part.first > 0; r++)
            for (int64_t j = 0; j < V; j++) total[r][j] = load(part.totals[r] + (from + j) * LANES);
        add_products<BITS>(row_of(x, row, w.n_in), w.n_in, part, panel_of(w, column), from, total);
        const int64_t first = column + from * LANES;
        for (int r = 0; r < R; r++) {
            for (int64_t j = 0; j < V && part.last < w.n_in; j++) store(part.totals[r] + (from + j) * LANES, total[r][j]);
            for (int64_t j = 0; j < V && BITS == 8; j++) total[r][j] *= load(w.scale + first + j * LANES);
            if (part.last == w.n_in) finish(w, to, row + r, first, total[r], V);
        }
    }
}

inline void prefetch(const void* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 0, 2);
}

// Prefetches part `part` of `parts` of the panel at `column` during the work on the panel before it.
inline void fetch_ahead(const Matrix& w, int64_t column, int64_t part, int64_t parts) {
    const int64_t bytes = panel_bytes(w.n_in, w.bits), first = bytes * part / parts / 64 * 64;
    prefetch(panel_of(w, column) + first, bytes * (part + 1) / parts - first);
}

template <int64_t BITS, class Input>
inline void rows_of_panel(
    const Matrix& w, const Input& x, int64_t first, int64_t last, int64_t column, const Target& to, bool more
) {
    float totals[CHUNK][PANEL];
    const int64_t parts = (last - first) / ROWS;
    const int64_t whole = std::max<int64_t>(w.n_in, 1);
    const int64_t depth = BITS != 32 || last - first <= ROWS ? whole : parts > 2 ? DEEP : DEPTH;
    Part part{0, 0, parts < 2, totals};
    do {
        part.first = part.last, part.last = std::min(w.n_in, part.first + depth), part.totals = totals;
        int64_t row = first;
        for (; row + ROWS <= last; row += ROWS, part.totals += ROWS) {
            if (more && parts > 1 && part.first == 0) fetch_ahead(w, column + PANEL, (row - first) / ROWS, parts);
            if constexpr (BITS == 32)  // the next rows
                if (part.first == 0 && row + 2 * ROWS <= last)
                    prefetch(x + (row + ROWS) * w.n_in, ROWS * w.n_in * sizeof(float));
            block<BITS, ROWS>(w, x, part, row, column, to);
        }
        switch (last - row) {
            case 5: block<BITS, 5>(w, x, part, row, column, to); break;
            case 4: block<BITS, 4>(w, x, part, row, column, to); break;
            case 3: block<BITS, 3>(w, x, part, row, column, to); break;
            case 2: block<BITS, 2>(w, x, part, row, column, to); break;
            case 1: block<BITS, 1>(w, x, part, row, column, to); break;
        }
    } while (part.last < w.n_in);
}

template <int64_t BITS, class Input>
inline void product(const Member& member, const Matrix& w, const Input& x, int64_t rows, const Target& to) {
    int64_t first, last;
    member.share(panels(w.n_out), first, last);
    constexpr int64_t size = BITS == 16 ? SHORT : CHUNK;
    constexpr int64_t together = BITS < 16 ? 2 : 3;  // panels: the memory is faster if several places of it are read
    for (; rows == 1 && first + together <= last; first += together)
        block<BITS, 1, together * WIDE>(w, x, Part{0, w.n_in, true, nullptr}, 0, first * PANEL, to);
    for (int64_t chunk = 0; chunk < rows; chunk += size)
        for (int64_t panel = first; panel < last; panel++)
            rows_of_panel<BITS>(w, x, chunk, std::min(rows, chunk + size), panel * PANEL, to, panel + 1 < last);
}

// A member's share of x Wᵀ + b: a range of panels for all rows.
inline void product(const Member& member, const Matrix& w, const float* x, int64_t rows, const Target& to) {
    w.bits == 16 ? product<16>(member, w, x, rows, to) : product<32>(member, w, x, rows, to);
}

inline void product(const Member& member, const Matrix& w, const Quantized& x, int64_t rows, const Target& to) {
    w.bits == 4 ? product<4>(member, w, x, rows, to) : product<8>(member, w, x, rows, to);
}
