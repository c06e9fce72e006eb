"""Paired bootstrap over the rows of a test set, which tests whether two systems differ significantly."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attendo.errors import AttendoError


@dataclass(frozen=True, eq=False)
class RowSums:
    """A score that depends on sums over rows. `rows` contains the summands, and `score` uses their column sums."""

    name: str
    rows: Float[ndarray, "rows parts"]
    score: Callable[[Float[ndarray, " parts"]], float]
    signature: str = ""


def ratio_sums(
    name: str, above: Float[ndarray, " rows"], below: Float[ndarray, " rows"], signature: str = ""
) -> RowSums:
    """Return the score Σ above / Σ below: a mean over rows, or over tokens if `below` counts the tokens.

    >>> loss = ratio_sums("loss", np.array([6.0, 2.0]), np.array([3.0, 1.0]))
    >>> loss.score(loss.rows.sum(0))
    2.0
    """
    _check_rows(above, below)
    rows = np.stack((above, below), 1)
    return RowSums(name, rows, lambda sums: float(sums[0] / max(sums[1], 1e-300)), signature)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The scores of two systems on the same rows, and their scores `[2, samples]` on samples drawn with replacement."""

    first: float
    second: float
    samples: Float[ndarray, "2 samples"]

    @property
    def difference(self) -> float:
        """The score of the second system minus the score of the first."""
        return self.second - self.first

    @cached_property
    def differences(self) -> Float[ndarray, " samples"]:
        """The score of the second system minus the score of the first system, on each sample."""
        return self.samples[1] - self.samples[0]

    @property
    def p_value(self) -> float:
        """Two-sided p-value: twice the share of samples in which the difference is 0 or changes its sign, at most 1.

        With k of these samples among n, the p-value is 2 (k + 1) / (n + 1), which is never 0 (Koehn 2004, section 4).
        The p-value is at most 0.05 exactly if `interval(differences)` excludes 0.
        """
        k = min(int((self.differences <= 0).sum()), int((self.differences >= 0).sum()))
        return min(1.0, 2 * (k + 1) / (len(self.differences) + 1))


def interval(values: Float[ndarray, " samples"]) -> tuple[float, float]:
    """Return the bounds of the central 95% of the values (Efron 1979).

    The bounds are the values at position (n + 1) / 40 from the start and from the end of the sorted values.

    >>> interval(np.arange(1.0, 1000.0)), interval(np.arange(1.0, 1001.0))
    ((25.0, 975.0), (25.0, 976.0))
    """
    ordered = np.sort(values)
    outside = max(0, (len(values) + 1) // 40 - 1)
    return float(ordered[outside]), float(ordered[len(values) - 1 - outside])


LEAST_SAMPLES = 100
_AT_ONCE = 1 << 22  # rows drawn


def paired_bootstrap(first: RowSums, second: RowSums, n_samples: int = 1000, seed: int = 12345) -> Comparison:
    """Compare two systems on `n_samples` random samples of the test rows (Koehn 2004).

    Both systems are scored on the same samples. Each sample has as many rows as the test set, drawn with replacement.
    The method and the default seed are those of sacreBLEU's `PairedTest`. Raises AttendoError if there are no rows, if
    the systems have different numbers of rows, or if `n_samples` is below LEAST_SAMPLES.

    >>> right = np.array([[1.0, 1, 1, 0, 1, 0, 1, 1], [1, 0, 1, 0, 1, 0, 0, 1]])
    >>> found = paired_bootstrap(*(ratio_sums("accuracy", row, np.ones(8)) for row in right))
    >>> found.difference, interval(found.differences), round(found.p_value, 3)
    (-0.25, (-0.625, 0.0), 0.214)
    """
    _check_rows(first.rows, second.rows)
    if n_samples < LEAST_SAMPLES:
        raise AttendoError(f"{n_samples} bootstrap samples are too few (expected at least {LEAST_SAMPLES})")
    rng, n = np.random.default_rng(seed), len(first.rows)
    parts = []
    for start in range(0, n_samples, size := max(1, _AT_ONCE // n)):
        drawn = rng.integers(0, n, (min(size, n_samples - start), n))
        counts = np.stack([np.bincount(rows, minlength=n) for rows in drawn]).astype(np.float64)
        parts.append([[of.score(sums) for sums in counts @ of.rows] for of in (first, second)])
    all_rows = [of.score(of.rows.sum(0)) for of in (first, second)]
    return Comparison(all_rows[0], all_rows[1], np.concatenate(parts, 1))


def _check_rows(first: ndarray, second: ndarray) -> None:
    if len(first) != len(second):
        raise AttendoError(
            f"the systems have {len(first)} and {len(second)} rows (expected equal numbers). Use the same rows for both"
        )
    if not len(first):
        raise AttendoError("nothing to compare (expected at least one row)")
