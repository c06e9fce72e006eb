"""Vectors and matrices as colored cells with numbers, for diagrams that a reader can check with a calculator.

A diagram is a `Sketch` in inches. `draw_cells` draws a matrix, and returns its place, which has the points where
arrows begin and end:

    sketch = Sketch(figure, language, WIDTH, HEIGHT)
    query = draw_cells(sketch, (0.5, 4.0), q, caption="q")
    scores = draw_cells(sketch, (2.5, 4.0), q @ keys.T, caption="q·k", columns=tokens)
    sketch.line([query.east(), scores.west()])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attendo_course.figures.sketch import Point, Sketch
from attendo_course.figures.style import BLUE, FAINT, INK, VERMILION

FULL = 0.6
"""The share of the color in the cell with the largest number. A text in black ink is legible on it."""
ROOM = 0.07
"""The distance in inches between the cells and their labels and arrows."""


@dataclass(frozen=True)
class CellStyle:
    """The appearance of the cells of a matrix.

    Attributes:
        width: Width of a cell in inches.
        height: Height of a cell in inches.
        digits: Digits after the decimal point (None: cells without numbers).
        size: Font size of the numbers in points.
        label: Font size of the names of rows and columns in points.
        positive: Color of positive numbers. Negative numbers are vermilion.
        limit: Absolute number with the full color (default: the largest absolute number of the matrix).
    """

    width: float = 0.48
    height: float = 0.27
    digits: int | None = 2
    size: float = 9.5
    label: float = 9.5
    positive: str = BLUE
    limit: float | None = None


@dataclass(frozen=True)
class Cells:
    """The place of a drawn matrix: its upper left corner and the size of a cell in inches, and its shape.

    `beside` is the width of the names to the left of the rows.

    >>> place = Cells(1.0, 3.0, 0.5, 0.25, n_rows=2, n_columns=4)
    >>> place.right, place.bottom, place.row(0), place.column(1)
    (3.0, 2.5, 2.875, 1.75)
    """

    left: float
    top: float
    width: float
    height: float
    n_rows: int
    n_columns: int
    beside: float = 0.0

    @property
    def right(self) -> float:
        """The right edge."""
        return self.left + self.n_columns * self.width

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.top - self.n_rows * self.height

    def row(self, row: float | None = None) -> float:
        """Return the height of the middle of a row (default: of all rows). Row 0 is at the top."""
        return self.top - ((self.n_rows - 1) / 2 if row is None else row) * self.height - self.height / 2

    def column(self, column: float | None = None) -> float:
        """Return the middle of a column (default: of all columns)."""
        return self.left + ((self.n_columns - 1) / 2 if column is None else column) * self.width + self.width / 2

    def west(self, row: float | None = None) -> Point:
        """Return the point left of a row and its name (default: of all rows), where an arrow begins or ends."""
        return self.left - self.beside - ROOM, self.row(row)

    def east(self, row: float | None = None) -> Point:
        """Return the point right of a row (default: right of the middle)."""
        return self.right + ROOM, self.row(row)


def draw_cells(
    sketch: Sketch,
    corner: Point,
    numbers: Float[np.ndarray, "*rows columns"],
    *,
    style: CellStyle | None = None,
    caption: str = "",
    detail: str = "",
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> Cells:
    """Draw a matrix as colored cells with numbers, and return its place.

    Args:
        sketch: Drawing area.
        corner: Upper left corner of the cells in inches. The labels are outside this corner.
        numbers: Numbers, one row of cells per row. A vector is one row. The cells of non-finite numbers are gray, and
            -inf is written as "−∞", and NaN leaves its cell empty.
        style: Size and color of the cells (default: `CellStyle()`).
        caption: Name of the matrix, above the left end of the column names.
        detail: Faint text after the caption, for example the shape.
        rows: Names to the left of the rows (default: none).
        columns: Names above the columns (default: none).

    >>> from matplotlib.figure import Figure
    >>> sketch = Sketch(Figure(), "en", 4.0, 2.0)
    >>> place = draw_cells(sketch, (1.0, 1.5), np.eye(2), caption="I", columns=["a", "b"])
    >>> [text.get_text() for text in sketch.axes.texts]
    ['1.00', '0.00', '0.00', '1.00', 'a', 'b', 'I']
    >>> place.column(1), place.row(0)
    (1.72, 1.365)
    """
    from matplotlib.patches import Rectangle

    style = style or CellStyle()
    table = np.atleast_2d(numbers)
    beside = max((sketch.width_of(name, style.label) + ROOM for name in rows), default=0.0)
    above = (0.22 if columns else 0.0) + (0.26 if caption or detail else 0.0)
    n_rows, n_columns = table.shape
    place = Cells(*corner, style.width, style.height, n_rows, n_columns, beside)
    finite = np.abs(table[np.isfinite(table)])
    limit = style.limit or float(finite.max(initial=0.0)) or 1.0
    for (i, j), number in np.ndenumerate(table):
        low_left = (place.left + j * style.width, place.row(i) - style.height / 2)
        color = tint(style.positive if number > 0 else VERMILION, abs(number) / limit)
        cell = {"facecolor": color, "edgecolor": "white", "zorder": 2}
        sketch.axes.add_artist(Rectangle(low_left, style.width, style.height, **cell))
        if style.digits is not None:
            text = written(number, style.digits)
            sketch.text((place.column(j), place.row(i)), text, style.size, ha="center", color=INK)
    _frame(sketch, (place.left, place.bottom), (place.right, place.top), FAINT, 0.9)
    for j, name in enumerate(columns):
        sketch.text((place.column(j), place.top + 0.14), name, style.label, ha="center")
    for i, name in enumerate(rows):
        sketch.text((place.left - ROOM, place.row(i)), name, style.label, ha="right")
    height = place.top + above - 0.1
    if caption:
        sketch.text((place.left, height), caption, style.label + 1, bold=True)
    if detail:
        after = place.left + (sketch.width_of(caption, style.label + 1, bold=True) + 0.1 if caption else 0.0)
        sketch.text((after, height), detail, style.label, color=FAINT)
    return place


def mark(sketch: Sketch, place: Cells, color: str, *, row: int | None = None) -> None:
    """Draw a thick border around a row of cells (default: around all cells).

    >>> from matplotlib.figure import Figure
    >>> mark(Sketch(Figure(), "en", 4.0, 2.0), Cells(1.0, 1.5, 0.5, 0.25, 2, 2), VERMILION, row=1)
    """
    top, n_rows = (place.top, place.n_rows) if row is None else (place.top - row * place.height, 1)
    _frame(sketch, (place.left, top - n_rows * place.height), (place.right, top), color, 1.8)


def shape(array: Float[np.ndarray, "..."]) -> str:
    """Return the shape of an array in brackets.

    >>> shape(np.eye(2))
    '[2, 2]'
    """
    return str(list(array.shape))


def tint(color: str, share: float) -> str:
    """Return a color mixed with white: white at share 0, the lightest text background at 1, gray if it is non-finite.

    >>> tint("#000000", 0.0), tint("#000000", 1.0), tint("#000000", float("nan"))
    ('#ffffff', '#666666', '#e9ecf1')
    """
    from matplotlib.colors import to_hex, to_rgb

    if not np.isfinite(share):
        return "#e9ecf1"
    part = FULL * min(max(share, 0.0), 1.0)
    red, green, blue = (1.0 - part * (1.0 - channel) for channel in to_rgb(color))
    return to_hex((red, green, blue))


def written(number: float, digits: int) -> str:
    """Return a number with a fixed number of digits and a minus sign (U+2212), never as "-0".

    >>> written(-0.251, 2), written(-0.001, 2), written(float("-inf"), 2), written(float("nan"), 2)
    ('−0.25', '0.00', '−∞', '')
    """
    if np.isnan(number):
        return ""
    text = "∞" if np.isinf(number) else f"{abs(number):.{digits}f}"
    return f"−{text}" if number < 0 and text.strip("0.") else text


def _frame(sketch: Sketch, low: Point, high: Point, color: str, width: float) -> None:
    from matplotlib.patches import Rectangle

    size = high[0] - low[0], high[1] - low[1]
    style = {"fill": False, "edgecolor": color, "linewidth": width, "joinstyle": "round", "zorder": 3}
    sketch.axes.add_artist(Rectangle(low, *size, **style))
