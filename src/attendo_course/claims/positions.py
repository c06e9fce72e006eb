"""Claims about sinusoidal positions: rotations, dot products by distance, wavelengths (C01-C04, C24)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.display.i18n import Localized
from attendo.nn.positions import PhaseOrder, frequencies, sinusoidal_encoding
from attendo_course.book import translated
from attendo_course.claims.claim import Finding, above, below, equals
from attendo_course.claims.samples import largest
from attendo_course.figures.arrays import heatmap
from attendo_course.pictures import Picture


def shift_matrix(
    k: int,
    d_model: int,
    base: float = 10000.0,
    *,
    first_index: int = 0,
    order: PhaseOrder = "sincos",
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "d_model d_model"]:
    """Return M_k with M_k PE[p] = PE[p+k] for every p: a rotation by kω_i in the plane of each sine and its cosine.

    Section 3.5 of Vaswani et al. 2017 mentions the linear function M_k. M_k is block-diagonal for "sincos". Raises
    ValueError if a sine or a cosine has no partner: for an odd width, or for "cossin".

    >>> from attendo.nn.positions import sinusoidal_encoding
    >>> shift_matrix(1, 2) @ sinusoidal_encoding(torch.tensor(4), 2)
    tensor([-0.9589,  0.2837])
    >>> sinusoidal_encoding(torch.tensor(5), 2)
    tensor([-0.9589,  0.2837])
    """
    if d_model % 2 or order == "cossin":
        raise ValueError(
            f"d_model={d_model} in the order {order!r} leaves a phase without its partner, so no matrix shifts it;"
            ' take an even width and "sincos" or "halves"'
        )
    n_pairs = d_model // 2
    angles = k * frequencies(n_pairs, d_model, base, first_index)
    sines = torch.arange(n_pairs) * (1 if order == "halves" else 2)
    cosines = sines + (n_pairs if order == "halves" else 1)
    matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
    matrix[sines, sines] = matrix[cosines, cosines] = angles.cos()
    matrix[sines, cosines] = angles.sin()
    matrix[cosines, sines] = -angles.sin()
    return matrix.to(dtype or torch.get_default_dtype())


Encode = Callable[[Int[Tensor, "*batch"], int], Float[Tensor, "*batch d_model"]]
"""A function from positions and a width to one row per position."""


def sines_and_cosines(positions: Int[Tensor, "*batch"], d_model: int) -> Float[Tensor, "*batch d_model"]:
    """Return PE[p, 2i] = sin(pω_i), PE[p, 2i+1] = cos(pω_i) in float64 (Vaswani et al. 2017, section 3.5).

    >>> sines_and_cosines(torch.tensor(1), 128)[:2]
    tensor([0.8415, 0.5403], dtype=torch.float64)
    """
    return sinusoidal_encoding(positions, d_model, dtype=torch.float64)


def sines_alone(positions: Int[Tensor, "*batch"], d_model: int) -> Float[Tensor, "*batch d_model"]:
    """Return sin(pω_i) for d_model frequencies without cosines: every second entry of a row of width 2·d_model.

    >>> sines_alone(torch.tensor(1), 64)[:2]
    tensor([0.8415, 0.7617], dtype=torch.float64)
    """
    return sines_and_cosines(positions, 2 * d_model)[..., 0::2]


def spread_by_distance(rows: Float[Tensor, "n d_model"]) -> float:
    """Return the largest difference between two products rows[p]·rows[q] with equal |p - q|: 0 for a Toeplitz matrix.

    >>> spread_by_distance(torch.tensor([[1.0], [1.0], [3.0]]))
    8.0
    """
    gram = rows @ rows.T
    diagonals = [gram.diagonal(k) for k in range(len(rows))]
    return max(float(diagonal.max() - diagonal.min()) for diagonal in diagonals)


def shifting_rotates(
    encode: Encode = sines_and_cosines, d_model: int = 128, n: int = 64, shifts: tuple[int, int] = (5, 40)
) -> Finding:
    """Check that PE[p+k] = M_k PE[p], where M_k consists of the rotations [[cos kω, sin kω], [-sin kω, cos kω]].

    The source is Kikuta 2025, exercise 3.1. `encode` is the tested encoding with the even width `d_model`. The
    addition formulas are checked for all p and k of 0..n-1. `shifts` contains the k of the matrices M_k that are
    multiplied.

    >>> shifting_rotates().holds
    True
    >>> shifting_rotates(sines_alone).holds
    False
    """
    places, (a, b) = torch.arange(n), shifts
    rows, sums = encode(places, d_model), encode(places[:, None] + places, d_model)  # sums: [p, k, d_model]
    sin_p, cos_p = rows[:, None, 0::2], rows[:, None, 1::2]
    sin_k, cos_k = rows[None, :, 0::2], rows[None, :, 1::2]
    sine_law = sums[..., 0::2] - (sin_p * cos_k + cos_p * sin_k)
    cosine_law = sums[..., 1::2] - (cos_p * cos_k - sin_p * sin_k)
    m = {k: shift_matrix(k, d_model, dtype=torch.float64) for k in (1, a, b, a + b)}
    moved = max(largest(rows @ m[k].T - encode(places + k, d_model)) for k in (1, a, b))
    product = m[a].T @ m[a] - torch.eye(d_model, dtype=torch.float64)
    odd = translated("d = 1: PE[0] = 0, so M PE[0] = 0, but PE[1] =")
    checks = (
        below("sin (p+k)ω: largest deviation", largest(sine_law), 1e-12),
        below("cos (p+k)ω: largest deviation", largest(cosine_law), 1e-12),
        below("largest |M_k PE[p] - PE[p+k]|", moved, 1e-12),
        below("largest |MᵀM - I|", largest(product), 1e-12),
        below("largest |M_a M_b - M_(a+b)|", largest(m[a] @ m[b] - m[a + b]), 1e-12),
        equals("M_1[0, 0] = cos 1", m[1][0, 0].item(), 0.540302, 5e-7),
        equals("M_1[0, 1] = sin 1", m[1][0, 1].item(), 0.841471, 5e-7),
        equals(odd, encode(torch.tensor(1), 1).item(), 0.841471, 5e-7, counterexample=True),
    )
    small = shift_matrix(5, 8, dtype=torch.float64).numpy()
    title = translated("M_5 for d = 8: four rotations, each slower than the last")
    names = tuple(f"{phase} ω{i}" for i in range(4) for phase in ("sin", "cos"))
    return Finding(checks, Picture("matrix", title, small, names, names))


def only_distance_counts(encode: Encode = sines_and_cosines, n: int = 64) -> Finding:
    """Check that PE[p]·PE[p+k] = Σ_i cos(kω_i), which is the same for every p and not monotone in k.

    The source is Kikuta 2025, exercise 3.1. `encode` is the tested encoding. The Gram matrix is computed for
    positions 0..n-1 at width 128.

    >>> only_distance_counts().holds
    True
    >>> only_distance_counts(sines_alone).holds
    False
    """
    distances = torch.arange(64)
    products = {d: encode(distances, d) @ encode(torch.tensor(0), d) for d in (128, 512)}
    sums = (distances[:, None] * frequencies(64, 128)).cos().sum(-1)
    spread = translated("same distance: largest difference of the products")
    checks = [
        below(spread, spread_by_distance(encode(torch.arange(n), 128)), 1e-12),
        below("largest |PE[0]·PE[k] - Σ cos kω_i|", largest(products[128] - sums), 1e-12),
    ]
    for k, expected in enumerate((64.0, 62.094, 57.382, 52.186)):
        name = f"d = 128: PE[p]·PE[p+{k}]"
        checks.append(equals(Localized(name, name), products[128][k].item(), expected, 5e-4))
    for d, expected in ((128, 11), (512, 43)):
        rises = (products[d].diff() > 0).nonzero().flatten().tolist()
        name = translated("d = {d}: first k with a larger product at k+1", d=d)
        checks.append(equals(name, rises[0] if rises else math.nan, expected, 0.0, counterexample=True))
    curves = np.stack([(product / product[0]).numpy() for product in products.values()])
    title = translated("PE[p]·PE[p+k] / (d/2) by k")
    labels = tuple(str(k) for k in range(64))
    return Finding(tuple(checks), Picture("curves", title, curves, ("d = 128", "d = 512"), labels))


def sines_alone_lose_it(encode: Encode = sines_alone, d_model: int = 64, n: int = 64) -> Finding:
    """Check that sines alone lose the properties of C01 and C02: no matrix shifts the rows.

    Dot products and lengths vary with p, since sin pω sin qω = ½ cos (p-q)ω - ½ cos (p+q)ω. The source is Bishop &
    Bishop 2024, exercise 12.10. `encode` is the encoding that must lack the properties.

    >>> sines_alone_lose_it().holds
    True
    >>> sines_alone_lose_it(sines_and_cosines).holds
    False
    """
    rows = encode(torch.arange(n), d_model)
    both = sines_and_cosines(torch.arange(n), 2 * d_model)
    lengths = rows.square().sum(-1)
    checks = (
        equals("same distance: largest difference of the products", spread_by_distance(rows), 20.38, 5e-3),
        below("sines and cosines: the same difference", spread_by_distance(both), 1e-12),
        equals("|PE[0]|²: M_k PE[0] = 0 for every M_k", lengths[0].item(), 0.0, 0.0),
        above("|PE[1]|²: what M_1 PE[0] should have", lengths[1].item(), 1.0),
        above("|PE[p]|²: greatest - least", float(lengths.max() - lengths.min()), 1.0),
    )
    curves = torch.stack([(rows[:-1] * rows[1:]).sum(-1), (both[:-1] * both[1:]).sum(-1)])
    title = translated("PE[p]·PE[p+1] by p")
    labels = tuple(str(p) for p in range(n - 1))
    return Finding(checks, Picture("curves", title, curves.numpy(), ("sin", "sin, cos"), labels))


def heat_map(draw: Callable[[int, int], Float[np.ndarray, "d_model max_len"]] = heatmap) -> Finding:
    """Check the heat map of PE[p, 2i] = sin(pω_i), PE[p, 2i+1] = cos(pω_i): 128 rows, one column per position.

    The source is Kikuta 2025, exercise 3.2. `draw` maps max_len and d_model to the array of the figure.

    >>> heat_map().holds
    True
    """
    array = draw(64, 128)
    table = sines_and_cosines(torch.arange(64), 128).numpy()
    fits = array.shape == (128, 64)
    apart = float(np.abs(array - table.T).max()) if fits else math.nan
    checks = [
        equals("rows: dimensions", array.shape[0], 128, 0.0),
        equals("columns: positions", array.shape[1], 64, 0.0),
        equals("largest |array - PEᵀ|", apart, 0.0, 0.0),
        below("largest | |PE[p]|² - d/2 |", float(np.abs(np.square(array).sum(0) - 64.0).max()), 1e-12),
        equals("largest entry, end of the bar", array.max(), 1.0),
        equals("least entry, end of the bar", array.min(), -1.0, 1e-3),
    ]
    for dimension, expected in enumerate((0.841471, 0.540302, 0.761720, 0.647906)):
        name = f"PE[1, {dimension}]"
        checks.append(equals(Localized(name, name), array[dimension, 1], expected, 5e-7))
    title = "Sinusoidal Positional Encoding (max_len=64, d_model=128)"
    shown = [d for d in range(array.shape[0]) if d % 8 < 2]  # pairs of a sine and a cosine
    labels = tuple(str(d) for d in shown), tuple(str(p) for p in range(array.shape[1]))
    return Finding(tuple(checks), Picture("matrix", Localized(title, title), array[shown], *labels))


def longest_wave_falls_short(encode: Encode = sines_and_cosines, d_model: int = 512) -> Finding:
    """Check the wavelengths λ_i = 2π·10000^(2i/d): from 2π to 2π·10000^((d-2)/d), which is less than 2π·10000.

    The index i is 0..d/2-1. The source is Vaswani et al. 2017, section 3.5. `encode` is the tested encoding: its
    slowest sine must change sign after half a wave. The expected numbers are for a `d_model` of 512.

    >>> longest_wave_falls_short().holds
    True
    """
    waves, limit = 2 * math.pi / frequencies(d_model // 2, d_model), 2 * math.pi * 10000.0
    ratios, many = waves[1:] / waves[:-1], 10**6
    gap_at_many = limit - float(2 * math.pi / frequencies(many // 2, many)[-1])
    before, after = encode(torch.tensor([30305, 30306]), d_model)[:, d_model - 2].tolist()
    formula = 2 * math.pi * 10000.0 ** ((d_model - 2) / d_model)
    checks = (
        equals("shortest wavelength, 2π", waves[0].item(), 2 * math.pi),
        equals("longest wavelength", waves[-1].item(), 60611.0, 0.5),
        equals("longest / (2π·10000^((d-2)/d))", waves[-1].item() / formula, 1.0, 1e-12),
        below("neighbors: largest |ratio - 10000^(2/d)|", largest(ratios - 10000.0 ** (2 / d_model)), 1e-12),
        above("slowest sine, p = 30305 < λ/2", before, 0.0),
        below("slowest sine, p = 30306 > λ/2", after, 0.0),
        above("62832 = 2π·10000, less the longest", limit - waves[-1].item(), 2000.0, counterexample=True),
        below("d = 1,000,000: 62832 less the longest", gap_at_many, 2.0),
    )
    title = translated("log₁₀ of the wavelength λ_i by i")
    labels = tuple(str(i) for i in range(d_model // 2))
    return Finding(checks, Picture("curves", title, waves.log10().numpy()[None], (f"d = {d_model}",), labels))


CLAIMS = {
    "C01": shifting_rotates,
    "C02": only_distance_counts,
    "C03": sines_alone_lose_it,
    "C04": heat_map,
    "C24": longest_wave_falls_short,
}
