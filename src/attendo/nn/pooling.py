"""From one vector a token to one vector a text."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.nn.masks import within_lengths

Pooling = Literal["max", "mean", "first"]


def pool(
    x: Float[Tensor, "batch len d_model"], kind: Pooling, lengths: Int[Tensor, " batch"] | None = None
) -> Float[Tensor, "batch d_model"]:
    """max_t x_t of each feature, mean_t x_t, or the first token's x_0.

    "max": NYU Deep Learning 2020, week 12, notebook 15; "first": the [CLS] token of Devlin et al. 2019.

    lengths: how many tokens of each row are real; the padding behind them has no part. None: all are real.

    >>> x = torch.tensor([[[1.0], [5.0], [9.0]]])
    >>> [pool(x, kind, torch.tensor([2])).item() for kind in ("max", "mean", "first")]
    [5.0, 3.0, 1.0]
    """
    if kind == "first":
        return x[:, 0]
    if lengths is None:
        return x.amax(1) if kind == "max" else x.mean(1)
    real = within_lengths(lengths, x.shape[1])[..., None]
    if kind == "max":
        return x.masked_fill(~real, torch.finfo(x.dtype).min).amax(1)
    return (x * real).sum(1) / lengths[:, None]
