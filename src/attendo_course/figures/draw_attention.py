"""Drawing of the figures about the attention of one query and the heads of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attendo.display.i18n import Language
from attendo_course.book import passage, translated
from attendo_course.figures import style
from attendo_course.figures.cells import Cells, CellStyle, draw_cells, mark, shape, written
from attendo_course.figures.examples import Array, Heads, OneQuery, heads, one_query
from attendo_course.figures.sketch import Sketch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHOLE = CellStyle(width=0.34, height=0.25, digits=0)
HEAD_COLORS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE)
HEAD_NAMES = (
    translated("previous word"),
    translated("next word"),
    translated("same word"),
    translated("all words equally"),
)


def draw_one_query(figure: Figure, language: Language) -> None:
    """Draw the way from x to z for one query, with all numbers.

    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> draw_one_query(figure, "en")
    >>> figure.axes[0].texts[0].get_text()
    'Attention for one query: “drink”'
    """
    sketch = Sketch(figure, language, style.WIDTH, style.HEIGHT)
    found = one_query(language)
    word, d_k = found.words[found.index], found.query.shape[-1]
    title = translated("Attention for one query: “{word}”", word=word)
    sketch.heading(title, passage("draw_attention.draw_one_query", d_k=d_k))
    x = draw_cells(sketch, (0.95, 3.42), found.x, style=WHOLE, caption="X", detail=shape(found.x), rows=found.words)
    mark(sketch, x, style.ORANGE, row=found.index)
    query = _product(sketch, x, "q", 4.5, found.w_q, found.query, (word,), found.index)
    mark(sketch, query, style.ORANGE)
    keys = _product(sketch, x, "k", 3.32, found.w_k, found.keys, found.words)
    values = _product(sketch, x, "v", 1.36, found.w_v, found.values, found.words)
    _weighted_sum(sketch, found, _weights(sketch, found, query, keys), values)


def _product(
    sketch: Sketch,
    x: Cells,
    name: str,
    top: float,
    matrix: Array,
    result: Array,
    words: tuple[str, ...],
    row: int | None = None,
) -> Cells:
    """Draw a matrix W and its product with X, or with one row of X. Return the place of the product."""
    caption = f"$\\mathbf{{W}}_{name}$"
    w = draw_cells(sketch, (2.55, top), matrix, style=WHOLE, caption=caption, detail=shape(matrix))
    start, end = x.east(row), w.west()
    lane, color = (2.36, style.INK) if row is None else (2.2, style.ORANGE)
    sketch.line([start, (lane, start[1]), (lane, end[1]), end], color)
    corner = (4.85, end[1] + len(words) * WHOLE.height / 2)
    caption = name.upper() if row is None else name
    place = draw_cells(sketch, corner, result, style=WHOLE, caption=caption, detail=shape(result), rows=words)
    sketch.line([w.east(), place.west()], color)
    return place


def _weights(sketch: Sketch, found: OneQuery, query: Cells, keys: Cells) -> Cells:
    """Draw the columns from the products to the weights next to the keys, and return the place of the weights."""
    total = written(float(found.exponentials.sum()), 3)
    columns = (
        (None, "q·k", found.products, 0, 0.44),
        (translated("scores"), f"÷ √{found.query.shape[-1]}", found.scores, 0, 0.44),
        (None, "exp", found.exponentials, 3, 0.58),
        (translated("weights a"), f"÷ {total}", found.weights, 3, 0.54),
    )
    left, place = keys.right + 0.3, keys
    for caption, name, numbers, digits, width in columns:
        cells = CellStyle(width=width, height=WHOLE.height, digits=digits)
        above = caption.text(sketch.language) if caption else ""
        column = draw_cells(sketch, (left, keys.top), numbers.T, style=cells, caption=above, columns=[name])
        sketch.line([place.east(), column.west()])
        if numbers is found.products:
            x, y = column.column(), query.row()
            sketch.line([query.east(), (x, y), (x, column.top + 0.29)], style.ORANGE)
        if digits:
            below = column.column(), column.bottom - 0.14
            text = f"Σ {written(float(numbers.sum()), digits)}"
            sketch.text(below, text, 9.0, ha="center", color=style.FAINT)
        left, place = column.right + 0.2, column
    return place


def _weighted_sum(sketch: Sketch, found: OneQuery, weights: Cells, values: Cells) -> None:
    """Draw the values times their weights, and their sum z."""
    cells = CellStyle(width=0.54, height=WHOLE.height, digits=3)
    weighted = draw_cells(sketch, (values.right + 0.85, values.top), found.weighted, style=cells, caption="a v")
    sketch.line([values.east(), weighted.west()])
    start, end, lane = weights.column(), weighted.column(1), values.top + 0.5
    sketch.line([(start, weights.bottom - 0.26), (start, lane), (end, lane), (end, values.top + 0.04)])
    corner = weighted.right + 0.6, weighted.row() + cells.height / 2
    z = draw_cells(sketch, corner, found.result, style=cells, caption="z = Σ a v")
    mark(sketch, z, style.ORANGE)
    sketch.line([weighted.east(), z.west()])


def draw_heads(figure: Figure, language: Language) -> None:
    """Draw the attention maps of all heads side by side, and below them the concatenation, W_o and the output.

    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> draw_heads(figure, "en")
    >>> "head 1: previous word" in [text.get_text() for text in figure.axes[0].texts]
    True
    """
    sketch = Sketch(figure, language, style.WIDTH, style.HEIGHT)
    found = heads(language)
    sketch.heading(translated("The heads of one layer"), passage("draw_attention.draw_heads"))
    cells = CellStyle(width=0.3, height=0.225, digits=1, size=7.5)
    together = draw_cells(sketch, (0.9, 2.03), found.concatenated, style=cells, rows=found.words)
    for head in range(len(found.weights)):
        _head(sketch, found, head, together)
    low = CellStyle(width=0.3, height=cells.height * len(found.words) / len(found.w_o), digits=1, size=7.0)
    w_o = draw_cells(sketch, (together.right + 0.5, together.top), found.w_o, style=low)
    result = draw_cells(sketch, (w_o.right + 0.5, together.top), found.result, style=cells)
    for place, sign, name, array in (
        (together, "×", translated("concatenation").text(language), found.concatenated),
        (w_o, "=", r"$\mathbf{W}_o$", found.w_o),
        (result, "", translated("output").text(language), found.result),
    ):
        sketch.text((place.column(), 0.53), f"{name} {shape(array)}", 9.5, ha="center")
        sketch.text((place.right + 0.25, place.row()), sign, 16.0, ha="center")


def _head(sketch: Sketch, found: Heads, head: int, together: Cells) -> None:
    """Draw the attention map of a head, and the arrow to its columns of the concatenation."""
    n_words, width = found.outputs.shape[1:]
    color = HEAD_COLORS[head]
    cells = CellStyle(width=0.33, height=0.235, size=7.5, label=8.5, positive=color, limit=1.0)
    corner = together.left + head * 2.14, 4.22
    rows = found.words if head == 0 else ()
    place = draw_cells(sketch, corner, found.weights[head], style=cells, rows=rows, columns=found.words)
    name = translated("head {number}: {name.en}", number=head + 1, name=HEAD_NAMES[head])
    sketch.text((place.left, 4.61), name.text(sketch.language), 10.0, bold=True, color=color)
    start, end, lane = place.column(), together.column(width * (head + 0.5) - 0.5), 2.7
    lane -= 0.07 * head
    sketch.line([(start, place.bottom), (start, lane), (end, lane), (end, together.top + 0.21)], color)
    sketch.text((end, together.top + 0.11), f"Z{'₁₂₃₄'[head]}", 9.5, ha="center", color=color)
    left = together.left + head * width * together.width
    mark(sketch, Cells(left, together.top, together.width, together.height, n_words, width), color)
