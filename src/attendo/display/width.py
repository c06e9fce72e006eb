"""The width of texts in terminal columns, and truncation and wrapping to a width.

Japanese text is written without spaces, so its lines are wrapped between characters.
"""

import re
import unicodedata
from itertools import chain

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
ISOLATES = "\u2068\u2069"
"""The marks before and after a text that isolate its direction from the text around it."""


_PIECES = re.compile(r"\s+|[^\s\u3000-\u9fff\uf900-\uffef]+|.", re.DOTALL)
"""Runs of spaces, runs of narrow characters, and single wide characters."""
_NEVER_FIRST = "、。」』)〕】・：；！？，．,:;!?）ーぁぃぅぇぉっゃゅょァィゥェォッャュョ々…"
_NEVER_LAST = "「『(（〔【"


def shown(text: str, kept: str = "") -> str:
    """Return the text with escapes for all characters that control a terminal or change the direction of text.

    Args:
        text: A text, for example from a file. Tabs and line feeds are not escaped.
        kept: Further characters that are not escaped (default: none).

    >>> shown("\\x1b[31m\\u202elabel"), shown("\\u2068a\\u2069", "\\u2068\\u2069") == "\\u2068a\\u2069"
    ('\\\\u{1b}[31m\\\\u{202e}label', True)
    """
    return _COMMANDS.sub(lambda found: found[0] if found[0] in kept else f"\\u{{{ord(found[0]):x}}}", text)


def columns(text: str) -> int:
    """Return the number of terminal columns of a text. Wide characters count as two, combining characters as zero.

    Widths follow the library rich (Unicode annex 11). Characters of ambiguous width count as one, as in most terminals.

    Args:
        text: The text to measure.

    >>> columns("rain"), columns("雨"), columns("e\\u0301"), columns("☀\\ufe0f")
    (4, 2, 1, 2)
    """
    from rich.cells import cell_len

    return cell_len(text)


def clusters(text: str) -> list[str]:
    """Return the text cut into visible characters. Each visible character contains its combining marks.

    >>> [len(cluster) for cluster in clusters("e\\u0301雨")]
    [2, 1]
    """
    from rich.cells import split_graphemes

    return [text[start:end] for start, end, _ in split_graphemes(text)[0]]


def fitted(text: str, width: int) -> str:
    """Return the text, truncated with an ellipsis if it is too wide.

    Args:
        text: The text to truncate.
        width: The maximum number of terminal columns.

    >>> fitted("thunderstorm", 6), fitted("雷雨注意報", 6)
    ('thund…', '雷雨…')
    """
    if columns(text) <= width:
        return text
    kept = ""
    used = 0
    for cluster in clusters(text):
        used += columns(cluster)
        if used > width - 1:
            break
        kept += cluster
    return kept + "…"


def padded(text: str, width: int) -> str:
    """Return the text with spaces before it, so that it is right-aligned in `width` columns.

    >>> padded("雨", 4)
    '  雨'
    """
    return " " * (width - columns(text)) + isolated(text)


def filled(text: str, width: int) -> str:
    """Return the text with spaces after it, up to `width` columns.

    >>> filled("雨", 4)
    '雨  '
    """
    return text + " " * (width - columns(text))


def isolated(text: str) -> str:
    """Return the text. Right-to-left text is enclosed in marks, so the order of the surrounding text does not change.

    Args:
        text: The text to isolate.
    """
    if any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in text):
        return f"{ISOLATES[0]}{text}{ISOLATES[1]}"
    return text


def flowed(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap a text into lines, at spaces or next to Japanese characters.

    Line breaks in the text are kept. No line begins with closing punctuation or ends with opening punctuation. A word
    that is too long for a line is cut.

    Args:
        text: The text to wrap.
        width: The maximum number of terminal columns per line.
        indent: The text at the start of every line except the first line.

    Returns:
        The wrapped lines.

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
    """Return the lines of a text to the right of a label, wrapped to `width` columns.

    >>> beside("! ", "a strong wind", 10)
    ['! a strong', '  wind']
    """
    left = columns(label)
    first, *rest = flowed(text, width - left)
    return [label + first, *(" " * left + part for part in rest)]


def _joined(pieces: list[str]) -> list[str]:
    """Return the pieces, joined where no line may break."""
    found: list[str] = []
    for piece in pieces:
        if found and not piece.isspace() and (piece[0] in _NEVER_FIRST or found[-1][-1] in _NEVER_LAST):
            found[-1] += piece
        else:
            found.append(piece)
    return found
