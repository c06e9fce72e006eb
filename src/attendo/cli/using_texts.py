"""attendo classify, generate, embed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attendo.cli.drawing import refuse
from attendo.cli.lines import (
    arguments_as_lines,
    numbered_chunks,
    one_line,
    refuse_file_name,
    stdin_bytes,
    stdin_text,
)
from attendo.cli.options import Device, Threads
from attendo.cli.reporting import Counter, say, wrote
from attendo.cli.using_options import (
    Folder,
    Header,
    Input,
    JsonLines,
    Output,
    both_files,
    chosen_device,
    file_done,
    make_ready,
)
from attendo.data.accounting import Account
from attendo.display.formats import plural

if TYPE_CHECKING:
    from attendo.decoding.filters import SamplingConfig
    from attendo.inference import Generation, Generator

Pooling = Literal["mean", "max", "first"]
Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Else lines on stdin.")]


def add_text_commands(app: typer.Typer) -> None:
    """Adds the commands that use what has learned from texts."""
    app.command("classify", short_help="Label texts, the lines of stdin, or a table.")(classify)
    # what stands behind PROMPT is taken in, to say that it belongs in quotes
    app.command("generate", short_help="Continue a text.", context_settings={"allow_extra_args": True})(
        generate
    )
    app.command("embed", short_help="Vectors of texts, by any model; the nearest lines of a file.")(embed)


def classify(
    folder: Folder,
    texts: Texts = None,
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="F", help="A table of texts, or lines of a .txt; with --output."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--output", metavar="G", help="Where they go with their labels: .tsv, .csv or .jsonl."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", "--column", metavar="C", help="Of --input: text=body, or 2. Else as in training."
        ),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="C", help="Columns of --input to have in --output, too: id,opened.")
    ] = None,
    header: Header = None,
    as_json: JsonLines = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Label texts, or each line of stdin: one output line for each, the label, a tab and its probability.

    The probabilities are calibrated on the validation rows. Of a line without text, the tab alone.

    --input reads .csv, .tsv, .jsonl or .parquet, perhaps .gz, as training does. --output gets one row for each that
    was read, in order: its line in F, the label, the probability, the text; before them the columns of --keep, by name
    or number from 1. A row without text, or one that cannot be read, has no label.

    Example: attendo classify runs/mine "what a lovely film"

    Example: attendo classify runs/mine --input new.csv --output labels.csv --columns text=body --keep id,opened
    """
    from attendo.inference import Classifier

    files = both_files(source, out, bool(texts))
    refuse_file_name(texts, "give < FILE, or --input FILE --output G")
    if files:
        refuse("--input", {"--json": as_json})
        return _classify_file(folder, *files, columns, keep, header, chosen_device(device, threads))
    if (columns, keep, header) != (None, None, None):
        raise typer.BadParameter(
            "--columns, --keep and --header are of --input; give that, too, or leave them out"
        )
    classifier = Classifier.load(folder, chosen_device(device, threads))
    counter, n_cut, n_done = Counter("lines"), 0, 0
    for number, chunk in arguments_as_lines(texts) if texts else numbered_chunks(stdin_bytes()):
        for line, found in enumerate(classifier.classify(chunk), number):
            n_cut += found.cut
            if as_json:
                facts = {"line": line, "label": found.label, "probability": found.probability}
                facts |= {"probabilities": found.probabilities, "n_tokens": found.n_tokens, "cut": found.cut}
                print(json.dumps(facts, ensure_ascii=False))
            else:
                print("\t" if found.label is None else f"{one_line(found.label)}\t{found.probability:.4f}")
        sys.stdout.flush()
        n_done = number + len(chunk) - 1
        counter.show(n_done)
    counter.clear()
    if n_cut:
        say(classifier.long_texts.summary(n_cut, n_done))
    return 0


