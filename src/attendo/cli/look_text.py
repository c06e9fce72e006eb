"""What `attendo look` prints of one text: the text, the answer and a map, or a table of the heads, or JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from attendo.cli.head_ranking import layer_names
from attendo.cli.look_steps import steps_lines
from attendo.cli.reporting import one_line
from attendo.display.tables import WIDTH, table_lines

if TYPE_CHECKING:
    from attendo.display.i18n import Language, Localized
    from attendo.microscope.attention_map import AttentionMap
    from attendo.microscope.steps import Steps
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
"""What stands above a column."""
MOST_LABELS = 4
MOST_TOKENS, LEAST, LONGEST = 5, 0.01, 16
"""Tokens without which a label is tried that are printed, the least change in nats, and the columns of a token."""
UNBROKEN = "\ue000"
"""Stands for a space at which no line is broken."""
MOST_WORK = 1e10
"""Of reading the text without each, in weights times tokens: some tenths of a second."""
MOST_COLUMNS = 4 * WIDTH
"""Of a text in a terminal; the rest is counted."""


def text_lines(
    view: View,
    stack: Stack | None,
    layer: int | None,
    head: int | None,
    language: Language,
    shows: Literal["map", "heads", "answer"] | Steps,
) -> list[str]:
    """Text, answer, what the edits change, and the map, the heads, a query's steps, or no more; in 80 columns."""
    from attendo.microscope.layers import attention_paths
    from attendo.microscope.terminal import map_text

    shown = view.map(stack)
    lines = _marked("  ", _plain(shown.text, language))
    lines += _marked("→ ", _plain(shown.answer, language))
    lines += [f"    {line}" for line in _facts(view, language)]
    lines += [f"    {line}" for line in _without_tokens(view, language)]
    if view.seen.note:
        lines += _marked("  ", f"({view.seen.note})")
    if shows == "answer":
        return lines
    if shows == "heads":
        return [*lines, "", *_heads_table(view, stack, layer, head, language)]
    if not isinstance(shows, str):
        layer = attention_paths(view.seen.model)[shown.stack].index(shows.path)
        return [*lines, "", *steps_lines(shows, shown.caption(layer, shows.head, language), language)]
    return [*lines, "", map_text(shown, WIDTH, layer, head, language, _one_head(shown, head, language))]


def _one_head(shown: AttentionMap, head: int | None, language: Language) -> str:
    """How one head is seen, where a map is the mean of several."""
    from attendo.display.i18n import Localized

    if head is not None or shown.weights.shape[1] == 1:
        return ""
    return Localized(". One head: --head 1", "。1 つのヘッド：--head 1").text(language)


def _marked(mark: str, text: str) -> list[str]:
    """A text behind its mark, in lines."""
    from attendo.display.width import isolated, wrapped

    first, *rest = wrapped(text, WIDTH - 5)
    return [f"  {mark}{isolated(first)}", *(f"    {isolated(line)}" for line in rest)]


def _plain(text: str, language: Language) -> str:
    """A text for a terminal: single spaces, what commands a screen as its code, and of a long text the beginning."""
    from attendo.display.i18n import Localized
    from attendo.display.width import fitted
    from attendo.microscope.attention_map import visible

    whole = " ".join(visible(word) for word in one_line(text).split())
    cut = fitted(whole, MOST_COLUMNS)
    if cut == whole:
        return whole
    left = len(whole) - len(cut) + 1  # the ellipsis is none of its characters
    return cut + Localized(f" ({left:,} more characters)", f"（ほか {left:,} 文字）").text(language)


def _facts(view: View, language: Language) -> list[str]:
    """How probable the answer is, and what the edits have changed."""
    from attendo.display.i18n import Localized
    from attendo.display.wrapping import flowed

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
    elif change is not None:
        text = _plain(change["text"], language)
        lines.append(_without(text, f"{change['log_prob']:.2f}").text(language))
        moved = Localized(f"by {change['total']:+.2f}", _moved(change["total"], 2))
        lines.append(_changed(Localized("log-probability", "対数確率"), text, moved, language))
    return [part for line in lines for part in flowed(line, WIDTH - 4)]


def _without(answer: str, probability: str) -> Localized:
    """What the model says as it is."""
    from attendo.display.i18n import Localized

    return Localized(
        f"without the changes: {answer} ({probability})", f"変更なしの場合：{answer}（{probability}）"
    )


def _changed(what: Localized, answer: str, moved: Localized, language: Language) -> str:
    """What becomes of that answer's probability when the changed model is made to give it; the answer cut to fit."""
    from attendo.display.i18n import Localized
    from attendo.display.width import columns, fitted

    def said(name: str) -> str:
        en = f"they change the {what.en} of {name} {moved.en}"
        return Localized(en, f"この変更で「{name}」の{what.ja}は{moved.ja}").text(language)

    return said(fitted(answer or "∅", WIDTH - 4 - columns(said(""))))


