"""Paragraphs for a terminal, in English and in Japanese, which breaks lines without spaces."""

from __future__ import annotations

import re
from itertools import chain

from attendo.display.width import clusters, columns

_PIECES = re.compile(r"\s+|[^\s\u3000-\u9fff\uf900-\uffef]+|.", re.DOTALL)
"""Spaces, runs of narrow characters, single wide ones."""
_NEVER_FIRST = "、。」』)〕】・：；！？，．,:;!?）ーぁぃぅぇぉっゃゅょァィゥェォッャュョ々…"
_NEVER_LAST = "「『(（〔【"


def flowed(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` columns, the second and all further ones behind `indent`.

    A line break in the text stays. A line is broken at a space or beside a Japanese character, but no line begins
    with what closes or ends with what opens; a run too long for a line is cut.

    >>> flowed("a strong wind", 8)
    ['a strong', 'wind']
    >>> flowed("rain\\nsnow", 8)
    ['rain', 'snow']
    >>> flowed("強い風が吹く。", 12, "  ")
    ['強い風が吹', '  く。']
    """
    if "\n" in text:
        first, *rest = text.split("\n")
        behind = (flowed(indent + part, width, indent) for part in rest)
        return [*flowed(first, width, indent), *chain(*behind)]
    start = text[: len(text) - len(text.lstrip())]
    lines, line = [], start
    for piece in _joined(_PIECES.findall(" ".join(text.split()))):
        if columns(line + piece.rstrip()) <= width:
            line += piece
            continue
        lines, line = [*lines, line.rstrip()] if line.strip() else lines, indent
        for cluster in clusters(piece.lstrip()):
            if columns(line + cluster) > width:
                lines, line = [*lines, line], indent
            line += cluster
    return [*lines, line.rstrip()]


def beside(label: str, text: str, width: int) -> list[str]:
    """A text after a label, wrapped to `width` columns beside it.

    >>> beside("! ", "a strong wind", 10)
    ['! a strong', '  wind']
    """
    left = columns(label)
    first, *rest = flowed(text, width - left)
    return [label + first, *(" " * left + part for part in rest)]


def _joined(pieces: list[str]) -> list[str]:
    """The pieces with those put together between which no line may break."""
    found: list[str] = []
    for piece in pieces:
        if found and not piece.isspace() and (piece[0] in _NEVER_FIRST or found[-1][-1] in _NEVER_LAST):
            found[-1] += piece
        else:
            found.append(piece)
    return found
