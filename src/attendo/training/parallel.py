"""One model trained by many processes: replicated (DDP) or in shards (FSDP2), its gradients summed over all."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.parallel import DistributedDataParallel

from attendo.data.batches import Batch
from attendo.nn.blocks import DecoderBlock, EncoderBlock
from attendo.training.distributed import Ranks
from attendo.training.lora import OFF, LoraConfig, merge, part, with_adapters
from attendo.training.sharding import gathered
from attendo.training.state import set_torch_states, torch_states

Parallel = Literal["ddp", "fsdp"]
LossOf = Callable[[nn.Module, Batch, float], Float[Tensor, ""]]
"""From a model, a batch and a factor to factor · Σ losses of its real targets."""


class Losses(nn.Module):
    """A model and its loss in one `forward`, since DDP and FSDP2 see to what is computed within one."""

    def __init__(self, model: nn.Module, loss: LossOf):
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Batch, factor: float) -> Float[Tensor, ""]:
        """factor · Σ losses of the batch."""
        return self.loss(self.model, batch, factor)


class Engine:
    """How a model is trained: by this process alone, or by all ranks.

    model: holds the parameters that the optimizer changes, under the names they have in the given model: that model
    itself, or a twin. With FSDP2 each rank holds rows of the twin's; the given model has no weights then, but within
    `whole`. With adapters the twin has them beside the given model's own parameters; that one has them merged within
    `whole`, and is what it was before outside.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossOf,
        parallel: Parallel,
        ranks: Ranks,
        prepare: Callable[[nn.Module], None] = lambda model: None,
        lora: LoraConfig = OFF,
    ):
        """prepare: what is done to the model that is trained before it is replicated or cut, such as compiling it."""
        self.ranks = ranks
        self._plain = model
        self._depth = 0
        self._before: dict[str, Tensor] = {}
        self.is_sharded = parallel == "fsdp" and ranks.world > 1
        twin = with_adapters(model, lora)
        self.model = copy.deepcopy(twin) if self.is_sharded else twin
        prepare(self.model)
        losses = Losses(self.model, loss)
        if self.is_sharded:
            self._call: nn.Module = _sharded(losses, ranks)
            _free(model)
        else:
            self._call = losses if ranks.world == 1 else _replicated(losses)

    def loss(self, batch: Batch, factor: float, last: bool = True) -> Float[Tensor, ""]:
        """factor · Σ losses of this rank's part of a batch, for `backward`, which sums the gradients over the ranks.

        last: of the parts whose gradients are added up. With DDP the backward of the last one alone exchanges them, so
        before it ranks may cut their parts as they need; with FSDP2 every call does, and all make equally many.
        """
        wait = not last and isinstance(self._call, DistributedDataParallel)
        with cast(DistributedDataParallel, self._call).no_sync() if wait else nullcontext():
            return self._call(batch, factor)

    def clip(self, max_norm: float) -> float:
        """The norm of the summed gradient, the same on all ranks; scales it down to `max_norm` (0: not at all).

        Where the norm is not finite, the gradient is left as it is.
        """
        total = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        norm = float(cast(Any, total).full_tensor() if self.is_sharded else total)
        if max_norm and math.isfinite(norm) and norm > max_norm:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), max_norm, total)
        return norm

    def settle(self, batch: Batch) -> None:
        """One pass over a part of a batch, forgotten at once; to be made at every start of a run, resumed or not.

        DDP orders its buckets as gradients come in its first pass, and sums depend on that order in their last bits.
        """
        self.model.train()
        before = torch_states()
        self.loss(batch, 1.0).backward()
        set_torch_states(before)
        for parameter in self.model.parameters():
            parameter.grad = None

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within it the given model has all its weights, to be evaluated or saved; all ranks enter it together."""
        if not self._depth:
            if self.is_sharded:
                _fill(self._plain, dict(self.model.named_parameters()))
            self._before = merge(self._plain, self.model)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                part(self._plain, self._before)
                self._before = {}
                if self.is_sharded:
                    _free(self._plain)

    def trained(self) -> dict[str, Tensor]:
        """What the optimizer changes, by name, whole; all ranks ask together."""
        return {
            name: gathered(parameter.detach())
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }


def _replicated(losses: Losses) -> DistributedDataParallel:
    """DDP that sums; rank 0's weights are everybody's. Tables that grow with the texts are each rank's own."""
    names = [name for name, _ in losses.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(losses, names)
    wrapped = DistributedDataParallel(losses, gradient_as_bucket_view=True)
    # without annotations: DDP would compare their text with its own types
    wrapped.register_comm_hook(None, lambda state, bucket: _summed(bucket))
    return wrapped


def _summed(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's own divides by the number of ranks; our loss is divided already, by the count of all real targets."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def _sharded(losses: Losses, ranks: Ranks) -> nn.Module:
    """FSDP2: each block is gathered when its turn comes; embeddings, norms and output layer with the whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard  # half a second, which others need not wait

    for parameter in losses.parameters():
        dist.broadcast(parameter.detach(), 0)
    device = next(losses.parameters()).device.type
    mesh = init_device_mesh(device, (ranks.world,))
    parts = [module for module in losses.modules() if isinstance(module, EncoderBlock | DecoderBlock)]
    for module in (*parts, losses):
        fsdp = cast(FSDPModule, fully_shard(module, mesh=mesh))
        fsdp.set_gradient_divide_factor(1.0)  # sums, as above
        fsdp.set_force_sum_reduction_for_comms(True)  # gloo can do nothing else
    return losses


def _fill(model: nn.Module, shards: dict[str, nn.Parameter]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
            parameter.copy_(gathered(shards[name]))


def _free(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)
