"""Small pictures for a terminal with a given width: a matrix as shades, or curves as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from attendo.display.charts import CELL, SHADES, shade, standing
from attendo.display.i18n import Language, Localized
from attendo.display.width import columns, fitted, flowed, padded

MOST_ROWS = 32
"""The maximum number of matrix rows. From a larger matrix, rows at equal distances are drawn."""
SIGNED = " ░▒▓█"
"""Shades for equal parts of the range of values, used if there is no space for a minus sign."""
BARS = " ▁▂▃▄▅▆▇█"
TALL = 3
"""The number of lines per curve if there are at most 3 curves."""


@dataclass(frozen=True)
class Picture:
    """A small matrix (shaded) or curves (one per row) for a terminal, with labels of rows and columns."""

    kind: Literal["matrix", "curves"]
    title: Localized
    values: Float[np.ndarray, "rows columns"]
    rows: tuple[str | Localized, ...] = ()
    columns: tuple[str, ...] = ()

    def row_labels(self, language: Language) -> list[str]:
        """Return the labels of the rows in a language."""
        return [label if isinstance(label, str) else label.text(language) for label in self.rows]


def picture_lines(picture: Picture, language: Language = "en", width: int = 79) -> list[str]:
    """Return the picture as lines of at most `width` columns, with a title and a legend.

    In a matrix, cells with larger values are darker. Curves are bars on a common scale. If rows or columns do not fit,
    some are omitted at equal distances, and the last line states their number.

    >>> for line in picture_lines(Picture("matrix", Localized("Identity", "単位行列"), np.eye(2), ("a", "b"))):
    ...     print(line)
    Identity
    a ██
    b   ██
    Largest 1: · from 5%, ░ 15%, ▒ 35%, ▓ 60%, █ 80%.
    """
    draw = _matrix if picture.kind == "matrix" else _curves
    lines = [*flowed(picture.title.text(language), width), *draw(picture, language, width)]
    return [line.rstrip() for line in lines]


def _matrix(picture: Picture, language: Language, width: int) -> list[str]:
    values = np.nan_to_num(picture.values)
    labels = [fitted(label, width // 4) for label in picture.row_labels(language)] or [""] * len(values)
    left = max(map(columns, labels)) + any(labels)
    cell = CELL if values.shape[1] * CELL <= width - left else 1
    rows = _chosen(values.shape[0], MOST_ROWS)
    places = _chosen(values.shape[1], (width - left) // cell)
    marks = _cells(values, cell)
    lines = []
    if picture.columns and cell == CELL:
        names = [fitted(picture.columns[place], 12) for place in places]
        lines = [" " * left + line for line in standing(names)]
    for row in rows:
        cells = "".join(marks[row][place] for place in places)
        lines.append(_labelled(labels[row], cells, left))
    return [*lines, *_legend(_matrix_legend(values, cell), values, rows, places, language, width)]


def _cells(values: Float[np.ndarray, "rows columns"], cell: int) -> list[list[str]]:
    """Return the characters of each cell. A negative number has a minus sign before its shade if there is space."""
    least, largest = float(values.min()), float(values.max())
    if least < 0 and cell == 1:
        parts = np.minimum((values - least) / ((largest - least) or 1.0) * len(SIGNED), len(SIGNED) - 1)
        return [[SIGNED[int(part)] for part in row] for row in parts.tolist()]
    strongest = max(largest, -least) or 1.0
    return [[_cell(value / strongest, cell) for value in row] for row in values.tolist()]


def _cell(part: float, cell: int) -> str:
    mark = shade(abs(part))
    return f"-{mark}" if part < 0 and mark != " " else mark * cell


def _matrix_legend(values: Float[np.ndarray, "rows columns"], cell: int) -> Localized:
    least, largest = float(values.min()), float(values.max())
    if least < 0 and cell == 1:
        return Localized(
            f"Blank is {least:.3g}; {SIGNED[1:]} show equal steps up to {largest:.3g}.",
            f"空白が {least:.3g}、{SIGNED[1:]} の順に等間隔で {largest:.3g} まで。",
        )
    steps = [(mark, f"{part * 100:.0f}%") for part, mark in reversed(SHADES)]
    shown = ", ".join(f"{mark} {'from ' if i == 0 else ''}{part}" for i, (mark, part) in enumerate(steps))
    japanese = "、".join(f"{mark} {part}" for mark, part in steps)
    strongest = max(largest, -least)
    minus = Localized(" A minus: negative.", "負の数には - がつく。") if least < 0 else Localized("", "")
    return Localized(
        f"Largest {strongest:.3g}: {shown}.{minus.en}",
        f"最大 {strongest:.3g} に対して {japanese} 以上。{minus.ja}",
    )


def _curves(picture: Picture, language: Language, width: int) -> list[str]:
    values = picture.values
    finite = values[np.isfinite(values)]
    least, largest = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if 0 < least < largest / 2:  # bars that start at 0 show the curve's shape better
        least = 0.0
    labels = [fitted(label, width // 3) for label in picture.row_labels(language)] or [""] * len(values)
    left = max(map(columns, labels)) + any(labels)
    places = _chosen(values.shape[1], width - left)
    times = max(1, min(4, (width - left) // len(places)))
    height = TALL if len(values) <= TALL else 1
    lines: list[str] = []
    for label, row in zip(labels, values, strict=True):
        bars = _bars(row[places], least, largest, height, times)
        names = [""] * (len(bars) - 1) + [label]
        lines += [_labelled(name, bar, left) for name, bar in zip(names, bars, strict=True)]
    if picture.columns:
        first, last = fitted(picture.columns[0], 20), fitted(picture.columns[-1], 20)
        gap = max(1, len(places) * times - columns(first) - columns(last))
        lines.append(" " * left + first + " " * gap + last)
    legend = Localized(f"Bars from {least:.4g} to {largest:.4g}.", f"棒の範囲は {least:.4g} から {largest:.4g}。")
    return [*lines, *_legend(legend, values, None, places, language, width)]


def _bars(row: Float[np.ndarray, " points"], least: float, largest: float, height: int, times: int) -> list[str]:
    """Return the lines of one curve, the top line first. Each point is a column in units of an eighth of a line."""
    steps = (row - least) / ((largest - least) or 1.0) * (height * 8 - 1) + 1  # show the smallest
    eighths = [0 if math.isnan(step) else round(min(max(step, 0.0), height * 8)) for step in steps.tolist()]
    return [
        "".join(BARS[min(max(eighth - 8 * line, 0), 8)] * times for eighth in eighths)
        for line in reversed(range(height))
    ]


def _chosen(n: int, most: int) -> list[int]:
    """Return at most `most` of `n` indices, at equal distances."""
    step = math.ceil(n / max(most, 1)) or 1
    return list(range(0, n, step))


def _labelled(label: str, drawn: str, left: int) -> str:
    return (padded(label, left - 1) + " " if left else "") + drawn


def _legend(
    legend: Localized,
    values: Float[np.ndarray, "rows columns"],
    rows: Sequence[int] | None,
    places: Sequence[int],
    language: Language,
    width: int,
) -> list[str]:
    """Return the meaning of the marks, and a note about omitted rows or columns."""
    text = legend.text(language)
    n_rows, n_columns = values.shape
    if len(places) < n_columns or (rows is not None and len(rows) < n_rows):
        said = Localized(f"Drawn: {len(places)} of {n_columns} points", f"{n_columns} 点のうち {len(places)} 点を表示")
        if rows is not None:
            said = Localized(
                f"Drawn: {len(rows)} of {n_rows} rows, {len(places)} of {n_columns} columns",
                f"{n_rows} 行のうち {len(rows)} 行、{n_columns} 列のうち {len(places)} 列を表示",
            )
        text += f" {said.text(language)}" + ("。" if language == "ja" else ".")
    return flowed(text, width)
