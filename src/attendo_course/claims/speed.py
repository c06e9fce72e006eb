"""Claims about time: one stacked projection against three (C38), and attention against recurrent networks (C39)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attendo.nn.attention import Attention
from attendo_course.book import translated
from attendo_course.claims.architecture import longest_chain
from attendo_course.claims.claim import Check, Finding, above, below, equals, shown
from attendo_course.claims.samples import built, largest, normal, unrolled
from attendo_course.lecture import stacked_projection
from attendo_course.pictures import Picture


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def times(calls: Sequence[Callable[[], object]], rounds: int) -> Float[np.ndarray, "rounds calls"]:
    """Return the CPU milliseconds of each call on one thread, with all calls after each other in each round.

    Neighboring times are comparable even if other programs slow the machine down for a while. A first round is not
    counted. The backward pass is counted, because torch computes it in the calling thread on the CPU.

    >>> times([lambda: None, lambda: None], rounds=3).shape
    (3, 2)
    """
    found = np.empty((rounds + 1, len(calls)))
    with _one_thread():
        for row in found:
            for i, call in enumerate(calls):
                start = time.thread_time()
                call()
                row[i] = 1000.0 * (time.thread_time() - start)
    return found[1:]


def multiplications(call: Callable[[], object]) -> int:
    """Return the number of multiplications in the matrix products of a call.

    >>> multiplications(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    24
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # the counter knows no fused kernel of the CPU, so attention is computed with plain products
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops() // 2  # a multiplication and an addition are two operations


Stack = Callable[..., nn.Linear]


def stacking_saves_no_products(
    stack: Stack = stacked_projection,
    widths: Sequence[int] = (32, 64, 128, 256),
    n_tokens: int = 256,
    rounds: int = 15,
) -> Finding:
    """Check that [W_q; W_k; W_v]x equals three projections with as many multiplications, and show the ratio of times.

    The source is NYU Deep Learning 2020, week 12-3. `stack` makes one layer of three. The times are CPU times on one
    thread in float32, for `n_tokens` vectors of each width.

    >>> stacking_saves_no_products(widths=(8,), rounds=2).holds
    True
    >>> stacking_saves_no_products(lambda q, k, v: stacked_projection(q, v, k), widths=(8,), rounds=2).holds
    False
    """
    d = widths[0]
    layers = [built(lambda: nn.Linear(d, d, bias=False), seed) for seed in range(3)]
    x, stacked = normal(3, n_tokens, d), built(lambda: stack(*layers))
    three, one = torch.cat([layer(x) for layer in layers], -1), stacked(x)[:, : 3 * d]
    counts = [multiplications(lambda: [layer(x) for layer in layers]), multiplications(lambda: stacked(x))]
    checks = [
        below("largest |stacked - three products|", largest(three - one), 1e-12),
        equals("stacked: multiplications, 3nd²", counts[1], 3 * n_tokens * d * d, 0.0),
        equals("multiplications saved", counts[0] - counts[1], 0, 0.0, counterexample=True),
    ]
    ratios = np.array([_ratios(d, n_tokens, rounds) for d in widths]).T
    for d, ratio in zip(widths, ratios[0], strict=True):
        checks.append(shown(translated("forward, d = {d}: time of three / of one", d=d), round(ratio, 2)))
    for d, ratio in zip(widths, ratios[1], strict=True):
        checks.append(shown(translated("training step, d = {d}: time of three / of one", d=d), round(ratio, 2)))
    title = translated("time of three projections / of one, by width")
    labels = tuple(f"d = {d}" for d in widths)
    return Finding(tuple(checks), Picture("curves", title, ratios, ("forward", "training step"), labels))


def _ratios(d: int, n_tokens: int, rounds: int) -> tuple[float, float]:
    """Return time of three projections / time of one, as medians over rounds: of a forward pass, of a training step."""
    layers = [built(lambda: nn.Linear(d, d, bias=False), seed).float() for seed in range(3)]
    stacked, x = built(lambda: stacked_projection(*layers)), normal(3, n_tokens, d).float().requires_grad_()

    def three() -> Tensor:
        return sum((layer(x).square().mean() for layer in layers), x.new_zeros(()))

    def one() -> Tensor:
        return sum((part.square().mean() for part in stacked(x).split(d, -1)), x.new_zeros(()))

    with torch.no_grad():
        forward = times([lambda: [layer(x) for layer in layers], lambda: stacked(x).split(d, -1)], rounds)
    step = times([lambda: three().backward(), lambda: one().backward()], rounds)
    return statistics.median(forward[:, 0] / forward[:, 1]), statistics.median(step[:, 0] / step[:, 1])


Layer = Callable[[Float[Tensor, "batch n d"]], Float[Tensor, "batch n d"]]
"""A function from the vectors of texts of n tokens to new vectors."""


def _layers(d: int, attend: Layer | None, dtype: torch.dtype) -> dict[str, Layer]:
    attention, rnn, lstm = (
        built(make).to(dtype).train()
        for make in (
            lambda: Attention(d, 4, bias=False),
            lambda: nn.RNN(d, d, bias=False, batch_first=True),
            lambda: nn.LSTM(d, d, bias=False, batch_first=True),
        )
    )
    return {
        "attention": attend or (lambda x: attention(x, x)),
        "RNN": lambda x: rnn(x)[0],
        "LSTM": lambda x: lstm(x)[0],
    }


def recurrence_waits(
    attend: Layer | None = None,
    d: int = 64,
    n_tokens: int = 1024,
    lengths: Sequence[int] = (4, 16, 64, 256, 1024),
    rounds: int = 5,
) -> Finding:
    """Check the products and the steps in a row of attention, an RNN and an LSTM of equal width, and show their times.

    The source is NYU Deep Learning 2020, week 12-3. `attend` is the layer that must not wait (default: self-attention
    with four heads). The times are CPU times of a training step (forward and backward) on one thread in float32, for
    `n_tokens` tokens in texts of each of the `lengths`.

    >>> small = {"d": 8, "n_tokens": 16, "lengths": (4, 16), "rounds": 2}
    >>> recurrence_waits(**small).holds
    True
    >>> recurrence_waits(lambda x: x.cumsum(1), **small).holds
    False
    """
    exact = _layers(d, attend, torch.float64)

    def products(name: str, n: int) -> int:
        return multiplications(lambda: exact[name](normal(0, 1, n, d)))

    n, both = d // 2, 2 * d
    cell = built(lambda: nn.RNNCell(d, d))
    waiting = [
        [longest_chain(compute(normal(0, 1, m, d).requires_grad_())) for m in (32, 64)]
        for compute in (exact["attention"], lambda x: unrolled(cell, x[0]))
    ]
    saved = translated("n = 4d: products of attention - of the LSTM")
    checks: list[Check] = [
        equals("attention: products, 4nd² + 2n²d", products("attention", n), 4 * n * d * d + 2 * n * n * d, 0.0),
        equals("RNN: products, 2nd²", products("RNN", n), 2 * n * d * d, 0.0),
        equals("LSTM: products, 8nd²", products("LSTM", n), 8 * n * d * d, 0.0),
        equals("n = 2d: attention / LSTM", products("attention", both) / products("LSTM", both), 1.0, 0.0),
        above(saved, products("attention", 4 * d) - products("LSTM", 4 * d), 0.0, counterexample=True),
        equals("layer: steps in a row, 2n more than n", waiting[0][1] - waiting[0][0], 0, 0.0),
        equals("RNN: steps in a row, 2n / n", waiting[1][1] / waiting[1][0], 2.0, 0.1),
    ]
    found = {m: _step_times(d, attend, n_tokens, m, rounds) for m in lengths}
    for other in (1, 2):
        kind = ("attention", "RNN", "LSTM")[other]
        for m, rows in found.items():
            name = translated("n = {m}: time of attention / of the {kind}", m=m, kind=kind)
            checks.append(shown(name, round(statistics.median(rows[:, 0] / rows[:, other]), 2)))
    title = translated("training step, d = {d}: ms per 1,000 tokens by length", d=d)
    per_1000 = np.array([np.median(rows, axis=0) for rows in found.values()]).T * 1000 / n_tokens
    names, labels = ("attention", "RNN", "LSTM"), tuple(f"n = {m}" for m in lengths)
    return Finding(tuple(checks), Picture("curves", title, per_1000, names, labels))


def _step_times(d: int, attend: Layer | None, n_tokens: int, n: int, rounds: int) -> Float[np.ndarray, "rounds layers"]:
    x = normal(0, n_tokens // n, n, d).float().requires_grad_()

    def step(layer: Layer) -> Callable[[], None]:
        return lambda: layer(x).square().mean().backward()

    return times([step(layer) for layer in _layers(d, attend, torch.float32).values()], rounds)


CLAIMS = {"C38": stacking_saves_no_products, "C39": recurrence_waits}
