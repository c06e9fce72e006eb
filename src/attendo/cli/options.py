"""Options that many commands have, and what the first of them does."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from attendo.display.i18n import Language

Threads = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of the processor; else one a core.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Segmented = Annotated[
    Literal["sentence", "paragraph", "none"],
    typer.Option(
        "--segment",
        metavar="UNIT",
        help="Translate by sentence, by paragraph (a line), or none: a text whole.",
    ),
]
OneJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Spoken = Annotated[Language, typer.Option(metavar="en|ja", help="Of the words.")]


def use_threads(threads: int | None) -> None:
    """Computes with as many threads from now on; with those that torch has taken if None."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
