"""An attention map as a PNG, by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.microscope.attention_map import AttentionMap
from attendo.microscope.labels import fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_LABEL = 24
CELL_WIDTH, CELL_HEIGHT = 0.42, 0.32  # inches
LARGEST_SIDE = 40.0  # inches; more pieces make the cells smaller, not the picture larger
DOTS_PER_INCH = 130
MOST_DETAILED = 48  # pieces on a side up to which cells have borders and their percentages
LEAST_NUMBERED = 0.095
INK, FAINT = "#1b2430", "#5b6673"


def write_png(seen: AttentionMap, path: Path, layer: int | None = None) -> None:
    """Draws the mean over heads of a layer (the sharpest if None) as a heat map: targets down, sources across.

    Labels are in installed fonts that have their characters; a piece of which no font here has all is shown by its
    number, and a line below says so. Raises AttendoError without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise AttendoError('a PNG needs matplotlib: pip install "attendo[plots]"') from None
    from attendo.microscope.fonts import fonts_for

    layer = seen.sharpest_layer if layer is None else layer
    weights = seen.mean(layer)
    n_rows, n_columns = weights.shape
    fonts, drawable = fonts_for("".join(seen.source_pieces + seen.target_pieces))
    sources, targets = labels_for(seen.source_pieces, drawable), labels_for(seen.target_pieces, drawable)
    width, height = 2.4 + CELL_WIDTH * max(10, n_columns), 2.0 + CELL_HEIGHT * n_rows
    size = (min(LARGEST_SIDE, width), min(LARGEST_SIDE, height))
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(weights, cmap="GnBu", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    _label(axes, sources, targets, fonts)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=25, pad=0.02)
    bar.ax.tick_params(labelsize=8, labelcolor=FAINT, length=0)
    bar.outline.set_visible(False)
    bar.set_label("weight", fontsize=8, color=FAINT)
    if max(n_rows, n_columns) <= MOST_DETAILED:
        _number(axes, weights)
        bar.set_label("weight (in the cells: %)", fontsize=8, color=FAINT)
    figure.suptitle(seen.caption(layer), fontsize=11, color=INK)
    if missing := numbering_note(seen.source_pieces + seen.target_pieces, drawable):
        figure.supxlabel(missing, fontsize=8, color=FAINT)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DOTS_PER_INCH)
    write_atomic(path, picture.getvalue())


def _label(axes: Axes, sources: list[str], targets: list[str], fonts: list[str]) -> None:
    """The pieces along both sides; of very many, as many as there is room for."""
    step_across, step_down = (
        1 + int(len(labels) * cell / LARGEST_SIDE)
        for labels, cell in ((sources, CELL_WIDTH), (targets, CELL_HEIGHT))
    )
    axes.set_xticks(range(0, len(sources), step_across), sources[::step_across])
    axes.set_yticks(range(0, len(targets), step_down), targets[::step_down])
    axes.set_xlabel("source", fontsize=9, color=FAINT)
    axes.set_ylabel("translation", fontsize=9, color=FAINT)
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set(family=fonts, parse_math=False, fontsize=10, color=INK)  # "$" in a piece is a dollar
    for label in axes.get_xticklabels():
        label.set(rotation=60, ha="left", va="center", rotation_mode="anchor")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _number(axes: Axes, weights: Float[np.ndarray, "targets sources"]) -> None:
    """Borders between the cells, and in each cell that counts its percentage."""
    axes.set_xticks([s - 0.5 for s in range(1, len(weights[0]))], minor=True)
    axes.set_yticks([t - 0.5 for t in range(1, len(weights))], minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor", color="white", linewidth=1.5)
    for t, row in enumerate(weights):
        for s, weight in enumerate(row):
            if weight >= LEAST_NUMBERED:
                color = "white" if weight > 0.6 else INK
                axes.text(s, t, f"{weight * 100:.0f}", ha="center", va="center", fontsize=7.5, color=color)


def labels_for(pieces: Sequence[str], drawable: Collection[str]) -> list[str]:
    """What stands at an axis: the piece, cut if it is long, or its number where no font can draw it.

    >>> labels_for(("▁rain", "雨"), drawable="▁rain…")
    ['▁rain', 'no. 2']
    """
    return [
        fitted(piece, LONGEST_LABEL) if set(piece) <= set(drawable) else f"no. {number}"
        for number, piece in enumerate(pieces, 1)
    ]


def numbering_note(pieces: Sequence[str], drawable: Collection[str]) -> str:
    """One line about the pieces that are shown by number, "" if there are none.

    >>> numbering_note(("▁rain", "雨"), drawable="▁rain")
    'no. = which piece it is, counted from 1: no font installed here has its characters (U+96E8 …)'
    """
    missing = sorted(set("".join(pieces)) - set(drawable))
    if not missing:
        return ""
    return (
        "no. = which piece it is, counted from 1: no font installed here has its characters "
        f"(U+{ord(missing[0]):04X} …)"
    )
