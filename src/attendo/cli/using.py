"""attendo translate, score, evaluate, info."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendo.cli.card import card_lines
from attendo.cli.lines import MOST_LINES, arguments_as_lines, numbered_chunks, one_line, stdin_bytes
from attendo.cli.reporting import Counter, say

if TYPE_CHECKING:
    from attendo.data.accounting import Account
    from attendo.tasks import Candidate, Translation, Translator

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The run's folder.")]
Files = Annotated[
    list[Path], typer.Argument(metavar="F...", help="Pairs in one file, or in two parallel ones.")
]
Beam = Annotated[
    int | None, typer.Option(metavar="N", help="Beam width; 1 is greedy. Else the run's own, mostly 4.")
]
Penalty = Annotated[
    float | None, typer.Option(metavar="A", help="GNMT length penalty; 0 is none. Else the run's own.")
]
Threads = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of the processor; else one a core.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Columns = Annotated[
    str | None, typer.Option(metavar="C", help="source=en,target=ja, or 1,2. Else as in training.")
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether a .tsv file starts with one. Else as in training."),
]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
OneJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def add_using_commands(app: typer.Typer) -> None:
    """Adds the commands that use a trained model."""
    app.command("translate", short_help="Translate texts, or the lines of stdin.")(translate)
    app.command("score", short_help="Log-probabilities of given translations.")(score)
    app.command("evaluate", short_help="BLEU, chrF, exact match, perplexity on a file.")(evaluate)
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
    translator = _load(folder, device, threads)
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
    translator = _load(folder, device, threads)
    pairs, account = _pairs(folder, files, columns, header)
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


def evaluate(
    folder: Folder,
    files: Files,
    tokenize: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="For BLEU: 13a, none, char, intl, zh, ja-mecab. Else 13a, or char where words are not spaced.",
        ),
    ] = None,
    beam: Beam = None,
    length_penalty: Penalty = None,
    columns: Columns = None,
    header: Header = None,
    out: Annotated[Path | None, typer.Option(metavar="F", help="Keep the translations, one a line.")] = None,
    as_json: OneJson = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Translate a file's sources and compare with its targets.

    Prints BLEU and chrF by sacreBLEU with their signatures, exact matches, and the perplexity of the targets.

    Example: attendo evaluate runs/mine test.tsv
    """
    from attendo.data.lines import require_file
    from attendo.errors import AttendoError
    from attendo.files import write_atomic

    for file in files:
        require_file(file)
    if out is not None and not out.absolute().parent.is_dir():
        raise AttendoError(f"--out {out}: there is no folder {out.parent}; make it first")
    translator = _load(folder, device, threads)
    numbered, account = _pairs(folder, files, columns, header)
    pairs = [(source, target) for _, source, target in numbered]
    say(account.line())
    cpu, wall = time.process_time(), time.monotonic()
    result = translator.evaluate(pairs, beam=beam, length_penalty=length_penalty, tokenize=tokenize)
    seconds = {"cpu_seconds": time.process_time() - cpu, "wall_seconds": time.monotonic() - wall}
    if out is not None:
        write_atomic(out, "".join(one_line(text) + "\n" for text in result.texts))
    if as_json:
        scores = [dataclasses.asdict(found) for found in result.scores]
        facts = {"account": account.as_json(), "beam": beam or translator.decoding.beam, "scores": scores}
        print(json.dumps(facts | result.measures | seconds, ensure_ascii=False))
        return 0
    for found in result.scores:
        print(f"{found.name} {found.value:.2f}  {found.signature}")
    print(f"perplexity {result.measures['perplexity']:.3f}  loss {result.measures['loss']:.4f} nats a token")
    say(
        f"{len(pairs):,} rows in {seconds['wall_seconds']:,.1f} s ({seconds['cpu_seconds']:,.1f} CPU-seconds),"
        f" beam {beam or translator.decoding.beam}"
    )
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


def _load(folder: Path, device: str, threads: int | None) -> Translator:
    import torch

    from attendo.tasks import load
    from attendo.tasks.runs import pick_device

    if threads is not None:
        torch.set_num_threads(threads)
    return load(folder, str(pick_device(device)))


def _pairs(
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
