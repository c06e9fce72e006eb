"""attendo train …, attendo resume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendo.cli.reporting import follow, say

if TYPE_CHECKING:
    from attendo.tasks.family import Family
    from attendo.training.clock import Clock

Pairs = Annotated[
    str | None, typer.Option(metavar="F", help="Training pairs: .tsv .csv .jsonl .txt .parquet, or .gz.")
]
Steps = Annotated[int | None, typer.Option(metavar="N", min=1, help="End after N updates in all.")]
Epochs = Annotated[float | None, typer.Option(metavar="E", help="End after E passes over the data.")]
Minutes = Annotated[float | None, typer.Option(metavar="M", help="End after M minutes, preparation counted.")]
CpuMinutes = Annotated[float | None, typer.Option(metavar="M", help="The same in CPU time of all threads.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def add_training_commands(app: typer.Typer) -> None:
    """Adds `train` with its tasks, and `resume`."""
    train = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
    train.callback()(tasks)
    train.command("translation", short_help="A translator from pairs of sentences.")(translation)
    app.add_typer(train, name="train")
    app.command("resume", short_help="Go on with a run from its checkpoint.")(resume)


def tasks(context: typer.Context) -> None:
    """Train a model from your own files.

    Example: attendo train translation --train pairs.tsv --out runs/mine
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def translation(
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="New folder for the run.")] = None,
    train: Pairs = None,
    valid: Annotated[
        str | None, typer.Option(metavar="F", help="Validation pairs; else some are split off.")
    ] = None,
    train_source: Annotated[
        str | None, typer.Option(metavar="F", help="Two parallel files instead of --train: line n")
    ] = None,
    train_target: Annotated[str | None, typer.Option(metavar="F", help="belongs to line n.")] = None,
    valid_source: Annotated[str | None, typer.Option(metavar="F", help="The same for validation.")] = None,
    valid_target: Annotated[str | None, typer.Option(metavar="F", help="The same for validation.")] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="P", help="tiny, small, base or big; else chosen.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="F.toml", help="Settings; --print-config shows the form.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="One setting, as model.d_model=128.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="C", help="source=en,target=ja, or 1,2 by number.")
    ] = None,
    header: Annotated[bool, typer.Option("--header", help="The .tsv file starts with a header.")] = False,
    from_: Annotated[str | None, typer.Option("--from", metavar="en", help="Source language.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="ja", help="Target language.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Swap source and target.")] = False,
    steps: Steps = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    cpu_minutes: CpuMinutes = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the weights, the order and the dropout.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of the processor; else one a core.")
    ] = None,
    device: Device = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False,
    drop: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Leave rows out: duplicates,leaks (see doctor).")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the settings as TOML and leave.")
    ] = False,
) -> int:
    """Train a translator from pairs of sentences.

    What you leave open (size, vocabulary, batch, rate) is chosen from your data, this machine's measured speed
    and the budget, and printed. A preset, then --config, then --set, then the other options: the later wins.
    Every row is accounted for. Ctrl-C saves; attendo resume goes on.

    Example: attendo train translation --train pairs.tsv --out runs/mine
    """
    from attendo.tasks.families import family_of
    from attendo.training.clock import Clock

    clock = Clock.of_process()
    options = {
        "data.train": _files("--train", train, train_source, train_target),
        "data.valid": _files("--valid", valid, valid_source, valid_target),
        "data.columns": columns,
        "data.header": header or None,
        "data.source_language": from_,
        "data.target_language": to,
        "data.reverse": reverse or None,
        "data.strict": strict or None,
        "data.drop": drop,
        "training.seed": seed,
        **_one_end({"steps": steps, "epochs": epochs, "minutes": minutes, "cpu_minutes": cpu_minutes}),
    }
    family = family_of("translation")
    tables = _tables(family, preset, config, set_ or [], options)
    if print_config:
        from attendo.config import dump_toml

        print(dump_toml(tables), end="")
        return 0
    if out is None:
        raise typer.BadParameter("missing --out DIR, the new folder for the run")
    if not tables.get("data", {}).get("train"):
        raise typer.BadParameter("no training data: give --train F, or --train-source F and --train-target F")
    return _train(family, tables, out, threads, device, clock)


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
    ends = _one_end(ends | {"minutes": minutes, "cpu_minutes": cpu_minutes})
    from attendo.tasks.runs import resumed_run

    changes = {name.removeprefix("training."): value for name, value in ends.items()}
    run = resumed_run(folder, changes, say, device, threads, clock)
    return 0 if run.run.progress.ended else follow(run)


def _train(
    family: Family,
    tables: dict[str, dict[str, Any]],
    out: Path,
    threads: int | None,
    device: str,
    clock: Clock,
) -> int:
    import torch

    from attendo.tasks.runs import new_run

    if threads is not None:
        torch.set_num_threads(threads)
    run = new_run(family, tables, out, say, clock, device)
    say(f"{torch.get_num_threads()} threads; everything is kept in {out}")
    code = follow(run)
    if code == 0:
        say(f'try it: attendo translate {out} "your sentence"')
    return code


def _files(name: str, one: str | None, source: str | None, target: str | None) -> list[str] | None:
    """One file, or two parallel ones."""
    if (source is None) != (target is None):
        raise typer.BadParameter(f"{name}-source and {name}-target belong together; give both")
    if one is not None and source is not None:
        raise typer.BadParameter(f"give {name}, or {name}-source and {name}-target, not both")
    files = [one] if one is not None else [source, target] if source is not None else []
    return [file for file in files if file is not None] or None


def _one_end(ends: dict[str, Any]) -> dict[str, Any]:
    """What ends the run, as a setting; at most one may be given."""
    given = {name: value for name, value in ends.items() if value is not None}
    if len(given) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise typer.BadParameter(f"give one of {flags}, not both")
    return {f"training.{name}": value for name, value in given.items()}


def _tables(
    family: Family, preset: str | None, config: Path | None, assignments: list[str], options: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """All settings given: the preset's, then the file's, then --set, then the options; the later wins."""
    from attendo.config import override, read_toml
    from attendo.tasks.settings import check_names, check_tables, joined, preset_tables

    from_file = read_toml(config) if config else {}
    from_set = override({}, assignments)
    check_names(family, from_file, str(config))
    check_names(family, from_set, "--set")
    from_options: dict[str, dict[str, Any]] = {}
    for path, value in options.items():
        section, key = path.split(".")
        if value is not None:
            from_options.setdefault(section, {})[key] = value
    tables = joined(preset_tables(preset) if preset else {}, from_file, from_set, from_options)
    check_tables(family, tables, "the settings")
    return tables
