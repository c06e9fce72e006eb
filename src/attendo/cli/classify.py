"""The command `attendo classify`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from attendo.cli import options as opt
from attendo.cli.reporting import Counter, lines_given, one_line, refuse_file_name, say, wrote
from attendo.data.corpora import parse_columns, parse_kept, read_lines, read_with_kept
from attendo.data.data_files import require_file
from attendo.data.row_report import RowReport

if TYPE_CHECKING:
    from attendo.inference.label_model import LabelModel

Row = tuple[int, tuple[str, ...]]
"""The number of a row or line, its text, and the columns to keep."""


@opt.with_groups
def classify(
    *,
    folder: opt.Folder,
    texts: opt.Texts = None,
    source: Path | None = opt.option("F", "Input table, or .txt file with one text per line.", "--input"),
    out: Path | None = opt.option(
        "G", "Output table with the labels: .csv, .tsv, .jsonl, .parquet or .xlsx.", "--output"
    ),
    columns: str | None = opt.option(
        "C",
        "Text column of --input, for example text=body or 2 (default: as in training).",
        "--columns",
        "--column",
    ),
    keep: str | None = opt.option("C", "Columns of --input to copy to --output, for example id,opened."),
    header: opt.Header = None,
    threshold: str | None = opt.option(
        "T", "Lowest probability of a label: a number, or LABEL=NUMBER,... (default: stored thresholds)."
    ),
    as_json: opt.JsonLines = False,
    machine: opt.Machine,
) -> int:
    """Classify texts, the lines of stdin, or the rows of a table, or find the spans in them.

    The command prints one line per text: the label, a tab and the probability of the label. The probabilities are
    calibrated on the validation set. For an empty line, the command prints only the tab. If no label reaches its
    threshold (see `attendo thresholds`), the label is empty, and the probability is that of the most probable label.

    For several labels per text, the command prints each label with its probability, separated by tabs. For a number, it
    prints the number and the ends of the interval that contains it with probability 0.8. If the model reads pairs of
    texts, write a tab between the first and the second text.

    For a tagger, the command prints the spans of each text in one line, separated by tabs. A span is printed with its
    label, its start and end in characters from 0, its probability and its text. The output table has the column spans,
    a JSON list. A .jsonl output table can be used as training data.

    --input reads .csv, .tsv, .jsonl, .parquet and .xlsx files, which can also end in .gz. The output table has one row
    per input row, in the same order. The first columns are the input columns selected by --keep (by name, or by number
    from 1). The other columns are the line number, the label, the probability and the text. The label is empty if a row
    has no text or cannot be read. With --json instead of --output, the command prints one JSON object per input row:
    the line number, the columns of --keep, and the answer with the probabilities of all labels.

    Example: attendo classify runs/mine "what a lovely film"

    Example: attendo classify runs/mine --input new.csv --output labels.csv --columns text=body --keep id,opened

    Example: attendo classify runs/mine --input new.csv --json
    """
    if as_json and source is not None:
        opt.refuse("--json", {"--output": out is not None})
        opt.refuse("--input", {"TEXT": bool(texts)})
        files = source, None
    else:
        files = opt.both_files(source, out, bool(texts), has_rows=True)
    loaded = partial(_loaded, folder, machine, threshold)
    refuse_file_name(texts, "use < FILE, or --input FILE --output G")
    if files:
        return _classify_file(folder, *files, columns, keep, header, loaded)
    opt.refuse_if(
        (columns, keep, header) != (None, None, None), "--columns, --keep and --header require --input"
    )
    chunks = ([(n, (text,)) for n, text in enumerate(part, number)] for number, part in lines_given(texts))
    _print_answers(loaded(), chunks, (), as_json)
    return 0


def _print_answers(
    classifier: LabelModel, chunks: Iterable[list[Row]], kept: tuple[str, ...], as_json: bool
) -> None:
    """Print one line per row. A JSON object contains the columns `kept`, which follow the text of a row."""
    counter = Counter("lines")
    n_cut = n_done = 0
    for chunk in chunks:
        answers = classifier.classify([fields[0] for _, fields in chunk])
        for (line, (_, *own)), found in zip(chunk, answers, strict=True):
            n_cut += found.cut
            if as_json:
                values = dict(zip(kept, own, strict=True))
                print(json.dumps({"line": line} | values | found.as_json(), ensure_ascii=False))
            else:
                print(one_line(found.line))
        sys.stdout.flush()
        n_done += len(chunk)
        counter.show(n_done)
    counter.clear()
    if n_cut:
        say(classifier.long_texts.summary(n_cut, n_done))


def _loaded(folder: Path, machine: opt.Machine, threshold: str | None) -> LabelModel:
    """Return the model of a run, with other thresholds than the stored ones if they are given."""
    from attendo.bundle import load_bundle
    from attendo.inference import Classifier, MultiLabelClassifier, Regressor, Tagger
    from attendo.inference.decisions import parse_thresholds

    kinds = {kind.task: kind for kind in (Classifier, MultiLabelClassifier, Regressor, Tagger)}
    task = load_bundle(folder).card.get("task", "")
    user = kinds.get(task, Classifier).load(folder, machine.chosen())
    if threshold is None:
        return user
    opt.refuse_if(
        task in (Tagger.task, Regressor.task), f"--threshold does not apply to {task}. Leave it out"
    )
    chosen = parse_thresholds(threshold, tuple(user.counts))
    return replace(user, card={**user.card, "thresholds": chosen})


def _classify_file(
    folder: Path,
    source: Path,
    out: Path | None,
    columns: str | None,
    keep: str | None,
    header: bool | None,
    loaded: Callable[[], LabelModel],
) -> int:
    """Classify the texts of a table, or without `out`, print JSON. The default columns are those of training."""
    from attendo.inference.label_model import CHUNK, classify_table
    from attendo.inference.tables import check_table
    from attendo.runs.task_specs import family_of

    require_file(source)
    if out is not None:
        check_table(out, "--output")
    classifier = loaded()
    taken = (
        "line",
        *classifier.heads,
        "text",
        *(("probabilities", "n_tokens", "cut") if out is None else ()),
    )
    kept = () if keep is None else parse_kept(keep, taken)
    row_report = RowReport(str(source))
    counter = Counter("rows")
    roles = family_of(classifier.task).data.form.roles
    rows = rows_of(source, folder, columns, kept, header, row_report, roles)
    if out is None:
        _print_answers(classifier, iter(lambda: list(islice(rows, CHUNK)), []), kept, as_json=True)
        say(row_report.line())
        return 0
    n_done, n_cut = classify_table(classifier, rows, out, counter.show, kept)
    counter.clear()
    say(row_report.line())
    if n_cut:
        say(classifier.long_texts.summary(n_cut, n_done))
    say(wrote(out))
    return 0


def rows_of(
    source: Path,
    folder: Path,
    columns: str | None,
    kept: tuple[str, ...],
    header: bool | None,
    row_report: RowReport,
    roles: tuple[str, ...],
) -> Iterator[Row]:
    """Yield the number of each row or line, with its text and the columns to keep. `roles` are those of training."""
    from attendo.config import read_toml
    from attendo.data.labelled import SECOND, has_pairs, joined_texts
    from attendo.data.texts import has_rows

    if has_rows(source):  # a text file has no columns
        learned = read_toml(folder / "config.toml").get("data", {})
        columns = learned.get("columns") if columns is None else columns
        header = learned.get("header") if header is None else header
    chosen: tuple[str, ...] = ()
    if columns is not None:  # the columns of training also name the label
        own = ("text", SECOND) if has_pairs(columns) else ("text",)
        n_given = len(columns.split(","))
        chosen = parse_columns(columns, own if n_given == len(own) else (roles[0], *own))[-len(own) :]
    if kept or len(chosen) > 1:
        found = read_with_kept(
            source, next(iter(chosen), None), (*chosen[1:], *kept), bool(header), row_report
        )
        n_texts = max(1, len(chosen))
        return ((n, (joined_texts(fields[:n_texts]), *fields[n_texts:])) for n, fields in found)
    lines = read_lines(
        source, next(iter(chosen), None), bool(header), row_report=row_report, keep_skipped=True
    )
    return ((number, (text,)) for number, text in lines)
