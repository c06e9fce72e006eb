"""Claims about the softmax of attention: its weights, its temperature, its derivative (C07, C10, C11, C21)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attendo.nn.attention import attention_scores, attention_weights, masked_softmax
from attendo.training.losses import token_losses
from attendo_course.book import translated
from attendo_course.claims.claim import Finding, above, below, equals
from attendo_course.claims.samples import largest, normal
from attendo_course.pictures import Picture

Tempered = Callable[[Float[Tensor, "*batch q_len k_len"], float], Float[Tensor, "*batch q_len k_len"]]
"""A function from scores and an inverse temperature to weights."""

Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]
"""A function from a shape and a generator to random numbers in float64."""

SCORES = (1.0, 0.5, 0.2)


def standard_normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return independent draws from N(0, 1) in float64.

    >>> standard_normal((2, 3), torch.Generator().manual_seed(0)).dtype
    torch.float64
    """
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def tempered(
    scores: Float[Tensor, "*batch q_len k_len"], inverse_temperature: float
) -> Float[Tensor, "*batch q_len k_len"]:
    """Return softargmax_β: exp(βs_i) / Σ_j exp(βs_j), one-hot at β = ∞ (NYU Deep Learning 2020, week 12-3).

    >>> tempered(torch.tensor([[1.0, 0.5]]), math.inf)
    tensor([[1., 0.]])
    """
    return masked_softmax(scores, inverse_temperature=inverse_temperature)


