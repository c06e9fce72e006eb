"""The formats of counts and time spans in messages."""

from collections.abc import Callable

Say = Callable[[str], None]
"""A function that prints one line for the user."""


def plural(count: int, noun: str) -> str:
    """Return a count with its noun in the singular or plural.

    Args:
        count: The count.
        noun: The noun in the singular.

    >>> plural(1, "row"), plural(2500, "row")
    ('1 row', '2,500 rows')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float) -> str:
    """Format a time span.

    Args:
        seconds: The time span in seconds.

    Returns:
        The time in seconds, minutes or hours, with its unit.

    >>> duration(42), duration(125), duration(7300)
    ('42 s', '2:05 min', '2:01 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes}:{int(seconds % 60):02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
