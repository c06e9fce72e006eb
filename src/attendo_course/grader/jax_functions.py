"""JAX functions as functions of PyTorch tensors, so that the same test applies to both."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor


def uses_jax(function: Callable[..., Any]) -> bool:
    """Return whether a function, or the class of a callable object, imports JAX or Equinox itself or in its file.

    >>> uses_jax(uses_jax)
    False
    """
    inner = inspect.unwrap(function)
    inner = inspect.unwrap(inner if inspect.isfunction(inner) else type(inner).__call__)
    modules = set(inner.__code__.co_names) if inspect.isfunction(inner) else set()  # of imports in its body
    if "jax" in sys.modules:
        for value in getattr(inner, "__globals__", {}).values():
            modules.add(getattr(value, "__module__", None) or getattr(value, "__name__", ""))
    uses = any(str(module).split(".")[0] in ("jax", "equinox") for module in modules)
    return uses and find_spec("jax") is not None


def not_compiled() -> AbstractContextManager[Any]:
    """Return a context in which JAX runs the Python code of a compiled function, if JAX is loaded.

    >>> with not_compiled():
    ...     1 + 1
    2
    """
    jax = sys.modules.get("jax")
    return nullcontext() if jax is None else jax.disable_jit()


def as_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of PyTorch tensors that calls a JAX function in float64, with the gradients of `jax.vjp`.

    Positional arguments can have gradients. Named arguments are passed without gradients. The x64 mode of JAX is on
    only during the call.

    >>> import jax.numpy as jnp
    >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    >>> as_torch(lambda array: jnp.sum(array**3))(x).backward()
    >>> x.grad
    tensor([ 3., 12.], dtype=torch.float64)
    """
    import jax

    def called(*tensors: Tensor, **named: Any) -> Any:
        structure: list[Any] = []

        def leaves(*arrays: Any) -> tuple[Any, ...]:
            found, tree = jax.tree.flatten(function(*arrays, **{k: _to_jax(v) for k, v in named.items()}))
            structure.append(tree)
            return tuple(found)

        outputs = _Call.apply(leaves, *tensors)
        return jax.tree.unflatten(structure[0], outputs)

    return called


class _Call(torch.autograd.Function):
    """A call of a JAX function, whose derivatives JAX computes."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., tuple[Any, ...]], *tensors: Tensor) -> Any:
        import jax

        with jax.enable_x64(True):
            arrays = [_to_jax(tensor) for tensor in tensors]
            if any(ctx.needs_input_grad):
                leaves, ctx.pull_back = jax.vjp(function, *arrays)
            else:
                leaves = function(*arrays)
            return tuple(torch.from_numpy(np.array(leaf)) if isinstance(leaf, jax.Array) else leaf for leaf in leaves)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        import jax

        with jax.enable_x64(True):
            found = ctx.pull_back(tuple(_to_jax(slope) for slope in slopes))
            return None, *(torch.from_numpy(np.array(slope)) for slope in found)


def _to_jax(value: Any) -> Any:
    import jax.numpy as jnp

    return jnp.array(value.detach().numpy()) if isinstance(value, Tensor) else value
