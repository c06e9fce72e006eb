"""The commands of classifiers: `attendo classify`, `attendo errors`, `attendo label` and `attendo thresholds`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.cli import options as opt
from attendo.cli.evaluate import given_line, labelled_rows
from attendo.cli.reporting import Counter, lines_given, one_line, refuse_file_name, say, wrote
from attendo.data.corpora import parse_columns, parse_kept, read_lines, read_with_kept
from attendo.data.data_files import require_file
from attendo.data.row_report import RowReport
from attendo.display.tables import table_lines
from attendo.display.width import fitted, shown

if TYPE_CHECKING:
    from attendo.data.labelled import LabelledRow
    from attendo.inference import Classifier
    from attendo.inference.classifier import ClassAssessment
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
    of_files = any(option is not None for option in (columns, keep, header))
    opt.refuse_if(of_files, "--columns, --keep and --header require --input")
    chunks = ([(n, (text,)) for n, text in enumerate(part, number)] for number, part in lines_given(texts))
    _print_answers(loaded(), chunks, (), as_json)
    return 0


def _print_answers(classifier: LabelModel, chunks: Iterable[list[Row]], kept: tuple[str, ...], as_json: bool) -> None:
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
    opt.refuse_if(task in (Tagger.task, Regressor.task), f"--threshold does not apply to {task}. Leave it out")
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
    of_json = ("probabilities", "n_tokens", "cut") if out is None else ()
    taken = ("line", *classifier.heads, "text", *of_json)
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
    column = next(iter(chosen), None)
    if kept or len(chosen) > 1:
        found = read_with_kept(source, column, (*chosen[1:], *kept), bool(header), row_report)
        n_texts = max(1, len(chosen))
        return ((n, (joined_texts(fields[:n_texts]), *fields[n_texts:])) for n, fields in found)
    lines = read_lines(source, column, bool(header), row_report=row_report, keep_skipped=True)
    return ((number, (text,)) for number, text in lines)


ERROR_COLUMNS = ("line", "label", "suggested", "label_probability", "probability", "text")
LABEL_WIDTH, TEXT_WIDTH = 12, 36


@opt.with_groups
def errors(
    *,
    folder: opt.Folder,
    data: opt.DataFiles,
    top: int = opt.option("N", "Number of rows to print.", default=20, min=1),
    out: Path | None = opt.option("F", "New table with all rows: .csv, .tsv, .jsonl, .parquet or .xlsx."),
    as_json: opt.OneJson = False,
    machine: opt.Machine,
) -> int:
    """Find labels that are probably wrong in a file of labeled texts.

    The command prints the rows whose label is least probable compared with another label, and an estimate of the number
    of wrong labels. The run has learned the wrong labels of its training rows. The log-probabilities of these rows are
    therefore averaged with those of a linear model of n-grams, from 5-fold cross-validation.

    The option --out writes all rows to a table, the most suspicious first, with the line number, the label, the
    suggested label, the probabilities of both, and the text.

    Example: attendo errors runs/mine train.tsv --out check.xlsx
    """
    from attendo.inference import Classifier
    from attendo.inference.label_errors import FOLDS, label_errors
    from attendo.inference.tables import check_table, label_table
    from attendo.runs.init_from import rows_before

    opt.require_files(data.files)
    if out is not None:
        check_table(out, "--out")
    classifier = Classifier.load(folder, machine.chosen())
    rows, row_report, name = labelled_rows(classifier, folder, data, is_score=False)
    say(row_report.line())
    known = rows_before(folder, classifier.task, say)
    counter = Counter(f"of {FOLDS} folds")
    found = label_errors(classifier, rows, name, [row.text in known for row in rows], counter.show)
    counter.clear()
    if found.n_crossed:
        say(f"{found.n_crossed:,} of {len(rows):,} texts are training rows; their labels are cross-validated")
    if found.n_inflated:
        say(
            f"warning: {found.n_inflated:,} training rows cannot be cross-validated (too few rows or a rare label), so"
            " their labels seem right"
        )
    places = row_report.places_json([suspect.row.number for suspect in found.suspects])
    table = [
        (place, row.label, suggested, own, probability, row.text)
        for place, (row, suggested, own, probability) in zip(places, found.suspects, strict=True)
    ]
    if out is not None:
        with label_table(out, ERROR_COLUMNS) as write:
            for cells in table:
                write(cells)
    if as_json:
        facts = {"account": row_report.as_json(), "rows": len(rows), "wrong": found.wrong}
        facts |= {"errors": [dict(zip(ERROR_COLUMNS, cells, strict=True)) for cells in table[:top]]}
        print(json.dumps(facts, ensure_ascii=False))
    else:
        heads = ("line", "label", "suggested", "p(label)", "p(suggested)", "text")
        printed: list[tuple[str, ...]] = []
        for line, label, suggested, own, p, text in table[:top]:
            labels = [fitted(one_line(name), LABEL_WIDTH) for name in (label, suggested)]
            printed.append((str(line), *labels, f"{own:.3f}", f"{p:.3f}", fitted(one_line(text), TEXT_WIDTH)))
        print(shown("\n".join(table_lines(heads, printed))))
        print(
            f"about {found.wrong:,.0f} of {len(rows):,} labels seem wrong ({found.wrong / len(rows):.1%}). The number"
            " is too high if the model is weak"
        )
    if out is not None:
        say(wrote(out))
    return 0


PORT = 8002


@opt.with_groups
def label(
    *,
    folder: opt.Folder,
    source: Path = opt.argument("F", "Table, or .txt file with one text per line."),
    out: Path = opt.option("F", "File for the labels: .csv or .jsonl.", "--out", default=Path("labels.csv")),
    columns: str | None = opt.option(
        "C",
        "Text column of F, for example text=body or 2 (default: as in training).",
        "--columns",
        "--column",
    ),
    header: opt.Header = None,
    port: int = opt.option("N", "Port of the page; 0 selects a free port.", default=PORT, min=0, max=65535),
    open_: bool = opt.switch("--open", "Open the page in a browser."),
    language: opt.Spoken = "en",
    machine: opt.Machine,
) -> int:
    """Label texts on a local page. The texts of which the model is least sure come first.

    The page shows a text and the label that the model suggests. The keys 1 to 9 choose a label, S skips the text, and U
    undoes the last label. Each label is written to --out at once, in a format that `attendo train classification`
    reads. To continue later, run the same command again. At the end, the command prints how to train the model on the
    new labels.

    Only this machine can open the page.

    Example: attendo label runs/mine texts.txt --out labels.csv --open
    """
    from attendo.data.labelled import LABELLED
    from attendo.inference import Classifier
    from attendo.inference.labeling import LabelFile, Labeling, to_label
    from attendo.microscope.server import LabelServer
    from attendo.runs.init_from import rows_before
    from attendo.runs.settings import data_of

    require_file(source)
    classifier = Classifier.load(folder, machine.chosen())
    trained = data_of(classifier.task, folder).columns
    names = LABELLED if trained is None else parse_columns(trained, LABELLED)
    names = LABELLED if any(name.isdecimal() for name in names) else names
    row_report = RowReport(str(source))
    rows = rows_of(source, folder, columns, (), header, row_report, LABELLED)
    texts = list(dict.fromkeys(text for _, (text,) in rows))
    say(row_report.line())
    known = rows_before(folder, classifier.task, say)
    new = [text for text in texts if text not in known]
    if len(new) < len(texts):
        say(f"{len(texts) - len(new):,} of {len(texts):,} different texts are training rows and are left out")
    file = LabelFile(out, (names[0], names[1]))
    try:
        queue = to_label(classifier, new, file)
        say(f"{out}: {len(file.labels):,} labels; {len(queue):,} texts to label")
        server = LabelServer(Labeling(queue, file), classifier.labels.names, folder.name, port, language)
        code = opt.serve_page(server.run, server.stop, server.address, open_, language)
    finally:
        file.close()
    say(_next_step(folder, out, names, [*file.labels.values()]))
    return code


def _next_step(folder: Path, out: Path, names: tuple[str, ...], labels: list[str]) -> str:
    """Return the command that trains on the labels, or how many labels are missing."""
    from attendo.data.held_out import FEWEST_ROWS
    from attendo.data.labelled import LABELLED

    count = f"{out}: {len(labels):,} labels"
    if len(labels) < FEWEST_ROWS or len(set(labels)) < 2:
        return f"{count}. Training requires at least {FEWEST_ROWS} texts with at least two different labels"
    number = 2
    while (other := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    words = ["attendo", "train", "classification", "--train", str(out)]
    if names != LABELLED:
        words += ["--columns", f"label={names[0]},text={names[1]}"]
    words += ["--init-from", str(folder), "--out", str(other)]
    return f"{count}. To train on them: {shlex.join(words)}"


@opt.with_groups
def thresholds(
    *,
    folder: opt.Folder,
    file: Path | None = opt.argument(
        "[FILE]", "Labeled texts to choose from (default: the validation texts of the run).", default=None
    ),
    precision: float | None = opt.option(
        "P", "Precision that each label must have, for example 0.95.", min=0.01, max=0.999
    ),
    abstain: float | None = opt.option(
        "S", "Share of texts that receive no label: the least certain texts.", min=0.001, max=0.999
    ),
    threshold: str | None = opt.option("T", "The thresholds: a number, or LABEL=NUMBER,... for some labels."),
    remove: bool = opt.switch("--remove", "Remove the stored thresholds."),
    columns: opt.Columns = None,
    header: opt.Header = None,
    machine: opt.Machine,
) -> int:
    """Choose and store the lowest probability at which a classifier gives each label.

    A text for which no label reaches its threshold has no label. A label with a threshold is preferred to more probable
    labels without a threshold. The thresholds are stored in the run folder and used by `attendo classify`, the API and
    the page. Without an option, the command prints the stored thresholds and their effect.

    With --precision, each threshold is as low as possible. The precision holds for new texts of the same kind with 90%
    probability. If too few texts are available to show this, the label is never given.

    Example: attendo thresholds runs/mine --precision 0.95

    Example: attendo thresholds runs/mine valid.csv --abstain 0.1

    Example: attendo thresholds runs/mine --threshold spam=0.9
    """
    from attendo.inference import Classifier
    from attendo.inference.decisions import parse_thresholds, store_thresholds

    choices = [precision, abstain, threshold, remove or None]
    n_given = sum(choice is not None for choice in choices)
    opt.refuse_if(n_given > 1, "--precision, --abstain, --threshold and --remove exclude each other. Give one")
    classifier = Classifier.load(folder, machine.chosen())
    labels = classifier.labels.names
    if remove:
        store_thresholds(folder, {})
        say(f"{folder}: thresholds removed")
        return 0
    given = parse_thresholds(threshold, labels) if threshold else None
    rows, name = _labelled_rows_of(classifier, folder, file, columns, header)
    read = classifier.read([row.text for row in rows])
    found = classifier.evaluate(rows, name, read)
    origin = "given"
    if precision is not None or abstain is not None:
        given, origin = _chosen_thresholds(classifier, found, precision, abstain)
        origin += f", chosen from {len(rows):,} texts of {name}"
    if given is not None:
        store_thresholds(folder, given, origin)
        classifier = replace(classifier, card={**classifier.card, "thresholds": given})
        found = classifier.evaluate(rows, name, read)
    elif not classifier.thresholds:
        say("the run has no thresholds: every text has its most probable label")
    print(shown("\n".join(_threshold_lines(classifier, found))))
    has_labels = found.measures.get("coverage", 1.0)
    none = "" if has_labels else "warning: no text has a label with these thresholds. "
    if none or given is not None:
        say(f"{none}To remove the thresholds, run: attendo thresholds {folder} --remove")
    return 0


def _labelled_rows_of(
    classifier: Classifier, folder: Path, file: Path | None, columns: str | None, header: bool | None
) -> tuple[list[LabelledRow], str]:
    """Return labeled rows of a file, or the validation rows of the run, and the name of the file."""
    from attendo.data.held_out import TrainedRows, trained_rows
    from attendo.data.labelled_corpus import LabelledCorpus
    from attendo.runs.settings import data_of

    if file is not None:
        opt.require_files([file])
        rows, _, name = labelled_rows(classifier, folder, opt.DataFiles([file], columns, header))
        return rows, name
    before = trained_rows(folder, "before") or TrainedRows()
    corpus = LabelledCorpus(data_of(classifier.task, folder), lambda line: None, before)
    return corpus.validation(0)[0], corpus.validation_name


def _chosen_thresholds(
    classifier: Classifier, found: ClassAssessment, precision: float | None, abstain: float | None
) -> tuple[dict[str, float], str]:
    """Return thresholds for a precision, or for the share of texts without a label, and a description."""
    from attendo.inference.decisions import NEVER, threshold_for_precision, threshold_for_share

    labels = classifier.labels.names
    if precision is None:
        assert abstain is not None
        threshold = threshold_for_share(found.probabilities, abstain)
        return dict.fromkeys(labels, threshold), f"{abstain:g} without a label"
    chosen = {
        name: threshold_for_precision(found.probabilities[:, number], found.true == number, precision)
        for number, name in enumerate(labels)
    }
    if never := [name for name, threshold in chosen.items() if threshold == NEVER]:
        n_texts = len(found.true)
        say(
            f"{', '.join(never[:5])}{', …' if len(never) > 5 else ''}: a precision of {precision:g} cannot be shown"
            f" with {n_texts:,} texts, so the label is never given. Give more texts or a lower precision"
        )
    return chosen, f"precision {precision:g}"


def _threshold_lines(classifier: Classifier, found: ClassAssessment) -> list[str]:
    """Return the table of thresholds, and the shares of texts with a label and of correct labels among them."""
    from attendo.inference.decisions import lowest_precision

    rows: list[Any] = []
    for number, score in enumerate(found.labels):
        threshold = classifier.thresholds.get(score.label)
        n_given = int(found.confusion[:, number].sum())
        n_right = int(found.confusion[number, number])
        text = "–" if threshold is None else "never" if threshold > 1 else f"{threshold:.4f}"
        low = lowest_precision(n_right, n_given, 0.025)
        high = 1 - lowest_precision(n_given - n_right, n_given, 0.025)
        precision = f"{score.precision:.1%} ({low:.1%} to {high:.1%})" if n_given else "–"
        recall = f"{score.recall:.1%}" if score.support else "–"
        rows.append([score.label, text, score.support, n_given, precision, recall])
    heads = ["label", "threshold", "rows", "given", "precision (95% interval)", "recall"]
    m = found.measures
    return [
        *table_lines(heads, rows),
        "",
        f"{given_line(m)} (without thresholds: all texts, {m['accuracy']:.2%})",
    ]
