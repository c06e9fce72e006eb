"""attendo translate, score, evaluate, info."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from attendo.cli.reporting import say

if TYPE_CHECKING:
    from attendo.tasks import Candidate, Translation, Translator

T = TypeVar("T")
CHUNK = 512
"""Lines translated together: sorted by length within, put back in order."""

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The run's folder.")]
Beam = Annotated[int | None, typer.Option(metavar="N", help="Beam width; 1 is greedy. Else the run's own.")]
Penalty = Annotated[float | None, typer.Option(metavar="A", help="GNMT length penalty; 0 = none.")]
Threads = Annotated[int | None, typer.Option(help="Of the processor; else one a core.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Columns = Annotated[str | None, typer.Option(help="source=en,target=ja or 1,2.")]
Header = Annotated[bool, typer.Option("--header", help="The .tsv file starts with a header.")]


def add_using_commands(app: typer.Typer) -> None:
    """Adds the commands that use a trained model."""
    app.command("translate")(translate)
    app.command("score")(score)
    app.command("evaluate")(evaluate)
    app.command("info")(info)


def translate(
    folder: Folder,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Else lines on stdin.")
    ] = None,
    beam: Beam = None,
    n_best: Annotated[int | None, typer.Option(metavar="N", help="Print the N best of each line.")] = None,
    length_penalty: Penalty = None,
    as_json: AsJson = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "cpu",
    threads: Threads = None,
) -> int:
    """Translate texts, or each line of stdin: one output line for each input line, in order.

    With --n-best N above 1 each input line gives N lines: its number, the score and the text, between tabs.

    Example: attendo translate runs/mine < input.txt > output.txt
    """
    translator = _load(folder, device, threads)
    for number, chunk in _chunks(texts if texts else _lines(), CHUNK):
        found = translator.translate(chunk, beam=beam, n_best=n_best, length_penalty=length_penalty)
        for line, translation in enumerate(found, number):
            if not translation.candidates[0].finished:
                say(f"line {line}: stopped at the length limit before the end of the translation")
            sys.stdout.write(_translation_lines(line, translation, n_best or 1, as_json))
        sys.stdout.flush()
    return 0


def score(
    folder: Folder,
    file: Annotated[Path, typer.Argument(metavar="F", help="Pairs: sources and given targets.")],
    length_penalty: Penalty = None,
    columns: Columns = None,
    header: Header = False,
    as_json: AsJson = False,
    threads: Threads = None,
) -> int:
    """Print the log-probability (in nats, the end included) and the normalized score of given targets.

    One line for each usable pair: log-probability, tab, score.

    Example: attendo score runs/mine pairs.tsv
    """
    translator = _load(folder, "cpu", threads)
    pairs = _pairs(translator, file, columns, header)
    for _, chunk in _chunks(pairs, CHUNK):
        for (number, _, _), found in zip(
            chunk, translator.score([p[1:] for p in chunk], length_penalty), strict=True
        ):
            if as_json:
                print(json.dumps({"line": number} | _candidate(found), ensure_ascii=False))
            else:
                print(f"{found.log_prob:.4f}\t{found.score:.4f}")
    return 0


def evaluate(
    folder: Folder,
    file: Annotated[Path, typer.Argument(metavar="F", help="Pairs that were not trained on.")],
    tokenize: Annotated[
        str | None,
        typer.Option(
            help="For BLEU: 13a, none, char, intl, zh, ja-mecab. Else 13a, or char where words are not spaced."
        ),
    ] = None,
    beam: Beam = None,
    length_penalty: Penalty = None,
    columns: Columns = None,
    header: Header = False,
    out: Annotated[Path | None, typer.Option(metavar="F", help="Keep the translations, one a line.")] = None,
    as_json: AsJson = False,
    threads: Threads = None,
) -> int:
    """Translate a file's sources and compare with its targets: BLEU and chrF by sacreBLEU, exact match, perplexity.

    Example: attendo evaluate runs/mine test.tsv
    """
    from attendo.files import write_atomic

    translator = _load(folder, "cpu", threads)
    pairs = [(source, target) for _, source, target in _pairs(translator, file, columns, header)]
    began = time.process_time()
    result = translator.evaluate(pairs, beam=beam, length_penalty=length_penalty, tokenize=tokenize)
    spent = time.process_time() - began
    if out is not None:
        write_atomic(out, "".join(one_line(text) + "\n" for text in result.texts))
    if as_json:
        scores = [dataclasses.asdict(found) for found in result.scores]
        print(json.dumps({"file": str(file), "rows": len(pairs), "scores": scores} | result.measures))
        return 0
    for found in result.scores:
        print(f"{found.name} {found.value:.2f}  {found.signature}")
    print(f"perplexity {result.measures['perplexity']:.3f}")
    say(f"{len(pairs):,} rows in {spent:,.1f} CPU-seconds")
    return 0


def info(folder: Folder, as_json: AsJson = False) -> int:
    """Print the card of a run: what it is, what it learned from, how good it was on its validation set.

    Example: attendo info runs/mine
    """
    from attendo.bundle import load_bundle

    bundle = load_bundle(folder)
    if as_json:
        print(json.dumps(bundle.card | {"config": bundle.tables}, ensure_ascii=False, indent=1))
        return 0
    for name, value in _card_lines(bundle.card, bundle.tables):
        print(f"{name:<14}{value}")
    return 0


def one_line(text: str) -> str:
    """A text without line breaks: a generated one is written as a space."""
    return " ".join(text.split("\n")).replace("\r", " ")


def _load(folder: Path, device: str, threads: int | None) -> Translator:
    import torch

    from attendo.tasks import load
    from attendo.tasks.runs import pick_device

    if threads is not None:
        torch.set_num_threads(max(1, threads))
    return load(folder, str(pick_device(device)))


def _lines() -> Iterator[str]:
    """The lines of stdin: only LF ends one; a CR before it and a byte order mark are taken off."""
    from attendo.errors import AttendoError

    for number, raw in enumerate(sys.stdin.buffer, 1):
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise AttendoError(
                f"stdin:{number}: invalid UTF-8 (byte {error.start + 1}); send UTF-8"
            ) from None


def _chunks(items: Iterable[T], size: int) -> Iterator[tuple[int, list[T]]]:
    """Lists of at most `size` items, each with the number of its first, counted from 1."""
    iterator, number = iter(items), 1
    while chunk := list(islice(iterator, size)):
        yield number, chunk
        number += len(chunk)


def _pairs(
    translator: Translator, file: Path, columns: str | None, header: bool
) -> Iterator[tuple[int, str, str]]:
    """The usable pairs of a file; its account is said at the end."""
    from attendo.data.accounting import Account
    from attendo.data.corpora import PairSource, parse_columns, read_pairs

    chosen = None if columns is None else parse_columns(columns)
    source = PairSource((file,), None if chosen is None else (chosen[0], chosen[1]), header)
    account = Account(str(file))
    yield from read_pairs(source, account=account)
    say(account.line())


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


def _card_lines(card: dict[str, Any], tables: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    model, training, data = tables["model"], tables.get("training", {}), card.get("data", {})
    languages = card.get("languages", {})
    named = " → ".join(languages.get(side) or "?" for side in ("source", "target"))
    yield "task", f"{card['task']}, {named}" if any(languages.values()) else card["task"]
    yield (
        "model",
        f"{model['n_encoder_layers']}+{model['n_decoder_layers']} layers, d_model {model['d_model']}",
    )
    yield "", f"{model['n_heads']} heads, d_ff {model['d_ff']}, {card.get('parameters', 0):,} parameters"
    yield "vocabulary", f"{model['vocab_size']:,} ({tables.get('tokenizer', {}).get('kind', 'bpe')})"
    yield "data", f"{data.get('pairs', 0):,} pairs, {data.get('target_tokens', 0):,} target tokens"
    for file in tables.get("data", {}).get("train", []):
        yield "", str(file)
    budget = next(
        (
            f"{training[n]:g} {n.replace('_', ' ')}"
            for n in ("steps", "epochs", "minutes", "cpu_minutes")
            if n in training
        ),
        "?",
    )
    yield (
        "training",
        f"{budget}, {training.get('precision')}, peak rate {training.get('learning_rate', 0):.2g}",
    )
    if found := card.get("validation"):
        yield (
            "validation",
            f"step {found['step']:,}: BLEU {found['bleu']:.1f}, chrF {found['chrf']:.1f} (greedy)",
        )
        yield "", f"exact {found['exact']:.1f} %, perplexity {found['perplexity']:.2f}"
    versions = card.get("versions", {})
    yield "made with", f"attendo {versions.get('attendo')}, torch {versions.get('torch')}"
