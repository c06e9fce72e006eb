"""torch.compile for the blocks of a model, where it wins."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from attendo.nn.blocks import DecoderBlock, EncoderBlock

Step = Callable[[], object]
_WARM, _REPEATS = 2, 5  # steps before the clock counts, and those that it counts


def compile_blocks(model: nn.Module) -> None:
    """Has torch compile each block when it is first called; names and parameters stay.

    Block by block, since all blocks of a stack are the same code: it is compiled once, not once a layer. Lengths that
    change make it compile once more, for any length.
    """
    for module in model.modules():
        if isinstance(module, EncoderBlock | DecoderBlock):
            module.compile()


def compiling_pays(model: nn.Module, step: Step) -> bool:
    """Whether a step takes at most 19/20 of its time once the blocks are compiled; leaves the model as it was.

    step: forward and backward pass of the model on a batch. Always False on a CPU, where it was measured to lose,
    after most of a minute of compiling.
    """
    if not _on_gpu(model):
        return False
    eager = _seconds(step)
    compile_blocks(model)
    try:
        return _seconds(step) < 0.95 * eager
    finally:
        forget_compiled(model)


def forget_compiled(model: nn.Module) -> None:
    """Undoes `compile_blocks`."""
    for module in model.modules():
        module._compiled_call_impl = None


def _on_gpu(model: nn.Module) -> bool:
    return next(model.parameters()).device.type == "cuda"


def _seconds(step: Step) -> float:
    """The median wall time of a step, after those that warm up (or compile)."""
    times: list[float] = []
    for _ in range(_WARM + _REPEATS):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return median(times[_WARM:])
