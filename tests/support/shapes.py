"""Checks the annotated shapes of the core: each combination of arguments once for each function and each module.

A full check of every call takes a quarter of the time of the tests. Whether a call of tensors, plain values and modules
passes depends on what `_key` returns, so a combination that has passed is not checked again. A call with any other
object, for example a cache, is always checked: the shapes of its result may depend on the object's state.

Even so the checks take a sixth of the time of all tests. Without the large counts, they are made in the tests of the
packages that handle tensors (`CHECKED`, tests/conftest.py) and not in those of commands, pages and servers.
"""

import functools
import inspect
import random
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import jaxtyping
import torch

checking = True
"""Whether calls are checked."""


def check_shapes(packages: list[str]) -> None:
    """Check each call of the functions of these packages; call it before anything imports them."""
    jaxtyping.install_import_hook(packages, "beartype.beartype")
    every_call = jaxtyping.jaxtyped

    def new_combinations(*, typechecker: Any) -> Callable[[Any], Any]:
        def decorate(function: Any) -> Any:
            checked = every_call(function, typechecker=typechecker)
            return _once(function, checked) if inspect.isfunction(function) else checked

        return decorate

    jaxtyping.jaxtyped = new_combinations


def _once(function: Callable[..., Any], checked: Callable[..., Any]) -> Callable[..., Any]:
    passed: set[Any] = set()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not checking:
            return function(*args, **kwargs)
        try:
            key = (*map(_key, args), *((name, _key(value)) for name, value in kwargs.items()))
        except _UnknownStateError:
            key = None
        if key in passed:
            return function(*args, **kwargs)
        state = random.getstate()  # beartype draws which items of a sequence it checks
        result = checked(*args, **kwargs)
        random.setstate(state)
        if key is not None:
            passed.add(key)
        return result

    return call


class _UnknownStateError(Exception):
    """An object whose state the result of a call may depend on."""


def _key(value: Any) -> Any:
    """What the check of a value depends on. Raises _UnknownStateError."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape
    if isinstance(value, torch.nn.Module):
        return _module_key(value) if "_parameters" in vars(value) else type(value)
    if isinstance(value, tuple | list):
        return type(value), *map(_key, value)
    if isinstance(value, int | str):
        return type(value), value  # with the type, since True == 1
    if value is None or isinstance(value, float | torch.dtype | torch.device) or callable(value):
        return type(value)
    raise _UnknownStateError


_NUMBERS: dict[Any, int] = {}
_MODULE_NUMBERS: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()


def _module_key(module: torch.nn.Module) -> int:
    """The same number for modules of the same parts, shapes and integer settings."""
    if (number := _MODULE_NUMBERS.get(module)) is None:
        parts = tuple(
            (
                type(part),
                *((name, parameter.shape) for name, parameter in part.named_parameters(recurse=False)),
                *((name, value) for name, value in vars(part).items() if isinstance(value, int)),
            )
            for part in module.modules()
        )
        number = _MODULE_NUMBERS[module] = _NUMBERS.setdefault(parts, len(_NUMBERS))
    return number
