"""What the commands that use a trained model share: their options, and where it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The run's folder.")]
Files = Annotated[
    list[Path], typer.Argument(metavar="F...", help="Pairs in one file, or in two parallel ones.")
]
Beam = Annotated[
    int | None, typer.Option(metavar="N", help="Beam width; 1 is greedy. Else the run's own, mostly 4.")
]
Penalty = Annotated[
    float | None, typer.Option(metavar="A", help="GNMT length penalty; 0 is none. Else the run's own.")
]
Threads = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of the processor; else one a core.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Columns = Annotated[
    str | None, typer.Option(metavar="C", help="source=en,target=ja, or 1,2. Else as in training.")
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether a .tsv file starts with one. Else as in training."),
]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
OneJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def prepared(device: str, threads: int | None) -> str:
    """The device of that name; as many threads from now on. Raises AttendoError for a device that isn't there."""
    import torch

    from attendo.tasks.runs import pick_device

    if threads is not None:
        torch.set_num_threads(threads)
    return str(pick_device(device))
