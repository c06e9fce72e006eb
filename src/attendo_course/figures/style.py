"""The style of all figures: sizes for slides, colors for color-blind readers, fonts, and files without a date."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attendo.display.i18n import Language, Localized
from attendo_course.book import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 9.6, 5.4  # inches; 16:9
DOTS_PER_INCH = 200  # 1920 × 1080
BLUE, VERMILION, GREEN, PURPLE, ORANGE = "#0072b2", "#d55e00", "#009e73", "#a8568a", "#b87f00"
"""Colors after Okabe & Ito 2008. The last two are darker, which makes thin lines visible on a white background."""

SETTINGS: dict[Any, Any] = table("figures/style.toml")
"""The settings of matplotlib. They replace the settings in the user's matplotlibrc file."""
INK, FAINT, RULE = (SETTINGS[key] for key in ("text.color", "axes.edgecolor", "grid.color"))


def lay_out(figure: Figure, bottom: float = 0.0, top: float = 1.0, rows_apart: float = 0.04) -> None:
    """Place graphs between two heights of the figure (shares of its total height) with a margin and without overlap.

    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> lay_out(figure, bottom=0.1)
    >>> figure.get_layout_engine().get()["rect"][1]
    0.11
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    area = (0.008, bottom + 0.01, 0.984, top - bottom - 0.02)
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=area, h_pad=rows_apart, w_pad=0.06, hspace=0.0))


def heading(figure: Figure, language: Language, title: Localized, note: Localized, *, rows_apart: float = 0.04) -> None:
    """Write the title at the top left, and below the picture a line with a description and the source.

    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> heading(figure, "en", Localized("Title", "題"), Localized("Source.", "出典。"))
    >>> [text.get_text() for text in figure.texts]
    ['Title', 'Source.']
    """
    lay_out(figure, 0.06, 0.905, rows_apart)
    text = title.text(language)
    figure.text(0.015, 0.968, text, ha="left", va="top", fontsize=16, fontweight=emphasis(language))
    figure.text(0.015, 0.02, note.text(language), ha="left", va="bottom", fontsize=9.5, color=FAINT)


def emphasis(language: Language) -> str:
    """Return the font weight for emphasis: bold in English, normal in Japanese.

    Many Japanese fonts have only one weight, and matplotlib prints a warning for each of them.

    >>> emphasis("en"), emphasis("ja")
    ('bold', 'normal')
    """
    return "bold" if language == "en" else "normal"


def label_axes(axes: Axes, language: Language, across: Localized, up: Localized) -> None:
    """Write the names of both axes.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().add_subplot()
    >>> label_axes(axes, "en", Localized("step", "ステップ"), Localized("loss", "損失"))
    >>> axes.get_xlabel(), axes.get_ylabel()
    ('step', 'loss')
    """
    axes.set_xlabel(across.text(language))
    axes.set_ylabel(up.text(language))


def scientific(number: float, digits: int = 5) -> str:
    """Return a small or large number in scientific notation for readers.

    >>> scientific(0.000698771)
    '6.98771 × 10⁻⁴'
    """
    mantissa, exponent = f"{number:.{digits}e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def texts_of(paint: Callable[[Figure], None]) -> str:
    """Return all texts in a figure that `paint` draws.

    >>> texts_of(lambda figure: figure.text(0, 0, "softmax"))
    'softmax'
    """
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=(WIDTH, HEIGHT))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that the first font lacks, which is what we ask
        paint(figure)
    return "".join(text.get_text() for text in figure.findobj(Text) if isinstance(text, Text))
