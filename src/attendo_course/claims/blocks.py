"""Claims about the purpose of residual connections and of several heads (C18, C41)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.display.i18n import Localized
from attendo.nn.attention import Attend, Attention
from attendo.nn.blocks import Encoder, EncoderBlock, Residual
from attendo.nn.layers import FeedForward, build_norm, xavier
from attendo_course.book import translated
from attendo_course.claims.claim import Finding, above, below, equals
from attendo_course.claims.samples import built, normal
from attendo_course.pictures import Picture
from attendo_course.residuals import without_residuals, without_sum

D_MODEL, DEPTHS = 16, (1, 2, 4, 8, 16, 32)


def post_norm() -> Residual:
    """Return a residual connection with post-norm: norm(x + f(x)) (Vaswani et al. 2017, section 3.1).

    >>> post_norm().norm_first
    False
    """
    return Residual(build_norm("layer", D_MODEL, 1e-5), norm_first=False)


def norm_alone() -> Residual:
    """Return norm(f(x)), which has no residual connection.

    >>> norm_alone().norm_first
    False
    """
    return without_sum(post_norm())


def nothing() -> Residual:
    """Return f(x), which has neither a residual connection nor a norm.

    >>> nothing().norm
    Identity()
    """
    return without_sum(Residual(nn.Identity(), norm_first=False))


@cache
def first_gradient(residual: Callable[[], Residual], depth: int, n: int = 6, seeds: int = 3) -> float:
    """Return |∂L/∂θ_1| for a linear loss of the outputs of a random encoder, as a geometric mean over seeds.

    θ_1 contains the matrices of the first of `depth` blocks.

    >>> first_gradient(post_norm, 1) > 0
    True
    """

    def encoder() -> Encoder:
        blocks = [
            EncoderBlock(Attention(D_MODEL, 2, bias=False), FeedForward(D_MODEL, 4 * D_MODEL), residual)
            for _ in range(depth)
        ]
        stack = Encoder(blocks)
        xavier(stack)
        return stack

    logs = 0.0
    for seed in range(seeds):
        stack, x, direction = (
            built(encoder, seed),
            normal(seed, 1, n, D_MODEL),
            normal(seed + 9, 1, n, D_MODEL),
        )
        matrices = [parameter for parameter in stack.blocks[0].parameters() if parameter.ndim == 2]
        gradients = torch.autograd.grad((stack(x) * direction).sum(), matrices)
        logs += 0.5 * math.log(sum(gradient.square().sum().item() for gradient in gradients))
    return math.exp(logs / seeds)


def residuals_keep_gradients(residual: Callable[[], Residual] = post_norm) -> Finding:
    """Check that the gradient of the first layer keeps its size in a deep stack if each layer adds x to f(x).

    The sources are He et al. 2016 and Vaswani et al. 2017, section 3.1. `residual` is the tested connection.

    >>> residuals_keep_gradients().holds
    True
    >>> residuals_keep_gradients(norm_alone).holds
    False
    """
    kinds = {"norm(x + f(x))": residual, "norm(f(x))": norm_alone, "f(x)": nothing}
    found = {kind: np.array([first_gradient(make, depth) for depth in DEPTHS]) for kind, make in kinds.items()}
    ratios = {kind: row / row[0] for kind, row in found.items()}

    def name(kind: str, depth: int) -> Localized:
        return translated("{kind}: gradient at layer 1 of {depth} / of 1", kind=kind, depth=depth)

    checks = (
        above(name("norm(x + f(x))", 32), ratios["norm(x + f(x))"][-1], 0.3),
        below(name("norm(f(x))", 32), ratios["norm(f(x))"][-1], 0.1),
        below(name("f(x)", 32), ratios["f(x)"][-1], 1e-6),
        above(name("norm(f(x))", 2), ratios["norm(f(x))"][1], 0.3, counterexample=True),
    )
    title = translated("log₁₀ |∂L/∂θ₁|, beside one layer's, by depth")
    values, labels = np.log10(np.array(list(ratios.values()))), tuple(str(depth) for depth in DEPTHS)
    return Finding(checks, Picture("curves", title, values, tuple(ratios), labels))


PAIRS = ((1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0))
"""All pairs of contents c_1, c_2 = ±1. The task is to return their difference."""


def differences(n_heads: int, seed: int = 0) -> Attention:
    """Return an untrained attention layer with one query and two tokens.

    The keys depend on content and position. The values depend on the content only.

    >>> differences(2).q_proj.weight.shape
    torch.Size([4, 1])
    """
    return built(lambda: Attention(1, n_heads, head_dim=2, value_dim=1, d_memory=(3, 1), bias=False), seed)


def answers(layer: Attention) -> Float[Tensor, " pairs"]:
    """Return the output of the layer for each of `PAIRS`.

    >>> answers(differences(1)).shape
    torch.Size([4])
    """
    contents = torch.tensor(PAIRS, dtype=torch.float64)[..., None]
    places = torch.eye(2, dtype=torch.float64).expand(len(PAIRS), 2, 2)
    query = contents.new_ones(len(PAIRS), 1, 1)
    return layer(query, torch.cat([contents, places], dim=-1), values=contents)[:, 0, 0]


def errors(layer: Attention) -> Float[Tensor, " pairs"]:
    """Return the error of each answer: the answer minus the true difference c_1 - c_2.

    >>> errors(by_hand()).abs().max().item()
    0.0
    """
    return answers(layer) - torch.tensor([first - second for first, second in PAIRS], dtype=torch.float64)


def by_hand() -> Attention:
    """Return a layer with two hard-attention heads: head 1 returns +c of token 1, and head 2 returns -c of token 2.

    >>> answers(by_hand()).tolist()
    [0.0, 0.0, 2.0, -2.0]
    """
    layer = differences(2).requires_grad_(False)
    layer.attend = Attend(inverse_temperature=math.inf)
    first, second = [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]  # of content, place 1, place 2
    for weight, rows in (
        (layer.q_proj.weight, [[1.0], [0.0]] * 2),
        (layer.k_proj.weight, [first, [0.0] * 3, second, [0.0] * 3]),
        (layer.v_proj.weight, [[1.0], [1.0]]),
        (layer.out_proj.get_parameter("weight"), [[1.0, -1.0]]),
    ):
        weight.copy_(torch.tensor(rows))
    return layer


def trained(layer: Attention, steps: int = 300, rate: float = 0.3) -> Attention:
    """Return the layer after training with plain gradient descent on the mean squared error over `PAIRS`.

    >>> trained(differences(1), steps=0).n_heads
    1
    """
    parameters = list(layer.parameters())
    for _ in range(steps):
        error = errors(layer).square().mean()
        for parameter, gradient in zip(parameters, torch.autograd.grad(error, parameters), strict=True):
            parameter.data -= rate * gradient
    return layer


def least_error_of_one_head() -> float:
    """Return the minimum over W of the mean squared error of W·(αc_1 + (1 - α)c_2), with any α in [0, 1] per pair.

    No attention weights of a single head lead to a smaller error.

    >>> round(least_error_of_one_head(), 12)
    1.0
    """
    w, alpha = np.linspace(-3.0, 3.0, 601)[:, None], np.linspace(0.0, 1.0, 101)
    errors = [(w * (alpha * first + (1 - alpha) * second) - (first - second)) ** 2 for first, second in PAIRS]
    return float(np.mean([error.min(axis=1) for error in errors], axis=0).min())


@cache
def _learned_error(n_heads: int, seed: int) -> float:
    return errors(trained(differences(n_heads, seed))).square().mean().item()


def two_heads_subtract(n_heads: int = 2, seeds: int = 3) -> Finding:
    """Check that c_1 - c_2 needs two heads: one head returns W·(a mean of contents), with a mean squared error ≥ 1.

    The layer with `n_heads` heads must learn the task exactly. `seeds` is the number of trained layers of each kind.

    >>> two_heads_subtract().holds
    True
    >>> two_heads_subtract(n_heads=1).holds
    False
    """

    def learned(heads: int) -> list[float]:
        return [_learned_error(heads, seed) for seed in range(seeds)]

    checks = (
        equals("c₁ - c₂, one head: least mean square error", least_error_of_one_head(), 1.0),
        above("one head, trained: least error", min(learned(1)), 1.0),
        equals("two heads set by hand: largest error", errors(by_hand()).abs().max().item(), 0.0, 0.0),
        below("two heads, trained: largest error", max(learned(n_heads)), 1e-6),
    )
    return Finding(checks)


def residuals_and_heads(residual: Callable[[], Residual] = post_norm, n_heads: int = 2) -> Finding:
    """Check C18: residual connections keep gradients, and two heads can subtract, but one head cannot (slides).

    >>> residuals_and_heads().holds
    True
    """
    gradients, heads = residuals_keep_gradients(residual), two_heads_subtract(n_heads)
    return Finding((*gradients.checks, *heads.checks), gradients.picture)


LETTERS, LENGTH, ROWS = 8, 8, 16
"""The size of the alphabet, the number of letters per text, and the number of texts per training step of C41."""


def pre_norm() -> Residual:
    """Return a residual connection with pre-norm: x + f(norm(x)) (Xiong et al. 2020).

    >>> pre_norm().norm_first
    True
    """
    return Residual(build_norm("layer", D_MODEL, 1e-5), norm_first=True)


def copier(depth: int, *, residuals: bool, seed: int = 0) -> nn.Sequential:
    """Return a random model that reads letters: an embedding, a stack of `depth` pre-norm blocks, an output layer.

    >>> copier(1, residuals=True)(torch.zeros(2, LENGTH, dtype=torch.long)).shape
    torch.Size([2, 8, 8])
    """

    def make() -> nn.Sequential:
        stack = Encoder(
            EncoderBlock(Attention(D_MODEL, 2, bias=False), FeedForward(D_MODEL, 4 * D_MODEL), pre_norm)
            for _ in range(depth)
        )
        xavier(stack)
        return nn.Sequential(nn.Embedding(LETTERS, D_MODEL), stack, nn.Linear(D_MODEL, LETTERS))

    model = built(make, seed).float()
    return model if residuals else without_residuals(model)


def texts(seed: int, steps: int = 1) -> Int[Tensor, "steps rows len"]:
    """Return random texts for training steps.

    >>> texts(0).shape
    torch.Size([1, 16, 8])
    """
    return torch.randint(LETTERS, (steps, ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def differing(model: nn.Sequential) -> float:
    """Return the size of the differences between the vectors of one text, as a share of the size of the vectors.

    The vectors are the inputs of the last module. If the share is 0, all tokens of a text have the same vector.

    >>> 0.0 < differing(copier(1, residuals=True)) < 1.0
    True
    """
    h = model[:-1](texts(0)[0])
    return float((h - h.mean(1, keepdim=True)).norm() / h.norm())


def copying_losses(model: nn.Sequential, steps: int, rate: float = 3e-3) -> Float[np.ndarray, " steps"]:
    """Train a model with Adam to return each letter of random texts, and return its losses in nats per letter.

    >>> copying_losses(copier(1, residuals=True), steps=2).shape
    (2,)
    """
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=rate), []
    for letters in texts(1, steps):
        loss = nn.functional.cross_entropy(model(letters).flatten(0, 1), letters.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def residuals_let_deep_stacks_learn(
    make: Callable[..., nn.Sequential] = copier, depths: tuple[int, int] = (2, 8), steps: int = 40
) -> Finding:
    """Check that a deep stack learns to copy with residual connections, and learns nothing without them.

    The source is the slides on the Transformer. `make` builds a model from a number of blocks and `residuals`.
    `depths` are the numbers of blocks of a shallow stack, which learns in both cases, and of a deep stack.

    >>> residuals_let_deep_stacks_learn(depths=(1, 2), steps=20).holds
    False
    """
    shallow, deep = depths
    models = {(depth, keep): make(depth, residuals=keep) for depth in depths for keep in (True, False)}
    alike = {keep: differing(models[deep, keep]) for keep in (True, False)}
    losses = {kind: copying_losses(model, steps) for kind, model in models.items()}
    last = {kind: float(found[-10:].mean()) for kind, found in losses.items()}
    chance = math.log(LETTERS)
    with_sum = {d: translated("{d} blocks: loss at the end", d=d) for d in depths}
    without = {d: translated("{d} blocks, no residuals: loss at the end", d=d) for d in depths}
    untrained = "{d} blocks, untrained: differences between the tokens of a text, share"
    collapsed = "{d} blocks, no residuals, untrained: the same share"
    checks = (
        equals("loss of guessing: ln 8", chance, 2.0794, 5e-5),
        above(translated(untrained, d=deep), alike[True], 0.1),
        below(translated(collapsed, d=deep), alike[False], 1e-3),
        below(with_sum[deep], last[deep, True], 0.1),
        above(without[deep], last[deep, False], 0.9 * chance),
        below(with_sum[shallow], last[shallow, True], 0.1),
        below(without[shallow], last[shallow, False], 0.8 * chance, counterexample=True),
    )
    rows = tuple(f"{depth}, {'x + f(x)' if keep else 'f(x)'}" for depth, keep in losses)
    title = translated("loss by step, of stacks with {shallow} and {deep} blocks", shallow=shallow, deep=deep)
    labels = tuple(str(step + 1) for step in range(steps))
    return Finding(checks, Picture("curves", title, np.stack(list(losses.values())), rows, labels))


CLAIMS = {"C18": residuals_and_heads, "C41": residuals_let_deep_stacks_learn}
