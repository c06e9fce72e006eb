"""Activation checkpointing: blocks that keep their input alone and compute the rest once more when it is needed."""

from __future__ import annotations

from functools import cache
from typing import TypeVar, cast

from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from attendo.nn.blocks import DecoderBlock, EncoderBlock
from attendo.nn.masks import Mask

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
