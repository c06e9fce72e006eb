"""attendo translate, score, info."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter as Counts
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attendo.cli.card import card_lines
from attendo.cli.directions import warn_of_guessing, warn_of_order
from attendo.cli.drawing import OF_DRAWS, OF_STREAMS, drawing_of, refuse, show
from attendo.cli.lines import (
    MOST_LINES,
    arguments_as_lines,
    numbered_chunks,
    refuse_file_name,
    stdin_bytes,
)
from attendo.cli.options import Device, OneJson, Segmented, Threads
from attendo.cli.reporting import Counter, say
from attendo.cli.translation_lines import TranslationLines, candidate_json
from attendo.cli.using_options import (
    Beam,
    Columns,
    Files,
    Folder,
    Header,
    Input,
    JsonLines,
    Output,
    Penalty,
    With,
    both_files,
    chosen_device,
    file_done,
    make_ready,
    require_files,
)
from attendo.cli.using_ray import OnRay, RayAddress, RayOptions, RayWorkers

if TYPE_CHECKING:
    from attendo.data.accounting import Account
    from attendo.inference.translator import Translator


def add_using_commands(app: typer.Typer) -> None:
    """Adds the commands that use a trained model."""
    app.command("translate", short_help="Translate texts, the lines of stdin or of a file.")(translate)
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
    longest: Annotated[
        int | None,
        typer.Option(metavar="N", help="The most tokens of a piece (default: as seen in training)."),
    ] = None,
    segment: Segmented = "sentence",
    others: With = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Search in 8-bit numbers: faster, a little less exact.")
    ] = False,
    shortlist: Annotated[
        Path | None, typer.Option(metavar="F", help="Of attendo shortlist: faster for few texts at a time.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What each translation begins with; whole words.")
    ] = None,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Behind a tab, which source token each token looks at.")
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(metavar="T", help="Draw, do not search; 1 is the model's own law, 0 greedy."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Of a draw: only the K likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Of a draw: the likeliest, together at least P.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(metavar="P", help="Of a draw: none below P times the likeliest.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of a draw: the same seed, the same text.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="One TEXT, greedy, shown as it is found.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="K=V", help="Of the search, as decoding.no_repeat_ngram=3; repeatable."
        ),
    ] = None,
    source: Input = None,
    out: Output = None,
    ray: OnRay = False,
    ray_address: RayAddress = None,
    ray_workers: RayWorkers = None,
    as_json: JsonLines = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Translate texts, each line of stdin, or a file: one output line for each input line, in order.

    A line is translated sentence by sentence, since most models are trained on sentences; --segment none translates it
    as one piece. --json marks a translation in which text is probably missing: "omission" is then short or unaligned.

    A line break in a translation is written as a space, and an empty line gives an empty line. With --n-best N
    above 1 each input line gives up to N lines, best first, of three fields between tabs: its number from 1, the
    score, the text. The score is the log-probability (nats) over the length norm. --alignments adds a last field,
    as 0-0 1-2: numbers of tokens from 0, source-target; with --json also weights, texts and places in the text. A file
    may have any size; a run that was stopped or killed goes on with the same command.

    --temperature T draws each translation by chance, perhaps with --top-k, --top-p, --min-p. One TEXT has the seed
    --seed, and each of several lines one of its own, made from --seed and its number; --json tells it. If --seed is
    left out, it is 0 with --input, and else another each time.

    Example: attendo translate runs/mine < input.txt > output.txt

    Example: attendo translate runs/mine --input big.txt.gz --output big.ja.txt

    Example: attendo translate runs/mine --input big.txt.gz --output big.ja.txt --ray --ray-address auto

    Example: attendo translate runs/mine "It will rain." --prefix "明日は" --alignments

    Example: attendo translate runs/mine "It will rain." --temperature 0.8 --top-p 0.9 --seed 7
    """
    from attendo.data.formats import has_surrogate
    from attendo.inference import Translator

    files = both_files(source, out, bool(texts))
    refuse_file_name(texts, "give < FILE, or --input FILE --output G")
    if prefix and has_surrogate(prefix):
        raise typer.BadParameter("--prefix is not UTF-8; type it in a UTF-8 terminal")
    searched = {"--beam": beam is not None, "--n-best": (n_best or 1) > 1}
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    drawing, note = drawing_of(options, len(texts or []), in_files=files is not None) or (None, "")
    if drawing:
        refuse("--temperature", searched, set_ or [], OF_DRAWS)
    if stream:
        if len(texts or []) != 1:
            raise typer.BadParameter("--stream is for one TEXT; give it on the command line")
        shown = {"--temperature": drawing is not None, "--json": as_json, "--alignments": alignments}
        refuse("--stream", searched | {"--beam": beam not in (None, 1)} | shown, set_ or [], OF_STREAMS)
    cluster = RayOptions(ray, ray_address, ray_workers)
    cluster.check(files is not None, int8, device)
    translator = Translator.load(folder, chosen_device("cpu" if ray else device, threads), others or ())
    _set_search(translator, set_ or [])
    if shortlist is not None:
        from attendo.inference.shortlists import load_shortlist

        translator.shortlist = load_shortlist(shortlist, translator.tokenizer)
    config = translator.config(beam, n_best, length_penalty)
    if int8 and config.coverage_penalty and not (drawing or stream):
        raise typer.BadParameter(
            "--int8 gives no attention for decoding.coverage_penalty; leave one of them out"
        )
    work = TranslationLines(
        translator, config, longest, segment, n_best or 1, as_json, prefix or "", alignments, drawing
    )
    make_ready(translator, int8=int8)
    if texts and stream:
        [(_, [text])] = arguments_as_lines(texts)
        show(translator.stream(text, longest=longest, segment=segment, prefix=prefix or None))
        return 0
    if files:
        request = work.request(folder, others or [], shortlist) | {"int8": int8}
        if not ray:
            return file_done(*files, work, request, work.notes)
        runs = [folder, *(others or [])]
        with cluster.cluster(work, runs, shortlist, int8, device, threads or 1) as ahead:
            return file_done(*files, ahead, request, work.notes)
    counter, counts, n_lines = Counter("lines"), Counts[str](), 0
    for number, chunk in arguments_as_lines(texts) if texts else numbered_chunks(stdin_bytes()):
        lines, found = work(number, chunk, counter)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        counts.update(found)
        n_lines = number + len(chunk) - 1
        counter.show(n_lines)
    counter.clear()
    for line in work.notes({name: n for name, n in counts.items() if name != "endless"}, n_lines):
        say(line)
    if note:
        say(note)
    return 0


