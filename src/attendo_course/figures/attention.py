"""The arrays of the figures about attention weights: inverse temperature, and the scale 1/√d."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from attendo.inspecting.measures import entropy
from attendo.nn.attention import attention_weights, masked_softmax

SCORES = (1.0, 0.5, 0.2)
DIMENSIONS = tuple(2**power for power in range(11))


@dataclass(frozen=True)
class WeightsByTemperature:
    """The weights of some scores at each inverse temperature β, and at its two ends.

    soft: at β = 0, all alike. hard: at β = ∞, one-hot.
    """

    scores: tuple[float, ...]
    betas: Float[np.ndarray, " betas"]
    weights: Float[np.ndarray, "betas keys"]
    soft: Float[np.ndarray, " keys"]
    hard: Float[np.ndarray, " keys"]


def weights_at(scores: tuple[float, ...], inverse_temperature: float) -> Float[np.ndarray, " keys"]:
    """exp(βs_i) / Σ_j exp(βs_j); one-hot at β = ∞. NYU Deep Learning 2020, week 12-3.

    >>> weights_at(SCORES, 20.0).round(5), weights_at(SCORES, math.inf)
    (array([9.9995e-01, 5.0000e-05, 0.0000e+00]), array([1., 0., 0.]))
    """
    row = torch.tensor([scores], dtype=torch.float64)
    return masked_softmax(row, inverse_temperature=inverse_temperature)[0].numpy()


def temperature(
    scores: tuple[float, ...] = SCORES, low: float = 0.01, high: float = 1000.0, points: int = 201
) -> WeightsByTemperature:
    """softargmax_β of the scores for β from `low` to `high` in even steps of log β, and at β = 0 and ∞.

    >>> temperature().soft.round(4), temperature().weights[-1].round(4)
    (array([0.3333, 0.3333, 0.3333]), array([1., 0., 0.]))
    """
    betas = np.geomspace(low, high, points)
    weights = np.stack([weights_at(scores, float(beta)) for beta in betas])
    return WeightsByTemperature(scores, betas, weights, weights_at(scores, 0.0), weights_at(scores, math.inf))


@dataclass(frozen=True)
class EntropyByDimension:
    """Entropy (nats) of the attention weights of random queries and keys, a row for each dimension.

    unscaled: of softmax(qKᵀ). scaled: of softmax(qKᵀ/√d). uniform: ln(keys), the most there can be.
    """

    dimensions: Int[np.ndarray, " dimensions"]
    unscaled: Float[np.ndarray, "dimensions draws"]
    scaled: Float[np.ndarray, "dimensions draws"]
    uniform: float


def entropies(
    dimensions: tuple[int, ...] = DIMENSIONS, n_keys: int = 16, draws: int = 200, seed: int = 0
) -> EntropyByDimension:
    """-Σ a ln a of attention over keys, both scales on the same draws from N(0, 1); one query a draw.

    The reason for 1/√d_k: Vaswani et al. 2017, section 3.2.1. NumPy's PCG64 is seeded with (seed, d).

    >>> found = entropies((4, 64), draws=50)
    >>> found.unscaled.shape, bool(found.unscaled[1].mean() < found.scaled[1].mean() < found.uniform)
    ((2, 50), True)
    """
    unscaled, scaled = [], []
    for d in dimensions:
        random = np.random.default_rng((seed, d))
        query = torch.from_numpy(random.standard_normal((draws, 1, d)))
        key = torch.from_numpy(random.standard_normal((draws, n_keys, d)))
        unscaled.append(entropy(attention_weights(query, key, scale=1.0)).numpy())
        scaled.append(entropy(attention_weights(query, key)).numpy())
    uniform = float(entropy(torch.full((1, n_keys), 1 / n_keys, dtype=torch.float64)))
    return EntropyByDimension(np.array(dimensions), np.stack(unscaled), np.stack(scaled), uniform)
