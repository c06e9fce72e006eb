"""How wide a text is where every character has its column, and texts cut and wrapped to such a width."""

from __future__ import annotations

import re
import unicodedata

_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
EMOJI = "\ufe0f"
"""Asks for the character before it to be drawn as an emoji."""
ISOLATES = "\u2068\u2069"
"""The marks around a text whose direction is to change nothing beside it."""


def shown(text: str, kept: str = "") -> str:
    """Return the text with an escape for each character that commands a terminal or turns the direction of text.

    Args:
        text: A text from a file, of which tabs and line feeds stay.
        kept: Characters that also stay.

    >>> shown("\\x1b[31m\\u202elabel"), shown("\\u2068a\\u2069", "\\u2068\\u2069") == "\\u2068a\\u2069"
    ('\\\\u{1b}[31m\\\\u{202e}label', True)
    """
    return _COMMANDS.sub(lambda found: found[0] if found[0] in kept else f"\\u{{{ord(found[0]):x}}}", text)


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: two for a wide character, none for one that combines.

    Width as in Unicode's annex 11; characters of ambiguous width count as one, as in most terminals. What U+FE0F
    makes an emoji takes two.

    >>> columns("rain"), columns("雨"), columns("e\\u0301"), columns("☀\\ufe0f")
    (4, 2, 1, 2)
    """
    if EMOJI not in text:
        return sum(map(_width, text))
    return sum(2 if EMOJI in cluster else sum(map(_width, cluster)) for cluster in clusters(text))


def _width(c: str) -> int:
    if unicodedata.category(c) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def clusters(text: str) -> list[str]:
    """The text cut into characters that are seen as one: each with the marks that combine with it.

    >>> [len(cluster) for cluster in clusters("e\\u0301雨")]
    [2, 1]
    """
    found: list[str] = []
    for c in text:
        if found and _width(c) == 0:
            found[-1] += c
        else:
            found.append(c)
    return found


def fitted(text: str, width: int) -> str:
    """The text, cut to so many columns with an ellipsis if it is longer.

    >>> fitted("thunderstorm", 6), fitted("雷雨注意報", 6)
    ('thund…', '雷雨…')
    """
    if columns(text) <= width:
        return text
    kept, used = "", 0
    for cluster in clusters(text):
        used += columns(cluster)
        if used > width - 1:
            break
        kept += cluster
    return kept + "…"


def padded(text: str, width: int) -> str:
    """The text, set to the right within so many columns.

    >>> padded("雨", 4)
    '  雨'
    """
    return " " * (width - columns(text)) + isolated(text)


def filled(text: str, width: int) -> str:
    """The text with spaces after it, to `width` columns.

    >>> filled("雨", 4)
    '雨  '
    """
    return text + " " * (width - columns(text))


def isolated(text: str) -> str:
    """The text; if it runs from right to left, between marks that keep what stands beside it in its order."""
    if any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in text):
        return f"{ISOLATES[0]}{text}{ISOLATES[1]}"
    return text


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken at spaces where there are any.

    >>> wrapped("a strong wind", 8)
    ['a strong', 'wind']
    """
    lines, line = [], ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if columns(joined) <= width:
            line = joined
            continue
        lines += [line] if line else []
        line = ""
        for cluster in clusters(word):
            if columns(line + cluster) > width:
                lines.append(line)
                line = ""
            line += cluster
    return [*lines, line]
