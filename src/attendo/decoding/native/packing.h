// Matrices in panels, as products.h reads them: rearranged, rounded to bfloat16, or quantized to 8 or 4 bits.
//
// Integers are quantized row by row, to the form in which files store them. In 8 bits, a row has n_in signed bytes and
// one scale. In 4 bits, 4 bytes contain 8 inputs: inputs 0 to 3 in the lower halves, 4 to 7 in the upper, each plus 8.
// Each group has a scale in bfloat16. A panel contains the same words of 4 bytes in another order.
#pragma once

#include "products.h"

inline int64_t row_bytes(int64_t n_in, int64_t bits) { return groups(n_in) * GROUP * bits / 8; }

inline Floats rounded(Floats x) {
    const Floats magic = all(12582912.0f);  // adding it rounds to an integer
    return (x + magic) - magic;
}

// Integers from -8 to 7, as floats.
inline Floats four_bits(Floats x) {
    const Floats n = rounded(x);
    return n < -8.0f ? all(-8.0f) : (n > 7.0f ? all(7.0f) : n);
}

// Writes function(x) of a group of numbers as bytes.
template <class Function>
inline void store_bytes(uint8_t* to, const float* x, Function function) {
    int32_t integers[GROUP];
    for (int64_t i = 0; i < GROUP; i += LANES) {
        const Ints found = __builtin_convertvector(function(load(x + i)), Ints);
        std::memcpy(integers + i, &found, sizeof found);
    }
    for (int64_t i = 0; i < GROUP; i++) to[i] = static_cast<uint8_t>(integers[i]);
}

// Quantizes LANES groups of GROUP numbers. The first scale of a group maps its largest number to about -8. For some such
// scales, the best scale for the resulting integers is computed, and the one with the least squared error is chosen.
inline void quantize_to_4_bits(const float* x, uint8_t* numbers, Bfloat* scales) {
    constexpr int64_t vectors = GROUP / LANES, steps = 11;
    float factors[LANES] = {};  // of the integers of a group, divided by -8
    for (int64_t g = 0; g < LANES; g++) {
        Floats high{}, low{};
        for (int64_t j = 0; j < vectors; j++) {
            const Floats v = load(x + g * GROUP + j * LANES);
            high = larger(high, v), low = larger(low, -v);
        }
        const float up = largest(high), down = largest(low);
        if (up > 0.0f || down > 0.0f) factors[g] = up > down ? -1.0f / up : 1.0f / down;
    }
    Floats least = all(std::numeric_limits<float>::infinity()), best{};
    for (int64_t step = 0; step < steps; step++) {
        Floats products[LANES] = {}, squares[LANES] = {};
        for (int64_t g = 0; g < LANES; g++) {
            const Floats factor = all(factors[g] * (8.0f + 0.15f * (6 - step)));
            Floats product{}, square{};
            for (int64_t j = 0; j < vectors; j++) {
                const Floats v = load(x + g * GROUP + j * LANES), n = four_bits(v * factor);
                product += v * n, square += n * n;
            }
            products[g] = product, squares[g] = square;
        }
        const Floats product = sums(products), square = sums(squares);
        store(scales, product / larger(square, all(1.0f)));
        const Floats scale = load(scales), error = scale * (scale * square - 2.0f * product);  // plus a constant
        best = error < least ? scale : best, least = error < least ? error : least;
    }
    store(scales, best);
    for (int64_t g = 0; g < LANES; g++) {
        const float scale = scales[g], factor = scale == 0.0f ? 0.0f : 1.0f / scale;
        uint8_t bytes[GROUP];
        store_bytes(bytes, x + g * GROUP, [&](Floats v) { return four_bits(v * factor) + 8.0f; });
        for (int64_t i = 0; i < GROUP; i += 8, numbers += 4)
            for (int64_t k = 0; k < 4; k++) numbers[k] = bytes[i + k] | bytes[i + k + 4] << 4;
    }
}

