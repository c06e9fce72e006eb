"""Losses and gradients of a training step, by one process or many: replicated (DDP) or sharded (FSDP2)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.parallel import DistributedDataParallel

from attendo.data.batches import Batch
from attendo.nn.blocks import DecoderBlock, EncoderBlock
from attendo.training.acceleration import (
    Precision,
    autocast,
    compile_blocks,
    recompute_blocks,
    set_tf32,
    use_onednn,
)
from attendo.training.checkpoints import set_torch_states, torch_states
from attendo.training.distributed import ALONE, Ranks, gathered
from attendo.training.lora import OFF, LoraConfig, freeze, merge, unmerge, with_adapters
from attendo.training.losses import batch_loss
from attendo.training.optimizer import TrainingConfig


class ModelWithLoss(nn.Module):
    """A model and its loss in one `forward`: DDP and FSDP2 exchange gradients for what one module computes."""

    def __init__(self, model: nn.Module, training: TrainingConfig):
        super().__init__()
        self.model = model
        self.precision: Precision = training.precision
        self.label_smoothing = training.label_smoothing

    def forward(self, batch: Batch, factor: float) -> Float[Tensor, ""]:
        """factor · Σ losses of the batch."""
        device = next(self.model.parameters()).device
        with autocast(self.precision, device):
            return batch_loss(self.model, batch, self.label_smoothing, factor)


class TrainStepExecutor:
    """Computes losses and gradients of a model, by this process alone or by all ranks.

    The given model is the one that is evaluated and saved. `trained_model` holds the parameters that the optimizer
    changes, under the same names. It is the given model itself, except in two cases. With adapters it is a second
    module tree around the same parameters, which has the adapters. With FSDP2 it is a copy of which each rank holds
    some rows, and the given model has no weights. Within `whole` the given model has all weights, adapters merged.
    """

    def __init__(
        self, model: nn.Module, training: TrainingConfig, ranks: Ranks = ALONE, lora: LoraConfig = OFF
    ):
        """Prepares the model as the settings say: its products, frozen parts, recomputed and compiled blocks."""
        self.ranks = ranks
        self.is_sharded = training.parallel == "fsdp" and ranks.world > 1
        self._plain = model
        self._depth = 0
        self._before: dict[str, Tensor] = {}
        if training.products == "onednn":
            use_onednn(model)
        set_tf32(training.precision, next(model.parameters()).device)
        freeze(model, training.frozen)
        adapted = with_adapters(model, lora)
        self.trained_model = copy.deepcopy(adapted) if self.is_sharded else adapted
        if training.activation_checkpointing:
            recompute_blocks(self.trained_model)
        if training.compile:
            compile_blocks(self.trained_model)
        with_loss = ModelWithLoss(self.trained_model, training)
        if self.is_sharded:
            self._forward: nn.Module = _sharded(with_loss, ranks)
            _free(model)
        else:
            self._forward = with_loss if ranks.world == 1 else _replicated(with_loss)

    def loss(self, batch: Batch, factor: float, last: bool = True) -> Float[Tensor, ""]:
        """factor · Σ losses of this rank's part of a batch, for `backward`, which sums the gradients over the ranks.

        last: of the parts whose gradients are added up. With DDP the backward of the last one alone exchanges them, so
        before it ranks may cut their parts as they need; with FSDP2 every call does, and all make equally many.
        """
        wait = not last and isinstance(self._forward, DistributedDataParallel)
        with cast(DistributedDataParallel, self._forward).no_sync() if wait else nullcontext():
            return self._forward(batch, factor)

    def clip(self, max_norm: float) -> float:
        """The norm of the summed gradient, the same on all ranks; scales it down to `max_norm` (0: not at all).

        Where the norm is not finite, the gradient is left as it is.
        """
        total = nn.utils.get_total_norm(
            [p.grad for p in self.trained_model.parameters() if p.grad is not None]
        )
        norm = float(cast(Any, total).full_tensor() if self.is_sharded else total)
        if max_norm and math.isfinite(norm) and norm > max_norm:
            nn.utils.clip_grads_with_norm_(self.trained_model.parameters(), max_norm, total)
        return norm

    def warm_up(self, batch: Batch) -> None:
        """One pass over a part of a batch, forgotten at once; to be made at every start of a run, resumed or not.

        DDP orders its buckets as gradients come in its first pass, and sums depend on that order in their last bits.
        """
        self.trained_model.train()
        before = torch_states()
        self.loss(batch, 1.0).backward()
        set_torch_states(before)
        for parameter in self.trained_model.parameters():
            parameter.grad = None

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within it the given model has all its weights, to be evaluated or saved; all ranks enter it together."""
        if not self._depth:
            if self.is_sharded:
                _fill(self._plain, dict(self.trained_model.named_parameters()))
            self._before = merge(self._plain, self.trained_model)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                unmerge(self._plain, self._before)
                self._before = {}
                if self.is_sharded:
                    _free(self._plain)

    def trained_weights(self) -> dict[str, Tensor]:
        """The parameters that the optimizer changes, by name, whole; all ranks call it together."""
        return {
            name: gathered(parameter.detach())
            for name, parameter in self.trained_model.named_parameters()
            if parameter.requires_grad
        }


def _replicated(with_loss: ModelWithLoss) -> DistributedDataParallel:
    """DDP that sums; rank 0's weights are everybody's. Tables that grow with the texts are each rank's own."""
    names = [name for name, _ in with_loss.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(with_loss, names)
    wrapped = DistributedDataParallel(with_loss, gradient_as_bucket_view=True)
    # without annotations: DDP would compare their text with its own types
    wrapped.register_comm_hook(None, lambda state, bucket: _summed(bucket))
    return wrapped


def _summed(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's own divides by the number of ranks; our loss is divided already, by the count of all real targets."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def _sharded(with_loss: ModelWithLoss, ranks: Ranks) -> nn.Module:
    """FSDP2: each block is gathered when its turn comes; embeddings, norms and output layer with the whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard  # half a second, which others need not wait

    for parameter in with_loss.parameters():
        dist.broadcast(parameter.detach(), 0)
    device = next(with_loss.parameters()).device.type
    mesh = init_device_mesh(device, (ranks.world,))
    parts = [module for module in with_loss.modules() if isinstance(module, EncoderBlock | DecoderBlock)]
    for module in (*parts, with_loss):
        fsdp = cast(FSDPModule, fully_shard(module, mesh=mesh))
        fsdp.set_gradient_divide_factor(1.0)  # sums, as above
        fsdp.set_force_sum_reduction_for_comms(True)  # gloo can do nothing else
    return with_loss


def _fill(model: nn.Module, shards: dict[str, nn.Parameter]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
            parameter.copy_(gathered(shards[name]))


def _free(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)
