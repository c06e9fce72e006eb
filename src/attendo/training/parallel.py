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
from attendo.training import acceleration
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
        self.precision: acceleration.Precision = training.precision
        self.label_smoothing = training.label_smoothing

    def forward(self, batch: Batch, factor: float) -> Float[Tensor, ""]:
        """factor · Σ losses of the batch."""
        device = next(self.model.parameters()).device
        with acceleration.autocast(self.precision, device):
            return batch_loss(self.model, batch, self.label_smoothing, factor)


class TrainStepExecutor:
    """Computes losses and gradients of a model, by this process alone or by all ranks.

    The given model is evaluated and saved. `trained_model` has the parameters that the optimizer changes, under the
    same names. It is the given model, except in two cases. With adapters it is a second module tree with the adapters
    around the same parameters. With FSDP2 it is a copy of which each rank has some rows, and the given model has no
    weights. Within `whole` the given model has all weights, adapters merged.
    """

    def __init__(
        self, model: nn.Module, training: TrainingConfig, ranks: Ranks = ALONE, lora: LoraConfig = OFF
    ):
        """Prepares the model by the settings: its products, frozen parts, recomputed and compiled blocks."""
        self.ranks = ranks
        self.is_sharded = training.parallel == "fsdp" and ranks.world > 1
        self._plain = model
        self._depth = 0
        self._before: dict[str, Tensor] = {}
        if training.products == "onednn":
            acceleration.use_onednn(model)
        acceleration.set_tf32(training.precision, next(model.parameters()).device)
        if training.frozen:
            freeze(model, training.frozen)
        self._has_adapters = lora.rank > 0
        adapted = with_adapters(model, lora) if self._has_adapters else model
        self.trained_model = copy.deepcopy(adapted) if self.is_sharded else adapted
        if training.activation_checkpointing:
            acceleration.recompute_blocks(self.trained_model)
        if training.compile:
            acceleration.compile_blocks(self.trained_model)
        with_loss = ModelWithLoss(self.trained_model, training)
        if self.is_sharded:
            self._forward: nn.Module = _sharded(with_loss, ranks)
            _free(model)
        else:
            self._forward = with_loss if ranks.world == 1 else _replicated(with_loss)

    def loss(self, batch: Batch, factor: float, last: bool = True) -> Float[Tensor, ""]:
        """factor · Σ losses of this rank's part of a batch; `backward` then sums the gradients over the ranks.

        last: whether it is the last part whose gradients are added up. With DDP only its backward pass exchanges
        gradients, so ranks may make different numbers of parts; with FSDP2 every call does.
        """
        wait = not last and isinstance(self._forward, DistributedDataParallel)
        with cast(DistributedDataParallel, self._forward).no_sync() if wait else nullcontext():
            return self._forward(batch, factor)

    def clip(self, max_norm: float) -> float:
        """The norm of the summed gradient, which is scaled down to `max_norm` (0: never) if it is finite."""
        total = nn.utils.get_total_norm(
            [p.grad for p in self.trained_model.parameters() if p.grad is not None]
        )
        norm = float(cast(Any, total).full_tensor() if self.is_sharded else total)
        if max_norm and math.isfinite(norm) and norm > max_norm:
            nn.utils.clip_grads_with_norm_(self.trained_model.parameters(), max_norm, total)
        return norm

    def warm_up(self, batch: Batch) -> None:
        """A pass without effect at the start of a run: DDP orders its buckets, and so its sums, by the first pass."""
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
            if self._has_adapters:
                self._before = merge(self._plain, self.trained_model)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                if self._has_adapters:
                    unmerge(self._plain, self._before)
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
    """DDP that sums, from rank 0's weights. Buffers, which grow with the texts, are each rank's own."""
    names = [name for name, _ in with_loss.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(with_loss, names)
    wrapped = DistributedDataParallel(with_loss, gradient_as_bucket_view=True)
    # without annotations: DDP would compare their text with its own types
    wrapped.register_comm_hook(None, lambda state, bucket: _summed(bucket))
    return wrapped


def _summed(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """The sum over the ranks: the loss is divided by the count of all real targets already."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def _sharded(with_loss: ModelWithLoss, ranks: Ranks) -> nn.Module:
    """FSDP2: each block is gathered in its turn; embeddings, norms and output layer with the whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard  # takes half a second

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
