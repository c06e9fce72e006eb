"""Dropout that draws 16 random bits a value, not a Bernoulli number: several times cheaper on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def keep_mask(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """A tensor like `x` that is 0 with probability `p` (to 1/65536) and 1/(1 - p) elsewhere.

    Srivastava et al. 2014, scaled so that the mean stays.

    >>> keep_mask(torch.zeros(2, 3), 0.0)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    dropped = round(p * 65536)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    # compared in place, in their own format: a comparison that gives truths takes ten times as long
    kept = draws.view(torch.int16)[: x.numel()].view(x.shape).ge_(dropped - 32768)
    return kept.to(x.dtype).mul_(65536 / max(65536 - dropped, 1))


class Dropout(nn.Module):
    """Sets values to zero with probability `p` while training and scales the others by 1/(1 - p).

    Srivastava et al. 2014; the mean stays. Raises ValueError for a `p` outside 0 ≤ p < 1.

    >>> dropout, x = Dropout(0.5), torch.ones(10_000)
    >>> dropout(x).unique()
    tensor([0., 2.])
    >>> dropout.eval()(x) is x
    True
    """

    def __init__(self, p: float = 0.0):
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout={p} is no probability below 1; take one between 0 and 0.9")
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Same shape as `x`; `x` itself outside training."""
        if not self.training or self.p == 0.0:
            return x
        # a GPU draws as fast as it writes, and its kernel needs no mask in memory
        return F.dropout(x, self.p) if x.is_cuda else x * keep_mask(x, self.p)
