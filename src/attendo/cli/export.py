"""The command `attendo export`: the export of a model for another program, with a comparison of the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from attendo.cli.options import Folder, Threads, argument, option, refuse_if, use_threads
from attendo.cli.reporting import say
from attendo.display.width import shown


def export(
    folder: Folder,
    out: Path = argument("OUT", "New or empty folder for the exported model, or new GGUF file."),
    target: str = option(
        "T", "Export format: huggingface, ctranslate2, argos, onnx or gguf.", "--to", default=...
    ),
    quantization: str = option("Q", "Number format of weights: float32, int8, q8_0 …", default="float32"),
    languages: str | None = option("en,de", "Source and target language for argos (default: as in the run)."),
    valid: list[Path] | None = option("F", "Data for the comparison (default: the run's validation set)."),
    rows: int = option("N", "Maximum number of rows for the comparison.", min=1, default=500),
    threads: Threads = None,
) -> int:
    """Export a model for another program, and compare the results of that program with those of attendo.

    After the export, the other program loads the model. Both programs process the validation set of the run, the data
    of --valid, or built-in texts. The file attendo-parity.json in the output folder contains the comparison. If the
    other program does not support the model, nothing is written. The format gguf is one file, which llama.cpp loads.

    Example: attendo export runs/mine mine.ct2 --to ctranslate2 --quantization int8
    """
    from typing import get_args

    from attendo.interop import TARGETS, ExportOptions, parity_lines
    from attendo.interop import export as exported
    from attendo.interop.to_ctranslate2 import Quantization
    from attendo.interop.to_gguf import GgufQuantization

    formats = get_args(GgufQuantization if target == "gguf" else Quantization)
    for name, value, known in (("--to", target, TARGETS), ("--quantization", quantization, formats)):
        refuse_if(value not in known, f"{name} {value} is unknown (expected {', '.join(known)})")
    source, comma, into = (languages or "").partition(",")
    refuse_if(
        languages is not None and not (source and comma and into),
        f"--languages {languages} must be two codes, source,target, for example en,de",
    )
    use_threads(threads)
    options = ExportOptions(
        quantization=cast("Any", quantization), languages=(source, into) if comma else None
    )
    report = exported(folder, out, cast("Any", target), options, valid=valid or (), most=rows, say=say)
    print(shown("\n".join(parity_lines(report))))
    say(f"{out}: {target}{', with attendo-parity.json' if out.is_dir() else ''}")
    return 0
