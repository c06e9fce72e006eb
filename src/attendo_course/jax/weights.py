"""Copies of the weights of PyTorch modules in Equinox modules."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from torch import nn

Module = TypeVar("Module")
CORE_NAMES = {f"{kind[0]}_{part}": f"{part}_proj.{kind}" for kind in ("weight", "bias") for part in "qkv"} | {
    "tokens": "embedding.tokens",
    "positions": "embedding.positions",
    "blocks": "decoder.blocks",
    "norm": "decoder.norm",
}
"""The names of the core for the parts of an Equinox module whose names differ. Example: q_proj.weight for w_q."""


def copy_weights(module: Module, source: nn.Module) -> Module:
    """Return an Equinox module with the weights of the corresponding PyTorch module of attendo.

    `MultiHeadAttention` corresponds to `attendo.nn.Attention`, `DecoderLM` to `attendo.models.DecoderLM`, and
    `SingleQueryAttention` to the preset `weather_blog`. Weights in float64 remain float64 only within
    `jax.enable_x64(True)`, otherwise they become float32.

    Args:
        module: The Equinox module, which is not changed.
        source: The PyTorch module.

    Raises:
        ValueError: A parameter is only in one module, or its shapes differ.

    >>> import equinox
    >>> from attendo_course.jax.attention import SingleQueryAttention
    >>> from attendo_course.presets import weather_blog
    >>> layer = equinox.filter_eval_shape(SingleQueryAttention, 4, 6, 3, key=jax.random.key(0))  # shapes alone
    >>> core = weather_blog()
    >>> copy_weights(layer, core).w_v.tolist() == core.v_proj.weight.tolist()
    True
    """
    left = {name: tensor.detach().cpu().numpy() for name, tensor in source.named_parameters()}

    def copied(path: tuple[Any, ...], old: Any) -> jax.Array:
        first, *rest = jax.tree_util.keystr(path, simple=True, separator=".").split(".")
        name = ".".join([CORE_NAMES.get(first, first), *rest])
        new = left.pop(name, None)
        if new is None or new.shape != old.shape:
            found = "is missing" if new is None else f"has the shape {new.shape}"
            raise ValueError(f"{name} {found} in {type(source).__name__} (expected {old.shape})")
        return jnp.array(new)

    result = jax.tree_util.tree_map_with_path(copied, module)
    if left:
        raise ValueError(f"{type(module).__name__} has no parameter {next(iter(left))}")
    return result
