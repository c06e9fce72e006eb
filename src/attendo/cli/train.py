"""attendo train: a subcommand for each kind of task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from attendo.cli.options import Device, Threads
from attendo.cli.training_options import (
    Assignments,
    Config,
    CpuMinutes,
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
    TrainSource,
    TrainTarget,
    ValidSide,
    begin,
    files_of,
    one_end,
)

if TYPE_CHECKING:
    from attendo.bundle import TaskName


Labelled = Annotated[
    list[str] | None,
    typer.Option(metavar="F", help="Labelled texts: a file, a folder or 'a/*.tsv'; .csv, .jsonl …"),
]
Texts = Annotated[
    list[str] | None,
    typer.Option(metavar="F", help="Texts: files, folders, or rows of a column; repeatable."),
]

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
    tasks: dict[TaskName, tuple[str, str]] = {
        "language-model": ("A model that writes on, from texts.", LANGUAGE_MODEL),
        "masked-language-model": ("Finds hidden tokens; a start for classifiers.", MASKED),
    }
    for name, (short, help) in tasks.items():
        train.command(name, short_help=short)(_text_task(name, help))


def classification(
    out: Out = None,
    train: Labelled = None,
    valid: ValidTexts = None,
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
    With --init-from a masked language model's run, the encoder starts from what that has learned; --set lora.rank=8
    trains adapters alone in it, --set 'training.frozen=["encoder"]' leaves it as it is.

    Example: attendo train classification --train reviews.tsv --out runs/mine
    """
    options = {
        "data.train": train,
        "data.valid": valid,
        "data.columns": columns,
        "data.header": header or None,
        "data.strict": strict or None,
        "training.seed": seed,
        **one_end({"steps": steps, "epochs": epochs, "minutes": minutes, "cpu_minutes": cpu_minutes}),
    }
    layers, where = (preset, config, set_), (out, threads, device)
    return begin("classification", layers, options, where, print_config, init_from)


def _text_task(task: TaskName, help: str) -> Callable[..., int]:
    """The command of a task that learns from plain texts."""

    def command(
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
        strict: Strict = False,
        print_config: PrintConfig = False,
    ) -> int:
        options = {
            "data.train": train or ["stdlib"],
            "data.valid": valid or None,
            "data.column": column,
            "data.header": header or None,
            "data.documents": documents,
            "data.strict": strict or None,
            "training.seed": seed,
            **one_end({"steps": steps, "epochs": epochs, "minutes": minutes, "cpu_minutes": cpu_minutes}),
        }
        layers, where = (preset, config, set_), (out, threads, device)
        return begin(task, layers, options, where, print_config, init_from)

    command.__doc__ = help
    return command


LANGUAGE_MODEL = """Train a model that continues texts.

Without --train it learns from the source of Python's standard library, which every machine has.
--set tokenizer.kind=character|byte|word|bpe|unigram; --set model.max_len=N is the context in tokens.
--init-from DIR goes on from another model on your texts; with --set lora.rank=8 only adapters learn.

Example: attendo train language-model --train notes.txt --out runs/mine
"""
MASKED = """Train an encoder to find hidden tokens again.

Its run is a start for a classifier (train classification --init-from) and gives vectors (embed).
--set masking.rule=80/10/10 hides as BERT does; the plain rule hides every chosen token.

Example: attendo train masked-language-model --train notes.txt --out runs/mine
"""


Pairs = Annotated[
    list[str] | None,
    typer.Option(metavar="F", help="Pairs: a file, a folder or 'a quoted/*.tsv'; .csv, .jsonl …"),
]

Against = Annotated[
    list[str] | None,
    typer.Option(metavar="F", help="Test rows that --drop leaks leaves out; twice for two parallel."),
]


def train_app() -> typer.Typer:
    """The command `train` with a subcommand for each kind of task."""
    train = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
    train.callback()(tasks)
    train.command("translation", short_help="A translator from pairs of sentences.")(translation)
    add_text_tasks(train)
    return train


def tasks(context: typer.Context) -> None:
    """Train a model from your own files.

    Example: attendo train translation --train pairs.tsv --out runs/mine
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def translation(
    out: Out = None,
    train: Pairs = None,
    valid: Annotated[
        list[str] | None, typer.Option(metavar="F", help="Validation pairs; else some are split off.")
    ] = None,
    train_source: TrainSource = None,
    train_target: TrainTarget = None,
    valid_source: ValidSide = None,
    valid_target: ValidSide = None,
    preset: Preset = None,
    config: Config = None,
    set_: Assignments = None,
    init_from: InitFrom = None,
    columns: Annotated[
        str | None, typer.Option(metavar="C", help="source=en,target=ja, or 1,2 by number.")
    ] = None,
    header: Header = False,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="en", help="Code of the source language (BCP 47).")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="ja", help="Code of the target language (BCP 47).")
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Swap the sides of the data, not --from and --to.")
    ] = False,
    steps: Steps = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    cpu_minutes: CpuMinutes = None,
    seed: Seed = None,
    threads: Threads = None,
    device: Device = "auto",
    strict: Strict = False,
    drop: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Leave rows out: duplicates,leaks (see doctor).")
    ] = None,
    against: Against = None,
    print_config: PrintConfig = False,
) -> int:
    """Train a translator from pairs of sentences.

    What you leave open (size, vocabulary, batch, rate) is chosen from your data, this machine's measured speed
    and the budget, and printed. A preset, then --config, then --set, then the other options: the later wins.
    Every row is accounted for. Ctrl-C saves; attendo resume goes on.
    With --init-from a trained model learns on: all of it, adapters alone (--set lora.rank=8), or all but some parts
    (--set 'training.frozen=["encoder"]').
    Parts are settings, too: model.positions is sinusoidal, learned, rotary, alibi, relative or none
    (--set model.positions=alibi), model.norm is layer or rms.

    Example: attendo train translation --train pairs.tsv --out runs/mine
    """
    options = {
        "data.train": files_of("--train", train, train_source, train_target),
        "data.valid": files_of("--valid", valid, valid_source, valid_target),
        "data.columns": columns,
        "data.header": header or None,
        "data.source_language": from_,
        "data.target_language": to,
        "data.reverse": reverse or None,
        "data.strict": strict or None,
        "data.drop": drop,
        "data.against": against,
        "training.seed": seed,
        **one_end({"steps": steps, "epochs": epochs, "minutes": minutes, "cpu_minutes": cpu_minutes}),
    }
    layers, where = (preset, config, set_), (out, threads, device)
    return begin("translation", layers, options, where, print_config, init_from)
