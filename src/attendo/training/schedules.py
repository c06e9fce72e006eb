"""Learning rates: pure functions of the step and of what the run has recorded about its own end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["wsd", "cosine", "noam"]


@dataclass(frozen=True)
class Horizon:
    """When the decay starts and when the run ends, in steps; None while a clock has yet to decide it."""

    decay_start: int | None = None
    end: int | None = None


def noam(step: int, d_model: int, warmup: int) -> float:
    """d_model^-.5 · min(step^-.5, step · warmup^-1.5); steps count from 1. Vaswani et al. 2017, eq. 3.

    >>> f"{noam(4000, 512, 4000):.5e}"
    '6.98771e-04'
    """
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def warmup_stable_decay(step: int, peak: float, warmup: int, horizon: Horizon) -> float:
    """Linear up to `peak` over `warmup` steps, constant, then linear down to nearly 0 at the end (Hu et al. 2024).

    >>> [warmup_stable_decay(s, 1.0, 2, Horizon(4, 8)) for s in range(1, 9)]
    [0.5, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    """
    rate = peak * min(1.0, step / max(warmup, 1))
    if horizon.decay_start is None or horizon.end is None or step <= horizon.decay_start:
        return rate
    return rate * max(horizon.end + 1 - step, 0) / (horizon.end + 1 - horizon.decay_start)


def cosine(step: int, peak: float, warmup: int, end: int) -> float:
    """Linear up to `peak` over `warmup` steps, then half a cosine down to 0 at `end` (Loshchilov & Hutter 2017).

    >>> cosine(10, 1.0, 0, 20)
    0.5
    """
    if step < warmup:
        return peak * step / warmup
    return peak * 0.5 * (1.0 + math.cos(math.pi * min(step - warmup, end - warmup) / max(end - warmup, 1)))
