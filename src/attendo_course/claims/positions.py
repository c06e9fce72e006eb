"""Sinusoidal positions: shifts are rotations, products know the distance, the wavelengths (C01-C04, C24)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.nn.positions import frequencies, sinusoidal_encoding
from attendo_course.claims.claim import Claim, Finding, above, below, equals
from attendo_course.claims.samples import largest
from attendo_course.figures.positions import heatmap
from attendo_course.shifts import shift_matrix

Encode = Callable[[Int[Tensor, "*batch"], int], Float[Tensor, "*batch d_model"]]
"""From positions and a width to one row for each position."""


def sines_and_cosines(positions: Int[Tensor, "*batch"], d_model: int) -> Float[Tensor, "*batch d_model"]:
    """PE[p, 2i] = sin(pω_i), PE[p, 2i+1] = cos(pω_i) in float64. Vaswani et al. 2017, section 3.5.

    >>> sines_and_cosines(torch.tensor(1), 128)[:2]
    tensor([0.8415, 0.5403], dtype=torch.float64)
    """
    return sinusoidal_encoding(positions, d_model, dtype=torch.float64)


def sines_alone(positions: Int[Tensor, "*batch"], d_model: int) -> Float[Tensor, "*batch d_model"]:
    """sin(pω_i) for d_model frequencies and no cosine: every other entry of the row twice as wide.

    >>> sines_alone(torch.tensor(1), 64)[:2]
    tensor([0.8415, 0.7617], dtype=torch.float64)
    """
    return sines_and_cosines(positions, 2 * d_model)[..., 0::2]


def spread_by_distance(rows: Float[Tensor, "n d_model"]) -> float:
    """How far rows[p]·rows[q] of one distance |p - q| lie apart at most: 0 if the Gram matrix is Toeplitz.

    >>> spread_by_distance(torch.tensor([[1.0], [1.0], [3.0]]))
    8.0
    """
    gram = rows @ rows.T
    diagonals = [gram.diagonal(k) for k in range(len(rows))]
    return max(float(diagonal.max() - diagonal.min()) for diagonal in diagonals)


def shifting_rotates(
    encode: Encode = sines_and_cosines, d_model: int = 128, n: int = 64, shifts: tuple[int, int] = (5, 40)
) -> Finding:
    """PE[p+k] = M_k PE[p] with M_k made of the rotations [[cos kω, sin kω], [-sin kω, cos kω]]. Kikuta 2025, ex. 3.1.

    encode: what must have the property, at an even width d_model. n: all p and k of 0..n-1 go into the addition
    formulas. shifts: the k of the M_k that are multiplied.

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
    odd = Localized(
        "d = 1: PE[0] = 0, so M PE[0] = 0, but PE[1] =", "d = 1：M PE[0] = M·0 = 0 だが、PE[1] の値は"
    )
    checks = (
        below(
            Localized("sin (p+k)ω: largest deviation", "sin (p+k)ω の式の最大偏差"), largest(sine_law), 1e-12
        ),
        below(
            Localized("cos (p+k)ω: largest deviation", "cos (p+k)ω の式の最大偏差"),
            largest(cosine_law),
            1e-12,
        ),
        below(Localized("largest |M_k PE[p] - PE[p+k]|", "|M_k PE[p] - PE[p+k]| の最大"), moved, 1e-12),
        below(Localized("largest |MᵀM - I|", "|MᵀM - I| の最大"), largest(product), 1e-12),
        below(
            Localized("largest |M_a M_b - M_(a+b)|", "|M_a M_b - M_(a+b)| の最大"),
            largest(m[a] @ m[b] - m[a + b]),
            1e-12,
        ),
        equals(Localized("M_1[0, 0] = cos 1", "M_1[0, 0] = cos 1"), m[1][0, 0].item(), 0.540302, 5e-7),
        equals(Localized("M_1[0, 1] = sin 1", "M_1[0, 1] = sin 1"), m[1][0, 1].item(), 0.841471, 5e-7),
        equals(odd, encode(torch.tensor(1), 1).item(), 0.841471, 5e-7, counterexample=True),
    )
    small = shift_matrix(5, 8, dtype=torch.float64).numpy()
    title = Localized(
        "M_5 for d = 8: four rotations, each slower than the last", "d = 8 の M_5：下ほど遅い 4 つの回転"
    )
    names = tuple(f"{phase} ω{i}" for i in range(4) for phase in ("sin", "cos"))
    return Finding(checks, Picture("matrix", title, small, names, names))


