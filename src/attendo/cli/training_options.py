"""What the commands that train share: their options, how settings are joined, and the start of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendo.cli.export import say_what_cannot_go
from attendo.cli.options import use_threads
from attendo.cli.reporting import follow, preparing, say, silent
from attendo.display.formats import plural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from attendo.bundle import TaskName
    from attendo.runs.task_specs import TaskSpec
    from attendo.training.distributed import Ranks
    from attendo.training.stopping import Clock

Out = Annotated[Path | None, typer.Option(metavar="DIR", help="New folder for the run.")]
TrainSource = Annotated[
    str | None, typer.Option(metavar="F", help="Two parallel files instead of --train: line n")
]
TrainTarget = Annotated[str | None, typer.Option(metavar="F", help="belongs to line n.")]
ValidSide = Annotated[str | None, typer.Option(metavar="F", help="The same for validation.")]
Preset = Annotated[str | None, typer.Option(metavar="P", help="tiny, small, base or big; else chosen.")]
Config = Annotated[
    Path | None, typer.Option(metavar="F.toml", help="Settings; --print-config shows the form.")
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="K=V", help="One setting, as model.d_model=128.")
]
InitFrom = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Start from this run, whole or by LoRA (--set lora.rank=8)."),
]
Header = Annotated[bool, typer.Option("--header", help="The .tsv file starts with a header.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")]
Steps = Annotated[int | None, typer.Option(metavar="N", min=1, help="End after N updates in all.")]
Epochs = Annotated[float | None, typer.Option(metavar="E", help="End after E passes over the data.")]
Minutes = Annotated[float | None, typer.Option(metavar="M", help="End after M minutes, preparation counted.")]
CpuMinutes = Annotated[float | None, typer.Option(metavar="M", help="The same in CPU time of all threads.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Of the weights, the order and the dropout.")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print the settings as TOML and leave.")]


def begin(
    task: TaskName,
    layers: tuple[str | None, Path | None, list[str] | None],
    options: dict[str, Any],
    where: tuple[Path | None, int | None, str],
    print_config: bool,
    init_from: Path | None = None,
) -> int:
    """Joins the settings, and trains with them or prints them.

    layers: --preset, --config and --set; options: the others as "section.key", None where not given. where: --out,
    --threads and --device.
    """
    with preparing():
        from attendo.runs.task_specs import family_of
        from attendo.training.stopping import Clock

        clock, family = Clock.of_process(), family_of(task)
        tables = joined_settings(family, *layers, options)
    out, threads, device = where
    if print_config:
        from attendo.config import dump_toml

        print(dump_toml(tables), end="")
        return 0
    if out is None:
        raise typer.BadParameter("missing --out DIR, the new folder for the run")
    if not tables.get("data", {}).get("train"):
        raise typer.BadParameter("no training data: give --train F")
    return _train(family, tables, out, threads, device, clock, init_from)


def _train(
    family: TaskSpec,
    tables: dict[str, dict[str, Any]],
    out: Path,
    threads: int | None,
    device: str,
    clock: Clock,
    init_from: Path | None,
) -> int:
    import torch

    from attendo.bundle import USES
    from attendo.runs.resume import joined_run, resumed_run
    from attendo.runs.training_run import is_restarted, new_run

    use_threads(threads)
    with ranks_of(device, tables.get("training", {})) as ranks:
        tell = say if ranks.is_first else silent
        if is_restarted(out, ranks):
            run = resumed_run(out, None, tell, device, threads, clock, ranks)
        elif ranks.is_first:
            with preparing():
                run = new_run(family, tables, out, tell, clock, device, init_from, ranks)
                say_what_cannot_go(run.bundle)
        else:
            run = joined_run(out, tell, device, clock, ranks)
        processes = f"{ranks.world} processes of " if ranks.world > 1 else ""
        tell(f"{processes}{plural(torch.get_num_threads(), 'thread')}; everything is kept in {out}")
        code = 0 if run.has_ended else follow(run)
    if code == 0:
        tell(f'try it: attendo {USES[family.architecture]} {out} "your text"')
    return code


def ranks_of(device: str, training: Mapping[str, Any]) -> AbstractContextManager[Ranks]:
    """The processes that torchrun has started for this command, or this one alone."""
    from attendo.bundle import pick_device
    from attendo.training.distributed import joined
    from attendo.training.optimizer import RANK_TIMEOUT

    return joined(pick_device(device).type, training.get("rank_timeout", RANK_TIMEOUT))


def files_of(name: str, given: list[str] | None, source: str | None, target: str | None) -> list[str] | None:
    """One file, or two parallel ones."""
    if (source is None) != (target is None):
        raise typer.BadParameter(f"{name}-source and {name}-target belong together; give both")
    if given and len(given) > 1:
        raise typer.BadParameter(
            f"{name} names {len(given)} files; give a folder or a quoted pattern ('shards/*.tsv'), or two parallel"
            f" files with {name}-source and {name}-target"
        )
    one = given[0] if given else None
    if one is not None and source is not None:
        raise typer.BadParameter(f"give {name}, or {name}-source and {name}-target, not both")
    files = [one] if one is not None else [source, target] if source is not None else []
    return [file for file in files if file is not None] or None


def one_end(ends: dict[str, Any]) -> dict[str, Any]:
    """What ends the run, as a setting; at most one may be given."""
    given = {name: value for name, value in ends.items() if value is not None}
    if len(given) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise typer.BadParameter(f"give one of {flags}, not both")
    return {f"training.{name}": value for name, value in given.items()}


def joined_settings(
    family: TaskSpec,
    preset: str | None,
    config: Path | None,
    assignments: list[str] | None,
    options: dict[str, Any],
) -> dict[str, dict[str, Any]]:
    """All settings given: the preset's, then the file's, then --set, then the options; the later wins.

    Of a preset for another family only the stacks that this one has are used.
    """
    from attendo.config import override, read_toml
    from attendo.runs.settings import check_names, check_tables, joined, preset_tables

    from_file = read_toml(config) if config else {}
    from_set = override({}, assignments or [])
    check_names(family, from_file, str(config))
    check_names(family, from_set, "--set")
    from_options: dict[str, dict[str, Any]] = {}
    for path, value in options.items():
        section, key = path.split(".")
        if value is not None:
            from_options.setdefault(section, {})[key] = value
    lacks = {name: n for name, n in family.model.items() if name.endswith("_layers") and n == 0}
    from_preset = joined(preset_tables(preset), {"model": lacks}) if preset else {}
    tables = joined(from_preset, from_file, from_set, from_options)
    check_tables(family, tables, "the settings")
    return tables
