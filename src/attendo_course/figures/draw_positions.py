"""Drawing of the figures about sinusoidal positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float

from attendo.display.i18n import Language
from attendo.microscope.attention_map import heat_map
from attendo_course.book import passage, translated
from attendo_course.figures import style
from attendo_course.figures.arrays import PositionCurves, PositionProducts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMULA = r"$\sin(t/L^{2i/d_e}),\ \cos(t/L^{2i/d_e})$"
PLOTTED = r"$\sin(x/L^{i/d_e}),\ \cos(x/L^{(i-1)/d_e})$"


def draw_heatmap(table: Float[np.ndarray, "d_model max_len"], figure: Figure, language: Language) -> None:
    """Draw one cell per position and dimension, with values from -1 to 1 and dimension 0 on top, as in the solution.

    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> draw_heatmap(np.zeros((128, 64)), figure, "en")
    >>> figure.axes[0].get_title()
    'Sinusoidal Positional Encoding (max_len=64, d_model=128)'
    """
    d_model, max_len = table.shape
    style.lay_out(figure, top=0.985)
    axes = figure.add_subplot()
    bar = heat_map(axes, table, "viridis", -1.0, 1.0, ticks=[-1, -0.5, 0, 0.5, 1])
    sizes = f"max_len={max_len}, d_model={d_model}"
    title = translated("Sinusoidal Positional Encoding ({sizes})", sizes=sizes)
    axes.set_title(title.text(language), fontsize=16, fontweight=style.emphasis(language), pad=12)
    style.label_axes(axes, language, translated("Position"), translated("Embedding Dimension"))
    axes.set_xticks([*range(0, max_len - 4, 8), max_len - 1])
    axes.set_yticks([*range(0, d_model - 8, 16), d_model - 1])
    axes.grid(visible=False)
    bar.set_label(translated("Encoding Value").text(language))


def draw_curves(formula: PositionCurves, plotted: PositionCurves, figure: Figure, language: Language) -> None:
    """Draw a small graph for each row of both encodings: the formula on the left, the plot of the post on the right.

    >>> from matplotlib.figure import Figure
    >>> from attendo_course.figures.arrays import formula_curves, plotted_curves
    >>> figure = Figure()
    >>> draw_curves(formula_curves(), plotted_curves(), figure, "en")
    >>> len(figure.axes), figure.axes[0].get_title(loc="left")
    (10, 'formula')
    """
    n_rows, length = plotted.rows.shape
    title = translated("One positional encoding: its formula, and what was plotted")
    sizes = f"L = {length}, d_e = {n_rows}"
    note = passage("draw_positions.draw_curves", sizes=sizes)
    style.heading(figure, language, title, note, rows_apart=0.03)
    graphs = figure.subplots(n_rows, 2, sharex="col", sharey=True)
    heads = (
        (translated("formula"), FORMULA, translated("position t"), style.BLUE),
        (translated("as plotted"), PLOTTED, translated("position x"), style.VERMILION),
    )
    for column, (curves, head) in enumerate(zip((formula, plotted), heads, strict=True)):
        name, equation, across, color = head
        top: Axes = graphs[0, column]
        top.set_title(name.text(language), loc="left", color=color, fontweight=style.emphasis(language), pad=24)
        top.text(0, 1.12, equation, transform=top.transAxes, fontsize=11, va="bottom")
        for row in range(n_rows):
            axes: Axes = graphs[row, column]
            number = translated("row {number}", number=row + 1).text(language)
            _beside(axes, -0.1, number, "right", style.INK)
            if row < len(curves.rows):
                _draw_row(axes, language, curves, row, color)
            else:
                _leave_undefined(axes, language, n_rows)
        bottom: Axes = graphs[-1, column]
        bottom.set_xlabel(across.text(language))
        bottom.set_xticks([int(curves.positions[0]), *range(10, length + 1, 10)])


def _draw_row(axes: Axes, language: Language, curves: PositionCurves, row: int, color: str) -> None:
    axes.plot(curves.positions, curves.rows[row], "o-", color=color, linewidth=1.4, markersize=2.4)
    axes.set_ylim(-1.25, 1.25)
    axes.set_yticks([-1, 0, 1])
    period = translated("period").text(language)
    _beside(axes, 1.02, f"{period} {curves.periods[row]:.2f}", "left", style.FAINT)


def _leave_undefined(axes: Axes, language: Language, d_e: int) -> None:
    """Mark the last row of an odd width, for which the formula is undefined."""
    axes.grid(visible=False)
    axes.spines[["left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, labelleft=False)
    i = d_e // 2
    text = translated("undefined: i ends at {i},\nwhich gives {column} rows", i=i, column=2 * i)
    _beside(axes, 0.5, text.text(language), "center", style.FAINT)


def _beside(axes: Axes, x: float, text: str, side: Literal["left", "right", "center"], color: str) -> None:
    """Write a text at mid-height of a graph. `x` is a share of the width of the graph."""
    axes.text(x, 0.5, text, transform=axes.transAxes, ha=side, va="center", fontsize=10.5, color=color)


def draw_products(found: Sequence[PositionProducts], figure: Figure, language: Language) -> None:
    """Draw a graph for each width, and mark the distance up to which the product decreases.

    >>> from matplotlib.figure import Figure
    >>> from attendo_course.figures.arrays import products
    >>> figure = Figure()
    >>> draw_products([products(128)], figure, "en")
    >>> figure.axes[0].texts[0].get_text().splitlines()[0]
    'first rise after k = 11'
    """
    title = translated("Dot products of position vectors depend on their distance only")
    deviation = max(each.deviation for each in found)
    limit = style.scientific(10.0 ** math.ceil(math.log10(max(deviation, 1e-16))), 0)
    note = passage("draw_positions.draw_products", limit=limit)
    style.heading(figure, language, title, note)
    graphs = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, each, color in zip(graphs, found, (style.BLUE, style.VERMILION), strict=False):
        distances = np.arange(len(each.products))
        axes.plot(distances, each.products, color=color)
        k = each.first_rise
        axes.plot([k], [each.products[k]], "o", color=style.INK, markersize=7, zorder=3)
        rise = translated(
            "first rise after k = {k}\n{product:.3f} → {next_product:.3f}",
            k=k,
            product=each.products[k],
            next_product=each.products[k + 1],
            next_k=k + 1,
        )
        axes.annotate(
            rise.text(language),
            (k, each.products[k]),
            xytext=(14, 46),
            textcoords="offset points",
            fontsize=11.5,
            arrowprops={"arrowstyle": "-", "color": style.FAINT, "linewidth": 0.9},
        )
        axes.set_title(f"d = {each.d_model}", loc="left", color=color, fontweight=style.emphasis(language))
        axes.set_ylim(0, each.products[0] * 1.04)
        axes.set_xlim(-1, len(distances))
        style.label_axes(axes, language, translated("distance k"), translated("PE[p] · PE[p+k]"))
