"""The command `attendo eject`: export of a model as one file of plain PyTorch."""

from __future__ import annotations

from pathlib import Path

from attendo.cli.options import Folder, argument
from attendo.cli.reporting import say


def eject(folder: Folder, out: Path = argument("FILE", "The Python file to write.")) -> int:
    """Write a model as one readable file of plain PyTorch.

    The file requires torch and safetensors, but not attendo. The file contains only the code that this model uses, so
    you can read and change the whole model. `python FILE DIR` loads the weights of the run folder and compares the
    logits with those of attendo.

    Example: attendo eject runs/mine model.py
    """
    from attendo.interop import eject as ejected

    source = ejected(folder, out)
    say(f"{out}: {len(source.splitlines())} lines; check it with: python {out} {folder}")
    return 0
