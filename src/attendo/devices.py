"""Choosing the device that a model computes on."""

import torch

from attendo.errors import AttendoError


def pick_device(name: str, index: int | None = None) -> torch.device:
    """The device of this name; "auto" is the GPU if there is one.

    Args:
        name: "auto", "cpu" or "cuda".
        index: Which GPU, where several processes have one each; None for the current one.

    Raises:
        AttendoError: The name is unknown, or torch has no GPU.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise AttendoError(f"device {name!r} is unknown; use auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise AttendoError("device cuda: torch sees no GPU here; use cpu, or install a CUDA build of torch")
    return torch.device(name) if name == "cpu" or index is None else torch.device(name, index)
