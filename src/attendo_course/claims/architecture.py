"""Claims about path lengths, restricted attention and the number of parameters (C14, C22, C20)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attendo.models import parameter_count
from attendo.nn.attention import Attend, Attention, attention
from attendo.nn.masks import Mask
from attendo_course.book import translated
from attendo_course.claims.claim import Check, Finding, above, below, equals
from attendo_course.claims.samples import built, largest, normal, unrolled
from attendo_course.pictures import Picture

Spread = Callable[[Float[Tensor, "n n"], int], Float[Tensor, "n n"]]
"""A function that applies layer number i (from 0) to rows. Entry (p, s) is the share of token s at position p."""

Local = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Attention of query, key and value `[n, d]` to the keys less than a number of positions away."""

WIDTHS = (3, 5, 9)
N = 65


def attending(window: int | None = None) -> Spread:
    """Return self-attention with equal weights for all allowed keys.

    Self-attention with any other positive weights depends on the same tokens. With a `window`, a query attends to
    keys less than `window` positions away, which are r = 2·window - 1 keys (default: all keys).

    >>> attending(2)(torch.eye(3), 0)[0]
    tensor([0.5000, 0.5000, 0.0000])
    """

    def layer(x: Tensor, number: int) -> Tensor:
        same, mask = x.new_zeros(len(x), 1), Mask(window=window)
        return attention(same, same, x, mask.dense(len(x), len(x))[0, 0])

    return layer


