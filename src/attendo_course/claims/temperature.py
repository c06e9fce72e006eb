"""The softmax of attention: its weights, its temperature, its derivative (C07, C10, C11, C21)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.nn.attention import attention_scores, attention_weights, masked_softmax
from attendo.training.losses import token_losses
from attendo_course.claims.claim import Claim, Finding, above, below, equals
from attendo_course.claims.samples import largest, normal

Tempered = Callable[[Float[Tensor, "*batch q_len k_len"], float], Float[Tensor, "*batch q_len k_len"]]
"""From scores and an inverse temperature to weights."""

Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]
"""From a shape and a generator to random numbers in float64."""

SCORES = (1.0, 0.5, 0.2)


def standard_normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Independent draws from N(0, 1) in float64.

    >>> standard_normal((2, 3), torch.Generator().manual_seed(0)).dtype
    torch.float64
    """
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def tempered(
    scores: Float[Tensor, "*batch q_len k_len"], inverse_temperature: float
) -> Float[Tensor, "*batch q_len k_len"]:
    """softargmax_β: exp(βs_i) / Σ_j exp(βs_j), one-hot at β = ∞. NYU Deep Learning 2020, week 12-3.

    >>> tempered(torch.tensor([[1.0, 0.5]]), math.inf)
    tensor([[1., 0.]])
    """
    return masked_softmax(scores, inverse_temperature=inverse_temperature)


