"""`attendo look --over`: the ranking of the attention heads by their effect on the rows of a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attendo.cli.options import DataFiles, FileScreen
from attendo.cli.reporting import say
from attendo.data.corpora import read_lines
from attendo.data.data_files import require_file
from attendo.data.row_report import RowReport
from attendo.display.i18n import Localized, sentence
from attendo.display.tables import WIDTH, table_lines
from attendo.display.width import flowed

if TYPE_CHECKING:
    from attendo.display.i18n import Language
    from attendo.microscope.effects import Importance
    from attendo.microscope.run_model import User


def rank(
    user: User, folder: Path, file: Path, alignments: Path | None, as_json: bool, language: Language
) -> int:
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
        found = importance(
            user, rows, links=links, say=lambda done, of: screen.show(Progress(done, of, 0, {}))
        )
    finally:
        screen.line.clear()
    names = layer_names(attention_paths(user.model))
    print(
        json.dumps(dataclasses.asdict(found))
        if as_json
        else "\n".join(_ranking(user, found, names, language))
    )
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
    has_errors = any(head.alignment_error is not None for head in found.heads)
    rows: list[list[str | float]] = []
    for head in found.heads:
        effect = f"{head.effect:+.4f} ± {head.standard_error:.4f}"
        error = "" if head.alignment_error is None else f"{head.alignment_error:.3f}"
        rows.append(
            [f"{names[head.path]}.{head.head + 1}", effect, *([error] if has_errors else []), head.path]
        )
    heads = ["head", "change", *(["aer"] if has_errors else []), "path"]
    columns = [sentence(f"rank.head.{name}").text(language) for name in heads]
    first = f"{found.heads[0].path}:{found.heads[0].head + 1}"
    legend = [*_legend(user, found, has_errors), sentence("rank.off", name=rows[0][0], off=first)]
    text = "\n".join(one.text(language) for one in legend)
    return [*flowed(text, WIDTH), "", *table_lines(columns, rows)]


def _legend(user: User, found: Importance, has_errors: bool) -> list[Localized]:
    """Return the explanations of the numbers in the table."""
    from attendo.runs.task_specs import family_of

    of = family_of(user.task).predicted
    entries = [
        sentence("rank.whole", of=of, log_prob=found.log_prob, n=found.n_rows),
        sentence("rank.change"),
    ]
    entries += [sentence("rank.errors")] if has_errors else []
    entries += [sentence("rank.cut", n=found.n_cut)] if found.n_cut else []
    return entries


def layer_names(stacks: dict[str, list[str]]) -> dict[str, str]:
    """Return the short name of each attention layer: the name of the stack, and the layer's number in the stack.

    >>> layer_names({"cross": ["decoder.blocks.0.cross_attention"]})
    {'decoder.blocks.0.cross_attention': 'cross 1'}
    """
    return {path: f"{stack} {n}" for stack, paths in stacks.items() for n, path in enumerate(paths, 1)}
