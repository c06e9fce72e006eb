"""Attention maps as matplotlib figures, and as PNG or SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from attendo.display.i18n import Language, sentence
from attendo.display.width import fitted
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.microscope.answers import MANY
from attendo.microscope.attention_map import AttentionMap, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

LONGEST_LABEL = 24
CELL_WIDTH, CELL_HEIGHT = 0.42, 0.32  # inches
LARGEST_SIDE = 24.0  # inches; more tokens make the cells smaller, not the image larger
DOTS_PER_INCH, MOST_DOTS = 260, 3120  # MOST_DOTS limits a side, so large images are fast
LEAST_NUMBERED = 0.095
INK, FAINT = "#1b2430", "#5b6673"
SUFFIXES = (".png", ".svg")


def write_picture(
    shown: AttentionMap,
    path: Path,
    layer: int | None = None,
    head: int | None = None,
    language: Language = "en",
) -> None:
    """Write the figure of `map_figure` to a .png or .svg file. Equal maps produce identical bytes.

    Raise AttendoError for other file extensions.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise AttendoError(f"{path} must end in .png or .svg, for example {path.with_suffix('.png').name}")
    figure = map_figure(shown, layer, head, language)
    from attendo.display.fonts import figure_bytes

    dots = min(DOTS_PER_INCH, MOST_DOTS / max(figure.get_size_inches()))
    write_atomic(path, figure_bytes(figure, suffix, dots))


def map_figure(
    shown: AttentionMap, layer: int | None = None, head: int | None = None, language: Language = "en"
) -> Figure:
    """Return a heat map of an attention head with queries as rows and keys as columns.

    `layer` and `head` are those of `AttentionMap.shown`. Characters that no installed font can draw are shown as "?".
    Without an installed Japanese font, all labels are in English. Raise AttendoError if matplotlib is not installed, or
    if the layer or head does not exist.
    """
    from attendo.display.fonts import drawn, fonts_for  # raises if matplotlib is not installed

    weights = shown.shown(layer, head)
    said = _words(shown, layer, head, language)
    pieces = [fitted(visible(piece), LONGEST_LABEL) for piece in (*shown.key_pieces, *shown.query_pieces)]
    fonts, drawable = fonts_for("".join([*pieces, *said]))
    if language != "en" and not set("".join(said)) <= drawable:
        said = _words(shown, layer, head, "en")
    n_rows, n_columns = weights.shape
    width, height = 2.4 + CELL_WIDTH * max(10, n_columns), 2.0 + CELL_HEIGHT * n_rows
    size = (min(LARGEST_SIDE, width), min(LARGEST_SIDE, height))
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    bar = heat_map(axes, weights, "GnBu", 0.0, shown.darkest(layer, head))
    labels = [drawn(piece, drawable) for piece in pieces]
    _label(axes, labels[:n_columns], labels[n_columns:], fonts)
    caption, across, down, measured, in_cells = said
    axes.set_xlabel(across, fontsize=9, color=FAINT, family=fonts)
    axes.set_ylabel(down, fontsize=9, color=FAINT, family=fonts)
    detailed = max(n_rows, n_columns) <= MANY  # cells have borders and show percentages
    if detailed:
        _number(axes, weights)
    bar.ax.tick_params(labelsize=8, labelcolor=FAINT, length=0)
    bar.set_label(in_cells if detailed else measured, fontsize=8, color=FAINT, family=fonts)
    figure.suptitle(caption, fontsize=11, color=INK, family=fonts)
    return figure


def heat_map(
    axes: Axes,
    values: Float[np.ndarray, "rows columns"],
    colors: str,
    least: float,
    largest: float,
    *,
    ticks: Sequence[float] | None = None,
) -> Colorbar:
    """Draw values as colored cells with the first row on top, and return the color bar.

    >>> from matplotlib.figure import Figure
    >>> float(heat_map(Figure().add_subplot(), np.eye(2), "GnBu", 0.0, 0.5).vmax)
    0.5
    """
    image = axes.imshow(
        values, cmap=colors, vmin=least, vmax=largest, aspect="auto", origin="upper", interpolation="nearest"
    )
    bar = axes.figure.colorbar(image, ax=axes, ticks=ticks, aspect=28, pad=0.02)
    bar.outline.set_visible(False)
    return bar


def _words(shown: AttentionMap, layer: int | None, head: int | None, language: Language) -> list[str]:
    """Return the caption, the names of both axes, and the label of the color bar without and with numbers in cells."""
    names = (f"map.keys.{shown.stack}", f"map.queries.{shown.stack}", "map.weight", "map.weight_in_cells")
    return [shown.caption(layer, head, language), *(sentence(name).text(language) for name in names)]


def _label(axes: Axes, across: list[str], down: list[str], fonts: list[str]) -> None:
    """Label both axes with as many tokens as there is room for."""
    step_across, step_down = (
        1 + int(len(labels) * cell / LARGEST_SIDE)
        for labels, cell in ((across, CELL_WIDTH), (down, CELL_HEIGHT))
    )
    axes.set_xticks(range(0, len(across), step_across), across[::step_across])
    axes.set_yticks(range(0, len(down), step_down), down[::step_down])
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set(family=fonts, parse_math=False, fontsize=10, color=INK)  # "$" in a piece is a dollar
    for label in axes.get_xticklabels():
        label.set(rotation=60, ha="left", va="center", rotation_mode="anchor")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _number(axes: Axes, weights: Float[np.ndarray, "queries keys"]) -> None:
    """Draw borders between the cells, and the percentage in each cell with a large weight."""
    axes.set_xticks([s - 0.5 for s in range(1, len(weights[0]))], minor=True)
    axes.set_yticks([t - 0.5 for t in range(1, len(weights))], minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor", color="white", linewidth=1.5)
    for t, row in enumerate(weights):
        for s, weight in enumerate(row):
            if weight >= LEAST_NUMBERED:
                color = "white" if weight > 0.6 else INK
                axes.text(s, t, f"{weight * 100:.0f}", ha="center", va="center", fontsize=7.5, color=color)
