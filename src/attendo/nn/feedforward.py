"""The position-wise feed-forward net: two dense layers, the same at each position."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attendo.nn.dropout import Dropout

Activation = Literal["relu", "gelu"]


class FeedForward(nn.Module):
    """FFN(x) = W₂ · activation(W₁x + b₁) + b₂. Vaswani et al. 2017, eq. 2; a convolution of width 1.

    activation: "relu", or the exact "gelu" x·Φ(x). dropout: on the inner activations.
    """

    def __init__(self, d_model: int, d_ff: int, *, activation: Activation = "relu", dropout: float = 0.0):
        super().__init__()
        self.in_proj = nn.Linear(d_model, d_ff)
        self.out_proj = nn.Linear(d_ff, d_model)
        self.activation = {"relu": F.relu, "gelu": F.gelu}[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Each position by itself."""
        return self.out_proj(self.dropout(self.activation(self.in_proj(x))))
