"""What `attendo look --query` prints: one query's way from q·k to the weights, and the sum that the head passes on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attendo.display.i18n import Language, Localized
from attendo.display.tables import WIDTH, table_lines

if TYPE_CHECKING:
    from attendo.microscope.steps import KeyStep, Steps

LONGEST = 16
"""Columns of a token."""
FIRST = 4
"""Numbers of q and o that are shown."""
HEADS = (
    Localized("key", "キー"),
    Localized("q·k", "q·k"),
    Localized("score s", "スコア s"),
    Localized("mask", "マスク"),
    Localized("β·s", "β·s"),
    Localized("exp", "exp"),
    Localized("weight α", "重み α"),
)


def steps_lines(steps: Steps, caption: str, language: Language) -> list[str]:
    """The table of the keys under the head's caption, the query and q; below it scale, largest score, sum and o."""
    from attendo.display.wrapping import flowed

    hidden = (4,) if steps.beta == 1 or math.isinf(steps.beta) else ()  # β·s
    size = len(str(len(steps.keys)))
    rows = [_row(n, size, key, steps, language) for n, key in enumerate(steps.keys, 1)]
    total = [Localized("sum", "和").text(language), "", "", "", "", _number(steps.sum)]
    rows.append([*total, _number(math.fsum(key.weight for key in steps.keys))])
    heads = [head.text(language) for head in HEADS]
    shown = [[cell for i, cell in enumerate(row) if i not in hidden] for row in (heads, *rows)]
    said = [words.text(language) for words in _said(steps)]
    asks = (_asks(steps), _first("q", steps.q))
    top = [caption, *(words.text(language) for words in asks)]
    table = table_lines(shown[0], shown[1:])
    return [
        *(part for line in top for part in flowed(line, WIDTH)),
        "",
        *table,
        "",
        *(part for line in said for part in flowed(line, WIDTH)),
    ]


def _row(n: int, size: int, key: KeyStep, steps: Steps, language: Language) -> list[str]:
    mask = Localized("masked", "マスク") if key.masked else Localized("kept", "可")
    return [
        f" {n:>{size}} {_label(key.piece)}",  # what begins with a digit would stand to the right
        _number(key.product),
        _number(key.score),
        mask.text(language),
        "-∞" if key.masked else _number(steps.beta * key.score),
        _number(key.power),
        _number(key.weight),
    ]


def _asks(steps: Steps) -> Localized:
    """Which query it is: its number in the map, what it reads, and in cross-attention what it writes."""
    n, piece = steps.query + 1, _label(steps.piece)
    if steps.written is None:
        return Localized(f"Query {n}: {piece}", f"クエリ {n}：{piece}")
    written = _label(steps.written)
    return Localized(
        f"Query {n}: reads {piece}, writes {written}", f"クエリ {n}：入力は {piece}、出力は {written}"
    )


def _said(steps: Steps) -> list[Localized]:
    """How the columns follow from each other, with this row's numbers."""
    scale, added = (
        _number(steps.scale),
        Localized(" + bias", " + バイアス") if steps.biased else Localized("", ""),
    )
    root = f"√{steps.head_dim}"
    scaled, scale = (
        (f"q·k / {root}", f"1/{root} = {scale}") if steps.scale_is_root else (f"q·k × {scale}", scale)
    )
    top = _number(steps.largest)
    top = f"({top})" if steps.largest < 0 else top
    power = Localized(f"exp(s - {top})", f"exp(s - {top})")
    if math.isinf(steps.beta):
        power = Localized("1 at the largest score (β = ∞)", "スコアが最大のキーで 1（β = ∞）")
    elif steps.beta != 1:
        text = f"exp(β·s - β·{top}), β = {steps.beta:g}"
        power = Localized(text, text)
    total = _number(steps.sum)
    said = [
        Localized(f"s = {scaled}{added.en}; scale {scale}", f"s = {scaled}{added.ja}。スケール {scale}"),
        Localized(f"exp = {power.en}", f"exp = {power.ja}"),
        Localized(f"α = exp / {total}", f"α = exp / {total}"),
        _first("o = Σ α v", steps.output),
    ]
    if steps.off:
        said.append(
            Localized("This head is switched off: o is replaced.", "このヘッドはオフで、o は置き換えられる。")
        )
    said.append(Localized("All numbers of q, k, v and o: --json", "q、k、v、o のすべての数値：--json"))
    return said


def _first(name: str, vector: tuple[float, ...]) -> Localized:
    """A vector's first numbers, and how many are left out."""
    first, left = ", ".join(map(_number, vector[:FIRST])), len(vector) - FIRST
    more = Localized(f", and {left} more", f"、ほか {left} 個") if left > 0 else Localized("", "")
    return Localized(f"{name} = {first}{more.en}", f"{name} = {first}{more.ja}")


def _number(x: float) -> str:
    """Four places, as the page has them.

    >>> _number(-0.00001), _number(float("-inf"))
    ('0.0000', '-∞')
    """
    if math.isinf(x):
        return "∞" if x > 0 else "-∞"
    text = f"{x:.4f}"
    return text.replace("-", "") if float(text) == 0 else text


def _label(piece: str) -> str:
    from attendo.display.width import fitted, isolated
    from attendo.microscope.attention_map import visible

    return isolated(fitted(visible(piece), LONGEST))