def only_distance_counts(encode: Encode = sines_and_cosines, n: int = 64) -> Finding:
    """PE[p]·PE[p+k] = Σ_i cos(kω_i), the same for every p, and not monotone in k. Kikuta 2025, exercise 3.1.

    encode: what must have the property. n: positions 0..n-1 make the Gram matrix at width 128.

    >>> only_distance_counts().holds
    True
    >>> only_distance_counts(sines_alone).holds
    False
    """
    distances = torch.arange(64)
    products = {d: encode(distances, d) @ encode(torch.tensor(0), d) for d in (128, 512)}
    sums = (distances[:, None] * frequencies(64, 128)).cos().sum(-1)
    spread = Localized("same distance: largest difference of the products", "距離が同じ内積どうしの差の最大")
    formula = Localized("largest |PE[0]·PE[k] - Σ cos kω_i|", "|PE[0]·PE[k] - Σ cos kω_i| の最大")
    checks = [
        below(spread, spread_by_distance(encode(torch.arange(n), 128)), 1e-12),
        below(formula, largest(products[128] - sums), 1e-12),
    ]
    for k, expected in enumerate((64.0, 62.094, 57.382, 52.186)):
        name = f"d = 128: PE[p]·PE[p+{k}]"
        checks.append(equals(Localized(name, name), products[128][k].item(), expected, 5e-4))
    for d, expected in ((128, 11), (512, 43)):
        rises = (products[d].diff() > 0).nonzero().flatten().tolist()
        name = Localized(
            f"d = {d}: first k with a larger product at k+1", f"d = {d}：k+1 で内積が増える最初の k"
        )
        checks.append(equals(name, rises[0] if rises else math.nan, expected, 0.0, counterexample=True))
    curves = np.stack([(product / product[0]).numpy() for product in products.values()])
    title = Localized("PE[p]·PE[p+k] / (d/2) by k", "PE[p]·PE[p+k] / (d/2) と k")
    labels = tuple(str(k) for k in range(64))
    return Finding(tuple(checks), Picture("curves", title, curves, ("d = 128", "d = 512"), labels))


def sines_alone_lose_it(encode: Encode = sines_alone, d_model: int = 64, n: int = 64) -> Finding:
    """sin pω sin qω = ½ cos (p-q)ω - ½ cos (p+q)ω: products and lengths vary with p, and no matrix shifts the rows.

    Bishop & Bishop 2024, exercise 12.10. encode: what must lack the properties of C01 and C02.

    >>> sines_alone_lose_it().holds
    True
    >>> sines_alone_lose_it(sines_and_cosines).holds
    False
    """
    rows = encode(torch.arange(n), d_model)
    both = sines_and_cosines(torch.arange(n), 2 * d_model)
    lengths = rows.square().sum(-1)
    spread = Localized("same distance: largest difference of the products", "距離が同じ内積どうしの差の最大")
    cured = Localized("sines and cosines: the same difference", "正弦と余弦：同じ差の最大")
    nothing = Localized("|PE[0]|²: M_k PE[0] = 0 for every M_k", "|PE[0]|²（どの M_k でも M_k PE[0] = 0）")
    something = Localized("|PE[1]|²: what M_1 PE[0] should have", "|PE[1]|²（M_1 PE[0] がもつべき値）")
    varying = Localized("|PE[p]|²: greatest - least", "|PE[p]|² の最大と最小の差")
    checks = (
        equals(spread, spread_by_distance(rows), 20.38, 5e-3),
        below(cured, spread_by_distance(both), 1e-12),
        equals(nothing, lengths[0].item(), 0.0, 0.0),
        above(something, lengths[1].item(), 1.0),
        above(varying, float(lengths.max() - lengths.min()), 1.0),
    )
    curves = torch.stack([(rows[:-1] * rows[1:]).sum(-1), (both[:-1] * both[1:]).sum(-1)])
    title = Localized("PE[p]·PE[p+1] by p", "PE[p]·PE[p+1] と p")
    labels = tuple(str(p) for p in range(n - 1))
    return Finding(checks, Picture("curves", title, curves.numpy(), ("sin", "sin, cos"), labels))


