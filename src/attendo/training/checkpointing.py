"""Activation checkpointing: blocks that keep their input alone and compute the rest once more when it is needed."""

from __future__ import annotations

from typing import cast

from jaxtyping import Float
from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from attendo.nn.blocks import DecoderBlock, EncoderBlock
from attendo.nn.masks import Mask


class RecomputedEncoderBlock(EncoderBlock):
    """An encoder block with the parts of another, whose inner values are not kept for the backward pass."""

    def __init__(self, plain: EncoderBlock):
        _take_over(self, plain)

    def forward(
        self, x: Float[Tensor, "batch len d_model"], mask: Mask | None = None
    ) -> Float[Tensor, "batch len d_model"]:
        """As the plain block; random numbers are drawn again as they were."""
        if not is_grad_enabled():
            return super().forward(x, mask)
        return cast(Tensor, checkpoint(super().forward, x, mask, use_reentrant=False))


class RecomputedDecoderBlock(DecoderBlock):
    """A decoder block with the parts of another, whose inner values are not kept for the backward pass."""

    def __init__(self, plain: DecoderBlock):
        _take_over(self, plain)

    def forward(
        self,
        x: Float[Tensor, "batch len d_model"],
        memory: Float[Tensor, "batch src_len d_memory"] | None,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Float[Tensor, "batch len d_model"]:
        """As the plain block; random numbers are drawn again as they were."""
        if not is_grad_enabled():
            return super().forward(x, memory, mask, memory_mask)
        return cast(Tensor, checkpoint(super().forward, x, memory, mask, memory_mask, use_reentrant=False))


def recompute_blocks(model: nn.Module) -> None:
    """Replaces the blocks of a model in place; names and parameters stay, and so do all gradients.

    Chen et al. 2016: the memory of a block's inner values for one more forward pass, about a third of a step's time.
    """
    for path, module in list(model.named_modules()):
        if type(module) is EncoderBlock:
            model.set_submodule(path, RecomputedEncoderBlock(module))
        elif type(module) is DecoderBlock:
            model.set_submodule(path, RecomputedDecoderBlock(module))


def _take_over(block: nn.Module, plain: nn.Module) -> None:
    """Makes a block of the parts of another one."""
    nn.Module.__init__(block)
    for name, part in plain.named_children():
        block.add_module(name, part)
    for name, value in vars(plain).items():  # a part that is None stands among the plain attributes
        if name not in vars(block):
            setattr(block, name, value)
    block.train(plain.training)
