// Matrices in panels, as products.h reads them: rearranged, rounded to bfloat16, or quantized to 8 or 4 bits.
#pragma once

#include "products.h"

// Quantizes n numbers to integers from -8 to 7 with a common scale, which is returned. The scale maps the largest number
// to about -8. Of some such scales, the one with the least squared error is chosen.
inline float quantize_to_4_bits(const float* x, int64_t n, int32_t* numbers) {
    float most = 0.0f, best = 0.0f;
    for (int64_t i = 0; i < n; i++)
        if (std::fabs(x[i]) > std::fabs(most)) most = x[i];
    std::fill(numbers, numbers + n, 0);
    float least = std::numeric_limits<float>::infinity();
    for (int64_t step = -6; step <= 4 && most != 0.0f; step++) {
        const float scale = most / (-8.0f + 0.15f * step);
        int32_t found[GROUP];
        float products = 0.0f, squares = 0.0f;
        for (int64_t i = 0; i < n; i++) {
            found[i] = std::lrint(std::min(std::max(x[i] / scale, -8.0f), 7.0f));
            products += x[i] * found[i], squares += static_cast<float>(found[i] * found[i]);
        }
        Bfloat rounded[LANES];
        store(rounded, all(products / squares));  // the best scale for these integers
        float error = 0.0f;
        for (int64_t i = 0; i < n; i++) error += (x[i] - rounded[0] * found[i]) * (x[i] - rounded[0] * found[i]);
        if (error < least) least = error, best = rounded[0], std::copy(found, found + n, numbers);
    }
    return best;
}

// The place of a column of bfloat16 numbers in a row of a panel, as load_panel reads it.
inline int64_t half(int64_t column) {
    return column / (2 * LANES) * 2 * LANES + column % LANES * 2 + column / LANES % 2;
}

// Packs up to PANEL rows of W. Rows and inputs after the last one are 0.
inline void pack_panel(const float* w, int64_t rows, int64_t n_in, int64_t bits, uint8_t* packed, float* scale) {
    const int64_t n_groups = groups(n_in);
    for (int64_t column = 0; column < PANEL; column++) {
        const float* row = w + column * n_in;
        if (bits >= 16) {
            for (int64_t k = 0; k < n_in; k++) {
                const float x = column < rows ? row[k] : 0.0f;
                if (bits == 32)
                    reinterpret_cast<float*>(packed)[k * PANEL + column] = x;
                else
                    copy(reinterpret_cast<Bfloat*>(packed) + k * PANEL + half(column), &x, 1);
            }
            continue;
        }
        const float step = column < rows ? std::max(largest_size(row, n_in), 1e-18f) / 127.0f : 0.0f;
        if (bits == 8 && column < rows) scale[column] = step;
        for (int64_t group = 0; group < n_groups; group++) {
            float some[GROUP] = {};
            int32_t numbers[GROUP] = {};
            const int64_t n = column < rows ? std::min(GROUP, n_in - group * GROUP) : 0;
            std::memcpy(some, row + group * GROUP, sizeof(float) * n);
            uint8_t* to = packed + group * (panel_bytes(n_in, bits) / n_groups);
            if (bits == 8) {
                for (int64_t i = 0; i < n; i++) numbers[i] = std::lrint(some[i] / step);
                for (int64_t i = 0; i < GROUP; i++)
                    to[i / 4 * 4 * PANEL + column * 4 + i % 4] = static_cast<uint8_t>(numbers[i] + Sums<8>::offset);
                continue;
            }
            const float own = quantize_to_4_bits(some, GROUP, numbers);
            copy(reinterpret_cast<Bfloat*>(to + GROUP * PANEL / 2) + column, &own, 1);
            for (int64_t i = 0; i < GROUP; i++) {  // inputs 0 to 3 in the lower halves of bytes, 4 to 7 in the upper
                uint8_t& both = to[i / 8 * 4 * PANEL + column * 4 + i % 4];
                const int32_t number = numbers[i] + Sums<4>::offset;
                both = static_cast<uint8_t>(i % 8 < 4 ? number : both | number << 4);
            }
        }
    }
}
