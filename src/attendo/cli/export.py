"""attendo export: a model to another program, with a report on how far the two agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from attendo.cli.options import Folder, Threads, use_threads
from attendo.cli.reporting import say
from attendo.display.width import shown

if TYPE_CHECKING:
    from attendo.bundle import Bundle


def export(
    folder: Folder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that is new or empty.")],
    target: Annotated[
        str, typer.Option("--to", metavar="T", help="huggingface, ctranslate2, argos or onnx.")
    ],
    quantization: Annotated[
        str, typer.Option(metavar="Q", help="Of the weights, ctranslate2 and argos: float32, int8, float16 …")
    ] = "float32",
    languages: Annotated[
        str | None, typer.Option(metavar="en,de", help="Source and target, for argos; else the run's.")
    ] = None,
    valid: Annotated[
        list[Path] | None,
        typer.Option(metavar="F", help="Rows to compare on; else the run's validation rows."),
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many of them.")] = 500,
    threads: Threads = None,
) -> int:
    """Write a model for another program, and compare the two.

    What was written is opened by that program and run on the run's validation rows, on those of --valid, or on built-in
    texts. The report, attendo-parity.json, lies beside the model. Where the other program computes something else,
    nothing is written.

    Example: attendo export runs/mine mine.ct2 --to ctranslate2 --quantization int8
    """
    from typing import get_args

    from attendo.interop import TARGETS, ExportOptions, parity_lines
    from attendo.interop import export as exported
    from attendo.interop.to_ctranslate2 import Quantization

    for name, value, known in (
        ("--to", target, TARGETS),
        ("--quantization", quantization, get_args(Quantization)),
    ):
        if value not in known:
            raise typer.BadParameter(f"{name} {value} is none of {', '.join(known)}")
    source, comma, into = (languages or "").partition(",")
    if languages is not None and not (source and comma and into):
        raise typer.BadParameter(f"--languages {languages} is not two codes; write source,target as in en,de")
    use_threads(threads)
    options = ExportOptions(
        quantization=cast("Any", quantization), languages=(source, into) if comma else None
    )
    report = exported(folder, out, cast("Any", target), options, valid=valid or (), most=rows, say=say)
    print(shown("\n".join(parity_lines(report))))
    say(f"{out}: {target}, with attendo-parity.json")
    return 0


def say_what_cannot_go(bundle: Bundle) -> None:
    """One line, if a model of this shape can't go somewhere: better known before it is trained."""
    from attendo.interop import not_exportable

    if said := not_exportable(bundle.model_config, bundle.tokenizer.kind):
        say(said)