def heat_map(draw: Callable[[int, int], Float[np.ndarray, "d_model max_len"]] = heatmap) -> Finding:
    """PE[p, 2i] = sin(pω_i), PE[p, 2i+1] = cos(pω_i), transposed: 128 rows, a column a position. Kikuta 2025, ex. 3.2.

    draw: from max_len and d_model to the figure's array.

    >>> heat_map().holds
    True
    """
    array = draw(64, 128)
    table = sines_and_cosines(torch.arange(64), 128).numpy()
    fits = array.shape == (128, 64)
    apart = float(np.abs(array - table.T).max()) if fits else math.nan
    lengths = Localized("largest | |PE[p]|² - d/2 |", "|PE[p]|² と d/2 の差の最大")
    checks = [
        equals(Localized("rows: dimensions", "行数（次元）"), array.shape[0], 128, 0.0),
        equals(Localized("columns: positions", "列数（位置）"), array.shape[1], 64, 0.0),
        equals(Localized("largest |array - PEᵀ|", "|配列 - PEᵀ| の最大"), apart, 0.0, 0.0),
        below(lengths, float(np.abs(np.square(array).sum(0) - 64.0).max()), 1e-12),
        equals(
            Localized("largest entry, end of the bar", "最大の要素（カラーバーの上端）"), array.max(), 1.0
        ),
        equals(
            Localized("least entry, end of the bar", "最小の要素（カラーバーの下端）"),
            array.min(),
            -1.0,
            1e-3,
        ),
    ]
    for dimension, expected in enumerate((0.841471, 0.540302, 0.761720, 0.647906)):
        name = f"PE[1, {dimension}]"
        checks.append(equals(Localized(name, name), array[dimension, 1], expected, 5e-7))
    title = "Sinusoidal Positional Encoding (max_len=64, d_model=128)"
    shown = [d for d in range(array.shape[0]) if d % 8 < 2][::-1]  # pairs of a sine and a cosine, upwards
    labels = tuple(str(d) for d in shown), tuple(str(p) for p in range(array.shape[1]))
    return Finding(tuple(checks), Picture("matrix", Localized(title, title), array[shown], *labels))