def _classify_file(
    folder: Path,
    source: Path,
    out: Path,
    columns: str | None,
    keep: str | None,
    header: bool | None,
    device: str,
) -> int:
    """Labels the texts of a table; its columns and header as in training unless given."""
    from attendo.data.corpora import parse_kept
    from attendo.data.lines import require_file
    from attendo.inference import Classifier
    from attendo.inference.label_table import FOUND, check_table, classify_table

    require_file(source)
    check_table(out, "--output")
    kept = () if keep is None else parse_kept(keep, FOUND)
    classifier = Classifier.load(folder, device)
    account, counter = Account(str(source)), Counter("rows")
    rows = _rows_of(source, folder, columns, kept, header, account)
    n_done, n_cut = classify_table(classifier, rows, out, counter.show, kept)
    counter.clear()
    say(account.line())
    if n_cut:
        say(classifier.long_texts.summary(n_cut, n_done))
    say(wrote(out))
    return 0


def _rows_of(
    source: Path,
    folder: Path,
    columns: str | None,
    kept: tuple[str, ...],
    header: bool | None,
    account: Account,
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Each row of a table of texts, or each line, with its number: the text and the kept fields."""
    from attendo.config import read_toml
    from attendo.data.corpora import parse_columns, read_lines, read_with_kept
    from attendo.data.labelled import LABELLED
    from attendo.data.texts import has_rows

    if has_rows(source):  # else lines, which have no columns
        learned = read_toml(folder / "config.toml").get("data", {})
        columns = learned.get("columns") if columns is None else columns
        header = learned.get("header") if header is None else header
    column = None
    if columns is not None:  # those of training name the label, too
        column = parse_columns(columns, LABELLED if "," in columns else ("text",))[-1]
    if kept:
        return read_with_kept(source, column, kept, bool(header), account)
    lines = read_lines(source, column, bool(header), account=account, keep_skipped=True)
    return ((number, (text,)) for number, text in lines)


def generate(
    context: typer.Context,
    folder: Folder,
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="In quotes; - is stdin. Else a new text.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N", min=1, help="Most tokens; else 200.")] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T", help="0 is greedy; else 1.")] = None,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Only the K likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Only the likeliest, together at least P.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(metavar="P", help="None below P times the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(metavar="R", help="Above 1: tokens seen before become less likely.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="S", help="End before this; repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed, the same text.")] = None,
    source: Input = None,
    out: Output = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object, at the end; of a file, one a line.")
    ] = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Continue a text, or write a new one; prompt and text appear as they are written.

    Options left out are the run's own. Of stdin (PROMPT -) the line break at its end is left out. --json: prompt,
    text, token_ids, log_probs (nats), finished_by, cut, unknown, slides, seed, window (of token ids, at the end).

    --input: each line is a prompt, and gives a line, prompt and text; a line break in it is written as a space. The
    seed of a line is a function of --seed, 0 if left out, and its number. A file may have any size; a run that was
    stopped or killed goes on with the same command.

    Example: attendo generate runs/mine "Once upon a time" --temperature 0.8

    Example: attendo generate runs/mine --input prompts.txt --output texts.txt --seed 7
    """
    from attendo.inference import Generator

    files = both_files(source, out, prompt is not None)

    if context.args:
        words = " ".join([prompt or "", *context.args])
        raise typer.BadParameter(f'put the prompt in quotes: attendo generate {folder} "{words}"')
    refuse_file_name([prompt] if prompt else None, "give --input FILE --output G", "PROMPT")
    text = stdin_text() if prompt == "-" else prompt or ""
    generator = Generator.load(folder, chosen_device(device, threads))
    make_ready(generator)
    options = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
    }
    options |= {"repetition_penalty": repetition_penalty, "stop": tuple(stop) if stop else None, "seed": seed}
    given = {name: value for name, value in options.items() if value is not None}
    if files:
        work = _Generating(generator, generator.config(given), as_json)
        return file_done(*files, work, work.request(folder), work.notes)
    return _generate(generator, text, given, as_json)


