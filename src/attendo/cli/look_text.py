"""The text output of `attendo look`: the model's output, a map or table, the steps of a query, or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from attendo.cli.head_ranking import layer_names
from attendo.cli.reporting import one_line
from attendo.display.i18n import Language, Localized
from attendo.display.tables import WIDTH, table_lines
from attendo.display.width import columns, fitted, flowed, isolated

if TYPE_CHECKING:
    from attendo.microscope.attention_map import AttentionMap, KeyStep, Steps
    from attendo.microscope.view import View


Stack = Literal["encoder", "decoder", "cross"]

SHORT = {
    "entropy": "entr",
    "maximum": "max",
    "distance": "dist",
    "previous": "prev",
    "next": "next",
    "first": "1st",
    "diagonal": "diag",
    "duplicate": "dupl",
    "induction": "induc",
    "alignment": "align",
}
"""The heading of the column of each measure."""

MOST_LABELS = 4

MOST_TOKENS, LEAST, LONGEST = 5, 0.01, 16
"""The maximum number of printed tokens, the smallest printed change in nats, and the width of a token in columns."""

UNBROKEN = "\ue000"
"""A placeholder for a space at which no line is broken."""

MOST_WORK = 1e10
"""The maximum work of reading the text once without each token, in weights x tokens: some tenths of a second."""

MOST_COLUMNS = 4 * WIDTH
"""The maximum number of columns of a text in the terminal. The number of further characters is printed."""


def text_lines(
    view: View,
    stack: Stack | None,
    layer: int | None,
    head: int | None,
    language: Language,
    shows: Literal["map", "heads", "answer"] | Steps,
) -> list[str]:
    """Return the lines that `attendo look` prints, in 80 columns.

    They are the text, the model's output, the effect of the edits, and what `shows` names: the attention map, the table
    of heads, the steps of a query, or nothing more ("answer"). The defaults of stack, layer and head (from 0) are the
    last stack, the layer with the sharpest attention, and the mean over all heads.
    """
    from attendo.microscope.attention_map import map_text
    from attendo.microscope.run_model import attention_paths

    shown = view.map(stack)
    lines = _marked("  ", _plain(shown.text, language))
    lines += _marked("→ ", _plain(shown.answer, language))
    lines += [f"    {line}" for line in _facts(view, language)]
    lines += [f"    {line}" for line in _label_reasons(view, language)]
    if view.result.note:
        note = view.result.note
        lines += _marked("  ", Localized(f"({note.en})", f"（{note.ja}）").text(language))
    if shows == "answer":
        return lines
    if shows == "heads":
        return [*lines, "", *_heads_table(view, stack, layer, head, language)]
    if not isinstance(shows, str):
        layer = attention_paths(view.result.model)[shown.stack].index(shows.path)
        return [*lines, "", *steps_lines(shows, shown.caption(layer, shows.head, language), language)]
    return [*lines, "", map_text(shown, WIDTH, layer, head, language, _one_head(shown, head, language))]


def _one_head(shown: AttentionMap, head: int | None, language: Language) -> str:
    """Return the hint on --head if the map is the mean of several heads."""
    if head is not None or shown.weights.shape[1] == 1:
        return ""
    return Localized(". One head: --head 1", "。1 つのヘッド：--head 1").text(language)


def _marked(mark: str, text: str) -> list[str]:
    """Return the lines of a text after its mark."""
    first, *rest = flowed(text, WIDTH - 5)
    return [f"  {mark}{isolated(first)}", *(f"    {isolated(line)}" for line in rest)]


def _plain(text: str, language: Language) -> str:
    """Return a text for the terminal: with single spaces, escaped control characters, and truncated if it is long."""
    from attendo.microscope.attention_map import visible

    whole = " ".join(visible(word) for word in one_line(text).split())
    cut = fitted(whole, MOST_COLUMNS)
    if cut == whole:
        return whole
    left = len(whole) - len(cut) + 1  # the ellipsis is not part of the text
    return cut + Localized(f" ({left:,} more characters)", f"（ほか {left:,} 文字）").text(language)


def _facts(view: View, language: Language) -> list[str]:
    """Return the lines on the probability of the answer and on the effect of the edits."""
    found, change, lines = view.outcome, view.change, []
    if "labels" in found:
        others = [
            f"{_plain(row['label'], language)} {row['probability']:.1%}"
            for row in found["labels"][1:MOST_LABELS]
        ]
        lines += [", ".join(others)] if others else []
    else:
        lines.append(_probability(found).text(language))
    if change is not None and "labels" in change:
        best = change["labels"][0]
        label, points = _plain(best["label"], language), 100 * change["total"]
        lines.append(_without(label, f"{best['probability']:.1%}").text(language))
        moved = Localized(f"by {points:+.1f} points", _moved(points, 1, " ポイント"))
        lines.append(_changed(Localized("probability", "確率"), label, moved, language))
    elif change is not None and "text" in change and "log_prob" in change:
        text = _plain(change["text"], language)
        lines.append(_without(text, f"{change['log_prob']:.2f}").text(language))
        moved = Localized(f"by {change['total']:+.2f}", _moved(change["total"], 2))
        lines.append(_changed(Localized("log-probability", "対数確率"), text, moved, language))
    return [part for line in lines for part in flowed(line, WIDTH - 4)]


def _without(answer: str, probability: str) -> Localized:
    """Return the answer of the model without the edits."""
    return Localized(
        f"without the changes: {answer} ({probability})", f"変更なしの場合：{answer}（{probability}）"
    )


def _changed(what: Localized, answer: str, moved: Localized, language: Language) -> str:
    """Return how the edits change the probability of the original answer. A long answer is truncated."""

    def said(name: str) -> str:
        en = f"they change the {what.en} of {name} {moved.en}"
        return Localized(en, f"この変更で「{name}」の{what.ja}は{moved.ja}").text(language)

    return said(fitted(answer or "∅", WIDTH - 4 - columns(said(""))))


def _label_reasons(view: View, language: Language) -> list[str]:
    """Return the tokens whose removal changes a label's log-probability most, and the n-grams that count most.

    As on the page, a token or n-gram above 0 supports the label. The tokens are left out if their removal takes too
    long.
    """
    from attendo.inference import Classifier
    from attendo.microscope.answers import outcome
    from attendo.microscope.attention_map import visible
    from attendo.microscope.effects import left_out

    result = view.result
    if not isinstance(result.user, Classifier):
        return []
    gained = left_out(result, result.user, result.label, MOST_WORK) or []
    order = sorted(range(len(gained)), key=lambda i: -abs(gained[i]))
    pieces = view.map().query_pieces
    found = outcome(result)
    share = f"{found.get('ngrams_share', 0.0):.0%}"
    tokens = [(_plain(pieces[i], language), gained[i]) for i in order]
    ngrams = [(f"“{visible(each['ngram'])}”", each["delta"]) for each in found.get("ngrams", [])]
    lines = []
    for en, ja, pairs in (
        (
            "log-probability with minus without a token:",
            "トークンがあるときの対数確率 − ないときの対数確率：",
            tokens,
        ),
        (f"n-grams ({share} of the decision):", f"n-gram（判定の {share}）：", ngrams),
    ):
        listed = ", ".join(
            f"{fitted(name, LONGEST)}{UNBROKEN}{support:+.2f}"
            for name, support in pairs[:MOST_TOKENS]
            if abs(support) >= LEAST
        )
        said = Localized(f"{en} {listed}", f"{ja}{listed}").text(language)
        lines += flowed(said, WIDTH - 4) if listed else []
    return [line.replace(UNBROKEN, " ") for line in lines]


def _moved(change: float, digits: int, unit: str = "") -> str:
    """Return in Japanese by how much a number increased or decreased.

    >>> _moved(-2.134, 2), _moved(4.0, 1, " ポイント"), _moved(-0.001, 2)
    (' 2.13 下がる', ' 4.0 ポイント上がる', '変わらない')
    """
    if round(change, digits) == 0:
        return "変わらない"
    return f" {abs(change):.{digits}f}{unit or ' '}{'下がる' if change < 0 else '上がる'}"


def _probability(found: Mapping[str, Any]) -> Localized:
    """Return the probability of an answer. For a masked language model, also name the predicted tokens."""
    en, ja = f"log-probability {found['log_prob']:.2f}", f"対数確率 {found['log_prob']:.2f}"
    if "score" in found:
        return Localized(f"{en}, score {found['score']:.3f}", f"{ja}、スコア {found['score']:.3f}")
    n = found.get("filled")
    if n is None:
        return Localized(en, ja)
    if n == 0:
        return Localized(
            f"the most likely token at each position, because the text has no <mask>; {en} of the text",
            f"テキストに <mask> がないので、各位置で最も確率の高いトークン。元のテキストの{ja}",
        )
    what = "the token" if n == 1 else f"the {n} tokens"
    return Localized(f"{en} of {what} predicted", f"補った {n} トークンの{ja}")


def _heads_table(
    view: View, stack: Stack | None, layer: int | None, head: int | None, language: Language
) -> list[str]:
    """Return the table of attention heads, filtered by stack, layer and head number if these are given."""
    from attendo.microscope.run_model import attention_paths

    stacks = attention_paths(view.result.model)
    names = layer_names(stacks)
    chosen = [
        path
        for name, paths in stacks.items()
        for number, path in enumerate(paths)
        if stack in (None, name) and layer in (None, number)
    ]
    rows = [row for row in view.heads() if row["path"] in chosen and head in (None, row["head"])]
    if not rows:
        view.map(stack).shown(layer, head)  # raises
    measures = {name: short for name, short in SHORT.items() if any(name in row for row in rows)}
    cells: list[list[str | float]] = [
        [f"{names[row['path']]}.{row['head'] + 1}", *(_measure(row.get(name)) for name in measures)]
        for row in rows
    ]
    path = rows[0]["path"]
    said = Localized(
        f"{names[path]}.1 is head 1 of {path}. entr: entropy in nats; max: largest weight; dist: mean distance in"
        " tokens. Shares of the weight: prev: on the previous token; next: on the next; 1st: on the first; diag: on the"
        " same position; dupl: on the same token elsewhere; induc: on the token after an earlier occurrence"
        f"{'; align: near the diagonal' if 'alignment' in measures else ''}.",
        f"{names[path]}.1 は {path} のヘッド 1。entr：エントロピー（ナット）、max：最大の重み、"
        "dist：平均距離（トークン数）。残りは重みの割合で、prev：直前、next：直後、1st：先頭、diag：同じ位置、"
        "dupl：別の位置の同じトークン、induc：以前の同じトークンの次"
        f"{'、align：対角線の近く' if 'alignment' in measures else ''}。",
    )
    return [*table_lines(["", *measures.values()], cells), "", *flowed(said.text(language), WIDTH)]


def _measure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 99.5 else f"{value:.0f}"


FIRST = 4
"""The number of elements of q and o that are printed."""

HEADS = (
    Localized("key", "キー"),
    Localized("q·k", "q·k"),
    Localized("bias", "バイアス"),
    Localized("score s", "スコア s"),
    Localized("mask", "マスク"),
    Localized("β·s", "β·s"),
    Localized("exp", "exp"),
    Localized("weight α", "重み α"),
)


def steps_lines(steps: Steps, caption: str, language: Language) -> list[str]:
    """Return the printed computation of one query: the caption, q, a row per key, and the formulas."""
    hidden = [5] if steps.beta == 1 or math.isinf(steps.beta) else []  # β·s
    hidden += [] if steps.biased else [2]
    size = len(str(len(steps.keys)))
    rows = [_row(n, size, key, steps, language) for n, key in enumerate(steps.keys, 1)]
    total = [Localized("sum", "和").text(language), "", "", "", "", "", _number(steps.sum)]
    rows.append([*total, _number(math.fsum(key.weight for key in steps.keys))])
    heads = [head.text(language) for head in HEADS]
    shown = [[cell for i, cell in enumerate(row) if i not in hidden] for row in (heads, *rows)]
    said = [words.text(language) for words in _said(steps)]
    asks = (_requests(steps), _first("q", steps.q))
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
        f" {n:>{size}} {_label(key.piece)}",  # a cell that begins with a digit would be right-aligned
        _number(key.product),
        _number(key.score - key.product * steps.scale),
        _number(key.score),
        mask.text(language),
        "-∞" if key.masked else _number(steps.beta * key.score),
        _number(key.power),
        _number(key.weight),
    ]


def _requests(steps: Steps) -> Localized:
    """Return the number and the token of the query. For cross-attention, also return the token that is written."""
    n, piece = steps.query + 1, _label(steps.piece)
    if steps.written is None:
        return Localized(f"Query {n}: {piece}", f"クエリ {n}：{piece}")
    written = _label(steps.written)
    return Localized(
        f"Query {n}: reads {piece}, writes {written}", f"クエリ {n}：入力は {piece}、出力は {written}"
    )


def _said(steps: Steps) -> list[Localized]:
    """Return the formulas between the columns, with the numbers of this query."""
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
    """Return the first elements of a vector, and the number of further elements."""
    first, left = ", ".join(map(_number, vector[:FIRST])), len(vector) - FIRST
    more = Localized(f", and {left} more", f"、ほか {left} 個") if left > 0 else Localized("", "")
    return Localized(f"{name} = {first}{more.en}", f"{name} = {first}{more.ja}")


def _number(x: float) -> str:
    """Return a number with four decimal places, as on the page.

    >>> _number(-0.00001), _number(float("-inf"))
    ('0.0000', '-∞')
    """
    if math.isinf(x):
        return "∞" if x > 0 else "-∞"
    text = f"{x:.4f}"
    return text.replace("-", "") if float(text) == 0 else text


def _label(piece: str) -> str:
    from attendo.microscope.attention_map import visible

    return isolated(fitted(visible(piece), LONGEST))


def json_text(
    view: View, stack: Stack | None, layer: int | None, head: int | None, steps: Steps | None = None
) -> str:
    """Return the output of --json, in which the numbers of layers, heads and queries begin at 0."""
    shown = view.map(stack)
    layer = shown.sharpest_layer if layer is None else layer
    weights = [[round(weight, 6) for weight in row] for row in shown.shown(layer, head).tolist()]
    facts = {
        "text": shown.text,
        "outcome": view.outcome,
        "change": view.change,
        "note": view.result.note.en if view.result.note else "",
        "map": {
            "stack": shown.stack,
            "layer": layer,
            "head": head,
            "queries": shown.query_pieces,
            "keys": shown.key_pieces,
            "weights": weights,
        },
        "heads": view.heads(),
        "steps": None if steps is None else steps.as_json(),
    }
    return json.dumps(facts, ensure_ascii=False)
