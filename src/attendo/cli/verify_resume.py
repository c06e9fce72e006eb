"""attendo verify-resume."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attendo.cli.options import Device
from attendo.cli.reporting import say


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
    from attendo.runs.resume import verify_resume as verified

    found = verified(folder, steps, say, device)
    print(found)
    return 1 if found.differing else 0
