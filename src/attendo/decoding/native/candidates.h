// The most probable tokens of a row of logits, without sorting the row.
#pragma once

#include <limits>

#include "vectors.h"

// log Σ e^logit. The result is NaN if a logit is NaN, and -inf if all logits are -inf.
inline double log_sum(const float* logits, int64_t vocab) {
    constexpr float nothing = -std::numeric_limits<float>::infinity();
    Floats most = all(nothing), total{};
    int64_t i = 0;
    for (; i + LANES <= vocab; i += LANES) most = larger(most, load(logits + i));
    float top = largest(most);
    for (; i < vocab; i++) top = logits[i] > top ? logits[i] : top;
    const float shift = top > nothing ? top : 0.0f;
    for (i = 0; i + LANES <= vocab; i += LANES) total += exponential(load(logits + i) - shift);
    double norm = sum(total);
    for (; i < vocab; i++) norm += std::exp(logits[i] - shift);
    return std::log(norm) + shift;
}

// The ids of the k best tokens by descending logit, then by ascending id, and the log-probability of each. If the sum
// of a row is NaN, the log-probabilities are NaN. If fewer than k tokens are possible, the other entries are -inf.
inline void best(
    const float* logits, double log_norm, int64_t vocab, int64_t k, const int64_t* never, int64_t n_never,
    int64_t* tokens, double* log_probs
) {
    constexpr double nothing = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < k; j++) tokens[j] = 0, log_probs[j] = nothing;
    int64_t found = 0;
    double worst = nothing;  // the smallest logit of the k best so far
    const auto offer = [&](int64_t id) {
        const double x = logits[id];
        if (!(x > worst)) return;
        for (int64_t n = 0; n < n_never; n++)
            if (never[n] == id) return;
        int64_t at = found < k ? found++ : k - 1;
        for (; at > 0 && log_probs[at - 1] < x; at--) log_probs[at] = log_probs[at - 1], tokens[at] = tokens[at - 1];
        log_probs[at] = x, tokens[at] = id;
        if (found == k) worst = log_probs[k - 1];
    };
    int64_t i = 0;
    for (; i + LANES <= vocab; i += LANES) {
        const Ints above = load(logits + i) > static_cast<float>(worst);
#if defined(__AVX512F__)
        if (_mm512_test_epi32_mask((__m512i)above, (__m512i)above) == 0) continue;
#else
        int64_t any = 0;
        int64_t words[LANES / 2];
        std::memcpy(words, &above, sizeof above);
        for (int64_t w : words) any |= w;
        if (any == 0) continue;
#endif
        for (int64_t j = 0; j < LANES; j++) offer(i + j);
    }
    for (; i < vocab; i++) offer(i);
    if (log_norm == nothing) return;  // no token is possible
    for (int64_t j = 0; j < k; j++) log_probs[j] -= log_norm;
}
