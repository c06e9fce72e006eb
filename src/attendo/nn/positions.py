"""Positional encodings: where a token stands, as a vector that is added to its embedding."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def sinusoidal_encoding(
    positions: Int[Tensor, "*batch"], d_model: int, base: float = 10000.0
) -> Float[Tensor, "*batch d_model"]:
    """PE[p, 2i] = sin(p / base^(2i/d)), PE[p, 2i+1] = cos(the same). Vaswani et al. 2017, section 3.5.

    Computed in float64 and returned in the default dtype. An odd width ends in a sine.

    >>> sinusoidal_encoding(torch.tensor([1]), 4)
    tensor([[0.8415, 0.5403, 0.0100, 0.9999]])
    """
    n_pairs = (d_model + 1) // 2
    frequencies = base ** (
        -2.0 * torch.arange(n_pairs, dtype=torch.float64, device=positions.device) / d_model
    )
    angles = positions[..., None] * frequencies
    pairs = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return pairs[..., :d_model].to(torch.get_default_dtype())


class SinusoidalPositions(nn.Module):
    """The fixed encoding of any position; rows once computed are kept in a table that grows on demand."""

    table: Tensor

    def __init__(self, d_model: int, max_len: int = 64):
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", sinusoidal_encoding(torch.arange(max_len), d_model), persistent=False)

    def forward(self, positions: Int[Tensor, "*batch len"], end: int) -> Float[Tensor, "*batch len d_model"]:
        """The encoding of each position; every position is below `end`."""
        if end > self.table.shape[0]:
            longer = sinusoidal_encoding(torch.arange(2 * end, device=self.table.device), self.d_model)
            self.table = longer.to(self.table.dtype)
        return self.table[positions]


class LearnedPositions(nn.Module):
    """A trained vector for each of `max_len` positions (Phuong & Hutter 2022, algorithm 2)."""

    def __init__(self, d_model: int, max_len: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(max_len, d_model))

    def forward(self, positions: Int[Tensor, "*batch len"], end: int) -> Float[Tensor, "*batch len d_model"]:
        """The vector of each position, all below `end`. Raises ValueError beyond the table."""
        if end > self.weight.shape[0]:
            raise ValueError(
                f"the text has {end} tokens, but learned positions end at max_len={self.weight.shape[0]};"
                " split the text, or train with a larger model.max_len"
            )
        return self.weight[positions]
