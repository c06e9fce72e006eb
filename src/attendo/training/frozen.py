"""Parts of a model that are named by their paths, and those that stay as they are while the rest is trained."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from torch import nn

from attendo.errors import AttendoError


def parameters_of(model: nn.Module, parts: Sequence[str], setting: str) -> list[nn.Parameter]:
    """The parameters of the parts, each a module's or a parameter's path, as often as a part holds them.

    A matrix that two parts share belongs to both. setting: where the parts stand, for the message. Raises AttendoError
    for a part that the model has not, with the nearest that it has.

    >>> model = nn.ModuleDict({"encoder": nn.Linear(2, 3), "output": nn.Linear(3, 2)})
    >>> [tuple(p.shape) for p in parameters_of(model, ["encoder", "output.bias"], "training.frozen")]
    [(3, 2), (3,), (2,)]
    >>> parameters_of(model, ["encodr"], "training.frozen")
    Traceback (most recent call last):
    attendo.errors.AttendoError: training.frozen: the model has no part 'encodr'; did you mean encoder?
    """
    named = list(model.named_parameters(remove_duplicate=False))
    found: list[nn.Parameter] = []
    for part in parts:
        own = [parameter for path, parameter in named if f"{path}.".startswith(f"{part}.")]
        if not own:
            raise AttendoError(f"{setting}: the model has no part {part!r}; {nearest(part, _places(model))}")
        found += own
    return found


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Keeps the parts of a model from being trained: they get no gradient and no state of the optimizer.

    Raises AttendoError for a part that the model has not, and where nothing is left to train.
    """
    for parameter in parameters_of(model, parts, "training.frozen"):
        parameter.requires_grad_(False)
    if parts and not any(parameter.requires_grad for parameter in model.parameters()):
        raise AttendoError(f"training.frozen={list(parts)} leaves nothing to train; leave a part out of it")


def nearest(name: str, known: Sequence[str]) -> str:
    """What to say of a name that is not among those known: the most like it, or the shortest ones.

    >>> nearest("q_porj", ["q_proj", "v_proj"]), nearest("x", ["q_proj", "v_proj"])
    ('did you mean q_proj?', 'there are q_proj, v_proj')
    """
    like = get_close_matches(name, known, n=1)
    shortest = [place for place in known if "." not in place]
    return f"did you mean {like[0]}?" if like else f"there are {', '.join(shortest)}"


def _places(model: nn.Module) -> list[str]:
    """The paths of all modules that hold parameters, and of the parameters."""
    places: dict[str, None] = {}
    for path, _ in model.named_parameters(remove_duplicate=False):
        steps = path.split(".")
        places |= {".".join(steps[:depth]): None for depth in range(1, len(steps) + 1)}
    return list(places)
