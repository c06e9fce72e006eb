"""An attention map as a PNG, by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.microscope.attention_map import AttentionMap
from attendo.microscope.labels import fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.font_manager import FontEntry

BASE_FONT = "DejaVu Sans"  # comes with matplotlib
PREFERRED_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Source Han Sans JP",
    "Hiragino Sans",
    "Yu Gothic",
    "Meiryo",
    "IPAexGothic",
    "IPAPGothic",
    "IPAGothic",
    "TakaoPGothic",
    "VL PGothic",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "MS Gothic",
)
"""Tried first for what the base font lacks: an even Japanese sans serif, where there is one."""
STAND_INS = ("last resort", "lastresort", "adobe blank", "unicode bmp fallback")
"""Fonts that claim every character and draw a box, or nothing, for each."""
LONGEST_LABEL = 24
CELL_WIDTH, CELL_HEIGHT = 0.42, 0.32  # inches
LARGEST_SIDE = 40.0  # inches; more pieces make the cells smaller, not the picture larger
DOTS_PER_INCH = 130
MOST_NUMBERED = 48  # pieces on a side up to which the cells hold their percentages
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
    layer = seen.sharpest_layer if layer is None else layer
    weights = seen.mean(layer)
    n_rows, n_columns = weights.shape
    fonts, drawable = fonts_for("".join(seen.source_pieces + seen.target_pieces))
    sources, targets = labels_for(seen.source_pieces, drawable), labels_for(seen.target_pieces, drawable)
    size = (
        min(LARGEST_SIDE, 2.6 + CELL_WIDTH * max(8, n_columns)),
        min(LARGEST_SIDE, 2.0 + CELL_HEIGHT * n_rows),
    )
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(weights, cmap="GnBu", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    _label(axes, sources, targets, fonts)
    if max(n_rows, n_columns) <= MOST_NUMBERED:
        for t, s in zip(*(weights >= LEAST_NUMBERED).nonzero(), strict=True):
            color = "white" if weights[t, s] > 0.6 else INK
            axes.text(s, t, f"{weights[t, s] * 100:.0f}", ha="center", va="center", fontsize=7.5, color=color)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=25, pad=0.02)
    bar.set_label("weight (numbers in cells: %)", fontsize=8, color=FAINT)
    bar.ax.tick_params(labelsize=8, colors=FAINT)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    figure.suptitle(seen.caption(layer), fontsize=10.5, color=INK)
    if note := numbering_note(sources, targets):
        figure.supxlabel(note, fontsize=8, color=FAINT)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DOTS_PER_INCH)
    write_atomic(path, data.getvalue())


def _label(axes: Axes, sources: list[str], targets: list[str], fonts: list[str]) -> None:
    """Pieces along both sides and white lines between the cells."""
    sides = ((axes.xaxis, sources, CELL_WIDTH), (axes.yaxis, targets, CELL_HEIGHT))
    for axis, labels, cell in sides:
        every = -(-int(len(labels) * cell) // int(LARGEST_SIDE))  # of so many labels one has room
        for tick in axis_ticks(axis, labels, max(1, every)):
            tick.set(family=fonts, parse_math=False, fontsize=10, color=INK)
        axis.set_ticks([n - 0.5 for n in range(1, len(labels))], minor=True)
    for label in axes.get_xticklabels():
        label.set(rotation=60, ha="left", va="bottom", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.tick_params(which="both", length=0)
    if max(len(sources), len(targets)) <= MOST_NUMBERED:
        axes.grid(which="minor", color="white", linewidth=1.5)
    axes.spines[:].set_visible(False)