def longest_wave_falls_short(encode: Encode = sines_and_cosines, d_model: int = 512) -> Finding:
    """λ_i = 2π·10000^(2i/d), i = 0..d/2-1: from 2π to 2π·10000^((d-2)/d), not 2π·10000. Vaswani et al. 2017, 3.5.

    encode: the table whose slowest sine is read half a wave from its start. d_model: the figures are those of 512.

    >>> longest_wave_falls_short().holds
    True
    """
    waves, limit = 2 * math.pi / frequencies(d_model // 2, d_model), 2 * math.pi * 10000.0
    ratios, many = waves[1:] / waves[:-1], 10**6
    gap_at_many = limit - float(2 * math.pi / frequencies(many // 2, many)[-1])
    before, after = encode(torch.tensor([30305, 30306]), d_model)[:, d_model - 2].tolist()
    formula = 2 * math.pi * 10000.0 ** ((d_model - 2) / d_model)
    ratio = Localized(
        "neighbors: largest |ratio - 10000^(2/d)|", "隣どうしの波長の比と 10000^(2/d) の差の最大"
    )
    quotient = Localized("longest / (2π·10000^((d-2)/d))", "最長の波長 / (2π·10000^((d-2)/d))")
    missing = Localized("62832 = 2π·10000, less the longest", "62832 = 2π·10000 と最長の波長の差")
    checks = (
        equals(Localized("shortest wavelength, 2π", "最短の波長 2π"), waves[0].item(), 2 * math.pi),
        equals(Localized("longest wavelength", "最長の波長"), waves[-1].item(), 60611.0, 0.5),
        equals(quotient, waves[-1].item() / formula, 1.0, 1e-12),
        below(ratio, largest(ratios - 10000.0 ** (2 / d_model)), 1e-12),
        above(Localized("slowest sine, p = 30305 < λ/2", "最も遅い正弦、p = 30305 < λ/2"), before, 0.0),
        below(Localized("slowest sine, p = 30306 > λ/2", "最も遅い正弦、p = 30306 > λ/2"), after, 0.0),
        above(missing, limit - waves[-1].item(), 2000.0, counterexample=True),
        below(
            Localized("d = 1,000,000: 62832 less the longest", "d = 1,000,000：62832 と最長の波長の差"),
            gap_at_many,
            2.0,
        ),
    )
    title = Localized("log₁₀ of the wavelength λ_i by i", "波長 λ_i の常用対数と i")
    labels = tuple(str(i) for i in range(d_model // 2))
    return Finding(checks, Picture("curves", title, waves.log10().numpy()[None], (f"d = {d_model}",), labels))


CLAIMS = (
    Claim(
        id="C01",
        source="Kikuta 2025, exercise 3.1",
        statement=Localized(
            "The sinusoidal encoding of position p+k is a fixed matrix times that of position p. The matrix M_k"
            " depends on k only and turns each pair (sin, cos) by the angle kω_i.",
            "位置 p+k の正弦波位置符号化は、位置 p の位置符号化に、ある行列を掛けたものである。この行列 M_k は"
            " k だけで決まり、各組 (sin, cos) を角 kω_i だけ回転する。",
        ),
        derivation=Localized(
            "Take one pair of entries, with ω = ω_i = 10000^(-2i/d): PE[p] holds sin pω and cos pω there.\n"
            "The addition theorems say\n"
            "  sin (p+k)ω = sin pω · cos kω + cos pω · sin kω,\n"
            "  cos (p+k)ω = cos pω · cos kω - sin pω · sin kω,\n"
            "and sin kω, cos kω are the entries of PE[k] in the same places.\n"
            "In matrix form the pair of p+k is R(kω) = [[cos kω, sin kω], [-sin kω, cos kω]] times the pair of p.\n"
            "R(kω) is a rotation and does not know p. With d/2 such blocks on its diagonal, M_k PE[p] = PE[p+k].\n"
            "cos² + sin² = 1 gives RᵀR = I, so MᵀM = I: no length changes.\n"
            "A turn by aω after a turn by bω is a turn by (a+b)ω, so M_a M_b = M_(a+b).\n"
            "So PE[p+k] is linear in PE[p], with coefficients from PE[k]; in both of them it is bilinear.",
            "ω = ω_i = 10000^(-2i/d) とし、一組の成分を見る。PE[p] のそこには sin pω と cos pω がある。\n"
            "加法定理より\n"
            "  sin (p+k)ω = sin pω · cos kω + cos pω · sin kω,\n"
            "  cos (p+k)ω = cos pω · cos kω - sin pω · sin kω\n"
            "であり、sin kω と cos kω は PE[k] の同じ場所の成分である。\n"
            "行列で書くと、p+k の組は p の組に R(kω) = [[cos kω, sin kω], [-sin kω, cos kω]] を掛けたものになる。\n"
            "R(kω) は回転であり、p によらない。これを対角に d/2 個並べた M_k は M_k PE[p] = PE[p+k] を満たす。\n"
            "cos² + sin² = 1 より RᵀR = I、よって MᵀM = I であり、長さは変わらない。\n"
            "bω の回転に続く aω の回転は (a+b)ω の回転だから、M_a M_b = M_(a+b) である。\n"
            "つまり PE[p+k] は PE[p] について線形で、係数は PE[k] から来る。PE[p] と PE[k] について双線形である。",
        ),
        condition=Localized(
            "The width d is even: in an odd width the last sine lacks its cosine.",
            "次元 d は偶数とする。奇数だと、最後の正弦に対になる余弦がない。",
        ),
        compute=shifting_rotates,
    ),
    Claim(
        id="C02",
        source="Kikuta 2025, exercise 3.1",
        statement=Localized(
            "The dot product of the encodings of positions p and p+k depends on the distance k only.",
            "位置 p と p+k の位置符号化どうしの内積は、距離 k だけで決まる。",
        ),
        derivation=Localized(
            "One pair of entries gives sin pω · sin (p+k)ω + cos pω · cos (p+k)ω = cos ((p+k)ω - pω) = cos kω.\n"
            "Summed over the pairs: PE[p]·PE[p+k] = Σ_i cos kω_i, without p.\n"
            "All pairs of positions at once: the Gram matrix PE PEᵀ is constant along each diagonal (Toeplitz).\n"
            "At k = 0 each cosine is 1, so every row has the squared length d/2, the largest value there is.\n"
            "For small k, cos kω_i ≈ 1 - (kω_i)²/2: the product falls at first.\n"
            "But each cosine comes back after 2π/ω_i steps, the fast ones while the slow ones have hardly moved.\n"
            "So the sum goes up and down: nearer need not mean more similar.",
            "一組の成分の寄与は sin pω · sin (p+k)ω + cos pω · cos (p+k)ω = cos ((p+k)ω - pω) = cos kω である。\n"
            "すべての組について足すと PE[p]·PE[p+k] = Σ_i cos kω_i となり、p は消える。\n"
            "全位置をまとめると、グラム行列 PE PEᵀ は各対角線上で一定（テプリッツ行列）である。\n"
            "k = 0 ではどの余弦も 1 なので、各行のノルムの 2 乗は d/2 であり、これが最大値である。\n"
            "k が小さいとき cos kω_i ≈ 1 - (kω_i)²/2 なので、内積は初めは減る。\n"
            "しかし各余弦は 2π/ω_i で元に戻る。遅い成分がほとんど動かないうちに速い成分は戻ってくるので、\n"
            "和は増減する。近いほど内積が大きいとは限らない。",
        ),
        condition=Localized(
            "It does not fall monotonically: the first rise comes after k = 11 for d = 128, k = 43 for d = 512.",
            "k について単調に減るわけではない。d = 128 では k = 11→12、d = 512 では k = 43→44 で初めて増加する。",
        ),
        compute=only_distance_counts,
    ),
    Claim(
        id="C03",
        source="Bishop & Bishop 2024, exercise 12.10",
        statement=Localized(
            "An encoding of sines without their cosines has neither property: its dot products depend on the"
            " positions themselves, and no matrix shifts it.",
            "余弦のない、正弦だけの位置符号化は、どちらの性質ももたない。内積は位置そのものに依存し、"
            "位置をずらす行列も存在しない。",
        ),
        derivation=Localized(
            "For one frequency, sin pω · sin qω = ½ cos (p-q)ω - ½ cos (p+q)ω.\n"
            "The first part depends on the distance; the second, on p+q, changes as both positions move on.\n"
            "The cosines would add ½ cos (p-q)ω + ½ cos (p+q)ω, and the second part would cancel.\n"
            "The same with q = p: the squared length Σ_i sin² pω_i is not the same for every p.\n"
            "A shift would need sin (p+k)ω = sin pω · cos kω + cos pω · sin kω, and cos pω is not in the row.\n"
            "Plainest at p = 0: PE[0] is the zero vector, M_k PE[0] = 0 for any matrix, but PE[k] is not zero.",
            "一つの角周波数について sin pω · sin qω = ½ cos (p-q)ω - ½ cos (p+q)ω である。\n"
            "第 1 項は距離だけによるが、第 2 項は p+q に依存し、両方の位置をずらすと変わる。\n"
            "余弦があれば ½ cos (p-q)ω + ½ cos (p+q)ω が加わり、第 2 項は打ち消される。\n"
            "q = p としても同じで、ノルムの 2 乗 Σ_i sin² pω_i は p によって変わる。\n"
            "ずらすには sin (p+k)ω = sin pω · cos kω + cos pω · sin kω が必要だが、cos pω は行の中にない。\n"
            "p = 0 で最もはっきりする。PE[0] は零ベクトルなのでどの行列でも M_k PE[0] = 0 だが、PE[k] は零でない。",
        ),
        compute=sines_alone_lose_it,
    ),
    Claim(
        id="C04",
        source="Kikuta 2025, exercise 3.2",
        statement=Localized(
            "The heat map of the encoding shows positions 0 to 63 from left to right and dimensions 0 to 127 upwards,"
            " with values from -1 to 1: the transposed table of sines and cosines.",
            "位置符号化のヒートマップは、横に位置 0〜63、縦に下から次元 0〜127 をとり、値は -1 から 1 である。"
            "すなわち正弦・余弦の表を転置したものである。",
        ),
        derivation=Localized(
            "The table has a row for each position p and a column for each dimension; the figure swaps the two.\n"
            "Dimension 2i is sin pω_i, dimension 2i+1 is cos pω_i, with ω_i = 10000^(-2i/128).\n"
            "The first dimensions turn by about 1 radian a position and look striped: λ_0 = 2π ≈ 6.3 positions.\n"
            "In the last third, 64 positions are a small part of a wave: sines stay near 0, cosines near 1,\n"
            "which gives the fine stripes from row to row.\n"
            "Column 0 is 0, 1, 0, 1, ...; each column has the squared length 64, a 1 from every pair.",
            "表は位置 p ごとに行、次元ごとに列をもつ。図では行と列を入れ替える。\n"
            "次元 2i は sin pω_i、次元 2i+1 は cos pω_i、ω_i = 10000^(-2i/128) である。\n"
            "初めの次元は 1 位置ごとに約 1 ラジアン進み、縞に見える（λ_0 = 2π ≈ 6.3 位置）。\n"
            "終わりの 3 分の 1 では 64 位置は波のごく一部なので、正弦は 0、余弦は 1 の近くにとどまり、\n"
            "行ごとの細かい縞になる。\n"
            "列 0 は 0, 1, 0, 1, … である。各組が 1 ずつ寄与し、どの列もノルムの 2 乗は 64 である。",
        ),
        compute=heat_map,
    ),
    Claim(
        id="C24",
        source="Vaswani et al. 2017, section 3.5",
        statement=Localized(
            "The wavelengths of the encoding form a geometric progression from 2π to 10000·2π.",
            "位置符号化の波長は、2π から 10000·2π までの等比数列をなす。",
        ),
        derivation=Localized(
            "Dimension 2i is sin(p·10000^(-2i/d)); it repeats after λ_i = 2π·10000^(2i/d) positions.\n"
            "λ_(i+1)/λ_i = 10000^(2/d) for every i: a geometric progression, and λ_0 = 2π.\n"
            "There are d/2 pairs, i = 0 to d/2-1. At the last one 2i = d-2, so\n"
            "  λ_max = 2π·10000^((d-2)/d) = 2π·10000 · 10000^(-2/d).\n"
            "The factor 10000^(-2/d) is .965 at d = 512: 60611 instead of 62832. It tends to 1 as d grows.\n"
            "In the table: the slowest sine turns negative after position 30305 = 60611/2, not 31415.",
            "次元 2i は sin(p·10000^(-2i/d)) で、λ_i = 2π·10000^(2i/d) 位置ごとに繰り返す。\n"
            "どの i でも λ_(i+1)/λ_i = 10000^(2/d) だから等比数列であり、λ_0 = 2π である。\n"
            "組は i = 0 から d/2-1 までの d/2 個で、最後の組では 2i = d-2 となる。よって\n"
            "  λ_max = 2π·10000^((d-2)/d) = 2π·10000 · 10000^(-2/d).\n"
            "因子 10000^(-2/d) は d = 512 で 0.965 なので、62832 ではなく 60611 になる。d → ∞ で 1 に近づく。\n"
            "表で見ると、最も遅い正弦は 31415 ではなく 30305 = 60611/2 の次の位置で負に変わる。",
        ),
        condition=Localized(
            "The upper end is only a limit for large d; the longest wavelength is 2π·10000^((d-2)/d).",
            "上端は d を大きくしたときの極限であり、実際の最長の波長は 2π·10000^((d-2)/d) である。",
        ),
        compute=longest_wave_falls_short,
    ),
)
