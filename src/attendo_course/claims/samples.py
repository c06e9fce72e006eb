"""What the claims draw at random, each from a generator of its own, and the size of a difference."""

from __future__ import annotations

import torch
from torch import Tensor

from attendo.nn.attention import Attention


def normal(seed: int, *shape: int) -> Tensor:
    """Independent draws from N(0, 1) in float64.

    >>> normal(0, 2, 3).shape
    torch.Size([2, 3])
    """
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_attention(
    seed: int, d_model: int, n_heads: int, std: float, value_dim: int | None = None
) -> Attention:
    """Multi-head attention in float64 without biases; every weight is drawn from N(0, std²).

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
    """The largest |entry|.

    >>> largest(torch.tensor([1.0, -2.0]))
    2.0
    """
    return float(difference.detach().abs().max())


def numbered(name: str, n: int) -> tuple[str, ...]:
    """Labels with numbers from 1.

    >>> numbered("x", 2)
    ('x1', 'x2')
    """
    return tuple(f"{name}{i + 1}" for i in range(n))
