"""An attention map as a PNG, by matplotlib."""

from __future__ import annotations

from pathlib import Path

from attendo.errors import AttendoError
from attendo.microscope.attention_map import AttentionMap

WIDE_FONTS = (
    "Noto Sans CJK JP",
    "IPAexGothic",
    "IPAGothic",
    "TakaoGothic",
    "Hiragino Sans",
    "Yu Gothic",
    "MS Gothic",
)
"""Fonts that have Japanese characters, on the systems people use."""


def write_png(seen: AttentionMap, path: Path, layer: int | None = None) -> None:
    """Draws the mean over heads of a layer (the sharpest if None) as a heat map.

    Where no font here has the characters, pieces are shown by number, never as empty boxes. Raises AttendoError
    without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.font_manager import fontManager
    except ImportError:
        raise AttendoError('a PNG needs matplotlib: pip install "attendo[plots]"') from None
    layer = seen.sharpest_layer if layer is None else layer
    installed = {font.name for font in fontManager.ttflist}
    wide = next((name for name in WIDE_FONTS if name in installed), None)
    fonts = ["DejaVu Sans"] if wide is None else ["DejaVu Sans", wide]
    columns, rows = len(seen.source_pieces), len(seen.target_pieces)
    figure = Figure(figsize=(2.2 + 0.36 * columns, 1.8 + 0.3 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(seen.mean(layer), cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(
        range(columns), labels_for(seen.source_pieces, wide is not None), rotation=60, ha="left", family=fonts
    )
    axes.set_yticks(range(rows), labels_for(seen.target_pieces, wide is not None), family=fonts)
    axes.xaxis.tick_top()
    axes.set_title(f"Cross-attention, layer {layer + 1}, mean of {seen.weights.shape[1]} heads", fontsize=10)
    figure.colorbar(image, label="weight", shrink=0.7)
    figure.savefig(path, dpi=130)


def labels_for(pieces: tuple[str, ...], has_wide_font: bool) -> list[str]:
    """What stands at an axis: the piece, or its number where no font can draw it; `$` is no formula here.

    >>> labels_for(("▁rain", "雨"), has_wide_font=False)
    ['▁rain', 'no. 2']
    """
    return [
        piece.replace("$", r"\\$")
        if has_wide_font or all(ord(c) < 0x2600 for c in piece)
        else f"no. {number}"
        for number, piece in enumerate(pieces, 1)
    ]
