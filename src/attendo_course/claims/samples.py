"""Random inputs of the claims, each from its own generator, and the size of a difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attendo.model_config import ModelConfig
from attendo.nn.attention import Attention

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def built(make: Callable[[], ModuleT], seed: int = 0) -> ModuleT:
    """Build a module with `make` from this seed, in float64 and evaluation mode. The global generator is unchanged.

    >>> built(lambda: nn.Linear(2, 2)).weight.dtype
    torch.float64
    """
    with _default_dtype(torch.float64), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def unrolled(
    cell: nn.RNNCell, x: Float[Tensor, "len d_in"], state: Float[Tensor, " d_state"] | None = None
) -> Float[Tensor, "len d_state"]:
    """Return the states h_t = tanh(W_x x_t + W_h h_{t-1} + b) of a recurrent network, computed step by step.

    The initial state h_0 is `state` (default: zeros). The source is Elman 1990.

    >>> unrolled(built(lambda: nn.RNNCell(2, 3)), torch.zeros(4, 2, dtype=torch.float64)).shape
    torch.Size([4, 3])
    """
    states, h = [], x.new_zeros(cell.hidden_size) if state is None else state
    for row in x:
        h = cell(row, h)
        states.append(h)
    return torch.stack(states)


def small_config(vocab_size: int, max_len: int, **settings: Any) -> ModelConfig:
    """Return the configuration of a model of width 16 with two heads, no dropout and the given settings.

    >>> small_config(9, 8, n_encoder_layers=2, n_decoder_layers=2).d_ff
    32
    """
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "dropout": 0.0}
    return ModelConfig(vocab_size=vocab_size, max_len=max_len, **sizes, **settings)


def changed(token_ids: Tensor, place: int, by: int, vocab: int) -> Tensor:
    """Return a copy of ids `[batch, len]` in which `by` is added to column `place`, modulo the vocabulary size.

    >>> changed(torch.tensor([[1, 2]]), 1, 2, 3)
    tensor([[1, 1]])
    """
    other = token_ids.clone()
    other[:, place] = (other[:, place] + by) % vocab
    return other


def normal(seed: int, *shape: int) -> Tensor:
    """Return independent draws from N(0, 1) in float64.

    >>> normal(0, 2, 3).shape
    torch.Size([2, 3])
    """
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_attention(seed: int, d_model: int, n_heads: int, std: float, value_dim: int | None = None) -> Attention:
    """Return multi-head attention in float64 without biases. Each weight is drawn from N(0, std²).

    >>> random_attention(0, 8, 2, std=1.0).q_proj.weight.dtype
    torch.float64
    """
    with torch.device("meta"):  # a layer built elsewhere would draw from the global generator
        layer = Attention(d_model, n_heads, value_dim=value_dim, bias=False)
    layer = layer.to(torch.float64).to_empty(device="cpu").requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.normal_(0.0, std, generator=generator)
    return layer


def largest(difference: Tensor) -> float:
    """Return the largest absolute value of the entries.

    >>> largest(torch.tensor([1.0, -2.0]))
    2.0
    """
    return float(difference.detach().abs().max())


def numbered(name: str, n: int) -> tuple[str, ...]:
    """Return `n` labels: `name` followed by the numbers from 1.

    >>> numbered("x", 2)
    ('x1', 'x2')
    """
    return tuple(f"{name}{i + 1}" for i in range(n))
