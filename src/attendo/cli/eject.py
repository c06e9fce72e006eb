"""attendo eject: a run's model as one file of plain PyTorch."""

from __future__ import annotations

from pathlib import Path

from attendo.cli.options import Folder, argument
from attendo.cli.reporting import say


def eject(folder: Folder, out: Path = argument("FILE", "The Python file to write.")) -> int:
    """Write a model as one readable file of plain PyTorch.

    The file requires torch and safetensors, not attendo. It contains only what this model uses, to be read or changed
    as a whole. `python FILE DIR` loads the weights of the run folder and compares the logits with attendo's.

    Example: attendo eject runs/mine model.py
    """
    from attendo.interop import eject as ejected

    source = ejected(folder, out)
    say(f"{out}: {len(source.splitlines())} lines; check it with: python {out} {folder}")
    return 0