def softmax_jacobian(weights: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """Return ∂y_i/∂s_j = y_i(δ_ij - y_j) = diag(y) - yyᵀ for y = softmax(s) (Kikuta 2025, exercise 3.5).

    >>> softmax_jacobian(torch.tensor([0.5, 0.5]))
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    """
    return weights.diag() - torch.outer(weights, weights)


def _differentiated(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    jacobian = torch.autograd.functional.jacobian(function, at)
    assert isinstance(jacobian, Tensor)
    return jacobian


def products_spread_with_dimension(draw: Draw = standard_normal, draws: int = 200_000, seed: int = 0) -> Finding:
    """Check that E[(aᵀb)²] = D for independent a, b ~ N(0, I_D), which implies that aᵀb/√D has variance 1.

    The source is Bishop & Bishop 2024, exercise 12.4. `draws` is the number of products per D. A squared product has
    the variance 2D² + 6D. The tolerance is four standard errors. For the comparison with another sample of 200,000
    draws, the tolerance is four standard errors of the difference of the means.

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
        again = translated("D = {d}: the same, beside another sample's", d=d)
        checks.append(equals(translated("D = {d}: mean of (aᵀb)², D expected", d=d), mean, d, error))
        checks.append(equals(again, mean, other, both_errors))
        checks.append(equals(translated("D = {d}: mean of (aᵀb/√D)²", d=d), scaled, 1.0, error / d))
    title = translated("mean of the first N values of (aᵀb)²/D, N in equal ratios")
    labels = tuple(f"N = {n:,}" for n in counts)
    rows = tuple(f"D = {d}" for d in dimensions)
    return Finding(tuple(checks), Picture("curves", title, np.stack(curves), rows, labels))


def root_keeps_temperature(scale: Callable[[int], float] | None = None, sets: int = 1000, seed: int = 0) -> Finding:
    """Check that qᵀk/√d has the standard deviation 1 for every d, which keeps the softmax equally soft.

    The source is NYU Deep Learning 2020, week 12-3. `scale` maps d to the factor of qᵀk (default: 1/√d). For each d,
    `sets` sets of 8 queries and 16 keys are drawn from N(0, I_d). The check uses the mean of the largest of the 16
    weights. The tolerance .015 of the mean is three standard errors at d = 4 (one draw has the standard deviation
    .21). The standard error is computed for the difference between our mean of 8,000 draws and a mean of 2,000.

    >>> root_keeps_temperature(sets=500).holds
    True
    >>> root_keeps_temperature(lambda d: 1 / d, sets=500).holds
    False
    """
    known, along_ones = {4: (0.434, 0.238), 64: (0.842, 0.244), 512: (0.948, 0.248)}, math.nan
    dims, checks, deviations, means = tuple(2**power for power in range(2, 10)), [], [], []
    generator = torch.Generator().manual_seed(seed)
    for d in dims:
        query, key = standard_normal((sets, 8, d), generator), standard_normal((sets, 16, d), generator)
        along_ones = query.sum(-1).std().item() / math.sqrt(d)  # the product with the key (1, ..., 1)
        factor = None if scale is None else scale(d)
        deviations.append(attention_scores(query, key, factor).std().item())
        pair = [attention_weights(query, key, scale=s).amax(-1).mean().item() for s in (1.0, factor)]
        means.append(pair)
        if d in known:
            plain = translated("d = {d}, qᵀk: mean of the largest weight", d=d)
            root = translated("d = {d}, qᵀk/√d: mean of the largest weight", d=d)
            checks += [equals(plain, pair[0], known[d][0], 0.015), equals(root, pair[1], known[d][1], 0.015)]
    ones = {d: torch.ones(1, d, dtype=torch.float64) for d in (4, 512)}
    same = {d: attention_scores(one, one).item() for d, one in ones.items()}
    checks += [
        equals("least standard deviation of qᵀk/√d", min(deviations), 1.0, 0.02),
        equals("largest standard deviation of qᵀk/√d", max(deviations), 1.0, 0.02),
        equals("length of (1, ..., 1), d = 512: √512", ones[512].norm().item(), math.sqrt(512)),
        equals(
            "k = (1, ..., 1), d = 512: standard deviation of qᵀk, over √512",
            along_ones,
            1.0,
            0.05,
        ),
    ]
    for d, score in same.items():
        name = translated("q = k = (1, ..., 1), d = {d}: qᵀk/√d", d=d)
        checks.append(equals(name, score, math.sqrt(d), counterexample=True))
    title = translated("mean of the largest of 16 weights by d")
    labels = tuple(str(d) for d in dims)
    return Finding(tuple(checks), Picture("curves", title, np.array(means).T, ("qᵀk", "qᵀk/√d"), labels))


def hard_and_soft(weigh: Tempered = tempered, seed: int = 0) -> Finding:
    """Check that hard attention is one-hot at the highest score, and that soft attention is positive and sums to 1.

    In norms, ‖a‖₀ = 1 for hard attention and ‖a‖₁ = 1 for soft attention. The source is NYU Deep Learning 2020, week
    12-3. `weigh` maps scores and β to weights, with hard attention at β = ∞.

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
    tends = translated("β = 1000, s = (1, .5, .2): |soft - hard|")
    five, signed = torch.tensor([5.0, 0.0, 0.0]), torch.tensor([0.75, -0.25, 0.0])
    checks = (
        equals("hard: least ‖a‖₀", nonzero.min().item(), 1.0, 0.0),
        equals("hard: largest ‖a‖₀", nonzero.max().item(), 1.0, 0.0),
        equals("hard: least weight at the highest score", at_argmax.min().item(), 1.0, 0.0),
        below("soft: largest |‖a‖₁ - 1|", largest(soft.norm(p=1, dim=-1) - 1.0), 1e-12),
        above("soft: least weight", soft.min().item(), 0.0),
        equals("β = 20, s = (1, .5, .2): first weight", weigh(three, 20.0)[0, 0].item(), 0.99995, 5e-6),
        below("β = 0: largest |a_i - 1/n|", largest(weigh(scores, 0.0) - 1.0 / 7.0), 1e-12),
        below(tends, largest(weigh(three, 1000.0) - weigh(three, math.inf)), 1e-12),
        equals("s = (10000, 0): first weight, no NaN", far[0, 0].item(), 1.0),
        above("(5, 0, 0) has ‖a‖₀ = 1; its sum", five.sum().item(), 1.0, counterexample=True),
        below("(¾, -¼, 0) has ‖a‖₁ = 1; its sum", signed.sum().item(), 1.0, counterexample=True),
    )
    betas = np.geomspace(0.1, 100.0, 31)
    curves = np.stack([weigh(three, float(beta))[0].numpy() for beta in betas], axis=1)
    title = translated("weights of the scores 1, .5, .2 by β")
    labels = tuple(f"{beta:.2g}" for beta in betas)
    return Finding(checks, Picture("curves", title, curves, tuple(f"s = {s:g}" for s in SCORES), labels))


def saturation_stops_the_gradient(
    jacobian: Callable[[Tensor], Tensor] = softmax_jacobian, n: int = 6, seed: int = 0
) -> Finding:
    """Check that ∂y_i/∂s_j = y_i(δ_ij - y_j) → 0 as y → one-hot, but ∂L/∂s = y - t with the cross-entropy.

    The source is Kikuta 2025, exercise 3.5. `jacobian` maps the weights y `[n]` to a matrix `[n, n]`, which is
    compared with automatic and finite differences.

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
    checks = (
        below("largest |y_i(δ_ij - y_j) - automatic|", largest(found - automatic), 1e-12),
        below("largest |y_i(δ_ij - y_j) - finite difference|", largest(found - finite), 1e-10),
        below("largest |row sum|", largest(found.sum(-1)), 1e-12),
        equals("y = (½, ½): the largest entry there can be", half[0, 0].item(), 0.25),
        below("β = 100, s = (1, .5, .2): largest entry", sizes[-2], 1e-20),
        equals("β = ∞: largest entry", sizes[-1], 0.0, 0.0),
        below("cross-entropy: largest |∂L/∂s - (y - t)|", largest(gradient - (weights - unit[last])), 1e-12),
        below("s = (40, 0): largest entry", largest(jacobian(masked_softmax(wrong)[0])), 1e-16),
        equals("s = (40, 0), t = (0, 1): first entry of ∂L/∂s", pull[0, 0].item(), 1.0, 1e-12),
    )
    title = translated("largest |∂y_i/∂s_j| by β, scores 1, .5, .2")
    labels = tuple(f"{beta:.2g}" for beta in betas[:-1])
    return Finding(checks, Picture("curves", title, np.array([sizes[:-1]]), ("|∂y/∂s|",), labels))


CLAIMS = {
    "C07": products_spread_with_dimension,
    "C10": root_keeps_temperature,
    "C11": hard_and_soft,
    "C21": saturation_stops_the_gradient,
}
