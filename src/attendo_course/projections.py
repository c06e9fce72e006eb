"""Projections of one input as one product."""

from __future__ import annotations

import torch
from torch import nn


def stacked_projection(*projections: nn.Linear) -> nn.Linear:
    """One product for several of the same input: [q; k; v] = [W_q; W_k; W_v]x. NYU Deep Learning 2020, week 12-3.

    The rows of the projections stand in the order given; all must take inputs of one width.

    >>> w = torch.nn.Linear(2, 3)
    >>> stacked_projection(w, w)(torch.ones(2)).shape
    torch.Size([6])
    """
    first = projections[0]
    stacked = nn.Linear(
        first.in_features,
        sum(projection.out_features for projection in projections),
        bias=first.bias is not None,
        device=first.weight.device,
        dtype=first.weight.dtype,
    )
    for name, parameter in stacked.named_parameters():
        parameter.data = torch.cat([getattr(projection, name).detach() for projection in projections])
    return stacked
