"""Number formats of a training step: float32, or narrower ones for the products where the device is faster at them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from attendo.nn.blocks import DecoderBlock, EncoderBlock
from attendo.nn.masks import Mask
from attendo.training.products import Products, has_onednn, onednn_product

BlockT = TypeVar("BlockT", bound=nn.Module)


def recompute_blocks(model: nn.Module) -> None:
    """Changes the blocks of a model in place; names and parameters stay, and so do all gradients.

    Chen et al. 2016: the memory of a block's inner values for one more forward pass, about a third of a step's time.
    Random numbers are drawn again as they were.
    """
    for module in model.modules():
        if type(module) in (EncoderBlock, DecoderBlock):
            module.__class__ = recomputed(type(module))


@cache
def recomputed(kind: type[BlockT]) -> type[BlockT]:
    """A kind of block that is another one but for this: while gradients are wanted, only its inputs are kept.

    >>> issubclass(recomputed(EncoderBlock), EncoderBlock), recomputed(EncoderBlock) is recomputed(EncoderBlock)
    (True, True)
    """

    class Recomputed(kind):
        def forward(self, *inputs: Tensor | Mask | None) -> Tensor:
            if not is_grad_enabled():
                return super().forward(*inputs)
            again = checkpoint(super().forward, *inputs, use_reentrant=False)
            assert isinstance(again, Tensor)
            return again

    Recomputed.__name__ = Recomputed.__qualname__ = f"Recomputed{kind.__name__}"
    return cast(type[BlockT], Recomputed)


Precision = Literal["float32", "tf32", "bfloat16", "float16"]
FORMATS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_SIZE, _REPEATS = 256, 5  # of the matrices whose products are timed, and how often each
_SHAPES = (512, 256, 1024), (128, 256, 8192)  # rows, inner, outer: in a feed-forward net, in an output layer


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Within it, matrix products run in the given format; weights, norms and sums stay float32."""
    return torch.autocast(device.type, FORMATS[precision]) if precision in FORMATS else nullcontext()


def set_tf32(precision: Precision, device: torch.device) -> None:
    """Products of float32 on a GPU with 10 bits of the mantissa ("tf32": some 8 times as fast) or with all 23.

    Holds for the whole process, backward passes included. On a CPU it changes nothing.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def build_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """For float16, whose least number is 6e-8: what scales the loss so that gradients don't vanish; else None.

    Micikevicius et al. 2018. Its `state_dict()` is plain numbers.

    >>> build_scaler("bfloat16", torch.device("cpu")) is None
    True
    >>> build_scaler("float16", torch.device("cpu")).get_scale()
    65536.0
    """
    return torch.amp.GradScaler(device.type) if precision == "float16" else None


def fastest_precision(device: torch.device) -> Precision:
    """bfloat16 where a product takes at most 2/3 of the time of float32 on this device, else float32.

    Measured, not looked up: without instructions for it, it is emulated, slowly. Takes some 50 milliseconds.
    """
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if device.type != "cpu":
        return "float32"
    a = torch.ones(_SIZE, _SIZE)
    half = a.bfloat16()
    return "bfloat16" if _seconds(F.linear, half, half) < _seconds(F.linear, a, a) * 2 / 3 else "float32"


def fastest_products(device: torch.device) -> Products:
    """oneDNN where products as training has them take it at most 9/10 of the time of torch's own library, else that.

    It keeps memory for each shape, so less is no gain. Takes some 100 milliseconds.
    """
    if device.type != "cpu" or not has_onednn():
        return "torch"
    factors = [(torch.ones(rows, inner), torch.ones(outer, inner)) for rows, inner, outer in _SHAPES]
    own, other = (sum(_seconds(product, *pair) for pair in factors) for product in (F.linear, onednn_product))
    return "onednn" if other < own * 9 / 10 else "torch"


def _seconds(product: Callable[..., torch.Tensor], left: torch.Tensor, right: torch.Tensor) -> float:
    """The shortest of some products left · rightᵀ: other load on the machine only ever makes one longer."""
    product(left, right)
    times = []
    for _ in range(_REPEATS):
        start = time.process_time()
        product(left, right)
        times.append(time.process_time() - start)
    return min(times)
