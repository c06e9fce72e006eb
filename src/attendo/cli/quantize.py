"""The command `attendo quantize`: a copy of a run with weights of fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attendo.cli.options import Folder, Threads, option, use_threads
from attendo.cli.reporting import say


def quantize(
    folder: Folder,
    bits: Literal[16, 8, 4] = option("N", "Bits of each weight: 16, 8 or 4.", default=8),
    out: Path = option("DIR", "New or empty folder for the quantized run.", default=...),
    threads: Threads = None,
) -> int:
    """Write a copy of a run with weights of 16, 8 or 4 bits, which is smaller and loads faster.

    16 bits are bfloat16. 8 bits are integers with a scale per output, and 4 bits are integers with a scale per 32
    inputs. Embeddings have 16 bits. If the weights of the run are bfloat16 numbers, as in most imported models, the
    copy computes the same as the run with --bits. On a CPU, generate, chat, serve, translate, score, evaluate and
    compare use the stored integers. All other commands, and a GPU, convert the weights to floating-point numbers
    first. To train further or to export, use the original run, which is more exact.

    Example: attendo quantize runs/smollm2 --bits 8 --out runs/smollm2-8
    """
    from attendo.interop.quantizing import quantize as quantized

    use_threads(threads)
    quantized(folder, out, bits)
    sizes = [(run / "model.safetensors").stat().st_size for run in (folder, out)]
    say(f"{out}: {bits} bits, {sizes[1] / 2**20:,.1f} MiB instead of {sizes[0] / 2**20:,.1f} MiB")
    return 0
