"""attendo train translation, attendo resume."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from attendo.cli.options import Device, Threads
from attendo.cli.reporting import follow, say, silent
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
    ranks_of,
)
from attendo.cli.training_texts import add_text_tasks

Pairs = Annotated[
    list[str] | None,
    typer.Option(metavar="F", help="Pairs: a file, a folder or 'a quoted/*.tsv'; .csv, .jsonl …"),
]

Against = Annotated[
    list[str] | None,
    typer.Option(metavar="F", help="Test rows that --drop leaks leaves out; twice for two parallel."),
]


def add_training_commands(app: typer.Typer) -> None:
    """Adds `train` with its tasks, and `resume`."""
    train = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
    train.callback()(tasks)
    train.command("translation", short_help="A translator from pairs of sentences.")(translation)
    add_text_tasks(train)
    app.add_typer(train, name="train")
    app.command("resume", short_help="Go on with a run from its checkpoint.")(resume)
    app.command("verify-resume", short_help="Prove that a run resumes exactly.")(verify_resume)


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


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The run's folder.")],
    steps: Steps = None,
    more_steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after N updates more.")
    ] = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    cpu_minutes: CpuMinutes = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of the processor; else as many as before.")
    ] = None,
    device: Device = "auto",
) -> int:
    """Go on with a run from its newest checkpoint, as if nothing had happened.

    Another end than the run's own counts what is done already, but for --more-steps.

    Example: attendo resume runs/mine --more-steps 2000
    """
    from attendo.training.clock import Clock

    clock = Clock.of_process()
    ends = {"steps": steps, "more_steps": more_steps, "epochs": epochs}
    ends = one_end(ends | {"minutes": minutes, "cpu_minutes": cpu_minutes})
    from attendo.config import read_toml
    from attendo.runs.resume import resumed_run

    changes = {name.removeprefix("training."): value for name, value in ends.items()}
    if more_steps is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise typer.BadParameter(
            "--more-steps would count anew at each restart by torchrun; give --steps, the total"
        )
    config = folder / "config.toml"
    with ranks_of(device, read_toml(config).get("training", {}) if config.exists() else {}) as ranks:
        run = resumed_run(folder, changes, say if ranks.is_first else silent, device, threads, clock, ranks)
        return 0 if run.has_ended else follow(run)


def verify_resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The run's folder.")],
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Replay N steps, and on to the log's next checkpoint; else all."
        ),
    ] = None,
    device: Device = "auto",
) -> int:
    """Prove that a run resumes exactly: make the steps before its newest checkpoint again, and compare.

    They start from the checkpoint before it. Losses, gradient norms and rows are compared at every step by a hash,
    weights, optimizer and random states at the end, to the last bit. Nothing in the folder changes.

    Example: attendo verify-resume runs/mine
    """
    from attendo.runs.verify_resume import verify_resume as verified

    found = verified(folder, steps, say, device)
    print(found)
    return 1 if found.differing else 0
