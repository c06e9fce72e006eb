"""attendo export: a model to another program, with a report on how far the two agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from attendo.cli.options import Folder, Threads, argument, option, refuse_if, use_threads
from attendo.cli.reporting import say
from attendo.display.width import shown


def export(
    folder: Folder,
    out: Path = argument("OUT", "A folder that is new or empty."),
    target: str = option("T", "huggingface, ctranslate2, argos or onnx.", "--to", default=...),
    quantization: str = option(
        "Q", "Of the weights, ctranslate2 and argos: float32, int8, float16 …", default="float32"
    ),
    languages: str | None = option("en,de", "Source and target, for argos; else the run's."),
    valid: list[Path] | None = option("F", "Rows to compare on; else the run's validation rows."),
    rows: int = option("N", "At most so many of them.", min=1, default=500),
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
        refuse_if(value not in known, f"{name} {value} is none of {', '.join(known)}")
    source, comma, into = (languages or "").partition(",")
    refuse_if(
        languages is not None and not (source and comma and into),
        f"--languages {languages} is not two codes; write source,target as in en,de",
    )
    use_threads(threads)
    options = ExportOptions(
        quantization=cast("Any", quantization), languages=(source, into) if comma else None
    )
    report = exported(folder, out, cast("Any", target), options, valid=valid or (), most=rows, say=say)
    print(shown("\n".join(parity_lines(report))))
    say(f"{out}: {target}, with attendo-parity.json")
    return 0
