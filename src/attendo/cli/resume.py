"""attendo resume."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from attendo.cli.options import Device
from attendo.cli.reporting import follow, say, silent
from attendo.cli.training_options import (
    CpuMinutes,
    Epochs,
    Minutes,
    Steps,
    one_end,
    ranks_of,
)


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
    from attendo.training.stopping import Clock

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
