"""attendo compare: whether one model is better than another on a file, or only luckier."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendo.cli.evaluate import NO_MEASURE, ONE_NAME, only, refuse_header, texts_of
from attendo.cli.options import (
    Beam,
    Columns,
    Device,
    Files,
    Header,
    OneJson,
    Threads,
    chosen_device,
    make_ready,
    require_files,
)
from attendo.cli.pairs import pairs_of, warn_of_guessing, warn_of_order
from attendo.cli.reporting import say
from attendo.data.accounting import Account
from attendo.display.formats import plural
from attendo.display.width import shown

if TYPE_CHECKING:
    from attendo.bootstrap import RowSums
    from attendo.inference import Classifier, Generator, Translator
    from attendo.runs.compare import Verdict

SCORED = 100
"""The targets whose perplexity is compared with the size of the vocabulary."""
Folders = tuple[Path, Path]
Sums = tuple["dict[str, RowSums]", "dict[str, RowSums]"]


def compare(
    first: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder: model A.")],
    second: Annotated[Path, typer.Argument(metavar="DIR", help="Another run's folder: model B.")],
    files: Files,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="M",
            help="bleu, chrf, exact | accuracy, macro-f1 | loss, perplexity, bits-per-byte; repeatable.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", min=100, help="Samples of the rows.")] = 1000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The same seed, the same samples.")] = 12345,
    tokenize: Annotated[
        str | None,
        typer.Option(metavar="T", help="For BLEU, as of evaluate: 13a, none, char, intl, zh …"),
    ] = None,
    beam: Beam = None,
    context: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Language models: tokens seen at once; else each its own."),
    ] = None,
    columns: Columns = None,
    column: Annotated[
        str | None, typer.Option(metavar="C", help="Language models: the texts' column. Else as in training.")
    ] = None,
    header: Header = None,
    as_json: OneJson = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Compare two models of one task on a file that neither has seen, by paired bootstrap (Koehn 2004).

    Both work through the same rows. Then as many rows are drawn from them, with replacement, 1,000 times, and
    both are scored on each such sample: 95 % of the scores, and of their differences, lie in the interval printed
    behind. p is how often chance alone makes a difference as large between equally good models; above 0.05, the file
    does not tell the two apart. Language models of two tokenizers are compared in bits a byte; a long document
    counts as one row for each 1,000 bytes.

    Example: attendo compare runs/old runs/new test.tsv
    """
    from attendo.bundle import load_bundle
    from attendo.errors import AttendoError
    from attendo.inference import Classifier, Generator, Translator, load
    from attendo.runs.compare import verdicts

    require_files(files)
    where, began = chosen_device(device, threads), time.monotonic()
    folders, users = (first, second), (load(first, where), load(second, where))
    if type(users[0]) is not type(users[1]):
        tasks = [load_bundle(folder).card.get("task", "another task") for folder in folders]
        raise AttendoError(f"{first} is for {tasks[0]}, {second} for {tasks[1]}; compare models of one task")
    given = {"--tokenize": tokenize, "--beam": beam, "--columns": columns, "--context": context}
    given |= {"--column": column, "--header": header, "--metric": metrics}
    match users:
        case Translator(), Translator():
            only(given, "--tokenize", "--beam", "--columns", "--header", "--metric")
            sums = _translations(users, folders, files, given)
        case Classifier(), Classifier():
            only(given, "--columns", "--header", "--metric")
            sums = _classifications(users, folders, files, given)
        case Generator(), Generator():
            only(given, "--context", "--column", "--header", "--metric")
            sums = _text_sums(users, folders, files, given)
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
    """A score of both models with its intervals, the difference, and what follows from it."""
    form = _FORMS.get(verdict.metric, "{:.4f}".format)
    signed = _SIGNED.get(verdict.metric, "{:+.4f}".format)
    rows = [
        ("A", form(verdict.comparison.first), map(form, verdict.first_interval)),
        ("B", form(verdict.comparison.second), map(form, verdict.second_interval)),
        ("B − A", signed(verdict.comparison.difference), map(signed, verdict.difference_interval)),
    ]
    size = max(len(score) for _, score, _ in rows)
    shown = [
        f"  {name:<5}  {score:>{size}}  ({' to '.join(between)})".replace("-", "−")
        for name, score, between in rows
    ]
    p = verdict.comparison.p_value
    p_text = f"p = {p:.4f}" if p < 0.01 else f"p = {p:.2f}"
    what = {"first": "A is better", "second": "B is better", None: "not told apart at 95 %"}[verdict.better]
    return [f"{verdict.name}  {verdict.signature}".rstrip(), *shown, f"  {what} ({_CHANCE} {p_text})", ""]


_CHANCE = "chance of such a difference between equals:"
_FORMS: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("bleu", "chrf", "exact"), "{:.2f}".format),
    **dict.fromkeys(("accuracy", "macro-f1"), "{:.2%}".format),
    "perplexity": "{:.3f}".format,
}
_SIGNED: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("bleu", "chrf", "exact"), "{:+.2f}".format),
    **dict.fromkeys(("accuracy", "macro-f1"), "{:+.2%}".format),
    "perplexity": "{:+.3f}".format,
}


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


