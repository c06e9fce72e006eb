"""Parts of a user's own in a model: how they are put in, named and handed in again, and what they must do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attendo.errors import AttendoError
from attendo.models import EncoderClassifier, EncoderDecoder, Model
from attendo.nn.attention import Attention
from attendo.nn.blocks import Decoder, DecoderBlock
from attendo.nn.positions import DistanceBias, Rotary

OwnParts = Callable[[Any], object]
"""A function of a user's that puts modules of their own into a fresh model, in place."""

LOAD = "attendo.load({folder!r}, own_parts={parts})"
RESUME = (
    "from attendo.runs.resume import resumed_run; resumed_run({folder!r}, own_parts={parts}).to_end(print)"
)
VERIFY = "from attendo.runs.verify_resume import verify_resume; print(verify_resume({folder!r}, own_parts={parts}))"
TINY = 4
"""Tokens of the texts on which a model with such parts is tried."""
QUERIES, KEYS = ((2, 3), (4, 5)), range(6)
"""Places for which a bias is tried."""
_STEPS: dict[type[nn.Module], tuple[str, ...]] = {
    Attention: ("keys_values", "attend_to"),
    DecoderBlock: ("step",),
    Decoder: ("step",),
}
"""What a search calls, token by token, where training calls `forward`."""


def name_of_parts(own_parts: OwnParts) -> str:
    """FILE.py:FUNCTION, as far as it can be told; for people, nothing is loaded by it.

    >>> name_of_parts(name_of_parts)
    'own_parts.py:name_of_parts'
    """
    code = getattr(own_parts, "__code__", None)
    if code is None:
        return type(own_parts).__name__
    return f"{Path(code.co_filename).name}:{getattr(own_parts, '__qualname__', code.co_name)}"


def python_line(name: str, folder: Path, call: str) -> str:
    """The Python that hands the parts of this name in: LOAD, RESUME or VERIFY.

    >>> python_line("bias.py:with_bias", Path("runs/a"), LOAD)
    "from bias import with_bias; attendo.load('runs/a', own_parts=with_bias)"
    >>> python_line("bias.py:made.<locals>.with_bias", Path("runs/a"), LOAD)
    "attendo.load('runs/a', own_parts=F), where F is the function that you gave to attendo.train"
    """
    file, _, function = name.rpartition(":")
    if not file or not function.isidentifier():
        told = call.format(folder=str(folder), parts="F")
        return f"{told}, where F is the function that you gave to attendo.train"
    module = file.removesuffix(".py")
    known = file != module and module.isidentifier()
    imported = f"from {module} import {function}; " if known else ""
    return imported + call.format(folder=str(folder), parts=function)


def own_buffers(model: nn.Module) -> dict[str, list[int]]:
    """The shapes of the buffers that parts of a user's own keep; attendo's own parts make theirs anew."""
    parameters = dict(model.named_parameters())
    return {name: list(t.shape) for name, t in model.state_dict().items() if name not in parameters}


def is_own(module: nn.Module) -> bool:
    """Whether a module is of a class of its user's own.

    >>> is_own(nn.Linear(1, 1)), is_own(type("Mine", (nn.Linear,), {"__module__": "mine"})(1, 1))
    (False, True)
    """
    return type(module).__module__.partition(".")[0] not in ("attendo", "torch")


def own_part_at(model: nn.Module, name: str) -> nn.Module | None:
    """The module of a user's own that a path or the name of a parameter is of, the outermost; None if there is none."""
    found: Any = model
    for step in name.split("."):
        found = getattr(found, step, None)
        if isinstance(found, nn.Module) and is_own(found):
            return found
    return None


def is_unsound(module: nn.Module, output: Tensor) -> bool:
    """Whether a module gives NaN or infinity; a bias may give -inf, which hides a key.

    >>> hidden = torch.tensor([0.0, -torch.inf])
    >>> is_unsound(nn.Identity(), hidden), is_unsound(DistanceBias(), hidden), is_unsound(DistanceBias(), -hidden)
    (True, False, True)
    """
    if isinstance(module, DistanceBias):
        return bool(_no_number(output).any())
    return not output.isfinite().all()