def _without_tokens(view: View, language: Language) -> list[str]:
    """By how much a label's log-probability changes without a token, of those that matter most; none if it is slow."""
    from attendo.display.i18n import Localized
    from attendo.display.width import fitted
    from attendo.display.wrapping import flowed
    from attendo.inference import Classifier
    from attendo.microscope.class_tokens import left_out

    seen = view.seen
    if not isinstance(seen.user, Classifier):
        return []
    gained = left_out(seen, seen.user, int(seen.logits.argmax()), MOST_WORK) or []
    order = sorted(range(len(gained)), key=lambda i: -abs(gained[i]))
    pieces = view.map().query_pieces
    found = [
        f"{fitted(_plain(pieces[i], language), LONGEST)}{UNBROKEN}{-gained[i]:+.2f}"
        for i in order[:MOST_TOKENS]
        if abs(gained[i]) >= LEAST
    ]
    if not found:
        return []
    listed = ", ".join(found)
    said = Localized(
        f"its log-probability changes without: {listed}", f"そのトークンを除くと対数確率が変わる：{listed}"
    )
    return [line.replace(UNBROKEN, " ") for line in flowed(said.text(language), WIDTH - 4)]


def _moved(change: float, digits: int, unit: str = "") -> str:
    """How far a number went up or down, in Japanese.

    >>> _moved(-2.134, 2), _moved(4.0, 1, " ポイント"), _moved(-0.001, 2)
    (' 2.13 下がる', ' 4.0 ポイント上がる', '変わらない')
    """
    if round(change, digits) == 0:
        return "変わらない"
    return f" {abs(change):.{digits}f}{unit or ' '}{'下がる' if change < 0 else '上がる'}"


def _probability(found: dict[str, Any]) -> Localized:
    """How probable an answer is, and of a masked language model what the answer is."""
    from attendo.display.i18n import Localized

    en, ja = f"log-probability {found['log_prob']:.2f}", f"対数確率 {found['log_prob']:.2f}"
    if "score" in found:
        return Localized(f"{en}, score {found['score']:.3f}", f"{ja}、スコア {found['score']:.3f}")
    n = found.get("filled")
    if n is None:
        return Localized(en, ja)
    if n == 0:
        return Localized(
            "the likeliest token at each place, since the text has no <mask> to fill in;"
            f" {en} of the text as it is",
            f"テキストに <mask> がないので、各位置で最も確率の高いトークン。元のテキストの{ja}",
        )
    what = "the token" if n == 1 else f"the {n} tokens"
    return Localized(f"{en} of {what} filled in", f"補った {n} トークンの{ja}")


def _heads_table(
    view: View, stack: Stack | None, layer: int | None, head: int | None, language: Language
) -> list[str]:
    """A row for each head; of those of a stack, a layer or a number if these are chosen."""
    from attendo.display.i18n import Localized
    from attendo.display.wrapping import flowed
    from attendo.microscope.layers import attention_paths

    stacks = attention_paths(view.seen.model)
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
        f"{names[path]}.1 is head 1 of {path}. entr: entropy in nats; max: largest weight; dist: tokens away, the mean."
        " Shares of the weight: prev: on the token before; next: on the next; 1st: on the first; diag: on the same"
        " place; dupl: on the same token elsewhere; induc: on the one behind an earlier same token"
        f"{'; align: near the diagonal' if 'alignment' in measures else ''}.",
        f"{names[path]}.1 は {path} のヘッド 1。entr：エントロピー（ナット）、max：最大の重み、"
        "dist：平均距離（トークン数）。残りは重みの割合で、prev：直前、next：直後、1st：先頭、diag：同じ位置、"
        "dupl：別の位置の同じトークン、induc：以前の同じトークンの次"
        f"{'、align：対角線の近く' if 'alignment' in measures else ''}。",
    )
    return [*table_lines(["", *measures.values()], cells), "", *flowed(said.text(language), WIDTH)]


def _measure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 99.5 else f"{value:.0f}"


def json_text(
    view: View, stack: Stack | None, layer: int | None, head: int | None, steps: Steps | None = None
) -> str:
    """All that --json tells; layers, heads and queries count from 0."""
    shown = view.map(stack)
    layer = shown.sharpest_layer if layer is None else layer
    weights = [[round(weight, 6) for weight in row] for row in shown.shown(layer, head).tolist()]
    facts = {
        "text": shown.text,
        "outcome": view.outcome,
        "change": view.change,
        "note": view.seen.note,
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
