// Vectors of floats as wide as the registers of this CPU, and the vector functions that a Transformer requires.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int64_t LANES = 16;
constexpr int64_t TILE = 4;  // vectors of each of ROWS rows that are summed together: 24 sums of 32 registers
#else
constexpr int64_t LANES = 8;
constexpr int64_t TILE = 2;  // 12 sums of 16 registers
#endif
constexpr int64_t ROWS = 6;
constexpr int64_t WIDE = 4;               // vectors per row of a panel
constexpr int64_t PANEL = WIDE * LANES;   // columns of a matrix that are stored together
constexpr int64_t GROUP = 32;             // numbers with a common scale: inputs of a matrix, or keys and values in the cache

inline int64_t groups(int64_t n) { return (n + GROUP - 1) / GROUP; }

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

inline Floats load(const float* from) {
    Floats v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof v); }

// The upper half of a float: the same range with 8 significant bits.
struct Bfloat {
    uint16_t bits;

    operator float() const {
        const uint32_t whole = static_cast<uint32_t>(bits) << 16;
        float x;
        std::memcpy(&x, &whole, sizeof x);
        return x;
    }
};

typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

inline Floats load(const Bfloat* from) {
    Halves half;
    std::memcpy(&half, from, sizeof half);
    return (Floats)(__builtin_convertvector(half, Ints) << 16);
}

// Compilers convert a vector of bytes one number at a time.
inline Floats load(const int8_t* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    Floats v;
    for (int64_t i = 0; i < LANES; i++) v[i] = from[i];
    return v;
#endif
}

// Rounds to the nearest bfloat16, and to an even one between two.
inline void store(Bfloat* to, Floats v) {
    const Ints whole = (Ints)v;
    const Halves half = __builtin_convertvector((whole + 0x7fff + ((whole >> 16) & 1)) >> 16, Halves);
    std::memcpy(to, &half, sizeof half);
}

// Loads COUNT vectors of a panel. In bfloat16, two vectors share the halves of their lanes, which are split faster.
template <int64_t COUNT>
inline void load_panel(const float* from, Floats (&to)[COUNT]) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < COUNT; j++) to[j] = load(from + j * LANES);
}

template <int64_t COUNT>
inline void load_panel(const Bfloat* from, Floats (&to)[COUNT]) {
#pragma GCC unroll 2
    for (int64_t j = 0; j < COUNT; j += 2) {
        Ints both;
        std::memcpy(&both, from + j * LANES, sizeof both);
        to[j] = (Floats)(both << 16), to[j + 1] = (Floats)(both & static_cast<int32_t>(0xffff0000));
    }
}

template <class Number>
inline void copy(Number* to, const float* from, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        float rest[LANES] = {};
        Number numbers[LANES];
        const int64_t left = n - i < LANES ? n - i : LANES;
        std::memcpy(rest, from + i, sizeof(float) * left);
        store(numbers, load(rest));
        std::memcpy(to + i, numbers, sizeof(Number) * left);
    }
}

inline Floats all(float x) { return x - Floats{}; }  // unlike x + 0, x - 0 is x for every x, and needs no operation

// a b + c, rounded once. The compiler may round a * b + c twice, depending on the code around it.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// The sum of the lanes, always in the same order.
inline float sum(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#elif defined(__AVX__)
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
#else
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#endif
}

inline float largest(Floats v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#elif defined(__AVX__)
    const __m128 half = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
#else
    float most = v[0];
    for (int64_t i = 1; i < LANES; i++) most = v[i] > most ? v[i] : most;
    return most;
#endif
}

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

// Rounds the next group of `left` numbers, filled with zeros, to integers of at most `most`. Returns their scale, which is
// NaN if a number is NaN, and adds the integers to the lanes of `total`.
inline float round_group(const float* x, int64_t left, float most, int8_t* to, Ints& total) {
    const Floats magic = all(12582912.0f);  // adding it rounds to an integer
    float rest[GROUP] = {};
    if (left < GROUP) {
        std::memcpy(rest, x, sizeof(float) * left);
        x = rest;
    }
    const float scale = std::max(largest_size(x, GROUP), 1e-18f) / most;
    const Floats inverse = all(1.0f / scale);
    int32_t rounded[GROUP];
    Floats wrong{};  // 0, or NaN
    for (int64_t i = 0; i < GROUP; i += LANES) {
        const Floats numbers = load(x + i);
        const Ints some = __builtin_convertvector((numbers * inverse + magic) - magic, Ints);
        std::memcpy(rounded + i, &some, sizeof some);
        total += some;
        wrong += numbers - numbers;
    }
    for (int64_t i = 0; i < GROUP; i++) to[i] = static_cast<int8_t>(rounded[i]);
    return scale + sum(wrong);
}

