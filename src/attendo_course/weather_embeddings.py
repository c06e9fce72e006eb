"""The weather post's embeddings: a day's weather and its position, in one number or in four."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from attendo.data.weather import STATES
from attendo.nn.layers import InputEmbedding, TokenEmbedding
from attendo.nn.positions import FixedPositions, inverse_encoding, ramp_encoding


def scalar_embedding(kind: Literal["ramp", "inverse"], length: int = 10) -> InputEmbedding:
    """e_t = w_t + t/L ("ramp") or w_t + 1/t ("inverse"), w_t = -1, 0, 1 for rain, cloud, sun; t from 1 (F23).

    Ids `[batch, len]` to `[batch, len, 1]`, in the default dtype. Nothing is trained.

    >>> scalar_embedding("ramp")(torch.tensor([[0, 2]])).flatten()
    tensor([-0.9000,  1.2000])
    """
    tokens = TokenEmbedding(len(STATES), 1, scaled=False)
    tokens.weight.data = torch.tensor([[-1.0], [0.0], [1.0]])
    encode = partial(ramp_encoding, length=length) if kind == "ramp" else inverse_encoding
    return InputEmbedding(tokens, FixedPositions(encode, start=1)).requires_grad_(False)


def one_hot_embedding(length: int = 20) -> InputEmbedding:
    """e_t = (one-hot of rain, cloud, sun; t/L), t from 1 (F24).

    Ids `[batch, len]` to `[batch, len, 4]`, in the default dtype. Nothing is trained.

    >>> one_hot_embedding()(torch.tensor([[2]]))
    tensor([[[0.0000, 0.0000, 1.0000, 0.0500]]])
    """
    n_states = len(STATES)

    def encode(positions: Tensor) -> Tensor:
        return F.pad(ramp_encoding(positions, length), (n_states, 0))

    tokens = TokenEmbedding(n_states, n_states + 1, scaled=False)
    tokens.weight.data = torch.eye(n_states, n_states + 1)
    return InputEmbedding(tokens, FixedPositions(encode, start=1)).requires_grad_(False)


def distinct_sums(embedding: InputEmbedding, n_positions: int) -> int:
    """How many of the (weather, position) pairs an embedding keeps apart.

    >>> [distinct_sums(scalar_embedding("ramp", length=10), 20), distinct_sums(scalar_embedding("inverse"), 20)]
    [40, 60]
    """
    with torch.no_grad():
        days = torch.arange(len(STATES))[:, None].expand(-1, n_positions)
        vectors = embedding(days).double().round(decimals=6).flatten(0, 1)
    return len(vectors.unique(dim=0))
