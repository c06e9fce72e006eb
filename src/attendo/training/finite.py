"""Where a number that is none came from: the module, the loss, or the gradient of a parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attendo.errors import AttendoError
from attendo.own_parts import is_unsound
from attendo.training.sharding import local


def first_not_finite(model: nn.Module, forward: Callable[[], Tensor]) -> str | None:
    """The path of the first module that gives a number that is not finite while `forward` runs; None if none does.

    Modules end innermost first, so it is the smallest part that does. "the loss" if only what `forward` gives is none.
    """
    found: list[str] = []

    def look(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not found and isinstance(output, Tensor) and is_unsound(module, output):
                found.append(path or "the model")

        return hook

    handles = [module.register_forward_hook(look(path)) for path, module in model.named_modules()]
    try:
        with torch.no_grad():
            result = forward()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    return None if result.isfinite().all() else "the loss"


def gradient_not_finite(model: nn.Module) -> str | None:
    """The parameter nearest to the output whose gradient is not finite; None if all are."""
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not local(parameter.grad).isfinite().all():
            return f"the gradient of {name}"
    return None


def require_finite(model: nn.Module, step: int) -> None:
    """Raises AttendoError if a weight is not a finite number: it must reach no file."""
    for name, parameter in model.named_parameters():
        if not local(parameter.detach()).isfinite().all():
            raise AttendoError(
                f"{name} is not finite at step {step}, so nothing is saved; resume from the last checkpoint with a"
                " lower training.learning_rate"
            )
