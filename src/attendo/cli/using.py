"""attendo translate, score, info."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendo.cli.card import card_lines
from attendo.cli.lines import MOST_LINES, arguments_as_lines, numbered_chunks, one_line, stdin_bytes
from attendo.cli.reporting import Counter, say
from attendo.cli.using_options import (
    Beam,
    Columns,
    Device,
    Files,
    Folder,
    Header,
    JsonLines,
    OneJson,
    Penalty,
    Threads,
    prepared,
)

if TYPE_CHECKING:
    from attendo.data.accounting import Account
    from attendo.tasks import Candidate, Translation


def add_using_commands(app: typer.Typer) -> None:
    """Adds the commands that use a trained model."""
    app.command("translate", short_help="Translate texts, or the lines of stdin.")(translate)
    app.command("score", short_help="Log-probabilities of given translations.")(score)
    app.command("info", short_help="The card of a run.")(info)


def translate(
    folder: Folder,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Else lines on stdin.")
    ] = None,
    beam: Beam = None,
    n_best: Annotated[
        int | None, typer.Option(metavar="N", help="Print the N best of each line, N at most the beam.")
    ] = None,
    length_penalty: Penalty = None,
    as_json: JsonLines = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Translate texts, or each line of stdin: one output line for each input line, in order.

    A line break in a translation is written as a space, and an empty line gives an empty line. With --n-best N
    above 1 each input line gives up to N lines, best first, of three fields between tabs: its number from 1, the
    score, the text. The score is the log-probability (nats) over the length norm.

    Example: attendo translate runs/mine < input.txt > output.txt
    """
    from attendo.tasks import Translator

    translator = Translator.load(folder, prepared(device, threads))
    counter = Counter("lines")
    for number, chunk in arguments_as_lines(texts) if texts else numbered_chunks(stdin_bytes()):
        found = translator.translate(chunk, beam=beam, n_best=n_best, length_penalty=length_penalty)
        for line, translation in enumerate(found, number):
            sys.stdout.write(_translation_lines(line, translation, n_best or 1, as_json))
            if not translation.candidates[0].finished:
                counter.clear()
                say(f"line {line}: the translation met its length limit before its end")
        sys.stdout.flush()
        counter.show(number + len(chunk) - 1)
    counter.clear()
    return 0


def score(
    folder: Folder,
    files: Files,
    length_penalty: Penalty = None,
    columns: Columns = None,
    header: Header = None,
    as_json: JsonLines = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Print the log-probability (nats, the end included) of given targets and the score, normalized by length.

    One line for each usable pair: log-probability, tab, score; with --json the number of its line in F, too.

    Example: attendo score runs/mine pairs.tsv
    """
    from attendo.tasks import Translator

    translator = Translator.load(folder, prepared(device, threads))
    pairs, account = pairs_of(folder, files, columns, header)
    counter = Counter("pairs")
    while chunk := list(islice(pairs, MOST_LINES)):
        found = translator.score([(source, target) for _, source, target in chunk], length_penalty)
        for (number, _, _), candidate in zip(chunk, found, strict=True):
            if as_json:
                print(json.dumps({"line": number} | _candidate(candidate), ensure_ascii=False))
            else:
                print(f"{candidate.log_prob:.4f}\t{candidate.score:.4f}")
        counter.show(account.used)
    counter.clear()
    say(account.line())
    return 0


def info(folder: Folder, as_json: OneJson = False) -> int:
    """Print the card of a run: what it is, what it learned from, how good it was on its validation set.

    Example: attendo info runs/mine
    """
    from attendo.tasks.description import describe_run

    facts = describe_run(folder)
    print(
        json.dumps(facts, ensure_ascii=False, indent=1) if as_json else "\n".join(card_lines(folder, facts))
    )
    return 0


def pairs_of(
    folder: Path, files: list[Path], columns: str | None, header: bool | None
) -> tuple[Iterator[tuple[int, str, str]], Account]:
    """The usable pairs of files, read in the run's direction, and their account, complete at the end."""
    from attendo.data.accounting import Account
    from attendo.data.corpora import read_pairs
    from attendo.tasks.families import family_of
    from attendo.tasks.settings import data_of

    source = data_of(family_of("translation"), folder).source(files, columns, header)
    account = Account(source.name)
    return read_pairs(source, account=account), account


def _translation_lines(number: int, translation: Translation, n_best: int, as_json: bool) -> str:
    if as_json:
        found = {"line": number, "source": translation.source}
        found |= {"translations": [_candidate(c) for c in translation.candidates]}
        return json.dumps(found, ensure_ascii=False) + "\n"
    if n_best == 1:
        return one_line(translation.text) + "\n"
    return "".join(f"{number}\t{c.score:.4f}\t{one_line(c.text)}\n" for c in translation.candidates)


def _candidate(found: Candidate) -> dict[str, Any]:
    values = dataclasses.asdict(found)
    values["token_log_probs"] = [round(value, 5) for value in found.token_log_probs]
    return values
