"""Functions that the commands of the course share: selecting items by number, and the line width."""

from __future__ import annotations

import shutil
import sys
from typing import TypeVar

WIDEST = 100
"""The maximum width of a paragraph in columns on a wide terminal."""

T = TypeVar("T")


def pick(kind: str, known: dict[str, T], given: list[str], names: list[str]) -> list[T]:
    """Return the values of `known` with these numbers, each once, or all values if no number is given.

    The numbers can have the forms "8" and "08" and, for a claim, "C8" and "c08".
    """
    from attendo.errors import AttendoError

    chosen = list(known)
    if given:
        bare = [text.strip().upper().removeprefix(kind[0].upper()).lstrip("0") for text in given]
        for text, number in zip(given, bare, strict=True):
            if number not in known:
                raise AttendoError(f"unknown {kind} {text} (expected {names[0]} to {names[-1]})")
        chosen = list(dict.fromkeys(bare))
    return [known[number] for number in chosen]


def terminal_width() -> int:
    """Return the maximum line width: the width of the terminal up to 100 columns, or 79 columns without a terminal."""
    return max(40, min(shutil.get_terminal_size((79, 24)).columns, WIDEST)) if sys.stdout.isatty() else 79
