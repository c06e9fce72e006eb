"""Normalization of each token by itself: LayerNorm and RMSNorm, any ε."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

NormKind = Literal["layer", "rms"]


def layer_norm(
    x: Float[Tensor, "*batch d"],
    weight: Float[Tensor, " d"] | None = None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch d"]:
    """(x - mean) / √(var + ε) ⊙ γ + β over the last axis, var divided by d. Ba et al. 2016; Phuong & Hutter 2022, A6.

    eps: 0 is allowed; then a vector of equal entries gives 0/0 = NaN, as the formula says.

    >>> import torch
    >>> layer_norm(torch.tensor([1.0, 3.0]), eps=0.0)
    tensor([-1.,  1.])
    """
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms_norm(
    x: Float[Tensor, "*batch d"], weight: Float[Tensor, " d"] | None = None, eps: float = 1e-5
) -> Float[Tensor, "*batch d"]:
    """x / √(mean(x²) + ε) ⊙ γ over the last axis. Zhang & Sennrich 2019; A6 of Phuong & Hutter 2022 with m = β = 0.

    >>> import torch
    >>> rms_norm(torch.tensor([1.0, 7.0]), eps=0.0)
    tensor([0.2000, 1.4000])
    """
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def build_norm(kind: NormKind, d_model: int, eps: float) -> nn.LayerNorm | nn.RMSNorm:
    """The trained norm of that kind: `layer_norm` or `rms_norm` with its γ (and β).

    kind "layer": Ba et al. 2016; "rms": Zhang & Sennrich 2019. From `[*batch, d_model]` to the same shape.

    >>> build_norm("layer", 8, 1e-5).bias.shape, build_norm("rms", 8, 1e-5).weight.shape
    (torch.Size([8]), torch.Size([8]))
    """
    return nn.LayerNorm(d_model, eps=eps) if kind == "layer" else nn.RMSNorm(d_model, eps=eps)
