"""The command `attendo compare`: a significance test of the difference between two models."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.cli.evaluate import (
    NO_MEASURE,
    ONE_NAME,
    only,
    pairs_of,
    refuse_header,
    texts_of,
    warn_of_guessing,
    warn_of_order,
)
from attendo.cli.options import (
    Beam,
    Columns,
    Files,
    Header,
    Machine,
    OneJson,
    OptionGroup,
    argument,
    make_ready,
    option,
    refuse_if,
    require_files,
    with_groups,
)
from attendo.cli.reporting import say
from attendo.data.row_report import RowReport
from attendo.display.formats import plural
from attendo.display.width import shown

if TYPE_CHECKING:
    from attendo.bootstrap import RowSums
    from attendo.inference import Generator, Translator
    from attendo.inference.label_model import LabelModel
    from attendo.runs.compare import Verdict

SCORED = 100
"""The number of targets whose perplexity is compared with the size of the vocabulary."""
Folders = tuple[Path, Path]
Sums = tuple["dict[str, RowSums]", "dict[str, RowSums]"]


@dataclass(frozen=True)
class TaskOptions(OptionGroup):
    """The options of `attendo compare` that apply only to some tasks."""

    tokenize: str | None = option("T", "BLEU tokenizer: 13a, none, char, intl … (default: as in evaluate).")
    beam: Beam = None
    context: int | None = option(
        "N", "Context length for language models, in tokens (default: that of the model).", min=1
    )
    columns: Columns = None
    column: str | None = option("C", "Text column for language models (default: as in training).")
    header: Header = None


@with_groups
def compare(
    *,
    first: Path = argument("DIR", "Run folder of model A."),
    second: Path = argument("DIR", "Run folder of model B."),
    files: Files,
    metrics: list[str] | None = option(
        "M",
        "Metric: bleu, chrf, exact | accuracy, macro-f1 | loss, perplexity, bits-per-byte. Repeatable.",
        "--metric",
    ),
    samples: int = option("N", "Number of bootstrap samples of the rows.", min=100, default=1000),
    seed: int = option("N", "Random seed of the samples.", min=0, default=12345),
    options: TaskOptions,
    as_json: OneJson = False,
    machine: Machine,
) -> int:
    """Compare two models of one task on a file with the paired bootstrap (Koehn 2004).

    Use a file that neither model was trained on. Both models process the same rows. The rows are then resampled with
    replacement (--samples), and both models are scored on each sample. Each score and each difference is printed with
    its 95% confidence interval. The printed p-value is the probability of a difference of at least this size between
    two equally good models. If the p-value is above 0.05, the file does not show which model is better. Language models
    with different tokenizers are compared in bits per byte. For language models, a long document is divided into rows
    of about 1,000 bytes.

    Example: attendo compare runs/old runs/new test.tsv
    """
    from attendo.bundle import load_bundle
    from attendo.errors import AttendoError
    from attendo.inference import Generator, Translator, load
    from attendo.inference.label_model import LabelModel
    from attendo.runs.compare import verdicts

    require_files(files)
    device = machine.chosen()
    began = time.monotonic()
    folders = (first, second)
    users = (load(first, device), load(second, device))
    if type(users[0]) is not type(users[1]):
        tasks = [load_bundle(folder).card.get("task", "another task") for folder in folders]
        raise AttendoError(f"{first} is for {tasks[0]}, {second} for {tasks[1]}. Compare models of one task")
    match users:
        case Translator(), Translator():
            only(options, "tokenize", "beam", "columns", "header")
            sums = _translations(users, folders, files, metrics, options)
        case LabelModel(), LabelModel():
            only(options, "columns", "header")
            sums = _labelled(users, folders, files, metrics, options)
        case Generator(), Generator():
            only(options, "context", "column", "header")
            sums = _text_sums(users, folders, files, metrics, options)
        case _:
            raise AttendoError(NO_MEASURE.format(first))
    found = verdicts(*sums, samples, seed)
    n_rows = len(next(iter(sums[0].values())).rows)
    if as_json:
        facts = {"a": str(first), "b": str(second), "rows": n_rows, "samples": samples, "seed": seed}
        print(json.dumps(facts | {"scores": [_as_json(verdict) for verdict in found]}, ensure_ascii=False))
    else:
        print(shown(f"A  {first}\nB  {second}\n{plural(n_rows, 'row')}, {samples:,} samples\n"))
        print("\n".join(line for verdict in found for line in verdict_lines(verdict)))
    say(f"{time.monotonic() - began:,.1f} s")
    return 0


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the printed lines of a metric: both scores with confidence intervals, their difference, and a verdict."""
    form = FORMS.get(verdict.metric, ".4f")

    def said(value: float, sign: str = "") -> str:
        return format(value, sign + form)

    found = verdict.comparison
    rows = [
        ("A", found.first, verdict.first_interval, ""),
        ("B", found.second, verdict.second_interval, ""),
        ("B − A", found.difference, verdict.difference_interval, "+"),
    ]
    size = max(len(said(score, sign)) for _, score, _, sign in rows)
    lines = [
        f"  {name:<5}  {said(score, sign):>{size}}  ({said(low, sign)} to {said(high, sign)})".replace(
            "-", "−"
        )
        for name, score, (low, high), sign in rows
    ]
    p = found.p_value
    p_text = f"p = {p:.4f}" if p < 0.01 else f"p = {p:.2f}"
    what = {"first": "A is better", "second": "B is better", None: "no clear difference"}[verdict.better]
    return [f"{verdict.name}  {verdict.signature}".rstrip(), *lines, f"  {what} ({_CHANCE} {p_text})", ""]


