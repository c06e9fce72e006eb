"""attendo train classification, language-model, masked-language-model."""

from __future__ import annotations

from typing import Annotated

import typer

from attendo.cli.training_options import (
    Assignments,
    Config,
    CpuMinutes,
    Device,
    Epochs,
    Header,
    InitFrom,
    Minutes,
    Out,
    Preset,
    PrintConfig,
    Seed,
    Steps,
    Strict,
    Threads,
    begin,
    one_end,
)

Labelled = Annotated[
    str | None, typer.Option(metavar="F", help="Labelled texts: .tsv .csv .jsonl .parquet, or .gz.")
]
Texts = Annotated[
    list[str] | None,
    typer.Option(metavar="F", help="Texts: files, folders, or rows of a column; repeatable."),
]
Valid = Annotated[str | None, typer.Option(metavar="F", help="For validation; else some is split off.")]
ValidTexts = Annotated[
    list[str] | None, typer.Option(metavar="F", help="For validation; else some is split off.")
]
Column = Annotated[
    str | None, typer.Option(metavar="C", help="The texts' column in .tsv, .csv, .jsonl, .parquet.")
]
Documents = Annotated[
    str | None,
    typer.Option(metavar="D", help="What a document is in a text file: file, line or blank (lines)."),
]


def add_text_tasks(train: typer.Typer) -> None:
    """Adds the tasks that learn from texts."""
    train.command("classification", short_help="A classifier from labelled texts.")(classification)
    train.command("language-model", short_help="A model that writes on, from texts.")(language_model)
    train.command("masked-language-model", short_help="Finds hidden tokens; a start for classifiers.")(
        masked_language_model
    )


def classification(
    out: Out = None,
    train: Labelled = None,
    valid: Valid = None,
    preset: Preset = None,
    config: Config = None,
    set_: Assignments = None,
    init_from: InitFrom = None,
    columns: Annotated[
        str | None, typer.Option(metavar="C", help="label=stars,text=review, or 1,2 by number.")
    ] = None,
    header: Header = False,
    steps: Steps = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    cpu_minutes: CpuMinutes = None,
    seed: Seed = None,
    threads: Threads = None,
    device: Device = "auto",
    strict: Strict = False,
    print_config: PrintConfig = False,
) -> int:
    """Train a classifier from labelled texts.

    Labels may be any words. What you leave open is chosen from your data and printed; every row is accounted for.
    With --init-from a masked language model's run, the encoder starts from what that has learned.

    Example: attendo train classification --train reviews.tsv --out runs/mine
    """
    options = {
        "data.train": None if train is None else [train],
        "data.valid": None if valid is None else [valid],
        "data.columns": columns,
        "data.header": header or None,
        "data.strict": strict or None,
        "training.seed": seed,
        **one_end({"steps": steps, "epochs": epochs, "minutes": minutes, "cpu_minutes": cpu_minutes}),
    }
    layers, where = (preset, config, set_), (out, threads, device)
    return begin("classification", layers, options, where, print_config, init_from)


def language_model(
    out: Out = None,
    train: Texts = None,
    valid: ValidTexts = None,
    preset: Preset = None,
    config: Config = None,
    set_: Assignments = None,
    init_from: InitFrom = None,
    column: Column = None,
    header: Header = False,
    documents: Documents = None,
    steps: Steps = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    cpu_minutes: CpuMinutes = None,
    seed: Seed = None,
    threads: Threads = None,
    device: Device = "auto",
    print_config: PrintConfig = False,
) -> int:
    """Train a model that continues texts.

    Without --train it learns from the source of Python's standard library, which every machine has.
    --set tokenizer.kind=character|byte|word|bpe|unigram; --set model.max_len=N is the context in tokens.

    Example: attendo train language-model --train notes.txt --out runs/mine
    """
    options = _texts(train, valid, column, header, documents, seed) | one_end(
        {"steps": steps, "epochs": epochs, "minutes": minutes, "cpu_minutes": cpu_minutes}
    )
    layers, where = (preset, config, set_), (out, threads, device)
    return begin("language-model", layers, options, where, print_config, init_from)


def masked_language_model(
    out: Out = None,
    train: Texts = None,
    valid: ValidTexts = None,
    preset: Preset = None,
    config: Config = None,
    set_: Assignments = None,
    init_from: InitFrom = None,
    column: Column = None,
    header: Header = False,
    documents: Documents = None,
    steps: Steps = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    cpu_minutes: CpuMinutes = None,
    seed: Seed = None,
    threads: Threads = None,
    device: Device = "auto",
    print_config: PrintConfig = False,
) -> int:
    """Train an encoder to find hidden tokens again.

    Its run is a start for a classifier (train classification --init-from) and gives vectors (embed).
    --set data.rule=80/10/10 hides as BERT does; the plain rule hides every chosen token.

    Example: attendo train masked-language-model --train notes.txt --out runs/mine
    """
    options = _texts(train, valid, column, header, documents, seed) | one_end(
        {"steps": steps, "epochs": epochs, "minutes": minutes, "cpu_minutes": cpu_minutes}
    )
    layers, where = (preset, config, set_), (out, threads, device)
    return begin("masked-language-model", layers, options, where, print_config, init_from)


def _texts(
    train: list[str] | None,
    valid: list[str] | None,
    column: str | None,
    header: bool,
    documents: str | None,
    seed: int | None,
) -> dict[str, object]:
    return {
        "data.train": train or ["stdlib"],
        "data.valid": valid or None,
        "data.column": column,
        "data.header": header or None,
        "data.documents": documents,
        "training.seed": seed,
    }
