"""Matrix products in float32: torch's own library, or oneDNN where that is faster at them on this processor.

On AMD processors with AVX-512 torch's library (MKL) keeps to half-width instructions; oneDNN is up to twice as fast.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

Products = Literal["torch", "onednn"]
FEWEST_ROWS = 16
"""Below this many rows a product is too small to be worth oneDNN's preparations."""


def onednn_product(
    x: Float[Tensor, "n d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "n d_out"]:
    """x Wᵀ + b by oneDNN, in float32; no gradient."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def has_onednn() -> bool:
    """Whether this build of torch offers the product."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def weight_gradient(
    grad: Float[Tensor, "n d_out"], x: Float[Tensor, "n d_in"]
) -> Float[Tensor, "d_out d_in"]:
    """dW = Gᵀ X by oneDNN, which copies its first factor where that is transposed: here the narrower of the two."""
    if x.shape[1] < grad.shape[1]:
        return onednn_product(x.mT, grad.mT).mT.contiguous()
    return onednn_product(grad.mT, x.mT)


class _OneDnn(torch.autograd.Function):
    """The product with its gradients: dX = G W, dW = Gᵀ X, db = Σ G."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return onednn_product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        of_x, of_weight, of_bias = ctx.needs_input_grad
        grad_x = onednn_product(grad, weight.mT) if of_x else None
        grad_weight = weight_gradient(grad, x) if of_weight else None
        return grad_x, grad_weight, grad.sum(0) if of_bias else None


class OneDnnLinear(nn.Linear):
    """A linear layer whose products oneDNN computes, where they are large enough; the parameters of another one."""

    def __init__(self, plain: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.train(plain.training)

    def forward(self, input: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """As `nn.Linear`, equal up to rounding."""
        rows = input.reshape(-1, self.in_features)
        if rows.shape[0] < FEWEST_ROWS or rows.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        out = _OneDnn.apply(rows, self.weight, self.bias)
        return out.view(*input.shape[:-1], self.out_features)  # pyright: ignore[reportOptionalMemberAccess]


def use_onednn(model: nn.Module) -> None:
    """Replaces the linear leaves of a model in place; names and parameters stay."""
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            model.set_submodule(path, OneDnnLinear(module))
