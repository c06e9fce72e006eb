"""Models without residual connections, to show what the connections are for."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from attendo.nn.blocks import Residual

ModelT = TypeVar("ModelT", bound=nn.Module)


def _without_sum(
    self: Residual, x: Float[Tensor, "*batch d_model"], sublayer: Callable[[Tensor], Tensor]
) -> Float[Tensor, "*batch d_model"]:
    if self.norm_first:
        return self.dropout(sublayer(self.norm(x)))
    return self.norm(self.dropout(sublayer(x)))


def without_sum(residual: Residual) -> Residual:
    """Remove the sum from a residual connection in place: norm(f(x)) or, with `norm_first`, f(norm(x)) remains.

    >>> import torch
    >>> without_sum(Residual(nn.Identity(), norm_first=False))(torch.ones(2), lambda x: 3 * x)
    tensor([3., 3.])
    """
    residual.__dict__["forward"] = MethodType(_without_sum, residual)  # a copy of the module gets its own
    return residual


def without_residuals(model: ModelT) -> ModelT:
    """Remove all residual connections from a model in place, and keep its parameters.

    >>> import torch
    >>> block = nn.ModuleList([Residual(nn.LayerNorm(2, eps=0.0), norm_first=True)])
    >>> without_residuals(block)[0](torch.tensor([[1.0, 3.0]]), lambda x: x).detach()
    tensor([[-1.,  1.]])
    """
    for module in model.modules():
        if isinstance(module, Residual):
            without_sum(module)
    return model
