"""Counts and time spans for people."""

from collections.abc import Callable

Say = Callable[[str], None]
"""Takes a line for a person."""


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "row"), plural(2500, "row")
    ('1 row', '2,500 rows')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float) -> str:
    """A time span for people.

    >>> duration(42), duration(125), duration(7300)
    ('42 s', '2:05 min', '2:01 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return (
        f"{minutes}:{int(seconds % 60):02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
    )