def _chosen(given: dict[str, Any], known: Sequence[str], usual: Sequence[str]) -> list[str]:
    """The measures asked for."""
    for metric in given["--metric"] or ():
        if metric not in known:
            raise typer.BadParameter(f"--metric {metric} is none of this task; take {', '.join(known)}")
    return list(dict.fromkeys(given["--metric"] or usual))


def _translations(
    users: tuple[Translator, Translator], folders: Folders, files: list[Path], given: dict[str, Any]
) -> Sums:
    from attendo.errors import AttendoError
    from attendo.runs.compare import TRANSLATION_METRICS, translation_sums

    metrics = _chosen(given, TRANSLATION_METRICS, ("bleu", "chrf"))
    read = [pairs_of(folder, files, given["--columns"], given["--header"]) for folder in folders]
    pairs = [[(source, target) for _, source, target in rows] for rows, _ in read]
    say(read[0][1].line())
    languages = [user.card.get("languages") or {} for user in users]
    ways = [(codes.get("source"), codes.get("target")) for codes in languages]
    if all(ways[0]) and ways[0] == ways[1][::-1]:
        raise AttendoError(
            f"{folders[0]} translates from {ways[0][0]} to {ways[0][1]}, {folders[1]} from {ways[1][0]} to"
            f" {ways[1][1]}; compare models of one direction"
        )
    if pairs[0] != pairs[1]:
        raise AttendoError(
            f"{files[0]}: {folders[0]} and {folders[1]} read its columns differently; say with --columns which to take"
        )
    sums = []
    warn_of_order(languages[0], pairs[0], len(files) == 2)
    for user, name in zip(users, "AB", strict=True):
        make_ready(user)
        likely = [one for candidate in user.score(pairs[0][:SCORED]) for one in candidate.token_log_probs]
        warn_of_guessing(user, sum(likely), len(likely), len(files) == 2)
        say(f"translating with {name}")
        sums.append(translation_sums(user, pairs[0], metrics, given["--beam"], given["--tokenize"]))
    return sums[0], sums[1]


def _classifications(
    users: tuple[Classifier, Classifier], folders: Folders, files: list[Path], given: dict[str, Any]
) -> Sums:
    from attendo.data.labelled import read_labelled
    from attendo.errors import AttendoError
    from attendo.runs.compare import CLASSIFICATION_METRICS, classification_sums
    from attendo.runs.settings import data_of
    from attendo.runs.task_specs import CLASSIFICATION

    metrics = _chosen(given, CLASSIFICATION_METRICS, CLASSIFICATION_METRICS)
    if len(files) > 1:
        raise typer.BadParameter(ONE_NAME)
    labels = [set(user.labels.names) for user in users]
    if differing := sorted(labels[0] ^ labels[1]):
        raise AttendoError(
            f"{folders[0]} and {folders[1]} know different labels, {differing[0]!r} only one of them; compare"
            " classifiers of the same labels"
        )
    sources = [
        data_of(CLASSIFICATION, folder).source(files[0], given["--columns"], given["--header"])
        for folder in folders
    ]
    account = Account(sources[0].name)
    rows = list(read_labelled(sources[0], account=account))
    say(account.line())
    if sources[1] != sources[0] and list(read_labelled(sources[1])) != rows:
        raise AttendoError(
            f"{files[0]}: {folders[0]} and {folders[1]} read its columns differently; say with --columns which to take"
        )
    refuse_header(rows, sources[0], users[0])
    sums = [classification_sums(user, rows, metrics, sources[0].name) for user in users]
    return sums[0], sums[1]


def _text_sums(
    users: tuple[Generator, Generator], folders: Folders, files: list[Path], given: dict[str, Any]
) -> Sums:
    from attendo.data.texts import Reading, read_documents
    from attendo.data.token_stream import TokenStream
    from attendo.runs.compare import TEXT_METRICS, text_sums
    from attendo.runs.settings import data_of
    from attendo.runs.task_specs import LANGUAGE_MODEL

    alike = users[0].tokenizer.sha256 == users[1].tokenizer.sha256
    metrics = _chosen(given, TEXT_METRICS, ("loss", "bits-per-byte") if alike else ("bits-per-byte",))
    if not alike and {"loss", "perplexity"} & set(metrics):
        raise typer.BadParameter(
            "the tokenizers differ, so a token is not the same for both; take --metric bits-per-byte"
        )
    # documents are what they are for A: the text is the same for both
    source = texts_of(data_of(LANGUAGE_MODEL, folders[0]), files, given["--column"], given["--header"])
    sums = []
    for user in users:
        reading = Reading(source.name)
        stream = TokenStream.of_chunks(read_documents(source, reading=reading), user.tokenizer)
        if not sums:
            for line in (reading.line(), *(account.line() for account in reading.accounts)):
                say(line)
        sums.append(text_sums(user, stream, metrics, given["--context"]))
    return sums[0], sums[1]
