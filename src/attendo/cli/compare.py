"""The command `attendo compare`: a significance test of the difference between two models."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.cli import options as opt
from attendo.cli.evaluate import (
    NO_MEASURE,
    ScoreOptions,
    labelled_rows,
    only,
    pairs_of,
    streams_of,
    talks_of,
    warn_of_guessing,
    warn_of_order,
)
from attendo.cli.reporting import say
from attendo.display.formats import plural
from attendo.display.width import shown
from attendo.errors import AttendoError

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
class TaskOptions(ScoreOptions):
    """The options of `attendo compare`."""

    metrics: list[str] | None = opt.option(
        "M",
        "Metric: bleu, chrf, exact | accuracy, macro-f1 | loss, perplexity, bits-per-byte. Repeatable.",
        "--metric",
    )

    def chosen(self, known: Sequence[str], usual: Sequence[str]) -> list[str]:
        """Return the requested metrics, or the usual metrics."""
        for metric in self.metrics or ():
            opt.refuse_if(metric not in known, f"--metric {metric} is unknown (expected {', '.join(known)})")
        return list(dict.fromkeys(self.metrics or usual))


@opt.with_groups
def compare(
    *,
    first: Path = opt.argument("DIR", "Run folder of model A."),
    second: Path = opt.argument("DIR", "Run folder of model B."),
    options: TaskOptions,
    samples: int = opt.option("N", "Number of bootstrap samples of the rows.", min=100, default=1000),
    seed: int = opt.option("N", "Random seed of the samples.", min=0, default=12345),
    as_json: opt.OneJson = False,
    machine: opt.Machine,
) -> int:
    """Compare two models of one task on a file with the paired bootstrap (Koehn 2004).

    Use a file that neither model was trained on. Both models process the same rows. The rows are then resampled with
    replacement (--samples), and both models are scored on each sample. Each score and each difference is printed with
    its 95% confidence interval. The printed p-value is the probability of a difference of at least this size between
    two equally good models. If the p-value is above 0.05, the file does not show which model is better. Language models
    with different tokenizers are compared in bits per byte. For language models, a long document is divided into rows
    of about 1,000 bytes. For assistants and a file of conversations, each row is a conversation, and the metrics
    measure its answers.

    Example: attendo compare runs/old runs/new test.tsv
    """
    from attendo.bundle import load_bundle
    from attendo.inference import Generator, Translator, load
    from attendo.inference.label_model import LabelModel
    from attendo.runs.compare import verdicts

    opt.require_files(options.files)
    device = machine.chosen()
    began = time.monotonic()
    folders = (first, second)
    users = (load(first, device), load(second, device))
    if type(users[0]) is not type(users[1]):
        tasks = [load_bundle(folder).card.get("task", "another task") for folder in folders]
        raise AttendoError(f"{first} is for {tasks[0]}, {second} for {tasks[1]}. Compare models of one task")
    match users:
        case Translator(), Translator():
            only(options, "metrics", "tokenize", "beam", "columns", "header")
            sums = _translations(users, folders, options)
        case LabelModel(), LabelModel():
            only(options, "metrics", "columns", "header")
            sums = _labelled(users, folders, options)
        case Generator(), Generator():
            sums = _text_sums(users, folders, options)
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
        f"  {name:<5}  {said(score, sign):>{size}}  ({said(low, sign)} to {said(high, sign)})".replace("-", "−")
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


def _translations(users: tuple[Translator, Translator], folders: Folders, options: TaskOptions) -> Sums:
    from attendo.runs.compare import TRANSLATION_METRICS, translation_sums

    metrics = options.chosen(TRANSLATION_METRICS, ("bleu", "chrf"))
    read = [pairs_of(folder, options) for folder in folders]
    pairs = [[(source, target) for _, source, target in rows] for rows, _ in read]
    say(read[0][1].line())
    languages = [user.card.get("languages") or {} for user in users]
    ways = [(codes.get("source"), codes.get("target")) for codes in languages]
    if all(ways[0]) and ways[0] == ways[1][::-1]:
        raise AttendoError(
            f"{folders[0]} translates from {ways[0][0]} to {ways[0][1]}, {folders[1]} from {ways[1][0]} to"
            f" {ways[1][1]}. Compare models of the same direction"
        )
    _require_equal(pairs, folders, options)
    sums = []
    warn_of_order(languages[0], pairs[0], options.are_parallel)
    for user, name in zip(users, "AB", strict=True):
        opt.make_ready(user)
        likely = [one for candidate in user.score(pairs[0][:SCORED]) for one in candidate.token_log_probs]
        warn_of_guessing(user, sum(likely), len(likely), options.are_parallel)
        say(f"translating with {name}")
        sums.append(translation_sums(user, pairs[0], metrics, options.beam, options.tokenize))
    return sums[0], sums[1]


def _require_equal(rows: Sequence[Any], folders: Folders, options: TaskOptions) -> None:
    """Raise AttendoError if the two models read different rows of the file."""
    if rows[0] != rows[1]:
        raise AttendoError(
            f"{options.files[0]}: {folders[0]} and {folders[1]} read different columns. Choose them with --columns"
        )


def _labelled(users: tuple[LabelModel, LabelModel], folders: Folders, options: TaskOptions) -> Sums:
    from attendo.runs.compare import LABEL_METRICS, label_sums

    known = LABEL_METRICS[users[0].task]
    metrics = options.chosen(known, known)
    labels = [set(user.counts) for user in users]
    if (differing := sorted(labels[0] ^ labels[1])) and users[0].task != "regression":
        raise AttendoError(
            f"{folders[0]} and {folders[1]} have different labels: only one of them has {differing[0]!r}. Compare"
            " models with the same labels"
        )
    rows, row_report, name = labelled_rows(users[0], folders[0], options, is_score=False)
    say(row_report.line())
    _require_equal([rows, labelled_rows(users[1], folders[1], options, is_score=False)[0]], folders, options)
    sums = [label_sums(user, rows, metrics, name) for user in users]
    return sums[0], sums[1]


def _text_sums(users: tuple[Generator, Generator], folders: Folders, options: TaskOptions) -> Sums:
    from attendo.inference.perplexity import answer_losses
    from attendo.runs.compare import TEXT_METRICS, loss_sums, text_sums

    tokenizers = [user.tokenizer for user in users]
    alike = tokenizers[0].sha256 == tokenizers[1].sha256
    metrics = options.chosen(TEXT_METRICS, ("loss", "bits-per-byte") if alike else ("bits-per-byte",))
    opt.refuse_if(
        not alike and {"loss", "perplexity"} & set(metrics),
        "the tokenizers differ, so values per token are not comparable. Use --metric bits-per-byte",
    )
    if talks := talks_of(folders[0], options, users):
        only(options, "metrics", "columns", "header")
        pairs = zip(users, talks, strict=True)
        nats = [answer_losses(user.scorer(), user.tokenizer, turns) for user, turns in pairs]
        first, second = (loss_sums(rows, metrics, "answers of conversations") for rows in nats)
        return first, second
    only(options, "metrics", "context", "column", "header")
    # both models read the documents as model A reads them, so the texts are the same
    streams, _ = streams_of(folders[0], options, tokenizers)
    first, second = (
        text_sums(user, stream, metrics, options.context) for user, stream in zip(users, streams, strict=True)
    )
    return first, second