// Quantizes a row. Inputs after the last one are 0. `scales` has one float, or a bfloat16 per group.
inline void quantize_row(const float* x, int64_t n_in, int64_t bits, uint8_t* numbers, uint8_t* scales) {
    const float step = bits == 8 ? std::max(largest_size(x, n_in), 1e-18f) / 127.0f : 0.0f;
    if (bits == 8) std::memcpy(scales, &step, sizeof step);
    const int64_t part = bits == 8 ? GROUP : LANES * GROUP;
    for (int64_t first = 0; first < n_in; first += part) {
        float some[LANES * GROUP] = {};
        std::memcpy(some, x + first, sizeof(float) * std::min(part, n_in - first));
        if (bits == 8) {
            store_bytes(numbers + first, some, [&](Floats v) { return rounded(v / all(step)); });
            continue;
        }
        uint8_t bytes[LANES * GROUP / 2];
        Bfloat found[LANES];
        quantize_to_4_bits(some, bytes, found);
        const int64_t n = std::min(LANES, groups(n_in - first));
        std::memcpy(numbers + first / 2, bytes, n * GROUP / 2);
        std::memcpy(scales + first / GROUP * sizeof(Bfloat), found, n * sizeof(Bfloat));
    }
}

// Writes up to PANEL rows of quantized integers to a panel. Rows after the last one are 0.
inline void pack_rows(
    const uint8_t* numbers, const uint8_t* scales, int64_t rows, int64_t n_in, int64_t bits, uint8_t* packed, float* scale
) {
    const int64_t words = GROUP * bits / 32, group_bytes = panel_bytes(n_in, bits) / groups(n_in);
    const uint32_t zeros = bits == 8 ? 0x80808080u : 0x88888888u;  // of a panel, whose integers are unsigned
    const uint32_t offset = bits == 8 ? zeros : 0;
    for (int64_t group = 0; group < groups(n_in); group++, packed += group_bytes)
        for (int64_t column = 0; column < PANEL; column++) {
            const uint8_t* from = numbers + column * row_bytes(n_in, bits) + group * 4 * words;
            __builtin_prefetch(from + 256);
            for (int64_t i = 0; i < words; i++) {
                uint32_t word = zeros ^ offset;
                if (column < rows) std::memcpy(&word, from + 4 * i, 4);
                word ^= offset;
                std::memcpy(packed + i * 4 * PANEL + column * 4, &word, 4);
            }
            if (bits == 4) {
                Bfloat own{};
                if (column < rows) std::memcpy(&own, scales + (column * groups(n_in) + group) * sizeof own, sizeof own);
                std::memcpy(packed + 4 * words * PANEL + column * sizeof own, &own, sizeof own);
            }
        }
    if (bits == 8) std::memcpy(scale, scales, rows * sizeof(float));
}

// The place of a column of bfloat16 numbers in a row of a panel, as load_panel reads it.
inline int64_t half(int64_t column) {
    return column / (2 * LANES) * 2 * LANES + column % LANES * 2 + column / LANES % 2;
}

// Writes up to PANEL rows of floats to a panel of floats or of bfloat16. Rows after the last one are 0.
template <class Number>
inline void pack_rows(const float* w, int64_t rows, int64_t n_in, Number* packed) {
    constexpr int64_t part = 16;  // inputs of a row that are read together, because they are in one cache line
    for (int64_t first = 0; first < n_in; first += part)
        for (int64_t column = 0; column < PANEL; column++) {
            float some[part] = {};
            Number numbers[part];
            const int64_t n = std::min(part, n_in - first);
            const float* from = w + column * n_in + first;
            __builtin_prefetch(from + 4 * part);  // the CPU does not detect that many sequences
            if (column < rows && n == part)  // a constant size, which is copied faster
                std::memcpy(some, from, sizeof some);
            else if (column < rows)
                std::memcpy(some, from, sizeof(float) * n);
            copy(numbers, some, part);
            const int64_t place = sizeof(Number) == 4 ? column : half(column);
            for (int64_t k = 0; k < n; k++) packed[(first + k) * PANEL + place] = numbers[k];
        }
}