def softmax_jacobian(weights: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """∂y_i/∂s_j = y_i(δ_ij - y_j) = diag(y) - yyᵀ for y = softmax(s), from y alone. Kikuta 2025, exercise 3.5.

    >>> softmax_jacobian(torch.tensor([0.5, 0.5]))
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    """
    return weights.diag() - torch.outer(weights, weights)


def _differentiated(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    jacobian = torch.autograd.functional.jacobian(function, at)
    assert isinstance(jacobian, Tensor)
    return jacobian


def products_spread_with_dimension(
    draw: Draw = standard_normal, draws: int = 200_000, seed: int = 0
) -> Finding:
    """E[(aᵀb)²] = D for independent a, b ~ N(0, I_D), so aᵀb/√D has variance 1. Bishop & Bishop 2024, ex. 12.4.

    draws: products for each D. One of them squared has the variance 2D² + 6D; the tolerance is four standard
    errors, and those of the difference of two means beside the mean of another sample of 200,000 draws.

    >>> products_spread_with_dimension(draws=20_000).holds
    True
    """
    generator, checks = torch.Generator().manual_seed(seed), []
    counts = np.unique(np.geomspace(100, draws, 60).astype(int))
    curves, dimensions = [], (1, 16, 64)
    for d, other in ((1, 1.018), (16, 15.99), (64, 63.87)):
        a, b = draw((draws, 1, d), generator), draw((draws, 1, d), generator)
        squares = attention_scores(a, b, scale=1.0).square().flatten()
        mean = squares.mean().item()
        curves.append((squares.cumsum(0)[counts - 1] / torch.from_numpy(counts) / d).numpy())
        scaled = attention_scores(a, b).square().mean().item()
        spread = 4.0 * math.sqrt(2 * d * d + 6 * d)
        error, both_errors = spread / math.sqrt(draws), spread * math.sqrt(1 / draws + 1 / 200_000)
        plain = Localized(f"D = {d}: mean of (aᵀb)², D expected", f"D = {d}：(aᵀb)² の平均（期待値 D）")
        again = Localized(f"D = {d}: the same, beside another sample's", f"D = {d}：同じ値と別の標本の平均")
        unit = Localized(f"D = {d}: mean of (aᵀb/√D)²", f"D = {d}：(aᵀb/√D)² の平均")
        checks.append(equals(plain, mean, d, error))
        checks.append(equals(again, mean, other, both_errors))
        checks.append(equals(unit, scaled, 1.0, error / d))
    title = Localized(
        "mean of the first N values of (aᵀb)²/D, N in equal ratios",
        "(aᵀb)²/D の最初の N 個の平均（N は等比）",
    )
    labels = tuple(f"N = {n:,}" for n in counts)
    rows = tuple(f"D = {d}" for d in dimensions)
    return Finding(tuple(checks), Picture("curves", title, np.stack(curves), rows, labels))


def root_keeps_temperature(
    scale: Callable[[int], float] | None = None, sets: int = 1000, seed: int = 0
) -> Finding:
    """qᵀk/√d has the standard deviation 1 for every d, so the softmax is as soft in each. NYU 2020, week 12-3.

    scale: from d to the factor on qᵀk, 1/√d if None. sets: of 8 queries and 16 keys from N(0, I_d) for each d; the
    mean is that of the largest of the 16 weights. Its tolerance .015 is three standard errors at d = 4 (one draw
    has the standard deviation .21) for the difference between our mean of 8,000 draws and one of 2,000.

    >>> root_keeps_temperature(sets=500).holds
    True
    >>> root_keeps_temperature(lambda d: 1 / d, sets=500).holds
    False
    """
    known = {4: (0.434, 0.238), 64: (0.842, 0.244), 512: (0.948, 0.248)}
    dims, checks, deviations, means = tuple(2**power for power in range(2, 10)), [], [], []
    generator = torch.Generator().manual_seed(seed)
    for d in dims:
        query, key = standard_normal((sets, 8, d), generator), standard_normal((sets, 16, d), generator)
        factor = None if scale is None else scale(d)
        deviations.append(attention_scores(query, key, factor).std().item())
        pair = [attention_weights(query, key, scale=s).amax(-1).mean().item() for s in (1.0, factor)]
        means.append(pair)
        if d in known:
            plain = Localized(f"d = {d}, qᵀk: mean of the largest weight", f"d = {d}、qᵀk：最大の重みの平均")
            root = Localized(
                f"d = {d}, qᵀk/√d: mean of the largest weight", f"d = {d}、qᵀk/√d：最大の重みの平均"
            )
            checks += [equals(plain, pair[0], known[d][0], 0.015), equals(root, pair[1], known[d][1], 0.015)]
    low = Localized("least standard deviation of qᵀk/√d", "qᵀk/√d の標準偏差の最小")
    high = Localized("largest standard deviation of qᵀk/√d", "qᵀk/√d の標準偏差の最大")
    ones = {d: torch.ones(1, d, dtype=torch.float64) for d in (4, 512)}
    same = {d: attention_scores(one, one).item() for d, one in ones.items()}
    length = Localized("length of (1, ..., 1), d = 512: √512", "d = 512 の (1, …, 1) の長さ √512")
    checks += [
        equals(low, min(deviations), 1.0, 0.02),
        equals(high, max(deviations), 1.0, 0.02),
        equals(length, ones[512].norm().item(), math.sqrt(512)),
    ]
    for d, score in same.items():
        name = Localized(f"q = k = (1, ..., 1), d = {d}: qᵀk/√d", f"q = k = (1, …, 1)、d = {d}：qᵀk/√d")
        checks.append(equals(name, score, math.sqrt(d), counterexample=True))
    title = Localized("mean of the largest of 16 weights by d", "16 個の重みの最大値の平均と d")
    labels = tuple(str(d) for d in dims)
    return Finding(tuple(checks), Picture("curves", title, np.array(means).T, ("qᵀk", "qᵀk/√d"), labels))


def hard_and_soft(weigh: Tempered = tempered, seed: int = 0) -> Finding:
    """Hard attention: ‖a‖₀ = 1, one-hot at the highest score; soft: ‖a‖₁ = 1, all positive. NYU 2020, week 12-3.

    weigh: from scores and β to weights; β = ∞ is hard.

    >>> hard_and_soft().holds
    True
    >>> hard_and_soft(lambda scores, beta: scores.softmax(-1)).holds
    False
    """
    scores = normal(seed, 100, 7)
    three = torch.tensor([SCORES], dtype=torch.float64)
    hard, soft = weigh(scores, math.inf), weigh(scores, 1.0)
    nonzero = hard.count_nonzero(-1)
    far = weigh(torch.tensor([[1e4, 0.0]], dtype=torch.float64), 1.0)
    at_argmax = hard.gather(-1, scores.argmax(-1, keepdim=True))
    alike = Localized("β = 0: largest |a_i - 1/n|", "β = 0：|a_i - 1/n| の最大")
    tends = Localized("β = 1000, s = (1, .5, .2): |soft - hard|", "β = 1000、s = (1, 0.5, 0.2)：ハードとの差")
    least = Localized("hard: least ‖a‖₀", "ハード：‖a‖₀ の最小")
    most = Localized("hard: largest ‖a‖₀", "ハード：‖a‖₀ の最大")
    top = Localized("hard: least weight at the highest score", "ハード：最高スコアでの重みの最小")
    unit = Localized("soft: largest |‖a‖₁ - 1|", "ソフト：|‖a‖₁ - 1| の最大")
    twenty = Localized("β = 20, s = (1, .5, .2): first weight", "β = 20、s = (1, 0.5, 0.2)：先頭の重み")
    stable = Localized("s = (10000, 0): first weight, no NaN", "s = (10000, 0)：先頭の重み（NaN でない）")
    five, signed = torch.tensor([5.0, 0.0, 0.0]), torch.tensor([0.75, -0.25, 0.0])
    zero_norm = Localized("(5, 0, 0) has ‖a‖₀ = 1; its sum", "(5, 0, 0) は ‖a‖₀ = 1 だが、和は")
    one_norm = Localized("(¾, -¼, 0) has ‖a‖₁ = 1; its sum", "(¾, -¼, 0) は ‖a‖₁ = 1 だが、和は")
    checks = (
        equals(least, nonzero.min().item(), 1.0, 0.0),
        equals(most, nonzero.max().item(), 1.0, 0.0),
        equals(top, at_argmax.min().item(), 1.0, 0.0),
        below(unit, largest(soft.norm(p=1, dim=-1) - 1.0), 1e-12),
        above(Localized("soft: least weight", "ソフト：重みの最小"), soft.min().item(), 0.0),
        equals(twenty, weigh(three, 20.0)[0, 0].item(), 0.99995, 5e-6),
        below(alike, largest(weigh(scores, 0.0) - 1.0 / 7.0), 1e-12),
        below(tends, largest(weigh(three, 1000.0) - weigh(three, math.inf)), 1e-12),
        equals(stable, far[0, 0].item(), 1.0),
        above(zero_norm, five.sum().item(), 1.0, counterexample=True),
        below(one_norm, signed.sum().item(), 1.0, counterexample=True),
    )
    betas = np.geomspace(0.1, 100.0, 31)
    curves = np.stack([weigh(three, float(beta))[0].numpy() for beta in betas], axis=1)
    title = Localized("weights of the scores 1, .5, .2 by β", "スコア 1, 0.5, 0.2 の重みと β")
    labels = tuple(f"{beta:.2g}" for beta in betas)
    return Finding(checks, Picture("curves", title, curves, tuple(f"s = {s:g}" for s in SCORES), labels))


def saturation_stops_the_gradient(
    jacobian: Callable[[Tensor], Tensor] = softmax_jacobian, n: int = 6, seed: int = 0
) -> Finding:
    """∂y_i/∂s_j = y_i(δ_ij - y_j) → 0 as y → one-hot; with the cross-entropy, ∂L/∂s = y - t. Kikuta 2025, ex. 3.5.

    jacobian: from the weights y `[n]` to the matrix `[n, n]` that is compared with automatic and finite differences.

    >>> saturation_stops_the_gradient().holds
    True
    >>> saturation_stops_the_gradient(torch.diag).holds
    False
    """
    scores = normal(seed, 1, n)
    weights, unit = masked_softmax(scores), torch.eye(n, dtype=torch.float64)
    found, automatic = jacobian(weights[0]), _differentiated(lambda s: masked_softmax(s[None])[0], scores[0])
    step = 1e-5 * unit
    finite = ((masked_softmax(scores + step) - masked_softmax(scores - step)) / 2e-5).T
    last, second = torch.tensor([n - 1]), torch.tensor([1])
    gradient = _differentiated(lambda s: token_losses(s, last)[0], scores)
    three = torch.tensor([SCORES], dtype=torch.float64)
    wrong = torch.tensor([[40.0, 0.0]], dtype=torch.float64)
    pull = _differentiated(lambda s: token_losses(s, second)[0], wrong)
    betas = [*np.geomspace(0.1, 100.0, 31).tolist(), math.inf]
    sizes = [largest(jacobian(tempered(three, beta)[0])) for beta in betas]
    half = jacobian(torch.full((2,), 0.5, dtype=torch.float64))
    exact = Localized("largest |y_i(δ_ij - y_j) - automatic|", "|y_i(δ_ij - y_j) - 自動微分| の最大")
    divided = Localized("largest |y_i(δ_ij - y_j) - finite difference|", "|y_i(δ_ij - y_j) - 差分商| の最大")
    greatest = Localized("y = (½, ½): the largest entry there can be", "y = (½, ½)：ありうる最大の成分")
    steep = Localized("β = 100, s = (1, .5, .2): largest entry", "β = 100、s = (1, 0.5, 0.2)：最大の成分")
    loss = Localized("cross-entropy: largest |∂L/∂s - (y - t)|", "交差エントロピー：|∂L/∂s - (y - t)| の最大")
    stuck = Localized("s = (40, 0): largest entry", "s = (40, 0)：最大の成分")
    pulled = Localized(
        "s = (40, 0), t = (0, 1): first entry of ∂L/∂s", "s = (40, 0)、t = (0, 1)：∂L/∂s の第 1 成分"
    )
    checks = (
        below(exact, largest(found - automatic), 1e-12),
        below(divided, largest(found - finite), 1e-10),
        below(Localized("largest |row sum|", "|行の和| の最大"), largest(found.sum(-1)), 1e-12),
        equals(greatest, half[0, 0].item(), 0.25),
        below(steep, sizes[-2], 1e-20),
        equals(Localized("β = ∞: largest entry", "β = ∞：最大の成分"), sizes[-1], 0.0, 0.0),
        below(loss, largest(gradient - (weights - unit[last])), 1e-12),
        below(stuck, largest(jacobian(masked_softmax(wrong)[0])), 1e-16),
        equals(pulled, pull[0, 0].item(), 1.0, 1e-12),
    )
    title = Localized(
        "largest |∂y_i/∂s_j| by β, scores 1, .5, .2", "|∂y_i/∂s_j| の最大と β（スコア 1, 0.5, 0.2）"
    )
    labels = tuple(f"{beta:.2g}" for beta in betas[:-1])
    return Finding(checks, Picture("curves", title, np.array([sizes[:-1]]), ("|∂y/∂s|",), labels))


CLAIMS = (
    Claim(
        id="C07",
        source="Bishop & Bishop 2024, exercise 12.4",
        statement=Localized(
            "For independent vectors a, b with entries from N(0, 1), the expectation of (aᵀb)² is the dimension D.",
            "成分が N(0, 1) に従う独立なベクトル a, b について、(aᵀb)² の期待値は次元 D である。",
        ),
        derivation=Localized(
            "(aᵀb)² = Σ_i Σ_j a_i b_i a_j b_j.\n"
            "a and b are independent, so E[a_i b_i a_j b_j] = E[a_i a_j] · E[b_i b_j] = δ_ij · δ_ij.\n"
            "Only i = j is left, D times 1: E[(aᵀb)²] = D.\n"
            "E[aᵀb] = 0, so D is the variance: scores grow like √D, and 1/√D brings them back to variance 1.\n"
            "How far a sample may lie off: E[(aᵀb)⁴] = 3D² + 6D, so (aᵀb)² has the variance 2D² + 6D,\n"
            "and the mean of N draws the standard error √((2D² + 6D)/N).",
            "(aᵀb)² = Σ_i Σ_j a_i b_i a_j b_j である。\n"
            "a と b は独立なので E[a_i b_i a_j b_j] = E[a_i a_j] · E[b_i b_j] = δ_ij · δ_ij。\n"
            "i = j の項だけが 1 として D 個残り、E[(aᵀb)²] = D となる。\n"
            "E[aᵀb] = 0 なので D は分散である。スコアは √D の程度で大きくなり、1/√D を掛けると分散 1 に戻る。\n"
            "標本のずれの目安：E[(aᵀb)⁴] = 3D² + 6D なので (aᵀb)² の分散は 2D² + 6D であり、\n"
            "N 回の平均の標準誤差は √((2D² + 6D)/N) である。",
        ),
        compute=products_spread_with_dimension,
    ),
    Claim(
        id="C10",
        source="NYU Deep Learning 2020, week 12-3",
        statement=Localized(
            "The inverse temperature β = 1/√d keeps attention equally soft in every dimension d, because lengths in"
            " d dimensions grow like that of (1, ..., 1), which is √d.",
            "逆温度 β = 1/√d により、アテンションの鋭さは次元 d によらず一定に保たれる。d 次元の"
            "ベクトルの長さは、(1, …, 1) の長さと同じく √d に比例して伸びるからである。",
        ),
        derivation=Localized(
            "Let the entries of q and k be independent, with mean 0 and variance 1. By C07, qᵀk has variance d.\n"
            "Scores of spread √d make the softmax sharper the larger d is: it sees score differences only,\n"
            "and multiplying all scores by √d is the same as multiplying the inverse temperature by √d.\n"
            "qᵀk/√d has variance 1 for every d; as d grows it tends to a normal law that no longer knows d.\n"
            "So the largest of 16 weights has nearly the same mean for every d; without 1/√d it tends to 1.\n"
            "The length: Σ_i 1² = d. But for q = k = (1, ..., 1), qᵀk = d and qᵀk/√d = √d: vectors that are\n"
            "aligned need 1/d. The root is right for independent ones, as at the start of training.\n"
            "The figures are means over draws from a seeded generator; .015 is three standard errors of a difference.",
            "q と k の成分は独立で、平均 0、分散 1 とする。C07 より qᵀk の分散は d である。\n"
            "スコアの広がりが √d なら、d が大きいほど softmax は鋭い。見ているのはスコアの差だけで、\n"
            "全スコアを √d 倍することは逆温度を √d 倍することと同じだからである。\n"
            "qᵀk/√d の分散は d によらず 1 で、d が大きいと d によらない正規分布に近づく。\n"
            "よって 16 個の重みの最大値の平均は d によらずほぼ等しい。1/√d がないと 1 に近づく。\n"
            "長さは Σ_i 1² = d から出る。だが q = k = (1, …, 1) では qᵀk = d、qᵀk/√d = √d である。\n"
            "そろったベクトルには 1/d が要る。平方根が正しいのは、学習の初めのように独立な場合である。\n"
            "値はシードを固定した乱数の平均で、許容差 0.015 は二つの平均の差の標準誤差の 3 倍である。",
        ),
        condition=Localized(
            "The entries of query and key are independent, with mean 0 and variance 1; for aligned ones the score"
            " still grows like √d.",
            "クエリとキーの成分が独立で平均 0、分散 1 の場合に限る。向きのそろったベクトルでは、"
            "スコアはなお √d に比例して大きくなる。",
        ),
        compute=root_keeps_temperature,
    ),
    Claim(
        id="C11",
        source="NYU Deep Learning 2020, week 12-3",
        statement=Localized(
            "Hard attention has ‖a‖₀ = 1: one element is taken. Soft attention has ‖a‖₁ = 1: elements are mixed.",
            "ハードアテンションでは ‖a‖₀ = 1 であり、要素を一つ選ぶ。"
            "ソフトアテンションでは ‖a‖₁ = 1 であり、要素を混ぜる。",
        ),
        derivation=Localized(
            "Hard: a is one-hot at the highest score, so one entry is not 0, and ‖a‖₀ counts such entries.\n"
            "Soft: a_i > 0 and Σ a_i = 1 (C06), so ‖a‖₁ = Σ |a_i| = Σ a_i = 1.\n"
            "Between them lies β: a_j / a_i = exp(-β(s_i - s_j)). If s_i is the one maximum, then β → ∞ takes every\n"
            "other weight to 0; β = 0 makes all of them 1/n.\n"
            "The norms alone do not say it: (5, 0, 0) has ‖a‖₀ = 1, (¾, -¼, 0) has ‖a‖₁ = 1, and neither is a choice\n"
            "or a mixture. What is meant is the simplex a_i ≥ 0, Σ a_i = 1, and for hard attention its corners.",
            "ハード：a は最高スコアの位置の one-hot で、0 でない成分は一つ。‖a‖₀ はその個数である。\n"
            "ソフト：a_i > 0、Σ a_i = 1（C06）なので ‖a‖₁ = Σ |a_i| = Σ a_i = 1。\n"
            "両者をつなぐのは β である。a_j / a_i = exp(-β(s_i - s_j)) なので、s_i がただ一つの最大値なら、\n"
            "β → ∞ で他の重みは 0 に近づく。β = 0 ではすべて 1/n になる。\n"
            "ノルムだけでは足りない。(5, 0, 0) は ‖a‖₀ = 1、(¾, -¼, 0) は ‖a‖₁ = 1 だが、選択でも混合でもない。\n"
            "正しくは、単体 a_i ≥ 0, Σ a_i = 1 の点であり、ハードアテンションはその頂点である。",
        ),
        condition=Localized(
            "With a_i ≥ 0 and Σ a_i = 1 in both cases; the norms alone allow other vectors.",
            "どちらも a_i ≥ 0 かつ Σ a_i = 1 を前提とする。ノルムだけでは他のベクトルも許される。",
        ),
        compute=hard_and_soft,
    ),
    Claim(
        id="C21",
        source="Kikuta 2025, exercise 3.5",
        statement=Localized(
            "The softmax y has the derivative ∂y_i/∂s_j = y_i(δ_ij - y_j), which vanishes where y is saturated;"
            " with the cross-entropy behind it, the gradient is y - t.",
            "softmax y の微分は ∂y_i/∂s_j = y_i(δ_ij - y_j) であり、y が飽和すると消える。"
            "交差エントロピーと組み合わせると、勾配は y - t になる。",
        ),
        derivation=Localized(
            "log y_i = s_i - log Z with Z = Σ_k e^(s_k), and ∂ log Z/∂s_j = e^(s_j)/Z = y_j.\n"
            "So ∂ log y_i/∂s_j = δ_ij - y_j, and ∂y_i/∂s_j = y_i ∂ log y_i/∂s_j = y_i(δ_ij - y_j).\n"
            "A row sums to y_i(1 - Σ_j y_j) = 0: adding a constant to all scores changes nothing.\n"
            "No entry exceeds ¼: y_i(1 - y_i) is largest at ½. At a one-hot y every entry has a factor 0.\n"
            "This is why scores must not grow with d: a saturated softmax passes no gradient back.\n"
            "For L = -Σ_i t_i log y_i with Σ t_i = 1: ∂L/∂s_j = -Σ_i t_i(δ_ij - y_j) = y_j - t_j.\n"
            "The logarithm has cancelled the factor y_i, so a wrong and saturated output is still corrected.",
            "log y_i = s_i - log Z、Z = Σ_k e^(s_k) とすると、∂ log Z/∂s_j = e^(s_j)/Z = y_j。\n"
            "よって ∂ log y_i/∂s_j = δ_ij - y_j、∂y_i/∂s_j = y_i ∂ log y_i/∂s_j = y_i(δ_ij - y_j)。\n"
            "行の和は y_i(1 - Σ_j y_j) = 0。全スコアに定数を足しても何も変わらないことに対応する。\n"
            "y_i(1 - y_i) は ½ で最大なので、成分は ¼ を超えない。y が one-hot なら、どの成分も因子 0 をもつ。\n"
            "スコアが d とともに大きくなると困るのはこのためで、飽和すると勾配が伝わらない。\n"
            "L = -Σ_i t_i log y_i、Σ t_i = 1 なら ∂L/∂s_j = -Σ_i t_i(δ_ij - y_j) = y_j - t_j。\n"
            "対数が因子 y_i を打ち消すので、誤ったまま飽和した出力も修正される。",
        ),
        compute=saturation_stops_the_gradient,
    ),
)