def convolving(k: int, *, dilated: bool = False) -> Spread:
    """Return a convolution of odd width k with equal weights.

    With `dilated`, layer i reads k positions at distances of kⁱ, and no later positions.

    >>> convolving(3)(torch.eye(3), 0)[0]
    tensor([0.3333, 0.3333, 0.0000])
    """

    def layer(x: Tensor, number: int) -> Tensor:
        step = k**number if dilated else 1
        sides = ((k - 1) * step, 0) if dilated else (k // 2, k // 2)
        padded = F.pad(x.T[:, None], sides)
        return F.conv1d(padded, x.new_full((1, 1, k), 1 / k), dilation=step)[:, 0].T

    return layer


def seen_by_layer(spread: Spread, n: int = N) -> list[int]:
    """Return the number of tokens on which the last position depends after 1, 2, ... layers, up to n.

    >>> seen_by_layer(attending(2), 4)
    [2, 3, 4]
    """
    x, seen = torch.eye(n, dtype=torch.float64), []
    while len(seen) < n and (not seen or seen[-1] < n):
        x = spread(x, len(seen))
        seen.append(int((x[-1] > 0).sum()))
    return seen


def layers_needed(spread: Spread, n: int = N) -> float:
    """Return the number of layers until the last position depends on all n tokens, or infinity if n layers are too few.

    >>> layers_needed(attending(2), 4), layers_needed(lambda x, number: x, 4)
    (3, inf)
    """
    seen = seen_by_layer(spread, n)
    return len(seen) if seen[-1] == n else math.inf


def products_counted(compute: Callable[[], object]) -> int:
    """Return the number of multiplications and additions in the matrix products and convolutions of a computation.

    >>> products_counted(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60
    """
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()


def longest_chain(output: Tensor) -> int:
    """Return the number of operations on the longest path from an input to this output.

    Each operation on the path must wait for the previous operation. The path is read from the graph of automatic
    differentiation. The number is 0 if no input requires a gradient.

    >>> x = torch.ones(1, requires_grad=True)
    >>> longest_chain(x * 2 + 1) - longest_chain(x * 2)
    1
    """
    depth, waiting = {}, [] if output.grad_fn is None else [output.grad_fn]
    while waiting:
        before = [node for node, _ in waiting[-1].next_functions if node is not None]
        unknown = [node for node in before if node not in depth]
        waiting += unknown
        if not unknown:
            depth[waiting.pop()] = 1 + max((depth[node] for node in before), default=0)
    return max(depth.values(), default=0)


def neighborhood_attention(
    query: Float[Tensor, "n d"], key: Float[Tensor, "n d"], value: Float[Tensor, "n d_value"], window: int
) -> Float[Tensor, "n d_value"]:
    """Compute attention to the keys less than `window` positions away, without computing the other scores.

    The result equals attention with a banded mask. The source is Vaswani et al. 2017, section 4 (restricted
    self-attention).

    >>> x = torch.eye(4)
    >>> torch.equal(neighborhood_attention(x, x, x, 4), attention(x, x, x))
    True
    """

    def around(rows: Tensor) -> Tensor:
        return F.pad(rows.T, (window - 1, window - 1)).unfold(1, 2 * window - 1, 1)  # [d, n, r]

    there = around(torch.ones_like(query[:, :1]))[0] > 0
    near_key, near_value = (around(rows).permute(1, 2, 0) for rows in (key, value))
    return attention(query[:, None], near_key, near_value, there[:, None])[:, 0]


def _layers(n: int, d: int, k: int = 3) -> dict[str, Callable[[], Tensor]]:
    """Return one layer of each kind as a function that computes it on n random vectors of width d."""
    x, w = normal(0, n, d).requires_grad_(), normal(1, d, d, k)
    cell = built(lambda: nn.RNNCell(d, d))
    return {
        "n²d": lambda: attention(x, x, x),
        "nd²": lambda: unrolled(cell, x),
        "knd²": lambda: F.conv1d(x.T[None], w, padding=k // 2),
        "rnd": lambda: neighborhood_attention(x, x, x, (k + 1) // 2),
    }


NAMES = {
    "n²d": translated("self-attention"),
    "nd²": translated("RNN"),
    "knd²": translated("convolution"),
    "rnd": translated("restricted"),
}


def _costs(n: int = 16, d: int = 8, k: int = 3) -> list[Check]:
    """Check the first two columns of table 1: how work and sequential steps grow with n, d and k (r)."""
    growth = {"n²d": (4, 2, 1), "nd²": (2, 4, 1), "knd²": (2, 4, 3), "rnd": (2, 2, 3)}
    small, longer = _layers(n, d, k), _layers(2 * n, d, k)
    others = {"n": longer, "d": _layers(n, 2 * d, k), "k": _layers(n, d, 3 * k)}
    per_step = longest_chain(_layers(n + 1, d, k)["nd²"]()) - longest_chain(small["nd²"]())
    checks = []
    for order, times in growth.items():
        en, ja = NAMES[order].en, NAMES[order].ja
        work = products_counted(small[order])
        for (size, layers), expected in zip(others.items(), times, strict=True):
            if size != "k" or expected > 1:
                ratio = {"n": "2n / n", "d": "2d / d", "k": f"3{order[0]} / {order[0]}"}[size]
                name = translated("{en}, O({order}): work, {ratio}", en=en, order=order, ratio=ratio, ja=ja)
                checks.append(equals(name, products_counted(layers[order]) / work, expected, 0.0))
        waits = (longest_chain(longer[order]()) - longest_chain(small[order]())) / per_step
        name = translated("{en}: further steps in a row, n = 32 / 16", en=en, ja=ja)
        checks.append(equals(name, waits, n if order == "nd²" else 0.0, 0.0))
    return checks


def one_layer_sees_all(attend: Spread | None = None, n: int = N) -> Finding:
    """Check the path lengths 1 (self-attention), n (RNN), log_k n (dilated convolutions) and n/r (local attention).

    The source is Vaswani et al. 2017, table 1. `attend` is the layer that must see all n tokens at once (default:
    self-attention). Each layer is applied to the identity matrix until the last position depends on all tokens.

    >>> one_layer_sees_all().holds
    True
    >>> one_layer_sees_all(attending(32)).holds
    False
    """
    one = translated("self-attention: layers to see {n} tokens", n=n)
    joined = ((attend or attending())(torch.eye(n, dtype=torch.float64), 0) > 0).sum()
    checks = [
        equals(one, layers_needed(attend or attending(), n), 1, 0.0),
        equals("self-attention, one layer: pairs of tokens joined", int(joined), n * n, 0.0),
    ]
    curves = {"self": [n]}
    for k, expected in zip(WIDTHS, (64, 32, 16), strict=True):
        name = translated("convolution, k = {k}: layers", k=k)
        curves[f"conv k={k}"] = seen_by_layer(convolving(k), n)
        checks.append(equals(name, layers_needed(convolving(k), n), expected, 0.0))
    for k, expected in ((2, 7), (3, 4), (9, 2)):
        dilated = convolving(k, dilated=True)
        name = translated("dilated convolution, k = {k}: layers, ⌈log_k n⌉", k=k)
        checks.append(equals(name, layers_needed(dilated, n), expected, 0.0))
    curves["dilated k=3"] = seen_by_layer(convolving(3, dilated=True), n)
    x = normal(2, n, 4).requires_grad_()
    (first,) = torch.autograd.grad(unrolled(built(lambda: nn.RNNCell(4, 4), 1), x)[-1].sum(), x)
    steps = translated("RNN, one layer: tokens the last state depends on")
    checks.append(equals(steps, int((first.norm(dim=-1) > 0).sum()), n, 0.0))
    checks.append(below("RNN: |∂h_n/∂x_1| / |∂h_n/∂x_n|", (first[0].norm() / first[-1].norm()).item(), 1e-6))
    checks += _costs()
    points = max(map(len, curves.values()))
    values = np.array([seen + [seen[-1]] * (points - len(seen)) for seen in curves.values()], dtype=float)
    title = translated("tokens seen of {n}, by layers", n=n)
    labels = tuple(str(layer + 1) for layer in range(points))
    return Finding(tuple(checks), Picture("curves", title, values, tuple(curves), labels))


def restricted_attention_is_cheaper(local: Local = neighborhood_attention, n: int = N, d: int = 8) -> Finding:
    """Check that restricted attention needs O(rnd) work in O(1) steps per layer, but O(n/r) layers to see all tokens.

    The sources are Kikuta 2025, exercise 3.6, and Vaswani et al. 2017, table 1. A query attends to r keys, with its
    own position in the middle. `local` is the attention function to test, and its output is compared with full
    attention with a banded mask.

    >>> restricted_attention_is_cheaper().holds
    True
    >>> restricted_attention_is_cheaper(lambda q, k, v, window: attention(q, k, v)).holds
    False
    """
    query, key, value = normal(3, 3, n, d)
    checks, needed, saved = [], [], []
    for r, expected in zip(WIDTHS, (64, 32, 16), strict=True):
        window = (r + 1) // 2
        banded = Mask(window=window).dense(n, n)[0, 0]
        found, masked = local(query, key, value, window), attention(query, key, value, banded)
        work = products_counted(lambda w=window: local(query, key, value, w))
        wasted = products_counted(lambda m=banded: attention(query, key, value, m))
        needed.append(layers_needed(attending(window), n))
        saved.append(wasted / work)
        exact = translated("r = {r}: layers · (r - 1)/2, n - 1", r=r)
        full = translated("r = {r}, mask only: operations, 4n²d", r=r)
        checks += [
            below(translated("r = {r}: |neighborhood - banded mask|", r=r), largest(found - masked), 1e-12),
            equals(translated("r = {r}: operations, 4rnd", r=r), work, 4 * r * n * d, 0.0),
            equals(translated("r = {r}: layers to see {n} tokens", r=r, n=n), needed[-1], expected, 0.0),
            equals(exact, needed[-1] * (r - 1) / 2, n - 1, 0.0),
            equals(full, wasted, 4 * n * n * d, 0.0, counterexample=True),
        ]
    chains = [longest_chain(local(x, x, x, 2)) for x in (normal(0, m, d).requires_grad_() for m in (n, 2 * n))]
    checks.append(equals("steps in a row, 2n: more than with n", chains[1] - chains[0], 0, 0.0))
    checks.append(above("n = 65, r = 3: full / restricted operations", saved[0], 20.0))
    mask = Mask(window=2).dense(17, 17)[0, 0].double()
    title = translated("r = 3, n = 17: the scores that are computed")
    return Finding(tuple(checks), Picture("matrix", title, mask.numpy()))


def numbers_kept(compute: Callable[[], object]) -> int:
    """Return the size of the largest tensor that a computation stores for its backward pass.

    >>> numbers_kept(lambda: torch.ones(3, requires_grad=True).exp())
    3
    """
    sizes = [0]

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute()
    return max(sizes)


def size_is_free_of_length(
    layer: Callable[[int], nn.Module] | None = None, d_in: int = 4, d_attn: int = 6, d_out: int = 3
) -> Finding:
    """Check that attention has (d_in + 1)(2 d_attn + d_out) parameters for any length L, but needs O(L²) memory.

    In comparison, a linear map of all tokens has (d_in L + 1) d_out parameters. The source is the weather post.
    `layer` returns the tested layer for a length L (default: single-head attention with biases).

    >>> size_is_free_of_length().holds
    True
    >>> size_is_free_of_length(lambda length: nn.Linear(4 * length, 3)).holds
    False
    """

    def single_head(length: int) -> Attention:
        return Attention(d_in, 1, head_dim=d_attn, value_dim=d_out, out_proj=nn.Identity())

    lengths = (1, 5, 6, 10, 20, 40)
    sizes = [parameter_count(built(lambda n=n: (layer or single_head)(n))) for n in lengths]
    linear = [parameter_count(built(lambda n=n: nn.Linear(d_in * n, d_out))) for n in lengths]
    attended, same = built(lambda: single_head(10)), []
    for n in (5, 10, 40):
        x = normal(n, 1, n, d_in)
        same.append(attended(x, x).shape[1] == n)

    def kept(n: int, attend: Callable[..., Tensor]) -> int:
        query, key, value = (normal(seed, 1, 1, n, d_attn).requires_grad_() for seed in range(3))
        return numbers_kept(lambda: attend(query, key, value))

    ours, theirs = (translated("attention: parameters"), translated("linear map"))
    fused = translated("fused kernel: numbers kept, L = 128 / 64")
    checks = (
        equals(ours, sizes[3], 75, 0.0),
        equals("(d_in + 1)(2 d_attn + d_out)", (d_in + 1) * (2 * d_attn + d_out), sizes[3], 0.0),
        equals(translated("{theirs.en}, L = 10: parameters", theirs=theirs), linear[3], 123, 0.0),
        equals("attention: largest - least count, L = 1 to 40", max(sizes) - min(sizes), 0, 0.0),
        equals("L = 6: both have", linear[2], sizes[2], 0.0),
        above("L = 5: attention - linear map, parameters", sizes[1] - linear[1], 0, counterexample=True),
        equals("lengths that one layer takes, of 3", sum(same), 3, 0.0),
        equals("L = 64: numbers kept, L²", kept(64, attention), 64 * 64, 0.0),
        equals("numbers kept, L = 128 / 64", kept(128, attention) / kept(64, attention), 4.0, 0.0),
        below(fused, kept(128, Attend()) / kept(64, Attend()), 2.5, counterexample=True),
    )
    title = translated("parameters by length")
    values, labels = np.array([sizes, linear], dtype=float), tuple(str(n) for n in lengths)
    return Finding(checks, Picture("curves", title, values, ("attention", "linear map"), labels))


CLAIMS = {"C14": one_layer_sees_all, "C22": restricted_attention_is_cheaper, "C20": size_is_free_of_length}
