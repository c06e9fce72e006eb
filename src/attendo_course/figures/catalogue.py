"""The figures by name, with a line about each; nothing heavy is imported, so that a list of them is quick."""

from __future__ import annotations

from difflib import get_close_matches

from attendo.display.i18n import Localized
from attendo.errors import AttendoError

FIGURES = {
    "position-heatmap": Localized(
        "sinusoidal positional encoding as a heat map, 64 positions by 128 dimensions",
        "正弦波位置符号化のヒートマップ（64 位置 × 128 次元）",
    ),
    "position-curves": Localized(
        "five encoding dimensions as curves: the formula and what a plot of it drew",
        "位置符号化の 5 つの次元の曲線：式のとおりと、図に描かれたもの",
    ),
    "position-products": Localized(
        "dot products of position vectors by distance, and where they first rise",
        "位置ベクトルどうしの内積：距離による変化と、初めて増える距離",
    ),
    "temperature": Localized(
        "attention weights against inverse temperature, from soft to hard",
        "逆温度とアテンションの重み：ソフトからハードまで",
    ),
    "entropy": Localized(
        "entropy of attention by dimension, with and without 1/√d",
        "次元とアテンションの重みのエントロピー：1/√d のある場合とない場合",
    ),
    "noam": Localized(
        "learning rate by step: linear warm-up, then inverse square root",
        "ステップごとの学習率：線形ウォームアップと逆平方根の減衰",
    ),
    "model": Localized(
        "block diagram of a model, with shapes and parameter counts",
        "モデルのブロック図：テンソルの形とパラメータ数つき",
    ),
}
"""What `draw` knows, in the order of a lesson."""


def require_known(name: str) -> None:
    """Raises AttendoError for a figure that is not there, with the nearest names.

    >>> require_known("noam")
    """
    if name in FIGURES:
        return
    near = get_close_matches(name, FIGURES, n=3, cutoff=0.4)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(FIGURES)}"
    raise AttendoError(f"no figure is called {name!r}; {remedy}")
