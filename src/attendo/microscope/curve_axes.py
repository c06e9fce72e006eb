"""The axes of a graph: where values lie between two ends, and the round numbers that are written at them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """From the value `low` at 0 to `high` at 1; logarithmic: equal ratios are equally far apart."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, 0 to 1 between the ends.

        >>> Axis(0, 10).place(2.5), Axis(1, 100, logarithmic=True).place(10)
        (0.25, 0.5)
        """
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers between the ends: 1, 2 or 5 times a power of ten apart; of a logarithmic axis such numbers.

        >>> Axis(0.3, 9.4).ticks(), Axis(0.3, 40, logarithmic=True).ticks()
        ([2.0, 4.0, 6.0, 8.0], [0.5, 1.0, 2.0, 5.0, 10.0, 20.0])
        """
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for factors in ((1, 2, 3, 5), (1, 2, 5), (1,)):
                found = [_round(f, power) for power in powers for f in factors]
                found = [value for value in found if self.low <= value <= self.high]
                if len(found) <= most:
                    return found
            return found[:: math.ceil(len(found) / most)]
        power = math.floor(math.log10((self.high - self.low) / most))
        for factor in (1, 2, 5, 10, 20, 50):
            step = _round(factor, power)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last - first + 1 <= most:
                break
        digits = max(0, 1 - power)
        return [round(n * step, digits) + 0.0 for n in range(first, last + 1)]


def axis_of(values: Iterable[float], logarithmic: bool = False, margin: float = 0.04) -> Axis:
    """An axis that holds all of some values, with a margin; logarithmic only if the values are above 0 and far apart.

    >>> axis_of([1.0, 3.0], margin=0.5)
    Axis(low=0.0, high=4.0, logarithmic=False)
    """
    known = list(values)
    low, high = min(known), max(known)
    if logarithmic and low > 0 and high / low > 4:
        ratio = (high / low) ** margin
        return Axis(low / ratio, high * ratio, True)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-30):  # one value
        return Axis(low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0))
    return Axis(low - margin * (high - low), high + margin * (high - low))


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """Numbers as they stand at an axis, all with as many digits behind the point.

    >>> tick_texts([0.0, 0.0005, 0.001]), tick_texts([0.0, 2000.0]), tick_texts([0.5, 1.0, 20.0])
    (['0', '0.0005', '0.0010'], ['0', '2,000'], ['0.5', '1.0', '20.0'])
    """
    shortest = [f"{tick:.10f}".rstrip("0").partition(".")[2] for tick in ticks]
    digits = max(map(len, shortest), default=0)
    if any(tick and abs(tick) < 1e-6 for tick in ticks):
        return [f"{tick:g}" for tick in ticks]
    return ["0" if tick == 0 else f"{tick:,.{digits}f}".replace("-", "−") for tick in ticks]


def _round(factor: int, power: int) -> float:
    """factor times ten to a power, as near as a float can be."""
    return float(f"{factor}e{power}")
