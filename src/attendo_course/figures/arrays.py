"""The arrays of the figures about positions, temperature, entropy and the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from attendo.inspecting.measures import entropy
from attendo.nn.attention import attention_weights, masked_softmax
from attendo.nn.positions import frequencies, sinusoidal_encoding
from attendo.training.optimizer import noam

SCORES = (1.0, 0.5, 0.2)
DIMENSIONS = tuple(2**power for power in range(11))


@dataclass(frozen=True)
class WeightsByTemperature:
    """The attention weights of some scores at several inverse temperatures β.

    Attributes:
        soft: The weights at β = 0, which are all equal.
        hard: The weights at β = ∞, which are one-hot.
    """

    scores: tuple[float, ...]
    betas: Float[np.ndarray, " betas"]
    weights: Float[np.ndarray, "betas keys"]
    soft: Float[np.ndarray, " keys"]
    hard: Float[np.ndarray, " keys"]


def weights_at(scores: tuple[float, ...], inverse_temperature: float) -> Float[np.ndarray, " keys"]:
    """Return exp(βs_i) / Σ_j exp(βs_j), which is one-hot at β = ∞ (NYU Deep Learning 2020, week 12-3).

    >>> weights_at(SCORES, 20.0).round(5), weights_at(SCORES, math.inf)
    (array([9.9995e-01, 5.0000e-05, 0.0000e+00]), array([1., 0., 0.]))
    """
    row = torch.tensor([scores], dtype=torch.float64)
    return masked_softmax(row, inverse_temperature=inverse_temperature)[0].numpy()


def temperature(
    scores: tuple[float, ...] = SCORES, low: float = 0.01, high: float = 1000.0, points: int = 201
) -> WeightsByTemperature:
    """Return softargmax_β of the scores for β from `low` to `high`, evenly spaced in log β, and for β = 0 and ∞.

    >>> temperature().soft.round(4), temperature().weights[-1].round(4)
    (array([0.3333, 0.3333, 0.3333]), array([1., 0., 0.]))
    """
    betas = np.geomspace(low, high, points)
    weights = np.stack([weights_at(scores, float(beta)) for beta in betas])
    return WeightsByTemperature(scores, betas, weights, weights_at(scores, 0.0), weights_at(scores, math.inf))


@dataclass(frozen=True)
class EntropyByDimension:
    """The entropy in nats of the attention weights of random queries and keys, with one row per dimension d.

    Attributes:
        unscaled: The entropy of softmax(qKᵀ).
        scaled: The entropy of softmax(qKᵀ/√d).
        uniform: The maximum entropy, ln(number of keys).
    """

    dimensions: Int[np.ndarray, " dimensions"]
    unscaled: Float[np.ndarray, "dimensions draws"]
    scaled: Float[np.ndarray, "dimensions draws"]
    uniform: float


def entropies(
    dimensions: tuple[int, ...] = DIMENSIONS, n_keys: int = 16, draws: int = 200, seed: int = 0
) -> EntropyByDimension:
    """Return the entropy -Σ a ln a of attention weights, with and without the scale, for the same draws from N(0, 1).

    Each draw has one query. The figure shows the reason for 1/√d_k in section 3.2.1 of Vaswani et al. 2017. NumPy's
    PCG64 is seeded with (seed, d).

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


WARMUPS = (4000, 1000, 2000, 8000, 16000)


@dataclass(frozen=True)
class Rates:
    """Learning rates by step, with one row per number of warm-up steps. The last warm-up step has the highest rate."""

    d_model: int
    steps: Int[np.ndarray, " steps"]
    warmups: tuple[int, ...]
    rates: Float[np.ndarray, "warmups steps"]
    peaks: Float[np.ndarray, " warmups"]


def rates(d_model: int = 512, warmups: tuple[int, ...] = WARMUPS, last: int = 50_000, every: int = 100) -> Rates:
    """Return d^-.5 · min(s^-.5, s·w^-1.5) at regular steps s from 1 and at each w (Vaswani et al. 2017, eq. 3).

    >>> [f"{rate:.5e}" for rate in (rates().rates[0, 0], rates().peaks[0], rates().rates[0, -1])]
    ['1.74693e-07', '6.98771e-04', '1.97642e-04']
    """
    steps = np.array(sorted({1, *range(every, last + 1, every), *(w for w in warmups if w <= last)}))
    table = np.array([[noam(int(step), d_model, w) for step in steps] for w in warmups])
    peaks = np.array([noam(w, d_model, w) for w in warmups])
    return Rates(d_model, steps, warmups, table, peaks)


