"""Keeps what somebody else's code prints and asks for apart from the results, and notes that it did."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass

from attendo.display.i18n import Localized

PRINTS = Localized(
    "it prints, which is left out; what it returns is checked",
    "print の出力は無視した。採点するのは戻り値だけ",
)
ASKS = Localized(
    "it asks for input and gets none; the arrays come as arguments",
    "入力を求めているが、何も渡されない。配列は引数として渡される",
)


@dataclass
class Heard:
    """Whether the code printed, and whether it asked for input."""

    printed: bool = False
    asked: bool = False

    @property
    def remarks(self) -> tuple[Localized, ...]:
        """What there is to say of it; a prompt is no print of its own."""
        return (ASKS,) if self.asked else (PRINTS,) if self.printed else ()


class _Nowhere(io.RawIOBase):
    """Takes what is written and keeps nothing."""

    def __init__(self, heard: Heard):
        self.heard = heard

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.heard.printed = True
        return memoryview(data).nbytes  # pyright: ignore[reportArgumentType]


class _Closed(io.RawIOBase):
    """Has nothing to read."""

    def __init__(self, heard: Heard):
        self.heard = heard

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        self.heard.asked = True
        return 0


@contextmanager
def quiet() -> Iterator[Heard]:
    """Within it standard output goes nowhere and standard input is at its end.

    >>> with quiet() as heard:
    ...     print("unseen")
    >>> heard.printed, heard.asked
    (True, False)
    """
    heard, former = Heard(), sys.stdin
    out = io.TextIOWrapper(io.BufferedWriter(_Nowhere(heard)), encoding="utf-8", write_through=True)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed(heard)), encoding="utf-8")
    try:
        with redirect_stdout(out):
            yield heard
            out.flush()
    finally:
        sys.stdin = former
