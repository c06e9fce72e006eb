"""Custom modules in a model: how they are inserted, named, and passed again when a run is loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attendo.errors import AttendoError
from attendo.models import Model
from attendo.nn.positions import DistanceBias

CustomModules = Callable[[Any], object]
"""A user's function that inserts custom modules into a newly built model, in place."""

LOAD = "attendo.load({folder!r}, own_parts={parts})"
RESUME = "from attendo.runs.resume import resumed_run; resumed_run({folder!r}, own_parts={parts}).to_end(print)"
VERIFY = "from attendo.runs.resume import verify_resume; print(verify_resume({folder!r}, own_parts={parts}))"


def name_of_custom_modules(own_parts: CustomModules) -> str:
    """Return the name FILE.py:FUNCTION of a user's function, or the type's name of another callable, for display only.

    >>> name_of_custom_modules(name_of_custom_modules)
    'custom_modules.py:name_of_custom_modules'
    """
    code = getattr(own_parts, "__code__", None)
    if code is None:
        return type(own_parts).__name__
    return f"{Path(code.co_filename).name}:{getattr(own_parts, '__qualname__', code.co_name)}"


def python_line(name: str, folder: Path, call: str) -> str:
    """Return the Python line that loads a run with these custom modules. `call` is the template LOAD, RESUME or VERIFY.

    >>> python_line("bias.py:with_bias", Path("runs/a"), LOAD)
    "from bias import with_bias; attendo.load('runs/a', own_parts=with_bias)"
    >>> python_line("bias.py:made.<locals>.with_bias", Path("runs/a"), LOAD)
    "attendo.load('runs/a', own_parts=F), where F is the function that you passed to attendo.train"
    """
    file, _, function = name.rpartition(":")
    if not file or not function.isidentifier():
        told = call.format(folder=str(folder), parts="F")
        return f"{told}, where F is the function that you passed to attendo.train"
    module = file.removesuffix(".py")
    known = file != module and module.isidentifier()
    imported = f"from {module} import {function}; " if known else ""
    return imported + call.format(folder=str(folder), parts=function)


def insert_custom_modules(own_parts: CustomModules, model: Model) -> None:
    """Insert custom modules into a newly built model, in place. Raises AttendoError if the function changes nothing."""
    before = [*model.modules(), *model.parameters()]  # these references prevent the reuse of old ids
    known = set(map(id, before))
    own_parts(model)
    if all(id(part) in known for part in (*model.modules(), *model.parameters())):
        raise AttendoError(
            f"own_parts={name_of_custom_modules(own_parts)} replaced no module or parameter of the model. "
            "Replace them in place, in the model that the function receives"
        )


def custom_buffers(model: nn.Module) -> dict[str, list[int]]:
    """Return the shapes of the buffers of custom modules, and of tied parameters under their additional names."""
    parameters = dict(model.named_parameters())
    return {name: list(t.shape) for name, t in model.state_dict().items() if name not in parameters}


def is_custom(module: nn.Module) -> bool:
    """Return whether the class of a module is defined outside attendo and torch.

    >>> is_custom(nn.Linear(1, 1)), is_custom(type("Mine", (nn.Linear,), {"__module__": "mine"})(1, 1))
    (False, True)
    """
    return type(module).__module__.partition(".")[0] not in ("attendo", "torch")


def custom_module_at(model: nn.Module, name: str) -> nn.Module | None:
    """Return the outermost custom module that contains the module or parameter `name`, or None if there is none."""
    found: Any = model
    for step in name.split("."):
        found = getattr(found, step, None)
        if isinstance(found, nn.Module) and is_custom(found):
            return found
    return None


def is_not_finite(module: nn.Module, output: Tensor) -> bool:
    """Return whether a module's output contains NaN or infinity. In a position bias, -inf is valid and hides a key.

    >>> hidden = torch.tensor([0.0, -torch.inf])
    >>> is_not_finite(nn.Identity(), hidden), is_not_finite(DistanceBias(), hidden)
    (True, False)
    """
    if isinstance(module, DistanceBias):
        return bool((output.isnan() | (output == torch.inf)).any())
    return not output.isfinite().all()
