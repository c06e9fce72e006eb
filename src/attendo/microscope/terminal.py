"""An attention map in a terminal: shades in a grid, in so many columns, wide characters counted as two."""

from __future__ import annotations

from itertools import zip_longest

from attendo.errors import AttendoError
from attendo.microscope.attention_map import AttentionMap
from attendo.microscope.labels import clusters, columns, fitted, isolated, padded, wrapped

SHADES = ((0.80, "█"), (0.60, "▓"), (0.35, "▒"), (0.15, "░"), (0.05, "·"))
"""The smallest weight of each shade; a smaller one leaves the cell blank."""
CELL = 2
"""Columns of a cell: a wide character fits, and cells are about square."""
NARROWEST = 40


def map_text(seen: AttentionMap, width: int = 80, layer: int | None = None) -> str:
    """The map as lines of at most `width` columns: target pieces down, source pieces across, read downward.

    Each cell is a shade of the weight, and each row ends with the source piece it looked at most. A sentence that is
    too wide comes in blocks of columns. layer: the sharpest if None; the mean over its heads is drawn. No color is
    needed. Raises AttendoError for a width below 40 columns.
    """
    if width < NARROWEST:
        raise AttendoError(f"a map does not fit {width} columns; give it {NARROWEST} or more")
    layer = seen.sharpest_layer if layer is None else layer
    weights = seen.mean(layer)
    longest = width // 5
    labels = [fitted(piece, longest) for piece in seen.target_pieces]
    names = [fitted(piece, longest) for piece in seen.source_pieces]
    left = max(map(columns, labels))
    strongest = weights.argmax(-1)
    ends = [f" {isolated(names[s])} {row[s]:.0%}" for s, row in zip(strongest, weights, strict=True)]
    room = (width - left - 1 - max(map(columns, ends))) // CELL
    lines = [
        *wrapped(seen.caption(layer), width),
        *wrapped("Down: what was written. Across: the source. Right: where it looked most.", width),
        *wrapped(shade_legend(), width),
    ]
    for start in range(0, len(names), room):
        block = range(start, min(start + room, len(names)))
        lines.append("")
        if len(block) < len(names):
            lines.append(f"source pieces {block.start + 1} to {block.stop} of {len(names)}")
        lines += [f"{'':{left}} {line}".rstrip() for line in standing(names[block.start : block.stop])]
        for label, row, best, end in zip(labels, weights, strongest, ends, strict=True):
            cells = "".join(shade(float(row[s])) * CELL for s in block)
            lines.append(f"{padded(label, left)} {cells}{end if best in block else ''}".rstrip())
    return "\n".join(lines)


def standing(labels: list[str]) -> list[str]:
    """Labels written downward, one cell wide each, so that all of them end in the last line.

    >>> standing(["to", "雨"])
    ['t', 'o 雨']
    """
    marks = [[_in_a_cell(cluster) for cluster in reversed(clusters(label))] for label in labels]
    lines = [
        "".join(mark + " " * (CELL - columns(mark)) for mark in line)
        for line in zip_longest(*marks, fillvalue="")
    ]
    return [line.rstrip() for line in reversed(lines)]


def _in_a_cell(cluster: str) -> str:
    """The upright form of what would look wrong in a column of single characters."""
    return {"…": "⋮"}.get(cluster, isolated(cluster))


def shade(weight: float) -> str:
    """A character that is the darker the larger the weight.

    >>> [shade(weight) for weight in (0.0, 0.1, 0.5, 1.0)]
    [' ', '·', '▒', '█']
    """
    return next((mark for least, mark in SHADES if weight >= least), " ")


def shade_legend() -> str:
    """Which weight each shade begins at.

    >>> shade_legend()
    'Shades: ·· from 5 %, ░░ 15 %, ▒▒ 35 %, ▓▓ 60 %, ██ 80 %'
    """
    marks = [f"{mark * CELL} {least * 100:.0f} %" for least, mark in reversed(SHADES)]
    return "Shades: " + ", ".join(marks).replace(" ", " from ", 1)
