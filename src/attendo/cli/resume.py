"""The commands `attendo resume` and `attendo verify-resume`."""

from __future__ import annotations

import os

from attendo.cli.options import Device, Folder, option, refuse_if
from attendo.cli.reporting import follow, preparing, say, silent
from attendo.cli.train import UNCHANGED, CpuMinutes, Epochs, Minutes, Steps, one_end, ranks_of


def resume(
    folder: Folder,
    steps: Steps = None,
    more_steps: int | None = option("N", "Train for N more updates, counted from the checkpoint.", min=1),
    epochs: Epochs = None,
    minutes: Minutes = None,
    cpu_minutes: CpuMinutes = None,
    threads: int | None = option("N", "Number of CPU threads (default: as in the last training).", min=1),
    device: Device = "auto",
) -> int:
    """Resume a run from its newest checkpoint. The result equals that of an uninterrupted run.

    The options --steps, --epochs, --minutes and --cpu-minutes are totals that include work already done. The option
    --more-steps counts from the checkpoint.

    Example: attendo resume runs/mine --more-steps 2000
    """
    from attendo.training.run import Clock

    clock = Clock.of_process()
    changes = one_end(
        steps=steps, more_steps=more_steps, epochs=epochs, minutes=minutes, cpu_minutes=cpu_minutes
    )
    from attendo.config import read_toml
    from attendo.runs.resume import resumed_run

    refuse_if(
        more_steps is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1,
        "--more-steps would count again after each restart by torchrun. Use --steps, the total",
    )
    config = folder / "config.toml"
    with ranks_of(device, read_toml(config).get("training", {}) if config.exists() else {}) as ranks:
        with preparing(UNCHANGED):
            tell = say if ranks.is_first else silent
            run = resumed_run(folder, changes, tell, device, threads, clock, ranks)
        return 0 if run.has_ended else follow(run)


def verify_resume(
    folder: Folder,
    steps: int | None = option("N", "Replay only the first N of these steps, up to a checkpoint.", min=1),
    device: Device = "auto",
) -> int:
    """Check that a resumed run produces identical results.

    The command repeats the last steps, from the checkpoint before the newest checkpoint, and compares them with the log
    of the run. At every step, a hash of the losses, gradient norms and training rows is compared. At the end, the
    weights, optimizer states and random states are compared bit for bit. The run folder is not changed.

    Example: attendo verify-resume runs/mine
    """
    from attendo.runs.resume import verify_resume as verified

    found = verified(folder, steps, say, device)
    print(found)
    return 1 if found.differing else 0