def heatmap(max_len: int = 64, d_model: int = 128) -> Float[np.ndarray, "d_model max_len"]:
    """Return PE[p, 2i] = sin(p·10000^(-2i/d)) and the cosine as PE[p, 2i+1], transposed: one column per position.

    The formula is in section 3.5 of Vaswani et al. 2017. The figure is that of Kikuta 2025, exercise 3.2.

    >>> heatmap()[:4, 1].round(6)
    array([0.841471, 0.540302, 0.76172 , 0.647906])
    """
    return sinusoidal_encoding(torch.arange(max_len), d_model, dtype=torch.float64).T.numpy()


@dataclass(frozen=True)
class PositionCurves:
    """The rows of a positional encoding over the positions, and the period of each row in positions."""

    positions: Int[np.ndarray, " length"]
    rows: Float[np.ndarray, "rows length"]
    periods: Float[np.ndarray, " rows"]


def formula_curves(length: int = 50, d_e: int = 5) -> PositionCurves:
    """Return W[2i-1, t] = sin(t / L^(2i/d)) and the cosine as W[2i, t] for 1 ≤ i ≤ d/2, t = 1..L: two rows per i.

    The source is Phuong & Hutter 2022, section 5, with base L. If d is odd, the last row is undefined, and the result
    has d - 1 rows.

    >>> formula_curves().rows[:, 0].round(6)
    array([0.207607, 0.978212, 0.043721, 0.999044])
    """
    n_pairs = d_e // 2
    positions = torch.arange(1, length + 1)
    encoding = sinusoidal_encoding(positions, d_e, float(length), first_index=1, dtype=torch.float64)
    omega = frequencies(n_pairs, d_e, float(length), first_index=1)
    return PositionCurves(
        positions.numpy(),
        encoding[:, : 2 * n_pairs].T.numpy(),
        (2 * math.pi / omega).repeat_interleave(2).numpy(),
    )


def plotted_curves(length: int = 50, d_e: int = 5) -> PositionCurves:
    """Return the curves that the plot in the weather post shows: cos first, a constant ω_0 = 1, positions 0..L-1.

    For i = 1..d, row i is sin(x / L^(i/d)) if i is even and cos(x / L^((i-1)/d)) if i is odd.

    >>> plotted_curves().rows[:, 1].round(6)
    array([0.540302, 0.207607, 0.978212, 0.043721, 0.999044])
    >>> plotted_curves().periods.round(2)
    array([  6.28,  30.04,  30.04, 143.67, 143.67])
    """
    positions = torch.arange(length)
    encoding = sinusoidal_encoding(positions, d_e, float(length), order="cossin", dtype=torch.float64)
    omega = frequencies(d_e // 2 + 1, d_e, float(length)).repeat_interleave(2)[1 : d_e + 1]
    return PositionCurves(positions.numpy(), encoding.T.numpy(), (2 * math.pi / omega).numpy())


@dataclass(frozen=True)
class PositionProducts:
    """The dot products PE[p]·PE[p+k] for k = 0, 1, ... in d dimensions.

    Attributes:
        first_rise: The smallest k whose product is less than the product of k + 1. The products decrease from 0 to
            `first_rise`.
        deviation: The largest difference between the products of two positions p for the same k.
    """

    d_model: int
    products: Float[np.ndarray, " distances"]
    first_rise: int
    deviation: float


def products(d_model: int, n_distances: int = 101, n_positions: int = 64) -> PositionProducts:
    """Return PE[p]·PE[p+k] = Σ_i cos(k·10000^(-2i/d)), which is the same for every p and not monotone in k.

    The source is Kikuta 2025, exercise 3.1. The products are computed from the encoding for each p below
    `n_positions`.

    >>> products(128).products[:4].round(3)
    array([64.   , 62.094, 57.382, 52.186])
    >>> products(128).first_rise, products(512).first_rise
    (11, 43)
    """
    encoding = sinusoidal_encoding(torch.arange(n_positions + n_distances), d_model, dtype=torch.float64)
    pairs = encoding.unfold(0, n_distances, 1)[:n_positions]  # [position, d_model, distance]
    by_position = torch.einsum("pd,pdk->pk", encoding[:n_positions], pairs)
    first = by_position[0]
    spread = by_position.amax(0) - by_position.amin(0)
    rises = (first.diff() > 0).nonzero()
    return PositionProducts(d_model, first.numpy(), int(rises[0]), float(spread.max()))