// The sum of the lanes of each of LANES vectors, always in the same order.
inline Floats sums(const Floats* vectors) {
#if defined(__AVX__) && !defined(__AVX512F__)
    __m256 fours[2];
    for (int j = 0; j < 2; j++) {
        const Floats* v = vectors + 4 * j;
        fours[j] = _mm256_hadd_ps(
            _mm256_hadd_ps((__m256)v[0], (__m256)v[1]), _mm256_hadd_ps((__m256)v[2], (__m256)v[3])
        );
    }
    const __m256 low = _mm256_permute2f128_ps(fours[0], fours[1], 0x20);
    return (Floats)_mm256_add_ps(low, _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
#else
    Floats out;
    for (int64_t i = 0; i < LANES; i++) out[i] = sum(vectors[i]);
    return out;
#endif
}

// e^x, accurate to the last one or two digits: x = n ln 2 + r with |r| <= ln 2 / 2, and a polynomial for e^r. The
// result is 0 below x = -87.3.
inline Floats exponential(Floats x) {
    const Floats low = all(-87.3f), high = all(88.3f), magic = all(12582912.0f);  // adding it rounds to an integer
    const Floats within = x < low ? low : (x > high ? high : x);
    const Floats n = (within * 1.44269504088896341f + magic) - magic;
    Floats r = within - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    Floats y = all(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
    Floats scale;
    std::memcpy(&scale, &power, sizeof scale);
    return x < low ? Floats{} : y * scale;
}

// The error function erf with an error of at most 1.5e-7: Abramowitz & Stegun 1964, 7.1.26.
inline Floats error_function(Floats x) {
    const Floats size = x < 0.0f ? -x : x;
    const Floats t = 1.0f / (1.0f + 0.3275911f * size);
    Floats y = all(1.061405429f);
    y = y * t + -1.453152027f;
    y = y * t + 1.421413741f;
    y = y * t + -0.284496736f;
    y = y * t + 0.254829592f;
    y = 1.0f - y * t * exponential(-size * size);
    return x < 0.0f ? -y : y;
}

// tanh x: 1 - 2 / (e^2x + 1), or a polynomial near 0, where this difference would lose digits.
inline Floats hyperbolic_tangent(Floats x) {
    const Floats size = x < 0.0f ? -x : x, square = x * x;
    Floats y = all(-5.70498872745e-3f);
    y = y * square + 2.06390887954e-2f;
    y = y * square + -5.37397155531e-2f;
    y = y * square + 1.33314422036e-1f;
    y = y * square + -3.33332819422e-1f;
    const Floats far = 1.0f - 2.0f / (exponential(2.0f * size) + 1.0f);
    return size < 0.625f ? y * square * x + x : (x < 0.0f ? -far : far);
}

enum Activation : int64_t { RELU, GELU, GELU_TANH, SILU };

inline Floats activated(Floats x, int64_t kind) {
    switch (kind) {
        case RELU: return x > 0.0f ? x : Floats{};
        case GELU: return 0.5f * x * (1.0f + error_function(x * 0.70710678118654752f));
        case GELU_TANH: {
            const Floats u = 0.79788456080286536f * (x + 0.044715f * x * x * x);
            return x - x / (exponential(2.0f * u) + 1.0f);  // x (1 + tanh u) / 2
        }
        default: return x / (1.0f + exponential(-x));
    }
}

// Applies a function to each number of a row. The numbers after the last full vector are copied to a padded vector.
template <class Function>
inline void each(float* out, const float* in, int64_t n, Function function) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, function(load(in + i)));
    if (i < n) {
        float rest[LANES] = {};
        std::memcpy(rest, in + i, sizeof(float) * (n - i));
        store(rest, function(load(rest)));
        std::memcpy(out + i, rest, sizeof(float) * (n - i));
    }
}
