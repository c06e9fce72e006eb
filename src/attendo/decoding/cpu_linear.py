"""Faster linear layers for token-by-token decoding on a CPU, in an otherwise unchanged model.

A decoder's step multiplies a few rows by large matrices, so the layout of the matrices in memory determines the speed.
8-bit integers take a quarter of the memory and less than half of the time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

ModelT = TypeVar("ModelT", bound=nn.Module)
FEW = 3
"""Up to so many rows a product is bound by reading the matrix once."""
MANY = 64
"""Rows that the blocks are made for; any number may come."""
LARGEST = 127
"""Of the whole numbers that a weight or an activation becomes; -128 is left out, so that both signs go as far."""

Product = Callable[[Tensor], Tensor]


def quantized(x: Float[Tensor, "rows width"]) -> tuple[Int8[Tensor, "rows width"], Float[Tensor, "rows 1"]]:
    """(round(x / s), s): each row as integers from -127 to 127 with its own scale s = max|x| / 127.

    >>> numbers, scale = quantized(torch.tensor([[0.5, -1.27, 0.0], [0.0, 0.0, 0.0]]))
    >>> numbers.tolist(), round(float(scale[0]), 6)
    ([[50, -127, 0], [0, 0, 0]], 0.01)
    """
    scale = x.abs().amax(1, keepdim=True).clamp_min_(1e-18).div_(LARGEST)
    return (x / scale).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """x Wᵀ + b with W and x in 8 bits: an exact integer product times one scale per row of x and per output.

    The parameters are copied. Raises ValueError for a width of 1, for which torch's integer product is wrong (2.13).

    >>> plain = nn.Linear(64, 32)
    >>> x = torch.randn(3, 64)
    >>> error = (Int8Linear(plain)(x) - plain(x)).abs().max()
    >>> bool(error < 0.05)
    True
    """

    numbers: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, plain: nn.Linear):
        super().__init__()
        if plain.in_features < 2:
            raise ValueError(
                f"in_features={plain.in_features} is too small for 8-bit weights. Keep this layer in float32"
            )
        self.in_features = plain.in_features
        self.out_features = plain.out_features
        numbers, scale = quantized(plain.weight.detach().float())
        self.register_buffer("numbers", numbers)
        self.register_buffer("scale", scale.flatten())
        self.register_buffer("bias", None if plain.bias is None else plain.bias.detach().float().clone())

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Compute `nn.Linear` in float32, up to rounding."""
        numbers, scale = quantized(x.reshape(-1, self.in_features))
        out = torch.ops.aten._int_mm(numbers, self.numbers.mT) * self.scale
        out *= scale
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], self.out_features)


class FastLinear(nn.Module):
    """x Wᵀ + b in float32 with W rearranged for few and for many rows; shared parameters, no gradient."""

    def __init__(self, plain: nn.Linear):
        super().__init__()
        self.in_features = plain.in_features
        self.out_features = plain.out_features
        self._weight = plain.weight.detach()
        self._bias = None if plain.bias is None else plain.bias.detach()

    @cached_property
    def few(self) -> Product:
        """The product with FEW rows or fewer."""
        return transposed(self._weight, self._bias)

    @cached_property
    def many(self) -> Product:
        """The product with more."""
        return (packed if has_blocks() else as_it_is)(self._weight, self._bias)

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Compute `nn.Linear`, equal up to rounding."""
        rows = x.reshape(-1, self.in_features)
        out = self.few(rows) if rows.shape[0] <= FEW else self.many(rows)
        return out.view(*x.shape[:-1], self.out_features)


def as_it_is(weight: Tensor, bias: Tensor | None) -> Product:
    """Torch's own product."""
    return lambda x: nn.functional.linear(x, weight, bias)


def transposed(weight: Tensor, bias: Tensor | None) -> Product:
    """Wᵀ stored by rows, which one row of x reads sequentially."""
    turned = weight.t().contiguous()
    if bias is None:
        return lambda x: torch.mm(x, turned)
    return lambda x: torch.addmm(bias, x, turned)


def packed(weight: Tensor, bias: Tensor | None) -> Product:
    """W in oneDNN's blocked layout."""
    blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), MANY)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, blocks, bias, "none", [], "")


def has_blocks() -> bool:
    """Return whether this build of torch has oneDNN's blocked layout."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


@torch.inference_mode()
def prepared(model: ModelT, *, int8: bool = False) -> ModelT:
    """Return the model with linear layers rearranged for this CPU, or in 8 bits; the original is unchanged.

    For inference only: later changes of the weights have no effect. Other devices and formats keep their layers.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    ready = copy.deepcopy(model, shared).eval()
    linear = {
        path: module
        for path, module in ready.named_modules()
        if type(module) is nn.Linear
        and module.weight.device.type == "cpu"
        and module.weight.dtype == torch.float32
    }
    for path, plain in linear.items():
        eight = int8 and plain.in_features > 1
        ready.set_submodule(path, Int8Linear(plain) if eight else FastLinear(plain))
    return ready
