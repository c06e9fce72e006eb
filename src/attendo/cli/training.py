"""attendo train …, attendo resume."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attendo.cli.reporting import follow, say

F = Annotated[
    str | None, typer.Option(metavar="F", help="Training pairs: .tsv .csv .jsonl .txt .parquet, or .gz.")
]


def add_training_commands(app: typer.Typer) -> None:
    """Adds `train` with its tasks, and `resume`."""
    train = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Train a model from your own files."
    )
    train.command("translation")(translation)
    app.add_typer(train, name="train")
    app.command("resume")(resume)


def translation(
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the run.")],
    train: F = None,
    valid: Annotated[
        str | None, typer.Option(metavar="F", help="Validation pairs; else some are split off.")
    ] = None,
    train_source: Annotated[
        str | None, typer.Option(metavar="F", help="With --train-target: parallel files.")
    ] = None,
    train_target: Annotated[str | None, typer.Option(metavar="F", help="Line n belongs to line n.")] = None,
    valid_source: Annotated[str | None, typer.Option(metavar="F", help="The same for validation.")] = None,
    valid_target: Annotated[str | None, typer.Option(metavar="F", help="The same for validation.")] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="P", help="tiny, small, base or big; else chosen.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="F.toml", help="Settings; see --print-config.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="One setting, as model.d_model=128.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="source=en,target=ja or 1,2.")] = None,
    header: Annotated[bool, typer.Option("--header", help="The .tsv file starts with a header.")] = False,
    from_: Annotated[str | None, typer.Option("--from", metavar="en", help="Source language.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="ja", help="Target language.")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Swap source and target.")] = False,
    steps: Annotated[int | None, typer.Option(metavar="N", help="End after N updates.")] = None,
    epochs: Annotated[
        float | None, typer.Option(metavar="E", help="End after E passes over the data.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(metavar="M", help="End after M minutes.")] = None,
    cpu_minutes: Annotated[
        float | None, typer.Option(metavar="M", help="End after M minutes of CPU time.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the weights, the order and the dropout.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of the processor; else one a core.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False,
    drop: Annotated[str | None, typer.Option(help="Leave rows out: duplicates,leaks,… (see doctor).")] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the settings and leave.")
    ] = False,
) -> int:
    """Train a translator from pairs of sentences.

    What you leave open (size, vocabulary, batch, rate) is chosen from your data, this machine's measured speed and
    the budget, and printed. Every row is accounted for.

    Example: attendo train translation --train pairs.tsv --out runs/mine --minutes 30
    """
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
    }
    budget = {"steps": steps, "epochs": epochs, "minutes": minutes, "cpu_minutes": cpu_minutes}
    tables = _tables(preset, config, set_ or [], options, budget)
    if print_config:
        from attendo.config import dump_toml

        typer.echo(dump_toml(tables), nl=False)
        return 0
    return _train(tables, out, threads, device)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The run's folder.")],
    steps: Annotated[int | None, typer.Option(metavar="N", help="End after N updates in all.")] = None,
    more_steps: Annotated[int | None, typer.Option(metavar="N", help="End after N updates more.")] = None,
    epochs: Annotated[float | None, typer.Option(metavar="E", help="End after E passes in all.")] = None,
    minutes: Annotated[float | None, typer.Option(metavar="M", help="End after M minutes in all.")] = None,
    cpu_minutes: Annotated[float | None, typer.Option(metavar="M", help="The same in CPU time.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of the processor; else as many as before.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> int:
    """Go on with a run from its newest checkpoint, as if nothing had happened.

    Example: attendo resume runs/mine --more-steps 2000
    """
    from attendo.tasks.runs import resumed_run

    ends = {
        "steps": steps,
        "more_steps": more_steps,
        "epochs": epochs,
        "minutes": minutes,
        "cpu_minutes": cpu_minutes,
    }
    changes = {name: value for name, value in ends.items() if value is not None}
    run = resumed_run(folder, changes, say, device, threads)
    if run.run.progress.ended:
        say(f"{folder} has ended: {run.run.progress.ended}; train further with --more-steps N")
        return 0
    return follow(run)


def _train(tables: dict[str, dict[str, Any]], out: Path, threads: int | None, device: str) -> int:
    import torch

    from attendo.tasks.runs import new_translation_run
    from attendo.training.clock import Clock

    if threads is not None:
        if threads < 1:
            raise typer.BadParameter(f"--threads {threads} must be at least 1")
        torch.set_num_threads(threads)
    run = new_translation_run(tables, out, say, Clock(cpu_start=0.0), device)
    say(f"{torch.get_num_threads()} threads; everything is kept in {out}")
    code = follow(run)
    if code == 0:
        say(f"try it: attendo translate {out}")
    return code


def _files(name: str, one: str | None, source: str | None, target: str | None) -> list[str] | None:
    """The absolute paths of one file, or of two parallel ones."""
    if (source is None) != (target is None):
        raise typer.BadParameter(f"{name}-source and {name}-target belong together; give both")
    if one is not None and source is not None:
        raise typer.BadParameter(f"give {name}, or {name}-source and {name}-target, not both")
    files = [one] if one is not None else [source, target] if source is not None else []
    return [_absolute(file) for file in files if file is not None] or None


def _absolute(file: str) -> str:
    from attendo.tasks.settings import FORECASTS

    return file if file == FORECASTS and not Path(file).exists() else str(Path(file).absolute())


def _tables(
    preset: str | None,
    config: Path | None,
    assignments: list[str],
    options: dict[str, Any],
    budget: dict[str, Any],
) -> dict[str, dict[str, Any]]:
    """All settings given: the preset's, then the file's, then --set, then the options, each before the one before."""
    from attendo.config import override, read_toml
    from attendo.errors import AttendoError
    from attendo.tasks.settings import check_tables, joined, preset_tables

    tables = joined(preset_tables(preset) if preset else {}, read_toml(config) if config else {})
    tables = override(tables, assignments)
    for path, value in options.items():
        section, key = path.split(".")
        if value is not None:
            tables.setdefault(section, {})[key] = value
    if any(value is not None for value in budget.values()):
        training = {k: v for k, v in tables.get("training", {}).items() if k not in budget}
        tables["training"] = training | {k: v for k, v in budget.items() if v is not None}
    check_tables(tables, str(config) if config else "the settings")
    if not tables.get("data", {}).get("train"):
        raise AttendoError("no training data: give --train F, or --train-source F and --train-target F")
    return tables
