"""The arrays of the figure of the Noam schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from attendo.training.optimizer import noam

WARMUPS = (4000, 1000, 2000, 8000, 16000)


@dataclass(frozen=True)
class Rates:
    """Learning rates by step: a row for each number of warm-up steps; the peak of each is at its last."""

    d_model: int
    steps: Int[np.ndarray, " steps"]
    warmups: tuple[int, ...]
    rates: Float[np.ndarray, "warmups steps"]
    peaks: Float[np.ndarray, " warmups"]


def rates(
    d_model: int = 512, warmups: tuple[int, ...] = WARMUPS, last: int = 50_000, every: int = 100
) -> Rates:
    """d^-.5 · min(s^-.5, s·w^-1.5) at step 1, at every so many steps, and at each w. Vaswani et al. 2017, eq. 3.

    >>> [f"{rate:.5e}" for rate in (rates().rates[0, 0], rates().peaks[0], rates().rates[0, -1])]
    ['1.74693e-07', '6.98771e-04', '1.97642e-04']
    """
    steps = np.array(sorted({1, *range(every, last + 1, every), *(w for w in warmups if w <= last)}))
    table = np.array([[noam(int(step), d_model, w) for step in steps] for w in warmups])
    peaks = np.array([noam(w, d_model, w) for w in warmups])
    return Rates(d_model, steps, warmups, table, peaks)