def score(
    folder: Folder,
    files: Files,
    length_penalty: Penalty = None,
    columns: Columns = None,
    header: Header = None,
    others: With = None,
    as_json: JsonLines = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Print the log-probability (nats, the end included) of given targets and the score, normalized by length.

    One line for each usable pair: log-probability, tab, score; with --json the number of its line in F, too.

    Example: attendo score runs/mine pairs.tsv
    """
    from attendo.inference import Translator

    require_files(files)
    translator = Translator.load(folder, chosen_device(device, threads), others or ())
    make_ready(translator)
    pairs, account = pairs_of(folder, files, columns, header)
    counter, log_prob, n_tokens, alone = Counter("pairs"), 0.0, 0, len(files) == 1
    while chunk := list(islice(pairs, MOST_LINES)):
        texts = [(source, target) for _, source, target in chunk]
        if not n_tokens:
            warn_of_order(translator.card.get("languages") or {}, texts, not alone)
        found = translator.score(texts, length_penalty)
        log_prob += sum(candidate.log_prob for candidate in found)
        n_tokens += sum(len(candidate.token_log_probs) for candidate in found)
        for (number, _, _), candidate in zip(chunk, found, strict=True):
            if as_json:
                print(json.dumps({"line": number} | candidate_json(candidate), ensure_ascii=False))
            else:
                print(f"{candidate.log_prob:.4f}\t{candidate.score:.4f}")
        counter.show(account.used)
    counter.clear()
    say(account.line())
    warn_of_guessing(translator, log_prob, n_tokens, not alone)
    return 0


def info(folder: Folder, as_json: OneJson = False) -> int:
    """Print the card of a run: what it is, what it learned from, how good it was on its validation set.

    Example: attendo info runs/mine
    """
    from attendo.runs.description import describe_run

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
    from attendo.runs.settings import data_of
    from attendo.runs.task_specs import family_of

    source = data_of(family_of("translation"), folder).source(files, columns, header)
    account = Account(source.name)
    return read_pairs(source, account=account), account


def _set_search(translator: Translator, assignments: list[str]) -> None:
    """Changes how the translator searches, as [decoding] of a run's config.toml does."""
    from attendo.config import build, override
    from attendo.decoding.options import DecodingConfig

    tables = override({}, assignments)
    if other := tables.keys() - {"decoding"}:
        raise typer.BadParameter(f"--set {other.pop()}.…: a search has settings of decoding only")
    chosen = dataclasses.asdict(translator.decoding) | tables.get("decoding", {})
    translator.decoding = build(DecodingConfig, chosen, "--set [decoding]")
