"""The text output of `attendo look`: the model's output, a map or table, the steps of a query, JSON, or a ranking.

The option --over ranks the attention heads by their effect on the rows of a file.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from attendo.cli.options import DataFiles, FileScreen
from attendo.cli.reporting import one_line, say
from attendo.data.corpora import read_lines
from attendo.data.data_files import require_file
from attendo.data.row_report import RowReport
from attendo.display.i18n import Language, Localized, sentence
from attendo.display.tables import WIDTH, table_lines
from attendo.display.width import columns, fitted, flowed, isolated

if TYPE_CHECKING:
    from attendo.microscope.attention_map import KeyStep, Steps
    from attendo.microscope.effects import Importance
    from attendo.microscope.run_model import User
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
        lines += _marked("  ", sentence("look.note", note=view.result.note).text(language))
    if shows == "answer":
        return lines
    if shows == "heads":
        return [*lines, "", *_heads_table(view, stack, layer, head, language)]
    if not isinstance(shows, str):
        layer = attention_paths(view.result.model)[shown.stack].index(shows.path)
        return [*lines, "", *steps_lines(shows, shown.caption(layer, shows.head, language), language)]
    is_mean = head is None and shown.weights.shape[1] > 1
    hint = sentence("look.one_head").text(language) if is_mean else ""
    return [*lines, "", map_text(shown, WIDTH, layer, head, language, hint)]


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
    return cut + sentence("look.characters", left=left).text(language)


def _facts(view: View, language: Language) -> list[str]:
    """Return the lines on the probability of the answer and on the effect of the edits."""
    found, change, lines = view.outcome, view.change, []
    if "labels" in found:
        rest = found["labels"][1:MOST_LABELS]
        others = [f"{_plain(row['label'], language)} {row['probability']:.1%}" for row in rest]
        lines += [", ".join(others)] if others else []
    else:
        lines.append(_probability(found).text(language))
    if change is not None and "labels" in change:
        best = change["labels"][0]
        probability = f"{best['probability']:.1%}"
        lines += _changed(best["label"], probability, "points", 100 * change["total"], language)
    elif change is not None and "text" in change and "log_prob" in change:
        lines += _changed(change["text"], f"{change['log_prob']:.2f}", "nats", change["total"], language)
    return [part for line in lines for part in flowed(line, WIDTH - 4)]


def _changed(
    answer: str, probability: str, unit: Literal["points", "nats"], change: float, language: Language
) -> list[str]:
    """Return the answer without the edits, and how the edits change its probability. A long answer is truncated."""
    answer = _plain(answer, language)
    is_same = round(change, 1 if unit == "points" else 2) == 0
    direction = "same" if is_same else "lower" if change < 0 else "higher"
    said = partial(sentence, f"look.changed.{unit}.{direction}", change=change, size=abs(change))
    width = WIDTH - 4 - columns(said(name="").text(language))
    return [
        sentence("look.without", answer=answer, probability=probability).text(language),
        said(name=fitted(answer or "∅", width)).text(language),
    ]


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
    tokens = [(_plain(pieces[i], language), gained[i]) for i in order]
    ngrams = [(f"“{visible(each['ngram'])}”", each["delta"]) for each in found.get("ngrams", [])]
    lines = []
    for key, pairs in (("look.tokens", tokens), ("look.ngrams", ngrams)):
        listed = ", ".join(
            f"{fitted(name, LONGEST)}{UNBROKEN}{support:+.2f}"
            for name, support in pairs[:MOST_TOKENS]
            if abs(support) >= LEAST
        )
        said = sentence(key, share=found.get("ngrams_share", 0.0), listed=listed).text(language)
        lines += flowed(said, WIDTH - 4) if listed else []
    return [line.replace(UNBROKEN, " ") for line in lines]


def _probability(found: Mapping[str, Any]) -> Localized:
    """Return the probability of an answer. For a masked language model, also name the predicted tokens."""
    of_masked = {None: "", 0: ".unmasked", 1: ".token"}.get(found.get("filled"), ".tokens")
    return sentence(f"look.log_prob{'.score' if 'score' in found else of_masked}", **found)


def _heads_table(view: View, stack: Stack | None, layer: int | None, head: int | None, language: Language) -> list[str]:
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
        [f"{names[row['path']]}.{row['head'] + 1}", *(_measure(row.get(name)) for name in measures)] for row in rows
    ]
    path = rows[0]["path"]
    align = sentence("look.align") if "alignment" in measures else ""
    said = sentence("look.heads", name=names[path], path=path, align=align)
    return [*table_lines(["", *measures.values()], cells), "", *flowed(said.text(language), WIDTH)]


def _measure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 99.5 else f"{value:.0f}"


FIRST = 4
"""The number of elements of q and o that are printed."""

HEADS = ("key", "product", "bias", "score", "mask", "tempered", "exp", "weight")
"""The columns of the table of steps, whose headings are sentences of the display."""


def steps_lines(steps: Steps, caption: str, language: Language) -> list[str]:
    """Return the printed computation of one query: the caption, q, a row per key, and the formulas."""
    hidden = [5] if steps.beta == 1 or math.isinf(steps.beta) else []  # β·s
    hidden += [] if steps.biased else [2]
    size = len(str(len(steps.keys)))
    rows = [_row(n, size, key, steps, language) for n, key in enumerate(steps.keys, 1)]
    total = [sentence("look.steps.sum").text(language), "", "", "", "", "", _number(steps.sum)]
    rows.append([*total, _number(math.fsum(key.weight for key in steps.keys))])
    heads = [sentence(f"look.steps.{head}").text(language) for head in HEADS]
    shown = [[cell for i, cell in enumerate(row) if i not in hidden] for row in (heads, *rows)]
    top = [caption, _request(steps).text(language), _first("q", steps.q, language)]
    return [
        *(part for line in top for part in flowed(line, WIDTH)),
        "",
        *table_lines(shown[0], shown[1:]),
        "",
        *(part for line in _formulas(steps, language) for part in flowed(line, WIDTH)),
    ]


def _row(n: int, size: int, key: KeyStep, steps: Steps, language: Language) -> list[str]:
    mask = sentence("look.steps.masked" if key.masked else "look.steps.kept")
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


def _request(steps: Steps) -> Localized:
    """Return the number and the token of the query. For cross-attention, also return the token that is written."""
    n, piece = steps.query + 1, _label(steps.piece)
    if steps.written is None:
        return sentence("look.steps.query", n=n, piece=piece)
    return sentence("look.steps.cross_query", n=n, piece=piece, written=_label(steps.written))


def _formulas(steps: Steps, language: Language) -> list[str]:
    """Return the formulas between the columns, with the numbers of this query."""

    def said(name: str, **values: Any) -> str:
        return sentence(f"look.steps.{name}", **values).text(language)

    scale = _number(steps.scale)
    scaled = f"q·k × {scale}"
    if steps.scale_is_root:
        root = f"√{steps.head_dim}"
        scaled = f"q·k / {root}"
        scale = f"1/{root} = {scale}"
    top = f"({_number(steps.largest)})" if steps.largest < 0 else _number(steps.largest)
    power = f"exp(s - {top})"
    if math.isinf(steps.beta):
        power = said("hard")
    elif steps.beta != 1:
        power = f"exp(β·s - β·{top}), β = {steps.beta:g}"
    return [
        said("scores", scaled=scaled, added=said("plus_bias") if steps.biased else "", scale=scale),
        f"exp = {power}",
        f"α = exp / {_number(steps.sum)}",
        _first("o = Σ α v", steps.output, language),
        *([said("off")] if steps.off else []),
        said("numbers"),
    ]


def _first(name: str, vector: tuple[float, ...], language: Language) -> str:
    """Return the first elements of a vector, and the number of further elements."""
    first, left = ", ".join(map(_number, vector[:FIRST])), len(vector) - FIRST
    more = sentence("look.steps.more", left=left).text(language) if left > 0 else ""
    return f"{name} = {first}{more}"


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


def json_text(view: View, stack: Stack | None, layer: int | None, head: int | None, steps: Steps | None = None) -> str:
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


def rank(user: User, folder: Path, file: Path, alignments: Path | None, as_json: bool, language: Language) -> int:
    """Measure how the log-probability of a file changes when a single head is switched off, and print the ranking."""
    from attendo.inference import Translator
    from attendo.inference.batch_files import Progress
    from attendo.microscope.effects import importance
    from attendo.microscope.run_model import attention_paths

    if alignments is not None and not isinstance(user, Translator):
        raise typer.BadParameter("--alignments applies only to translation models. Leave it out")
    rows = _rows(user, folder, file, language)
    links = None if alignments is None else _links(alignments, rows)
    screen = FileScreen("rank.batches", language)
    try:
        found = importance(user, rows, links=links, say=lambda done, of: screen.show(Progress(done, of, 0, {})))
    finally:
        screen.line.clear()
    names = layer_names(attention_paths(user.model))
    if as_json:
        print(json.dumps(dataclasses.asdict(found)))
    else:
        print("\n".join(_ranking(user, found, names, language)))
    return 0


def _rows(user: User, folder: Path, file: Path, language: Language) -> list[Any]:
    """Return the usable rows of a file, read as in training, and print their number."""
    from attendo.cli.evaluate import pairs_of, warn_of_order
    from attendo.inference import Classifier, Translator

    require_file(file)
    match user:
        case Translator():
            numbered, row_report = pairs_of(folder, DataFiles([file]))
            rows: list[Any] = [(source, target) for _, source, target in numbered]
            warn_of_order(user.card.get("languages") or {}, rows, are_parallel=False)
        case Classifier():
            return labelled_rows(user, folder, file, language)
        case _:
            row_report = RowReport(str(file))
            rows = [line for _, line in read_lines(file, row_report=row_report)]
    say(row_report.line(language))
    return rows


def labelled_rows(user: User, folder: Path, file: Path, language: Language) -> list[tuple[str, str]]:
    """Return the texts and the labels of a file, and print their number. A classifier reads the columns of its run."""
    from attendo.data.labelled import LabelledSource, read_labelled
    from attendo.inference import Classifier
    from attendo.runs.settings import data_of

    is_classifier = isinstance(user, Classifier)
    source = data_of(user.task, folder).source(file) if is_classifier else LabelledSource(file)
    row_report = RowReport(source.name)
    rows = [(row.text, row.label) for row in read_labelled(source, row_report=row_report)]
    say(row_report.line(language))
    return rows


def _links(file: Path, rows: list[Any]) -> list[Any]:
    from attendo.inspecting.measures import parse_links

    lines = [line for _, line in read_lines(file, keep_empty=True)]
    lengths = [(len(source.split()), len(target.split())) for source, target in rows]
    return parse_links(lines, str(file), lengths)


def _ranking(user: User, found: Importance, names: dict[str, str], language: Language) -> list[str]:
    """Return the explanations of the numbers, and the table of heads."""
    from attendo.runs.task_specs import family_of

    has_errors = any(head.alignment_error is not None for head in found.heads)
    rows: list[list[str | float]] = []
    for head in found.heads:
        name = f"{names[head.path]}.{head.head + 1}"
        effect = f"{head.effect:+.4f} ± {head.standard_error:.4f}"
        error = "" if head.alignment_error is None else f"{head.alignment_error:.3f}"
        rows.append([name, effect, *([error] if has_errors else []), head.path])
    heads = ["head", "change", *(["aer"] if has_errors else []), "path"]
    names_of_columns = [sentence(f"rank.head.{name}").text(language) for name in heads]
    first = f"{found.heads[0].path}:{found.heads[0].head + 1}"
    of = family_of(user.task).predicted
    legend = [sentence("rank.whole", of=of, log_prob=found.log_prob, n=found.n_rows), sentence("rank.change")]
    legend += [sentence("rank.errors")] if has_errors else []
    legend += [sentence("rank.cut", n=found.n_cut)] if found.n_cut else []
    legend.append(sentence("rank.off", name=rows[0][0], off=first))
    text = "\n".join(one.text(language) for one in legend)
    return [*flowed(text, WIDTH), "", *table_lines(names_of_columns, rows)]


def layer_names(stacks: dict[str, list[str]]) -> dict[str, str]:
    """Return the short name of each attention layer: the name of the stack, and the layer's number in the stack.

    >>> layer_names({"cross": ["decoder.blocks.0.cross_attention"]})
    {'decoder.blocks.0.cross_attention': 'cross 1'}
    """
    return {path: f"{stack} {n}" for stack, paths in stacks.items() for n, path in enumerate(paths, 1)}
