"""Modules that the claims build with random weights, each from a seed of its own, and the loop of an RNN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

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
    """What `make` builds in float64 from this seed, in evaluation mode; the global generator stays as it was.

    >>> built(lambda: nn.Linear(2, 2)).weight.dtype
    torch.float64
    """
    with _default_dtype(torch.float64), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def unrolled(
    cell: nn.RNNCell, x: Float[Tensor, "len d_in"], state: Float[Tensor, " d_state"] | None = None
) -> Float[Tensor, "len d_state"]:
    """The states h_t = tanh(W_x x_t + W_h h_{t-1} + b) of a recurrent network, one step after the other.

    state: h_0, zeros unless given. Elman 1990.

    >>> unrolled(built(lambda: nn.RNNCell(2, 3)), torch.zeros(4, 2, dtype=torch.float64)).shape
    torch.Size([4, 3])
    """
    states, h = [], x.new_zeros(cell.hidden_size) if state is None else state
    for row in x:
        h = cell(row, h)
        states.append(h)
    return torch.stack(states)


def changed(token_ids: Tensor, place: int, by: int, vocab: int) -> Tensor:
    """A copy of ids `[batch, len]` whose column `place` holds other ids, modulo the vocabulary.

    >>> changed(torch.tensor([[1, 2]]), 1, 2, 3)
    tensor([[1, 1]])
    """
    other = token_ids.clone()
    other[:, place] = (other[:, place] + by) % vocab
    return other
