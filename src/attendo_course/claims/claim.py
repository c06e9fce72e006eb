"""The definition of a claim: a statement of a source, and a function that computes the figures that decide it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo_course.book import translated

Relation = Literal["=", "<", ">", "shown"]
Name = Localized | str
"""What a figure is called, in English where the book has the Japanese."""


@dataclass(frozen=True)
class Check:
    """A computed figure and its required value; a "shown" figure decides nothing (for example a wall time).

    counterexample: the figure shows that the statement is false without its condition.
    """

    name: Localized
    value: float
    relation: Relation
    bound: float = math.nan
    tolerance: float = 0.0
    counterexample: bool = False

    @property
    def holds(self) -> bool:
        """Whether the figure is what it must be.

        >>> equals(Localized("sum", "和"), 1.0 + 1e-13, 1.0).holds, below(Localized("d", "差"), 2.0, 1.0).holds
        (True, False)
        """
        match self.relation:
            case "=":
                return abs(self.value - self.bound) <= self.tolerance
            case "<":
                return self.value < self.bound
            case ">":
                return self.value > self.bound
            case "shown":
                return True


def equals(
    name: Name, value: float, expected: float, tolerance: float = 1e-10, *, counterexample: bool = False
) -> Check:
    """|value - expected| ≤ tolerance.

    >>> equals(Localized("sum", "和"), 0.1 + 0.2, 0.3).holds
    True
    """
    return Check(_said(name), float(value), "=", float(expected), tolerance, counterexample)


def below(name: Name, value: float, limit: float, *, counterexample: bool = False) -> Check:
    """Value < limit.

    >>> below(Localized("error", "誤差"), 2.0, 1.0).holds
    False
    """
    return Check(_said(name), float(value), "<", float(limit), counterexample=counterexample)


def above(name: Name, value: float, limit: float, *, counterexample: bool = False) -> Check:
    """Value > limit.

    >>> above(Localized("gain", "利得"), 2.0, 1.0).holds
    True
    """
    return Check(_said(name), float(value), ">", float(limit), counterexample=counterexample)


def shown(name: Name, value: float) -> Check:
    """A figure that is reported and decides nothing.

    >>> shown(Localized("seconds", "秒"), 12.5).holds
    True
    """
    return Check(_said(name), float(value), "shown")


def _said(name: Name) -> Localized:
    return translated(name) if isinstance(name, str) else name


@dataclass(frozen=True)
class Finding:
    """The result of computing a claim."""

    checks: tuple[Check, ...]
    picture: Picture | None = None

    @property
    def holds(self) -> bool:
        """Whether every figure is what it must be."""
        return all(check.holds for check in self.checks)


@dataclass(frozen=True)
class Claim:
    """A statement of a source, how it follows, and the function that checks it by numbers.

    condition: without which the statement is false; a check marked `counterexample` then shows that.
    """

    id: str
    source: Localized
    statement: Localized
    derivation: Localized
    compute: Callable[[], Finding]
    condition: Localized | None = None