_CHANCE = "probability if the models are equal:"
FORMS = {
    "bleu": ".2f",
    "chrf": ".2f",
    "exact": ".2f",
    "accuracy": ".2%",
    "macro-f1": ".2%",
    "f1": ".2%",
    "mae": ".4g",
    "perplexity": ".3f",
}
"""The format in which the score of each metric is printed."""


def _as_json(verdict: Verdict) -> dict[str, Any]:
    found = verdict.comparison
    return {
        "metric": verdict.metric,
        "name": verdict.name,
        "signature": verdict.signature,
        "a": found.first,
        "a_interval": verdict.first_interval,
        "b": found.second,
        "b_interval": verdict.second_interval,
        "difference": found.difference,
        "difference_interval": verdict.difference_interval,
        "p": found.p_value,
        "better": {"first": "a", "second": "b", None: None}[verdict.better],
    }


def _chosen(asked: list[str] | None, known: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Return the requested metrics."""
    for metric in asked or ():
        refuse_if(metric not in known, f"--metric {metric} is unknown (expected {', '.join(known)})")
    return list(dict.fromkeys(asked or usual))


def _translations(
    users: tuple[Translator, Translator],
    folders: Folders,
    files: list[Path],
    asked: list[str] | None,
    options: TaskOptions,
) -> Sums:
    from attendo.errors import AttendoError
    from attendo.runs.compare import TRANSLATION_METRICS, translation_sums

    metrics = _chosen(asked, TRANSLATION_METRICS, ("bleu", "chrf"))
    read = [pairs_of(folder, files, options.columns, options.header) for folder in folders]
    pairs = [[(source, target) for _, source, target in rows] for rows, _ in read]
    say(read[0][1].line())
    languages = [user.card.get("languages") or {} for user in users]
    ways = [(codes.get("source"), codes.get("target")) for codes in languages]
    if all(ways[0]) and ways[0] == ways[1][::-1]:
        raise AttendoError(
            f"{folders[0]} translates from {ways[0][0]} to {ways[0][1]}, {folders[1]} from {ways[1][0]} to"
            f" {ways[1][1]}. Compare models of the same direction"
        )
    if pairs[0] != pairs[1]:
        raise AttendoError(
            f"{files[0]}: {folders[0]} and {folders[1]} read different columns. Choose them with --columns"
        )
    sums = []
    warn_of_order(languages[0], pairs[0], len(files) == 2)
    for user, name in zip(users, "AB", strict=True):
        make_ready(user)
        likely = [one for candidate in user.score(pairs[0][:SCORED]) for one in candidate.token_log_probs]
        warn_of_guessing(user, sum(likely), len(likely), len(files) == 2)
        say(f"translating with {name}")
        sums.append(translation_sums(user, pairs[0], metrics, options.beam, options.tokenize))
    return sums[0], sums[1]


def _labelled(
    users: tuple[LabelModel, LabelModel],
    folders: Folders,
    files: list[Path],
    asked: list[str] | None,
    options: TaskOptions,
) -> Sums:
    from attendo.data.labelled import read_labelled
    from attendo.errors import AttendoError
    from attendo.inference import Classifier
    from attendo.runs.compare import ANSWER_METRICS, CLASSIFICATION_METRICS, answer_sums, classification_sums
    from attendo.runs.settings import data_of
    from attendo.runs.task_specs import family_of

    known = ANSWER_METRICS.get(users[0].task, CLASSIFICATION_METRICS)
    metrics = _chosen(asked, known, known)
    refuse_if(len(files) > 1, ONE_NAME)
    labels = [set(user.counts) for user in users]
    if (differing := sorted(labels[0] ^ labels[1])) and users[0].task != "regression":
        raise AttendoError(
            f"{folders[0]} and {folders[1]} have different labels: only one of them has {differing[0]!r}. Compare"
            " models with the same labels"
        )
    sources = [
        data_of(family_of(users[0].task), folder).source(files[0], options.columns, options.header)
        for folder in folders
    ]
    row_report = RowReport(sources[0].name)
    rows = list(read_labelled(sources[0], row_report=row_report))
    say(row_report.line())
    if sources[1] != sources[0] and list(read_labelled(sources[1])) != rows:
        raise AttendoError(
            f"{files[0]}: {folders[0]} and {folders[1]} read different columns. Choose them with --columns"
        )
    sums = []
    for user in users:
        if isinstance(user, Classifier):
            refuse_header(rows, sources[0], user)
            sums.append(classification_sums(user, rows, metrics, sources[0].name))
        else:
            sums.append(answer_sums(user, rows, metrics, sources[0].name))
    return sums[0], sums[1]


def _text_sums(
    users: tuple[Generator, Generator],
    folders: Folders,
    files: list[Path],
    asked: list[str] | None,
    options: TaskOptions,
) -> Sums:
    from attendo.data.texts import Reading, read_documents
    from attendo.data.token_stream import TokenStream
    from attendo.runs.compare import TEXT_METRICS, text_sums
    from attendo.runs.settings import data_of
    from attendo.runs.task_specs import LANGUAGE_MODEL

    alike = users[0].tokenizer.sha256 == users[1].tokenizer.sha256
    metrics = _chosen(asked, TEXT_METRICS, ("loss", "bits-per-byte") if alike else ("bits-per-byte",))
    refuse_if(
        not alike and {"loss", "perplexity"} & set(metrics),
        "the tokenizers differ, so values per token are not comparable. Use --metric bits-per-byte",
    )
    # both models read the documents as model A reads them, so the texts are the same
    source = texts_of(data_of(LANGUAGE_MODEL, folders[0]), files, options.column, options.header)
    sums = []
    for user in users:
        reading = Reading(source.name)
        stream = TokenStream.of_chunks(read_documents(source, reading=reading), user.tokenizer)
        if not sums:
            for line in (reading.line(), *(report.line() for report in reading.row_reports)):
                say(line)
        sums.append(text_sums(user, stream, metrics, options.context))
    return sums[0], sums[1]
