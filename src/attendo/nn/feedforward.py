"""The position-wise feed-forward net: two dense layers, the same at each position."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attendo.nn.dropout import Dropout

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """FFN(x) = W₂ · activation(W₁x + b₁) + b₂. Vaswani et al. 2017, eq. 2; a convolution of width 1.

    activation: "relu", the exact "gelu" x·Φ(x), GPT-2's approximation "gelu_tanh", or "silu" x·σ(x). gated: the
    activation of a third projection multiplies the inner vector, W₂(activation(W_g x) ⊙ W₁x), Shazeer 2020 (SwiGLU
    with "silu"). dropout: on the inner activations.

    >>> import torch
    >>> net = FeedForward(2, 3, bias=False)
    >>> _ = nn.init.ones_(net.in_proj.weight), nn.init.ones_(net.out_proj.weight)
    >>> net(torch.tensor([[1.0, 1.0], [-1.0, -1.0]])).detach()  # three inner units of 2, or of -2, which ReLU cuts
    tensor([[6., 6.],
            [0., 0.]])
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.in_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.out_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Each position by itself."""
        inner = self.in_proj(x)
        if self.gate_proj is None:
            inner = self.activation(inner)
        else:
            inner = self.activation(self.gate_proj(x)) * inner
        return self.out_proj(self.dropout(inner))