def _no_number(output: Tensor) -> Tensor:
    """Where there is NaN or +inf; -inf may hide something on purpose."""
    return output.isnan() | (output == torch.inf)


def put_in(own_parts: OwnParts, model: Model, *, tried: bool = False) -> None:
    """Puts parts of a user's own into a fresh model.

    Raises AttendoError where the model is as it was, or a bias has another shape than its callers await. tried: before
    anything is trained, also where a part is not called, or gives what is no number: it would be trained without that
    part, or not at all.
    """
    before = [*model.modules(), *model.parameters()]  # kept, so that no new part has the id of an old one
    known = set(map(id, before))
    own_parts(model)
    where = f"own_parts={name_of_parts(own_parts)}"
    if all(id(part) in known for part in (*model.modules(), *model.parameters())):
        raise AttendoError(
            f"{where} put no module or parameter into the model that it was given; replace some there, in place"
        )
    try:
        for path, module in model.named_modules():
            if isinstance(module, Attention):
                _require_bias(f"{path}.positions", module, tried=tried)
            if tried and path.startswith("decoder"):
                _require_steps(path, module)
        if tried:
            _require_output(model)
            _try(model, known)
    except AttendoError as error:
        raise AttendoError(f"{where}: {error}") from error.__cause__


def _named(path: str, module: nn.Module) -> str:
    return f"{path} ({type(module).__name__})"


def _require_bias(path: str, attention: Attention, *, tried: bool) -> None:
    """Raises AttendoError for a bias that can't be added to scores; tried: and for positions that are never asked."""
    positions: nn.Module | None = attention.positions
    if isinstance(positions, DistanceBias):
        found = _shaped(_named(path, positions), positions, attention.n_heads)
        if tried:
            _require_sound(_named(path, positions), found, causal=path.startswith("decoder"))
    elif (
        tried and type(attention) is Attention and not isinstance(positions, Rotary | nn.Identity | None)
    ):  # an attention of one's own may ask it
        raise AttendoError(
            f"{_named(path, positions)} is no DistanceBias, so attention never asks it; derive"
            f" {type(positions).__name__} from attendo.nn.positions.DistanceBias"
        )


@torch.no_grad()
def _shaped(name: str, bias: DistanceBias, n_heads: int) -> Tensor:
    """A bias of QUERIES and KEYS. Raises AttendoError where it has not the shape that each of its callers awaits."""
    queries, keys = torch.tensor(QUERIES), torch.tensor(KEYS)
    wanted = f"[batch, heads, queries, keys]: here [2, {n_heads} or 1, 2, 6]"
    try:
        found = bias(queries, keys)
        shape = tuple(found.shape)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise AttendoError(
            f"{name} fails for queries [2, 2] and keys [6]: {error}; a DistanceBias gives {wanted}"
        ) from error
    if shape not in ((2, n_heads, 2, 6), (2, 1, 2, 6)):
        raise AttendoError(
            f"{name} gives {list(shape)} for queries [2, 2] and keys [6]; a DistanceBias gives {wanted}"
        )
    return found


def _require_sound(name: str, bias: Tensor, *, causal: bool) -> None:
    """Raises AttendoError for a bias that is no number; causal: keys behind the query are never seen."""
    distances = torch.tensor(KEYS) - torch.tensor(QUERIES)[:, None, :, None]
    wrong = (_no_number(bias) & ((distances <= 0) | (not causal))).nonzero()
    if len(wrong):
        row, head, query, key = wrong[0].tolist()
        raise AttendoError(
            f"{name} gives {bias[row, head, query, key]:+} for a key at distance"
            f" {int(distances[row, 0, query, key])} (key - query); correct its formula: a bias may be -inf, but not NaN"
            " or +inf"
        )


