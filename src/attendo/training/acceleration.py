"""Faster training steps with less memory: number formats, oneDNN, compiled blocks and recomputed blocks.

On AMD CPUs with AVX-512, PyTorch's default library MKL uses half-width instructions. On these CPUs, oneDNN is up to
twice as fast.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from statistics import median
from typing import Any, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from attendo.nn.blocks import DecoderBlock, EncoderBlock
from attendo.nn.masks import Mask

BlockT = TypeVar("BlockT", bound=nn.Module)
Precision = Literal["float32", "tf32", "bfloat16", "float16"]
Products = Literal["torch", "onednn"]
FORMATS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
TIMED_SIZE = 256
"""Number of rows and of columns of the matrices that are multiplied to compare two number formats."""
TIMED_PRODUCTS = 5
TIMED_SHAPES = ((512, 256, 1024), (128, 256, 8192))
"""Rows, input width and output width of the timed matrix products: in a feed-forward network and in an output layer."""


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager in which matrix multiplications use the number format `precision`.

    Weights, normalization layers and sums stay float32. For float32 and tf32, the context manager has no effect.
    """
    return torch.autocast(device.type, FORMATS[precision]) if precision in FORMATS else nullcontext()


def set_tf32(precision: Precision, device: torch.device) -> None:
    """Select the float32 format of matrix multiplications on a GPU: TF32 for "tf32", otherwise full float32.

    TF32 has a mantissa of 10 bits instead of 23, and is 8 times as fast. The setting applies to the whole process.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def build_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """Return the gradient scaler that float16 requires, or None for any other number format.

    The smallest positive float16 number is 6e-8, so the loss is scaled up for the backward pass (Micikevicius et al.
    2018).

    >>> build_scaler("bfloat16", torch.device("cpu")) is None
    True
    >>> build_scaler("float16", torch.device("cpu")).get_scale()
    65536.0
    """
    return torch.amp.GradScaler(device.type) if precision == "float16" else None


def fastest_precision(device: torch.device) -> Precision:
    """Return the faster number format for matrix multiplication on this device: bfloat16 or float32.

    On a CPU, bfloat16 is chosen if it takes at most 2/3 of the time of float32. CPUs without bfloat16 instructions
    emulate the format slowly. The measurement takes about 50 ms. On a GPU, bfloat16 is chosen if the GPU supports it
    without emulation.
    """
    if device.type == "cpu":
        a = torch.ones(TIMED_SIZE, TIMED_SIZE)
        half = a.bfloat16()
        pays = _product_seconds(F.linear, half, half) < _product_seconds(F.linear, a, a) * 2 / 3
    else:
        pays = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if pays else "float32"


def fastest_products(device: torch.device) -> Products:
    """Return the faster library for float32 matrix multiplication on this device: "onednn" or "torch".

    oneDNN is chosen on a CPU if typical multiplications take less than 9/10 of the time of PyTorch's own library.
    oneDNN uses memory for each matrix shape, so a smaller gain is not worthwhile. The measurement takes about 100 ms.
    """
    if device.type != "cpu" or not has_onednn():
        return "torch"
    factors = [(torch.ones(rows, inner), torch.ones(outer, inner)) for rows, inner, outer in TIMED_SHAPES]
    torch_seconds = sum(_product_seconds(F.linear, left, right) for left, right in factors)
    onednn_seconds = sum(_product_seconds(onednn_product, left, right) for left, right in factors)
    return "onednn" if onednn_seconds < torch_seconds * 9 / 10 else "torch"


def _product_seconds(product: Callable[..., torch.Tensor], left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the CPU seconds of the fastest of several products left · rightᵀ. Other programs can only add time."""
    product(left, right)
    times = []
    for _ in range(TIMED_PRODUCTS):
        start = time.process_time()
        product(left, right)
        times.append(time.process_time() - start)
    return min(times)


# ---- compiled and recomputed blocks


Step = Callable[[], object]
WARM_UP_STEPS = 2
TIMED_STEPS = 5


def compile_blocks(model: nn.Module) -> None:
    """Enable compilation for each block of a model. The blocks of a stack share their compiled code.

    PyTorch compiles a block when it is called for the first time.
    """
    for module in model.modules():
        if isinstance(module, EncoderBlock | DecoderBlock):
            module.compile()


def compiling_pays(model: nn.Module, step: Step) -> bool:
    """Return whether compiled blocks reduce the time of a training step by more than 5%. The model does not change.

    The model is on a GPU. On a CPU, compilation takes most of a minute, and steps become slower.
    """
    eager = _step_seconds(step)
    compile_blocks(model)
    try:
        return _step_seconds(step) < 0.95 * eager
    finally:
        forget_compiled(model)


def forget_compiled(model: nn.Module) -> None:
    """Undo `compile_blocks`."""
    for module in model.modules():
        module._compiled_call_impl = None


def _step_seconds(step: Step) -> float:
    """Return the median wall time of a step in seconds, without the steps that warm up or compile."""
    times: list[float] = []
    for _ in range(WARM_UP_STEPS + TIMED_STEPS):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times[WARM_UP_STEPS:])


def recompute_blocks(model: nn.Module) -> None:
    """Change the blocks of a model in place to `recomputed` blocks. Names, parameters and gradients do not change.

    Recomputed blocks do not store their activations, which saves memory. In return, they require one more forward pass,
    about a third of a training step (Chen et al. 2016).
    """
    for module in model.modules():
        if type(module) in (EncoderBlock, DecoderBlock):
            module.__class__ = recomputed(type(module))


@cache
def recomputed(kind: type[BlockT]) -> type[BlockT]:
    """Return a subclass of a block class that stores only its inputs for the backward pass.

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


# ---- matrix products by oneDNN


FEWEST_ROWS = 16
"""Smallest number of input rows for which the preparation of oneDNN is worthwhile."""


def onednn_product(
    x: Float[Tensor, "n d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "n d_out"]:
    """Compute x Wᵀ + b with oneDNN in float32. The result has no gradient."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def has_onednn() -> bool:
    """Return whether this build of PyTorch provides oneDNN's matrix multiplication."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def weight_gradient(grad: Float[Tensor, "n d_out"], x: Float[Tensor, "n d_in"]) -> Float[Tensor, "d_out d_in"]:
    """Compute the gradient of a weight matrix, dW = Gᵀ X, with oneDNN.

    oneDNN copies a transposed first factor, so the narrower matrix is used as the first factor.
    """
    if x.shape[1] < grad.shape[1]:
        return onednn_product(x.mT, grad.mT).mT.contiguous()
    return onednn_product(grad.mT, x.mT)


class _OneDnn(torch.autograd.Function):
    """Matrix product of oneDNN with its gradients: dX = G W, dW = Gᵀ X, db = Σ G."""

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
    """Linear layer that uses the parameters of `plain` and multiplies large float32 inputs with oneDNN."""

    def __init__(self, plain: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.train(plain.training)

    def forward(self, input: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Compute the same result as `nn.Linear`, up to rounding."""
        rows = input.reshape(-1, self.in_features)
        if rows.shape[0] < FEWEST_ROWS or rows.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        out = _OneDnn.apply(rows, self.weight, self.bias)
        return out.view(*input.shape[:-1], self.out_features)  # pyright: ignore[reportOptionalMemberAccess]


def use_onednn(model: nn.Module) -> None:
    """Replace the linear modules of a model in place with `OneDnnLinear`. Module names and parameters do not change."""
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            model.set_submodule(path, OneDnnLinear(module))