def embed(
    folder: Folder,
    texts: Texts = None,
    pooling: Annotated[
        Pooling | None,
        typer.Option(metavar="P", help="mean, max or first, over the tokens; else the run's own, mean."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="0: the embedding, N: behind block N; else the last.")
    ] = None,
    nearest: Annotated[
        Path | None, typer.Option(metavar="F", help="Print the nearest lines of this file instead.")
    ] = None,
    n: Annotated[int, typer.Option("-n", metavar="N", min=1, help="How many of them.")] = 5,
    column: Annotated[
        str | None, typer.Option(metavar="C", help="The texts' column where that file is a table.")
    ] = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> int:
    """Vectors of texts, or of each line of stdin, by any trained model: one JSON object a line.

    With --nearest each text behind ">", and below it the lines of a file whose vectors point most nearly the same
    way: line, cosine and text.

    Example: attendo embed runs/mine "a strong wind" --nearest lines.txt
    """
    from attendo.inference import Embedder
    from attendo.inference.embedder import nearest_rows

    refuse_file_name(texts, "give < FILE")
    embedder = Embedder.load(folder, chosen_device(device, threads))
    others = None if nearest is None else _lines_of(nearest, column)
    vectors = None if others is None else embedder.embed([text for _, text in others], pooling, layer)
    for number, chunk in arguments_as_lines(texts) if texts else numbered_chunks(stdin_bytes()):
        for line, (text, vector) in enumerate(
            zip(chunk, embedder.embed(chunk, pooling, layer), strict=True), number
        ):
            if others is None or vectors is None:
                print(json.dumps({"line": line, "text": text, "vector": vector.tolist()}, ensure_ascii=False))
                continue
            print(f"> {one_line(text)}")
            for cosine, index in nearest_rows(vector, vectors, n):
                print(f"{others[index][0]}\t{cosine:.4f}\t{one_line(others[index][1])}")
        sys.stdout.flush()
    return 0


def _lines_of(file: Path, column: str | None) -> list[tuple[int, str]]:
    from attendo.data.corpora import read_lines

    return list(read_lines(file, column, account=Account(str(file), option="--column")))


@dataclasses.dataclass(frozen=True)
class _Generating:
    """From prompts to the lines of how they go on, and what is worth saying about them."""

    generator: Generator
    config: SamplingConfig
    as_json: bool

    def __call__(self, number: int, prompts: list[str]) -> tuple[list[str], Counts[str]]:
        """The output of each line, and counts."""
        from attendo.inference.seeds import of_lines

        found = self.generator.generate_batch(prompts, of_lines(self.config, number, len(prompts)))
        counts = Counts(
            {
                "cut": sum(text.cut > 0 for text in found),
                "unknown": sum(text.unknown > 0 for text in found),
            }
        )
        return [self._line(line, text) for line, text in enumerate(found, number)], counts

    def request(self, folder: Path) -> dict[str, Any]:
        """All that the texts depend on, apart from the prompts."""
        from attendo.files import sha256_file

        model = {"model": sha256_file(folder / "model.safetensors")}
        return model | dataclasses.asdict(self.config) | {"json": self.as_json}

    def notes(self, counts: Mapping[str, int], n_lines: int) -> list[str]:
        """What to say at the end; `counts` are those of all lines."""
        said = {
            "cut": "prompts were longer than the model's context; as much at their beginnings was not read",
            "unknown": "prompts hold words that the model does not know",
        }
        return [f"{counts[name]:,} of {n_lines:,} {text}" for name, text in said.items() if counts.get(name)]

    def _line(self, number: int, found: Generation) -> str:
        if self.as_json:
            return json.dumps({"line": number} | dataclasses.asdict(found), ensure_ascii=False)
        return one_line(found.prompt + found.text)


def _generate(generator: Generator, prompt: str, given: dict[str, Any], as_json: bool) -> int:
    """Writes the text as it comes, or all facts at the end; what was left out of the prompt is said first."""
    stream = generator.stream(prompt, **given)
    if stream.cut:
        say(
            f"the prompt has {plural(stream.cut, 'token')} more than the model's context of"
            f" {generator.model.config.max_len:,}; as many at its beginning are left out"
        )
    if stream.unknown:
        say(f"the model does not know {plural(stream.unknown, 'token')} of the prompt")
    if not as_json:
        sys.stdout.write(prompt)
    for piece in stream:
        if not as_json:
            sys.stdout.write(piece)
            sys.stdout.flush()
    print(json.dumps(dataclasses.asdict(stream.generation), ensure_ascii=False) if as_json else "")
    config = dataclasses.replace(generator.decoding, **given)
    if config.seed is None and config.temperature > 0 and config.top_k != 1:  # else nothing was drawn
        say(f"(--seed {stream.seed} writes this again)")
    return 0
