"""Boxes, arrows and texts on a figure measured in inches, from which a block diagram is put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attendo.display.i18n import Language
from attendo_course.figures.model_parts import Kind
from attendo_course.figures.style import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, VERMILION, emphasis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

FILLS: dict[Kind, tuple[str, str]] = {
    "embedding": ("#f4e3ee", PURPLE),
    "positions": ("#ffffff", PURPLE),
    "attention": ("#fdeccb", ORANGE),
    "feed_forward": ("#d9eaf6", BLUE),
    "norm": ("#ddf1e9", GREEN),
    "output": ("#e9ecf1", FAINT),
}
"""Inside and border of a box of each kind."""

RADIUS = 0.095  # of the circle where two vectors are added
Point = tuple[float, float]


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """How wide a text of so many points is, in inches, in the fonts that are set.

    >>> text_width("ab", 20) == text_width("ab", 10) * 2 and text_width("", 10) == 0
    True
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(size=size, weight="bold" if bold else "normal")
    return TextToPath().get_text_width_height_descent(text, font, ismath=False)[0] / 72


class Sketch:
    """A figure as a sheet of paper, its origin at the lower left."""

    def __init__(self, figure: Figure, language: Language, width: float, height: float):
        figure.set_size_inches(width, height)
        self.axes = figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(0, height))
        self.axes.set_axis_off()
        self.language: Language = language

    def box(self, center: Point, width: float, height: float, kind: Kind) -> None:
        """A box of a part."""
        inside, border = FILLS[kind]
        self.rounded(center, width, height, facecolor=inside, edgecolor=border, linewidth=1.1)

    def rounded(self, center: Point, width: float, height: float, **style: Any) -> None:
        """A rectangle with round corners."""
        from matplotlib.patches import FancyBboxPatch

        corner = center[0] - width / 2, center[1] - height / 2
        shape = "round,pad=0,rounding_size=0.06"
        self.axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=shape, **{"zorder": 2, **style}))

    def plus(self, center: Point) -> None:
        """The circle where two vectors are added."""
        from matplotlib.patches import Circle

        self.axes.add_patch(Circle(center, RADIUS, facecolor="white", edgecolor=INK, linewidth=1.2, zorder=3))
        x, y, arm = *center, RADIUS * 0.6
        self.axes.plot([x - arm, x + arm], [y, y], color=INK, linewidth=1.2, zorder=4)
        self.axes.plot([x, x], [y - arm, y + arm], color=INK, linewidth=1.2, zorder=4)

    def line(self, points: Sequence[Point], color: str = INK, *, head: bool = True) -> None:
        """A line through points, with an arrow's head at its end."""
        from matplotlib.patches import FancyArrowPatch, PathPatch
        from matplotlib.path import Path

        if len(points) > 2:
            self.axes.add_patch(
                PathPatch(
                    Path(points[:-1]),
                    fill=False,
                    edgecolor=color,
                    linewidth=1.2,
                    capstyle="projecting",
                    zorder=1,
                )
            )
        style = "-|>,head_length=4.5,head_width=2.2" if head else "-"
        ends = {"shrinkA": 0, "shrinkB": 0, "linewidth": 1.2, "joinstyle": "miter", "zorder": 1}
        self.axes.add_patch(FancyArrowPatch(points[-2], points[-1], arrowstyle=style, color=color, **ends))

    def text(self, at: Point, text: str, size: float, *, bold: bool = False, **style: Any) -> None:
        """A text whose left end, unless said otherwise, is there at mid-height."""
        weight = emphasis(self.language) if bold else "normal"
        settings = {"va": "center", "parse_math": False, "zorder": 5, "fontsize": size, **style}
        self.axes.text(*at, text, fontweight=weight, **settings)


MEMORY = VERMILION
"""The color of what goes from the encoder to the decoder."""
