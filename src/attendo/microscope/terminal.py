"""An attention map in a terminal: shades in a grid, in so many columns, wide characters counted as two."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from attendo.display.charts import CELL, shade, shade_legend, standing
from attendo.display.i18n import Language, Localized
from attendo.display.width import columns, fitted, isolated, padded
from attendo.display.wrapping import flowed
from attendo.errors import AttendoError
from attendo.microscope.attention_map import AttentionMap, visible

NARROWEST = 40
MOST_BLOCKS = 4
"""Of columns, side by side with every key piece named; of more keys, neighbors share a cell."""
TIE = 1e-5
"""Of its weight, by which a row's weights that are alike may differ."""
LONGEST = 16
"""Columns of a label."""
READ = {
    "encoder": Localized(
        "Down: the piece that looks. Across: at what. Right: where it looked most.",
        "縦は見ているトークン、横は見られているトークン、右端は最もよく見ている先。",
    ),
    "decoder": Localized(
        "Down: the piece read last. Across: what was read. Right: where it looked most.",
        "縦は最後に読んだトークン、横はそれ自身とそれより前、右端は最もよく見ている先。",
    ),
    "cross": Localized(
        "Down: what was written. Across: the source. Right: where it looked most.",
        "縦は出力されたトークン、横は原文、右端は最もよく見ている先。",
    ),
}


def map_text(
    shown: AttentionMap,
    width: int = 80,
    layer: int | None = None,
    head: int | None = None,
    language: Language = "en",
    hint: str = "",
) -> str:
    """The map as lines of at most `width` columns: query pieces down, key pieces across, read downward.

    Each cell is a shade of the weight, and each row ends with the key piece it looked at most. A text that is too wide
    comes in blocks of columns; one that is too wide for MOST_BLOCKS of them in one block, in which neighboring keys
    share a cell, shaded by the largest of their weights. layer: the sharpest if None; head: the mean of all if None,
    both from 0. hint: said behind the legend of the shades. No color is needed. Raises AttendoError for a width below
    40 columns.
    """
    if width < NARROWEST:
        raise AttendoError(f"a map does not fit {width} columns; give it {NARROWEST} or more")
    weights = shown.shown(layer, head)
    longest = min(LONGEST, width // 5)
    labels = [fitted(visible(piece), longest) for piece in shown.query_pieces]
    names = [fitted(visible(piece), longest) for piece in shown.key_pieces]
    left = max(map(columns, labels))
    strongest = weights.argmax(-1)
    even = [_is_even(row[: i + 1] if shown.stack == "decoder" else row) for i, row in enumerate(weights)]
    tie = Localized("even", "均等").text(language)
    ends = [
        f" {tie if level else isolated(names[key])} {row[key]:.0%}" if row[key] > 0 else ""
        for key, row, level in zip(strongest, weights, even, strict=True)
    ]
    room = (width - left - 1 - max(map(columns, ends))) // CELL
    lines = [
        line
        for text in (shown.caption(layer, head, language), READ[shown.stack].text(language))
        for line in flowed(text, width)
    ]
    scale = shown.darkest(layer, head)
    lines += flowed(shade_legend(language, scale) + hint, width)
    weights = weights / scale
    if len(names) > MOST_BLOCKS * room:
        ends = [
            f"{end} no. {key + 1}" if end and not level else end
            for key, end, level in zip(strongest, ends, even, strict=True)
        ]
        room = width - left - 1 - max(map(columns, ends))
        return "\n".join([*lines, *_together(weights, labels, ends, room, width, language)])
    for start in range(0, len(names), room):
        block = range(start, min(start + room, len(names)))
        lines.append("")
        if len(block) < len(names):
            lines.append(_part(block, len(names), language))
        lines += [f"{'':{left}} {line}".rstrip() for line in standing(names[block.start : block.stop])]
        for label, row, best, end in zip(labels, weights, strongest, ends, strict=True):
            cells = "".join(shade(float(row[key])) * CELL for key in block)
            lines.append(f"{padded(label, left)} {cells}{end if best in block else ''}".rstrip())
    return "\n".join(lines)


def _is_even(row: Float[np.ndarray, " keys"]) -> bool:
    """Whether a query looks at all of several keys alike, so that none is what it looked at most."""
    return len(row) > 1 and float(np.ptp(row)) <= TIE * float(row.max())


def _part(block: range, n: int, language: Language) -> str:
    first, last = block.start + 1, block.stop
    return Localized(f"key pieces {first} to {last} of {n}", f"横のトークン {first}～{last}（全 {n}）").text(
        language
    )


def _together(
    weights: Float[np.ndarray, "queries keys"],
    labels: list[str],
    ends: list[str],
    room: int,
    width: int,
    language: Language,
) -> list[str]:
    """One block in which neighboring keys share a cell of one column."""
    n, left = weights.shape[1], max(map(columns, labels))
    each = -(-n // room)
    said = Localized(
        f"Each cell: the largest weight of {each} neighboring key pieces, {n} in all.",
        f"1 つのマスは、隣り合う {each} トークン（全 {n}）の重みの最大値。",
    )
    starts = range(0, n, each)
    largest = np.maximum.reduceat(weights, [*starts], axis=1)
    cells = ["".join(map(shade, row)) for row in largest.tolist()]
    rows = zip(labels, cells, ends, strict=True)
    return [
        *flowed(said.text(language), width),
        "",
        f"{'':{left}} 1{n:>{len(starts) - 1}}",
        *(f"{padded(label, left)} {line}{end}".rstrip() for label, line, end in rows),
    ]
