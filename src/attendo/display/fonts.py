"""The installed fonts that matplotlib needs for a text, and characters that no font has.

Besides `pictures.py`, only this file imports matplotlib, which `pictures.py` requires first.
"""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.font_manager import findfont, findSystemFonts, fontManager, get_font

BASE = "DejaVu Sans"  # comes with matplotlib
PREFERRED = (
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
NEVER = ("last resort", "lastresort", "adobe blank", "unicode bmp fallback", "color emoji")
"""Fonts that claim characters and draw a box or nothing for them."""

UPRIGHT = (400, "normal", "regular", "book")
"""The weights that labels have."""


def fonts_for(text: str) -> tuple[list[str], set[str]]:
    """Return the font families for a text, in matplotlib's order of fallback, and the characters that they have."""
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


def _others() -> Iterator[tuple[str, str]]:
    """Font families besides the base one and their files: preferred ones first, then by name."""
    listed = {str(font.fname) for font in fontManager.ttflist}
    for path in findSystemFonts():
        if path not in listed:  # matplotlib's list is a file that was made once; fonts may have come since
            try:
                fontManager.addfont(path)
            except (OSError, RuntimeError):
                continue  # not a font that can be read
    # without a normal weight, matplotlib takes another and logs a complaint
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
    """The characters of a font."""
    try:
        font = get_font(path)
    except (OSError, RuntimeError):
        return set()
    if not font.scalable:  # pictures of characters at one size, which matplotlib can't set
        return set()
    return {chr(code) for code in font.get_charmap()}
