"""Texts of several lines as a translator reads them: each line by itself, and what stands between them kept."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attendo.data.segments import Segments
from attendo.data.tokenizers import Tokenizer
from attendo.tasks.sources import Sources, sources_of

_GAP = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


def lines_of(text: str) -> Segments:
    r"""The lines of a text, without the white space around them, which goes between.

    >>> lines_of(" It rains. It pours.\n\n  Snow.\n")
    Segments(pieces=('It rains. It pours.', 'Snow.'), separators=(' ', '\n\n  ', '\n'))
    """
    body = text.strip()
    if not body:
        return Segments((), (text,))
    begin = text.index(body[0])
    gaps = [match[0] for match in _GAP.finditer(body)]
    return Segments(tuple(_GAP.split(body)), (text[:begin], *gaps, text[begin + len(body) :]))


def sources_of_lines(
    tokenizer: Tokenizer, texts: Sequence[str], longest: int, prefixes: Sequence[str] | None
) -> Sources:
    """As `sources_of`, but a line is a part at least: translators learn from lines, and forget breaks between them.

    prefixes: one for each text, which its first line's translation begins with.
    """
    split = [lines_of(text) for text in texts]
    firsts = None
    if prefixes is not None:
        each = zip(split, prefixes, strict=True)
        firsts = [
            first
            for lines, prefix in each
            for first in [prefix, *[""] * len(lines.pieces)][: len(lines.pieces)]
        ]
    found = sources_of(tokenizer, [line for lines in split for line in lines.pieces], longest, firsts)
    left = iter(found.texts)
    return Sources(
        [_together(lines, [next(left) for _ in lines.pieces]) for lines in split], found.rows, found.starts
    )


def _together(lines: Segments, parts: Sequence[Segments]) -> Segments:
    """One text from its lines and the parts of each."""
    pieces, gaps = [], [lines.separators[0]]
    for part, gap in zip(parts, lines.separators[1:], strict=True):
        gaps[-1] += part.separators[0]
        pieces += part.pieces
        gaps += part.separators[1:]
        gaps[-1] += gap
    return Segments(tuple(pieces), tuple(gaps))
