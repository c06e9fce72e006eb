"""The arrays of the figures about sinusoidal positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from attendo.nn.positions import frequencies, sinusoidal_encoding


def heatmap(max_len: int = 64, d_model: int = 128) -> Float[np.ndarray, "d_model max_len"]:
    """PE[p, 2i] = sin(p·10000^(-2i/d)), PE[p, 2i+1] = cos of the same, transposed: a column for each position.

    Vaswani et al. 2017, section 3.5, drawn as exercise 3.2 of the generative-AI book has it.

    >>> heatmap()[:4, 1].round(6)
    array([0.841471, 0.540302, 0.76172 , 0.647906])
    """
    return sinusoidal_encoding(torch.arange(max_len), d_model, dtype=torch.float64).T.numpy()


@dataclass(frozen=True)
class PositionCurves:
    """Rows of a positional encoding over the positions, and the period of each row in positions."""

    positions: Int[np.ndarray, " length"]
    rows: Float[np.ndarray, "rows length"]
    periods: Float[np.ndarray, " rows"]


def formula_curves(length: int = 50, d_e: int = 5) -> PositionCurves:
    """W[2i-1, t] = sin(t / L^(2i/d)), W[2i, t] = cos of the same, 1 ≤ i ≤ d/2, t = 1..L: two rows for each i.

    Phuong & Hutter 2022, section 5, with base L. An odd d leaves its last row undefined, so there are d - 1 rows.

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
    """What the weather post's plot drew for that formula: cos first, a constant ω_0 = 1, positions 0..L-1.

    Row i is sin(x / L^(i/d)) for even i and cos(x / L^((i-1)/d)) for odd i, i = 1..d.

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
    """PE[p]·PE[p+k] for k = 0, 1, ... in d dimensions.

    first_rise: the smallest k at which it is less than at k + 1: there it stops falling. deviation: the greatest
    difference between the values of any two p for one k.
    """

    d_model: int
    products: Float[np.ndarray, " distances"]
    first_rise: int
    deviation: float


def products(d_model: int, n_distances: int = 101, n_positions: int = 64) -> PositionProducts:
    """PE[p]·PE[p+k] = Σ_i cos(k·10000^(-2i/d)), the same for every p, and not monotone in k.

    After exercise 3.1 of the generative-AI book. Computed from the encoding for each p below `n_positions`.

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
