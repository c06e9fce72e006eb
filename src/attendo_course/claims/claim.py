"""The definition of a claim: a statement of a source, and a function that computes numbers to check it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from attendo.display.i18n import Localized
from attendo_course.book import Entry, translated
from attendo_course.pictures import Picture

Relation = Literal["=", "<", ">", "shown"]
Verdict = Literal["true", "true under a condition", "false"]
"""The verdict on a statement of a source."""
Name = Localized | str
"""The name of a computed number, as an English text whose Japanese is in the book, or in both languages."""


@dataclass(frozen=True)
class Check:
    """A computed number and its required value. A "shown" number has no required value (for example a wall time).

    A check with `counterexample` shows that the statement is false, in general or without its condition.
    """

    name: Localized
    value: float
    relation: Relation
    bound: float = math.nan
    tolerance: float = 0.0
    counterexample: bool = False

    @property
    def holds(self) -> bool:
        """Whether the number has the required value.

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
    """Return a check that |value - expected| ≤ tolerance.

    >>> equals(Localized("sum", "和"), 0.1 + 0.2, 0.3).holds
    True
    """
    return Check(_said(name), float(value), "=", float(expected), tolerance, counterexample)


def below(name: Name, value: float, limit: float, *, counterexample: bool = False) -> Check:
    """Return a check that the value is less than a limit.

    >>> below(Localized("error", "誤差"), 2.0, 1.0).holds
    False
    """
    return Check(_said(name), float(value), "<", float(limit), counterexample=counterexample)


def above(name: Name, value: float, limit: float, *, counterexample: bool = False) -> Check:
    """Return a check that the value is greater than a limit.

    >>> above(Localized("gain", "利得"), 2.0, 1.0).holds
    True
    """
    return Check(_said(name), float(value), ">", float(limit), counterexample=counterexample)


def shown(name: Name, value: float) -> Check:
    """Return a check that only reports a number and always holds.

    >>> shown(Localized("seconds", "秒"), 12.5).holds
    True
    """
    return Check(_said(name), float(value), "shown")


def _said(name: Name) -> Localized:
    return translated(name) if isinstance(name, str) else name


@dataclass(frozen=True)
class Finding:
    """The result of computing a claim: its checks, and a picture."""

    checks: tuple[Check, ...]
    picture: Picture | None = None

    @property
    def holds(self) -> bool:
        """Whether all computed numbers have their required values."""
        return all(check.holds for check in self.checks)


@dataclass(frozen=True)
class Claim(Entry):
    """A statement of a source, its derivation, and the function that checks it with computed numbers.

    Attributes:
        verdict: Whether the statement is true, true under a condition, or false.
        limits: The condition, or the reason why the statement is false. Without the condition, the statement is false,
            which a check marked `counterexample` shows.
    """

    statement: Localized
    derivation: Localized
    compute: Callable[[], Finding]
    verdict: Verdict = "true"
    limits: Localized | None = None
