"""Lines in and lines out: one for one, split at LF alone, streamed in constant memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import cast

import typer

BLOCK = 1 << 18
MOST_LINES = 512
"""Lines translated together: sorted by length within, put back in order."""


def stdin_bytes() -> BufferedReader:
    """The bytes of stdin; says on a terminal that it waits for them."""
    if sys.stdin is None:  # closed by who started us
        raise typer.BadParameter("give TEXT, or lines on stdin, which is closed")
    if sys.stdin.isatty():
        print("Type a line at a time; Ctrl-D ends.", file=sys.stderr, flush=True)
    return cast(BufferedReader, sys.stdin.buffer)


def numbered_chunks(stream: BufferedReader, name: str = "stdin") -> Iterator[tuple[int, list[str]]]:
    """The lines of a stream as (number of the first, texts), as they come: no line waits for one not yet sent.

    Only LF ends a line; a CR before it goes with it, and so does a byte order mark. A last line without LF is a
    line. Raises AttendoError naming the line that is not UTF-8 or longer than a line may be.
    """
    from attendo.data.accounting import LINE_CAP, REMEDIES
    from attendo.errors import AttendoError

    number, rest = 1, b""
    while block := stream.read1(BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        for start in range(0, len(whole), MOST_LINES):
            part = whole[start : start + MOST_LINES]
            yield from _decoded(part, number, name)
            number += len(part)
        if len(rest) > LINE_CAP:
            raise AttendoError(f"{name}:{number}: too long; {REMEDIES['too long']}")
    if rest:
        yield from _decoded([rest], number, name)


def stdin_text() -> str:
    """All of stdin as one text, its lines joined by LF; the line break at its end is left out.

    Raises AttendoError as `numbered_chunks` does.
    """
    return "\n".join(line for _, lines in numbered_chunks(stdin_bytes()) for line in lines)


def _decoded(lines: list[bytes], number: int, name: str) -> Iterator[tuple[int, list[str]]]:
    """The lines as one chunk; those before a bad one are still given, and then the error is raised."""
    from attendo.data.accounting import Fault
    from attendo.data.lines import decode
    from attendo.errors import AttendoError

    texts: list[str] = []
    for position, line in enumerate(lines, number):
        line = line.removesuffix(b"\r")
        text = decode(line.removeprefix(b"\xef\xbb\xbf") if position == 1 else line)
        if isinstance(text, Fault):
            if texts:
                yield number, texts
            raise AttendoError(f"{name}:{position}: {text.reason} ({text.detail}); send UTF-8")
        texts.append(text)
    yield number, texts


def arguments_as_lines(texts: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Texts of the command line in the form of `numbered_chunks`.

    Raises AttendoError for one that is not UTF-8, which Python holds as lone surrogates.
    """
    from attendo.data.formats import has_surrogate
    from attendo.errors import AttendoError

    for number, text in enumerate(texts, 1):
        if has_surrogate(text):
            raise AttendoError(
                f"TEXT number {number} is not UTF-8; type it in a UTF-8 terminal, or send it on stdin"
            )
    yield 1, texts


def refuse_file_name(texts: list[str] | None, remedy: str, argument: str = "TEXT") -> None:
    """BadParameter where the only text is the name of a file: it would be read as the text. argument: of the texts."""
    if not texts or len(texts) != 1:
        return
    [text] = texts
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):  # a text that no file can be called by
        return
    if is_file:
        raise typer.BadParameter(f"{text!r} is a file, and {argument} is a text; for its lines {remedy}")


def one_line(text: str) -> str:
    """The text with each line break written as a space.

    >>> one_line("rain\\r\\nsnow")
    'rain snow'
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")
