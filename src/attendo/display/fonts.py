"""What all matplotlib figures share: the fonts for a text, the characters that no font contains, and files.

The import of this module raises AttendoError if matplotlib is not installed.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from attendo.errors import AttendoError, install_command

try:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.font_manager import findfont, findSystemFonts, fontManager, get_font
except ImportError:
    raise AttendoError(f"pictures require matplotlib. Run: {install_command('plots')}") from None

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "DejaVu Sans"  # included in matplotlib
PREFERRED = (
    "Noto Sans CJK JP", "Noto Sans JP", "Source Han Sans JP", "Hiragino Sans", "Yu Gothic", "Meiryo",
    "IPAexGothic", "IPAPGothic", "IPAGothic", "TakaoPGothic", "VL PGothic", "WenQuanYi Zen Hei",
    "Droid Sans Fallback", "MS Gothic",
)  # fmt: skip
"""Fonts that are tried first for characters missing in the base font: Japanese sans-serif fonts with an even design."""
NEVER = ("last resort", "lastresort", "adobe blank", "unicode bmp fallback", "color emoji")
"""Fonts that claim to contain characters, but draw boxes or nothing."""

UPRIGHT = (400, "normal", "regular", "book")
"""The font weights that are suitable for labels."""


def fonts_for(text: str) -> tuple[list[str], set[str]]:
    """Return the font families for a text, in matplotlib's fallback order, and the characters that they contain."""
    wanted = set(text)
    chosen = [BASE]
    drawable = wanted & _characters(str(findfont(BASE)))
    for family, path in _others() if wanted - drawable else ():
        if found := (wanted - drawable) & _characters(path):
            chosen.append(family)
            drawable |= found
        if drawable == wanted:
            break
    return chosen, drawable


def drawn(text: str, drawable: Collection[str]) -> str:
    """Return the text with "?" in place of each character that no font contains.

    >>> drawn("a雨", "a")
    'a?'
    """
    return "".join(c if c in drawable else "?" for c in text)


def figure_bytes(figure: Figure, suffix: str, dots: float) -> bytes:
    """Return a figure as a .png or .svg file. Equal figures have equal bytes."""
    metadata = {"Software": None} if suffix == ".png" else {"Date": None, "Creator": "attendo"}
    file = io.BytesIO()
    FigureCanvasAgg(figure)
    with matplotlib.rc_context({"svg.hashsalt": "attendo"}):
        figure.savefig(file, format=suffix[1:], dpi=dots, metadata=metadata)
    return file.getvalue()


def _others() -> Iterator[tuple[str, str]]:
    """Yield all other font families and their files: preferred families first, then the others by name."""
    listed = {str(font.fname) for font in fontManager.ttflist}
    for path in findSystemFonts():
        if path not in listed:  # matplotlib's list is a cached file; fonts may have been added since
            try:
                fontManager.addfont(path)
            except (OSError, RuntimeError):
                continue  # not a readable font
    # without a normal weight, matplotlib uses another weight and logs a warning
    usable = {
        font.name: str(font.fname)
        for font in fontManager.ttflist
        if font.style == "normal"
        and font.weight in UPRIGHT
        and font.name != BASE
        and not any(bad in font.name.lower() for bad in NEVER)
    }
    rest = sorted(usable.keys() - set(PREFERRED), key=lambda name: ("sans" not in name.lower(), name))
    for name in (*PREFERRED, *rest):
        if name in usable:
            yield name, usable[name]


def _characters(path: str) -> set[str]:
    """Return the characters that a font contains."""
    try:
        font = get_font(path)
    except (OSError, RuntimeError):
        return set()
    if not font.scalable:  # a bitmap font, which matplotlib cannot use
        return set()
    return {chr(code) for code in font.get_charmap()}
