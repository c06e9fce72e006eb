"""A drawing area in inches for diagrams: boxes, arrows, sums and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attendo.display.i18n import Language, Localized
from attendo_course.figures.model_parts import Kind
from attendo_course.figures.style import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, emphasis

TITLE_SIZE, NOTE_SIZE = 17.0, 9.5  # points

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
"""The fill color and the border color of a box by the kind of its part."""

RADIUS = 0.095  # of the circle where two vectors are added
Point = tuple[float, float]


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a text in inches at a font size in points, in the current fonts.

    >>> text_width("ab", 20) == text_width("ab", 10) * 2 and text_width("", 10) == 0
    True
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font = FontProperties(size=size, weight="bold" if bold else "normal")
    return TextToPath().get_text_width_height_descent(text, font, ismath="$" in text)[0] / 72


class Sketch:
    """A drawing area with the origin at the lower left.

    Its limits are fixed. Shapes are added with `add_artist`, because `add_patch` also computes the limits of the data,
    which takes half of the time of a drawing.
    """

    def __init__(self, figure: Figure, language: Language, width: float, height: float):
        figure.set_size_inches(width, height)
        self.axes = figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(0, height))
        self.axes.set_axis_off()
        self.language: Language = language

    def box(self, center: Point, width: float, height: float, kind: Kind) -> None:
        """Draw the box of a part."""
        inside, border = FILLS[kind]
        self.rounded(center, width, height, facecolor=inside, edgecolor=border, linewidth=1.1)

    def rounded(self, center: Point, width: float, height: float, **style: Any) -> None:
        """Draw a rectangle with rounded corners."""
        from matplotlib.patches import FancyBboxPatch

        corner = center[0] - width / 2, center[1] - height / 2
        shape = "round,pad=0,rounding_size=0.06"
        self.axes.add_artist(FancyBboxPatch(corner, width, height, boxstyle=shape, **{"zorder": 2, **style}))

    def plus(self, center: Point) -> None:
        """Draw the circle for the sum of two vectors."""
        from matplotlib.patches import Circle

        self.axes.add_artist(Circle(center, RADIUS, facecolor="white", edgecolor=INK, linewidth=1.2, zorder=3))
        x, y, arm = *center, RADIUS * 0.6
        self.axes.plot([x - arm, x + arm], [y, y], color=INK, linewidth=1.2, zorder=4)
        self.axes.plot([x, x], [y - arm, y + arm], color=INK, linewidth=1.2, zorder=4)

    def line(self, points: Sequence[Point], color: str = INK, *, head: bool = True) -> None:
        """Draw a line through points, with an arrowhead at its end."""
        from matplotlib.patches import FancyArrowPatch, PathPatch
        from matplotlib.path import Path

        if len(points) > 2:
            bends = {"fill": False, "edgecolor": color, "capstyle": "projecting"}
            self.axes.add_artist(PathPatch(Path(points[:-1]), linewidth=1.2, zorder=1, **bends))
        style = "-|>,head_length=4.5,head_width=2.2" if head else "-"
        ends = {"shrinkA": 0, "shrinkB": 0, "linewidth": 1.2, "joinstyle": "miter", "zorder": 1}
        self.axes.add_artist(FancyArrowPatch(points[-2], points[-1], arrowstyle=style, color=color, **ends))

    def text(self, at: Point, text: str, size: float, *, bold: bool = False, **style: Any) -> None:
        """Draw a text at mid-height, with formulas between $. By default, its left end is at the given point."""
        weight = emphasis(self.language) if bold else "normal"
        settings = {"va": "center", "parse_math": "$" in text, "zorder": 5, "fontsize": size, **style}
        self.axes.text(*at, text, fontweight=weight, **settings)

    def width_of(self, text: str, size: float, *, bold: bool = False) -> float:
        """Return the width of a text in inches, with the font weight that `text` uses in this language."""
        return text_width(text, size, bold=bold and self.language == "en")

    def heading(self, title: Localized, note: Localized) -> None:
        """Write the title at the top left, and a note with the description and the source at the bottom left."""
        self.text((0.3, self.axes.get_ylim()[1] - 0.34), title.text(self.language), TITLE_SIZE, bold=True)
        self.text((0.3, 0.14), note.text(self.language), NOTE_SIZE, color=FAINT, va="bottom", linespacing=1.45)
