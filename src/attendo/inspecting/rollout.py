"""Attention rollout: how much of each position, through all layers, is said to come from each input.

It is an approximation: it takes the residual stream for an even mean of a sub-layer's input and output, all heads for
equal, and knows neither values nor feed-forward nets. Read it as a picture, not as a cause.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def with_residual(weights: Float[Tensor, "*batch heads len len"]) -> Float[Tensor, "*batch len len"]:
    """Ã = ½(A + I), A the mean over heads: the residual carries half. Abnar & Zuidema 2020, section 3.

    >>> with_residual(torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    mean = weights.mean(-3)
    return 0.5 * (mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device))


def rollout(layers: Sequence[Float[Tensor, "*batch heads len len"]]) -> Float[Tensor, "*batch len len"]:
    """Ã_L · … · Ã_1, the weights of the first layer first: an approximation of what each output has of each input.

    Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", equation 1. Rows sum to 1.

    >>> rollout([torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])] * 2)
    tensor([[1.0000, 0.0000],
            [0.7500, 0.2500]])
    """
    found = with_residual(layers[0])
    for weights in layers[1:]:
        found = with_residual(weights) @ found
    return found


def cross_rollout(
    self_layers: Sequence[Float[Tensor, "*batch heads tgt_len tgt_len"]],
    cross_layers: Sequence[Float[Tensor, "*batch heads tgt_len src_len"]],
    memory: Float[Tensor, "*batch src_len src_len"],
) -> tuple[Float[Tensor, "*batch tgt_len src_len"], Float[Tensor, "*batch tgt_len tgt_len"]]:
    """Rollout through a decoder: the shares of the source's inputs and of the target's. An approximation.

    The rule of `rollout` for each sub-layer in turn: self-attention mixes what the positions have, S ← ÃS and T ← ÃT;
    cross-attention takes half anew from the memory, S ← ½(S + C·memory) and T ← ½T, C its mean over heads. memory:
    the encoder's `rollout`. Rows of both together sum to 1; one layer's S is ½ C·memory.

    >>> half = torch.full((1, 1, 2), 0.5)
    >>> cross_rollout([torch.ones(1, 1, 1)], [half], torch.eye(2))
    (tensor([[0.2500, 0.2500]]), tensor([[0.5000]]))
    """
    tgt_len = self_layers[0].shape[-1]
    source = torch.zeros_like(cross_layers[0].mean(-3))
    target = torch.eye(tgt_len, dtype=source.dtype, device=source.device)
    for own, cross in zip(self_layers, cross_layers, strict=True):
        mixing = with_residual(own)
        source = 0.5 * (mixing @ source + cross.mean(-3) @ memory)
        target = 0.5 * (mixing @ target)
    return source, target
