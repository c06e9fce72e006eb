"""Shades and vertical labels, from which matrices are drawn as text."""

from itertools import zip_longest

from attendo.display.i18n import Language
from attendo.display.width import clusters, columns, isolated

SHADES = ((0.80, "█"), (0.60, "▓"), (0.35, "▒"), (0.15, "░"), (0.05, "·"))
"""The smallest weight of each shade. A cell with a smaller weight is blank."""
CELL = 2
"""The width of a cell in terminal columns: a wide character fits, and cells are about square."""


def standing(labels: list[str]) -> list[str]:
    """Return labels as vertical text, with one cell per label. All labels end in the last line.

    >>> standing(["to", "雨"])
    ['t', 'o 雨']
    """
    # an ellipsis would be horizontal
    marks = [[isolated(c).replace("…", "⋮") for c in reversed(clusters(label))] for label in labels]
    lines = [
        "".join(mark + " " * (CELL - columns(mark)) for mark in line) for line in zip_longest(*marks, fillvalue="")
    ]
    return [line.rstrip() for line in reversed(lines)]


def shade(weight: float) -> str:
    """Return a character for a weight. Larger weights have darker characters.

    >>> [shade(weight) for weight in (0.0, 0.1, 0.5, 1.0)]
    [' ', '·', '▒', '█']
    """
    return next((mark for least, mark in SHADES if weight >= least), " ")


def shade_legend(language: Language = "en", scale: float = 1.0) -> str:
    """Return a legend with the smallest weight of each shade. The weights in the legend are multiplied by `scale`.

    >>> shade_legend()
    'Shades: ·· from 5%, ░░ 15%, ▒▒ 35%, ▓▓ 60%, ██ 80%'
    """
    marks = [f"{mark * CELL} {least * scale * 100:.2g}%" for least, mark in reversed(SHADES)]
    if language == "ja":
        return "濃淡：" + "、".join(marks) + " 以上"
    return "Shades: " + ", ".join(marks).replace(" ", " from ", 1)
