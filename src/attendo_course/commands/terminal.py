"""The common parts of the course's commands: choosing by number, and the width of a line."""

from __future__ import annotations

import shutil
import sys
from typing import TypeVar

WIDEST = 100
"""The most columns of a paragraph, on a wide terminal."""

T = TypeVar("T")


def pick(kind: str, known: dict[str, T], given: list[str], names: list[str]) -> list[T]:
    """The values of `known` under these numbers, each once, or all: "8", "08" and, for a claim, "C8" and "c08"."""
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
    """The maximum width of a line: the terminal's, at most 100; 79 without a terminal."""
    return max(40, min(shutil.get_terminal_size((79, 24)).columns, WIDEST)) if sys.stdout.isatty() else 79
