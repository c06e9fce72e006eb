"""Drawing of the figures about the autoencoder and about the keys and values that a translation keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attendo.display.i18n import Language
from attendo_course.book import passage, translated
from attendo_course.figures import style
from attendo_course.figures.cells import Cells, CellStyle, draw_cells, mark, shape
from attendo_course.figures.examples import TranslationSteps, translation_steps
from attendo_course.figures.model_parts import Kind
from attendo_course.figures.sketch import FILLS, Point, Sketch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEPT = style.VERMILION
"""The color of the bottleneck, and of what the encoder hands to the decoder."""
SQUARE = CellStyle(width=0.3, height=0.3, digits=None, limit=1.0)
ROW = CellStyle(width=0.26, height=0.2, digits=None)
SMALL = CellStyle(width=0.135, height=0.2, digits=None)


def draw_autoencoder(n: int, d: int, figure: Figure, language: Language) -> None:
    """Draw an autoencoder of two affine maps, and an autoencoder of any modules, for n numbers and a bottleneck of d.

    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> draw_autoencoder(8, 3, figure, "en")
    >>> [text.get_text() for text in figure.axes[0].texts].count("bottleneck: 3 < 8")
    2
    """
    sketch = Sketch(figure, language, style.WIDTH, style.HEIGHT)
    title = translated("Autoencoder: from x through a bottleneck back to x")
    sketch.heading(title, passage("draw_networks.draw_autoencoder"))
    example = translated("for example attention blocks").text(language)
    encoder, decoder = (translated(name).text(language) for name in ("any encoder", "any decoder"))
    affine = ("h = f(x W₁ + b₁)", f"W₁ [{n}, {d}]"), ("x̃ = g(h W₂ + b₂)", f"W₂ [{d}, {n}]")
    modules = (encoder, example), (decoder, example)
    names = translated("two affine maps with activations"), translated("any modules in their place")
    kinds: tuple[Kind, Kind] = ("feed_forward", "attention")
    for middle, parts, name, kind in zip((2.4, 7.0), (affine, modules), names, kinds, strict=True):
        sketch.text((middle, 4.55), name.text(language), 12.0, ha="center", bold=True)
        _vector(sketch, (middle, 0.92), n, f"x [{n}]")
        sketch.line([(middle, 1.12), (middle, 1.32)])
        _trapezoid(sketch, (middle, 1.7), 1.45, 0.95, kind, parts[0])
        sketch.line([(middle, 2.08), (middle, 2.28)])
        mark(sketch, _vector(sketch, (middle, 2.5), d, f"h [{d}]", KEPT), KEPT)
        label = translated("bottleneck: {d} < {n}", d=d, n=n).text(language)
        sketch.text((middle + 0.65, 2.5), label, 11.0, color=KEPT, bold=True)
        sketch.line([(middle, 2.7), (middle, 2.9)])
        _trapezoid(sketch, (middle, 3.28), 0.95, 1.45, kind, parts[1])
        sketch.line([(middle, 3.66), (middle, 3.86)])
        _vector(sketch, (middle, 4.06), n, f"x̃ [{n}]")


def _vector(sketch: Sketch, middle: Point, n: int, name: str, color: str = style.BLUE) -> Cells:
    """Draw a vector of n numbers as cells of one color, with its name to the left."""
    corner = middle[0] - n * SQUARE.width / 2, middle[1] + SQUARE.height / 2
    place = draw_cells(sketch, corner, np.full(n, 0.35), style=replace(SQUARE, positive=color))
    sketch.text((place.left - 0.12, middle[1]), name, 11.0, ha="right")
    return place


def _trapezoid(sketch: Sketch, middle: Point, below: float, above: float, kind: Kind, lines: tuple[str, str]) -> None:
    """Draw a box with two lines of text. `below` and `above` are half the widths of its lower and upper side."""
    from matplotlib.patches import Polygon

    (x, y), half = middle, 0.38
    corners = [(x - below, y - half), (x + below, y - half), (x + above, y + half), (x - above, y + half)]
    inside, border = FILLS[kind]
    sketch.axes.add_artist(Polygon(corners, facecolor=inside, edgecolor=border, linewidth=1.1, zorder=2))
    sketch.text((x, y + 0.13), lines[0], 10.5, ha="center", bold=True)
    sketch.text((x, y - 0.14), lines[1], 9.5, ha="center", color=style.FAINT)


CROSS, SECOND = 2.95, 3.97  # heights of the cross-attention of layer 1 and of layer 2
INPUT, OUTPUT = 0.52, 4.6  # heights of the words that enter and leave the decoder
# width of a step, distance of two steps, middle of the first step
STEP_WIDTH, PITCH, FIRST = 1.26, 1.46, 4.16


def draw_translation(figure: Figure, language: Language) -> None:
    """Draw the encoder with the keys and values that are computed once, and the decoder's steps side by side.

    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> draw_translation(figure, "en")
    >>> [text.get_text() for text in figure.axes[0].texts].count("<bos>")
    1
    """
    sketch = Sketch(figure, language, style.WIDTH, style.HEIGHT)
    found = translation_steps(language)
    title = translated("Translation: which keys and values are kept")
    sketch.heading(title, passage("draw_networks.draw_translation"))
    middles = [FIRST + PITCH * step for step in range(len(found.keys))]
    bands = ((0.78, 3.2, translated("decoder layer 1")), (3.52, 4.22, translated("layer 2")))
    for low, high, name in bands:
        area = {"facecolor": "#f8f9fb", "edgecolor": style.FAINT, "linewidth": 0.8, "zorder": 0}
        sketch.rounded((6.43, (low + high) / 2), 6.0, high - low, **area)
        text = name.text(language)
        sketch.text((9.31, (low + high) / 2), text, 9.0, ha="center", rotation=90, color=style.FAINT)
    _encoder(sketch, found)
    for y in (CROSS, SECOND):
        rail = y - 0.32
        sketch.line([(3.22, y), (3.33, y), (3.33, rail), (middles[-1] - 0.42, rail)], KEPT, head=False)
        for middle in middles:
            sketch.line([(middle - 0.42, rail), (middle - 0.42, y - 0.2)], KEPT)
    for step, middle in enumerate(middles):
        _step(sketch, found, step, middle)
        if step:
            gap = middle - PITCH / 2
            start, end = middle - PITCH + 0.35, middle - 0.36
            sketch.line([(start, OUTPUT), (gap, OUTPUT), (gap, INPUT), (end, INPUT)], style.FAINT)


def _encoder(sketch: Sketch, found: TranslationSteps) -> None:
    """Draw the source, the encoder, its output, and the keys and values that each decoder layer computes from it."""
    middle, language = 2.05, sketch.language
    for word, x in zip(found.source, (1.25, 2.05, 2.85), strict=True):
        sketch.text((x, INPUT), word, 10.5, ha="center")
    sketch.line([(middle, INPUT + 0.14), (middle, 0.86)])
    sketch.box((middle, 1.06), 2.3, 0.4, "feed_forward")
    text = translated("encoder: runs once").text(language)
    sketch.text((middle, 1.06), text, 10.5, ha="center", bold=True)
    sketch.line([(middle, 1.26), (middle, 1.42)])
    memory = draw_cells(sketch, (middle - 2 * ROW.width, 2.04), found.memory, style=ROW, rows=found.source)
    at = memory.right + 0.1, memory.row()
    sketch.text(at, r"$\mathbf{h}^\mathrm{Enc}$ " + shape(found.memory), 10.0, color=KEPT)
    branch = memory.top + 0.18
    sketch.line([(middle, memory.top + 0.02), (middle, CROSS - 0.34)], KEPT)
    sketch.line([(middle, branch), (0.6, branch), (0.6, SECOND), (0.88, SECOND)], KEPT)
    kept = zip(found.memory_keys, found.memory_values, strict=True)
    for layer, (y, pair) in enumerate(zip((CROSS, SECOND), kept, strict=True), 1):
        names = translated("layer {layer}: K", layer=layer).text(language), "V"
        for name, left, numbers in zip(names, (0.95, 2.11), pair, strict=True):
            draw_cells(sketch, (left, y + 1.5 * ROW.height), numbers, style=ROW, caption=name)
        text = translated("made once").text(language)
        sketch.text((3.15, y + 0.46), text, 9.5, color=KEPT, ha="right")


def _step(sketch: Sketch, found: TranslationSteps, step: int, middle: float) -> None:
    """Draw a step of the decoder from its input word to its output word."""
    language = sketch.language
    sketch.text((middle, INPUT), found.inputs[step], 10.5, ha="center")
    sketch.line([(middle, INPUT + 0.14), (middle, 0.86)])
    sketch.box((middle, 1.58), STEP_WIDTH, 1.44, "attention")
    sketch.text((middle, 2.16), translated("self-attention").text(language), 9.5, ha="center", bold=True)
    # a common scale of the colors, with which a kept row looks equal in all steps
    cells = replace(SMALL, limit=float(max(abs(found.keys[-1]).max(), abs(found.values[-1]).max())))
    for name, numbers, left in (
        ("K", found.keys[step], middle - 0.58),
        ("V", found.values[step], middle + 0.04),
    ):
        place = draw_cells(sketch, (left, 1.82), numbers, style=cells)
        mark(sketch, place, style.BLUE, row=len(numbers) - 1)
        sketch.text((place.column(), 1.95), f"{name} {shape(numbers)}", 8.5, ha="center")
    sketch.line([(middle, 2.3), (middle, CROSS - 0.2)])
    for y, words in ((CROSS, translated("cross-attention")), (SECOND, translated("as in layer 1"))):
        sketch.box((middle, y), STEP_WIDTH, 0.4, "attention")
        sketch.text((middle, y), words.text(language), 9.5, ha="center", bold=True)
    sketch.line([(middle, CROSS + 0.2), (middle, SECOND - 0.2)])
    sketch.line([(middle, SECOND + 0.2), (middle, OUTPUT - 0.14)])
    sketch.text((middle, OUTPUT), found.outputs[step], 10.5, ha="center", bold=True)
    text = translated("step {n}", n=step + 1).text(language)
    sketch.text((middle, OUTPUT + 0.22), text, 9.0, ha="center", color=style.FAINT)
