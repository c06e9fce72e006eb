"""Faster linear layers for token-by-token decoding on a CPU.

A decoding step multiplies a few rows by large matrices, so the memory layout of the matrices determines the speed.
Compared to float32, 8-bit matrices need a quarter of the memory, and a multiplication takes less than half the time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from attendo.decoding.options import Bits
from attendo.quantized import QuantizedLinear

ModelT = TypeVar("ModelT", bound=nn.Module)
FEW = 3
"""Largest number of input rows for which reading the matrix once limits the speed of a multiplication."""
MANY = 64
"""Number of input rows for which the blocked layout is optimized. Any number of rows is valid."""
LARGEST = 127
"""Largest 8-bit value of a weight or an activation. -128 is unused, which makes the range symmetric."""

Product = Callable[[Tensor], Tensor]


def quantized(x: Float[Tensor, "rows width"]) -> tuple[Int8[Tensor, "rows width"], Float[Tensor, "rows 1"]]:
    """Quantize each row to integers from -127 to 127, and return round(x / s) and the scale s = max|x| / 127.

    >>> numbers, scale = quantized(torch.tensor([[0.5, -1.27, 0.0], [0.0, 0.0, 0.0]]))
    >>> numbers.tolist(), round(float(scale[0]), 6)
    ([[50, -127, 0], [0, 0, 0]], 0.01)
    """
    scale = x.abs().amax(1, keepdim=True).clamp_min_(1e-18).div_(LARGEST)
    return (x / scale).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """A linear layer x Wᵀ + b that quantizes W and x to 8 bits.

    The integer matrix product is exact, and is multiplied by one scale per row of x and one scale per output. The
    parameters are copied. Raises ValueError for a single input feature, for which torch 2.13 returns wrong results.

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
        """Compute the linear layer. The result equals that of `nn.Linear` up to the rounding to 8 bits."""
        numbers, scale = quantized(x.reshape(-1, self.in_features))
        out = torch.ops.aten._int_mm(numbers, self.numbers.mT) * self.scale
        out *= scale
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], self.out_features)


class FastLinear(nn.Module):
    """A linear layer x Wᵀ + b in float32, with W rearranged separately for few and for many rows of x.

    The layer shares the parameters of the original layer and computes no gradient.
    """

    def __init__(self, plain: nn.Linear):
        super().__init__()
        self.in_features = plain.in_features
        self.out_features = plain.out_features
        self._weight = plain.weight.detach()
        self._bias = None if plain.bias is None else plain.bias.detach()

    @cached_property
    def few(self) -> Product:
        """The multiplication for at most `FEW` input rows."""
        return transposed(self._weight, self._bias)

    @cached_property
    def many(self) -> Product:
        """The multiplication for more than `FEW` input rows."""
        return (packed if has_blocks() else as_it_is)(self._weight, self._bias)

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Compute the linear layer. The result equals that of `nn.Linear` up to rounding."""
        rows = x.reshape(-1, self.in_features)
        out = self.few(rows) if rows.shape[0] <= FEW else self.many(rows)
        return out.view(*x.shape[:-1], self.out_features)


def as_it_is(weight: Tensor, bias: Tensor | None) -> Product:
    """Return a function that computes x Wᵀ + b with `torch.nn.functional.linear`."""
    return lambda x: nn.functional.linear(x, weight, bias)


def transposed(weight: Tensor, bias: Tensor | None) -> Product:
    """Return a function that computes x Wᵀ + b with Wᵀ in row-major order, which is fast for a few rows of x."""
    turned = weight.t().contiguous()
    if bias is None:
        return lambda x: torch.mm(x, turned)
    return lambda x: torch.addmm(bias, x, turned)


def packed(weight: Tensor, bias: Tensor | None) -> Product:
    """Return a function that computes x Wᵀ + b with W in the blocked layout of oneDNN."""
    blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), MANY)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, blocks, bias, "none", [], "")


def has_blocks() -> bool:
    """Return whether this build of torch supports the blocked matrix layout of oneDNN."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


@torch.inference_mode()
def prepared(model: ModelT, bits: Bits = 32) -> ModelT:
    """Return a copy of the model whose linear layers are rearranged for this CPU, or quantized to 8 bits.

    There are no faster linear layers of 16 and 4 bits in PyTorch, so these have 32 and 8 bits. The copy is for
    inference only. After further training, prepare the model again. Only linear layers in float32 on a
    CPU are replaced.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    ready = copy.deepcopy(model, shared).eval()
    linear = {
        path: module for path, module in ready.named_modules() if isinstance(module, nn.Linear) and _is_replaced(module)
    }
    for path, plain in linear.items():
        eight = bits <= 8 and plain.in_features > 1
        ready.set_submodule(path, Int8Linear(plain) if eight else FastLinear(plain))
    return ready


def _is_replaced(module: nn.Linear) -> bool:
    if isinstance(module, QuantizedLinear):  # on a CPU, and its weight is computed whenever it is read
        return module.cap is None
    weight = module.weight
    return type(module) is nn.Linear and weight.device.type == "cpu" and weight.dtype == torch.float32