def _require_steps(path: str, module: nn.Module) -> None:
    """Raises AttendoError for a part of a decoder that computes otherwise in training than in a search."""
    own = type(module)
    for kind, names in _STEPS.items():
        alike = all(getattr(own, name, None) is getattr(kind, name) for name in names)
        if isinstance(module, kind) and own.forward is not kind.forward and alike:
            raise AttendoError(
                f"{_named(path, module)} overrides forward, which a search never calls; override {names[-1]}, too"
            )


def _require_output(model: Model) -> None:
    """Raises AttendoError for a last layer that training would not call."""
    output = model.output_proj
    if not isinstance(model, EncoderClassifier) and type(output).forward is not nn.Linear.forward:
        raise AttendoError(
            f"{_named('output_proj', output)} overrides forward, which training never calls: it reads weight and bias;"
            " change what comes before"
        )


def _try(model: Model, known: set[int]) -> None:
    """Raises AttendoError for a new part that passes over tiny texts never call, or that gives what is no number.

    A part that fails here (as one made for a GPU alone) fails in training, which tells it better.
    """
    new = _outermost(model, known)
    parameters = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    used: set[int] = set()
    unsound: list[str] = []

    def look(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            used.add(id(module))
            judged = path in new and not isinstance(module, DistanceBias)  # a bias was judged by itself
            if judged and isinstance(output, Tensor) and _no_number(output).any():
                unsound.append(_named(path, module))

        return hook

    handles = [module.register_forward_hook(look(path)) for path, module in model.named_modules()]
    try:  # some are for training alone
        for training in (False, True):
            slopes = _gradients(model, parameters, training=training)
            used |= {id(p) for p, slope in zip(parameters, slopes, strict=True) if slope is not None}
        known_use = True
    except Exception:  # noqa: BLE001 - of the user's own code, any
        known_use = False
    finally:
        for handle in handles:
            handle.remove()
    if unsound:
        raise AttendoError(f"{unsound[0]} gives NaN or infinity on a tiny input; correct its formula")
    if known_use:
        _require_used(model, new, used, set(map(id, parameters)))


def _outermost(model: Model, known: set[int]) -> dict[str, nn.Module]:
    """The modules by path that a model did not have before, without those within them."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        if id(module) not in known and not any(path.startswith(f"{part}.") for part in found):
            found[path] = module
    return found


def _gradients(model: Model, parameters: list[nn.Parameter], *, training: bool) -> tuple[Tensor | None, ...]:
    """The gradient of the summed logits of two tiny texts for each parameter; None where they don't depend on it."""
    n, before = min(TINY, model.config.max_len), model.training
    ids = (model.config.vocab_size - 1 - torch.arange(2 * n)).clamp_min(0).view(2, n)
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train(training)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            logits = model(ids, ids) if isinstance(model, EncoderDecoder) else model(ids)
            return torch.autograd.grad(logits.sum(), parameters, allow_unused=True) if parameters else ()
    finally:
        model.train(before)
        for buffer, value in buffers:  # what a part keeps of its inputs, as a norm may, stays as it is
            buffer.copy_(value)


def _require_used(model: Model, new: dict[str, nn.Module], used: set[int], trained: set[int]) -> None:
    """Raises AttendoError for a new module of which nothing is called or read, or a new parameter beside them."""
    for path, module in new.items():
        parts = [*module.modules(), *module.parameters()]
        is_a_table = bool([*module.parameters(), *module.buffers()]) and not any(
            id(p) in trained for p in parts
        )
        if not is_a_table and not any(id(part) in used for part in parts):  # another may read a table
            raise AttendoError(
                f"nothing calls {_named(path, module)}, so the model is as it would be without; put it where the model"
                " has a module"
            )
    for path, parameter in model.named_parameters():
        if id(parameter) in trained - used and not any(path.startswith(f"{part}.") for part in new):
            raise AttendoError(f"nothing reads the parameter {path}, so the model is as it would be without")
