"""Cross-entropy over a vocabulary, and its gradients in a training step by one or several processes (DDP, FSDP2)."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from attendo.data.batches import Batch
from attendo.nn.blocks import DecoderBlock, EncoderBlock
from attendo.nn.layers import CappedLinear
from attendo.training import acceleration
from attendo.training.acceleration import OneDnnLinear, onednn_product
from attendo.training.checkpoints import set_torch_states, torch_states
from attendo.training.distributed import ALONE, Ranks, gathered
from attendo.training.lora import freeze, merge, unmerge, with_adapters
from attendo.training.optimizer import OFF, LoraConfig, TrainingConfig


class Trainable(Protocol):
    """Interface of a model that can be trained: its hidden states and its output layer."""

    output_proj: nn.Linear

    def hidden(self, **inputs: Tensor) -> Tensor:
        """Return the states `[*targets, d_model]` from which the targets are predicted."""
        ...


def batch_loss(model: nn.Module, batch: Batch, label_smoothing: float, factor: float) -> Float[Tensor, ""]:
    """Return `factor` times the summed cross-entropy of the targets of a batch, with the batch's class weights if any.

    Padding is left out, and its logits are never computed. The loss of preferences is `preference_losses`. The
    loss of sampled answers is minus their reward.
    """
    reader = cast(Trainable, model)
    batch = batch.to(reader.output_proj.weight.device)
    if batch.reference is not None and batch.weights is not None:
        better, worse = answer_log_probs(reader, batch).unbind(1)
        return factor * preference_losses(better - worse, batch.reference, batch.weights).sum()
    if batch.rewards is not None and batch.weights is not None:
        # the value is minus the reward, and the gradient is that of REINFORCE: -advantage · ∇ ln p (Williams 1992)
        log_probs = answer_log_probs(reader, batch)
        return factor * (batch.weights * (log_probs.detach() - log_probs) - batch.rewards).sum()
    hidden = reader.hidden(**batch.inputs).flatten(0, -2)
    targets = batch.targets.flatten()
    if batch.contrastive:  # the output layer has gradients of 0, because it is fitted in evaluations
        unused = sum(parameter.sum() for parameter in reader.output_proj.parameters())
        return factor * contrastive_losses(hidden.float(), targets).sum() + 0.0 * unused
    if batch.targets.is_floating_point():  # decisions between no (0) and yes (1)
        logits = reader.output_proj(hidden).float().flatten()
        return factor * binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    if batch.weights is not None:  # class labels; their logits are few
        losses = token_losses(reader.output_proj(hidden).float(), targets, label_smoothing)
        return factor * (batch.weights.flatten() * losses).sum()
    if batch.n_targets < targets.numel():
        real = (targets != batch.pad_id).nonzero().squeeze(1)
        hidden, targets = hidden[real], targets[real]
    return linear_cross_entropy(hidden, reader.output_proj, targets, label_smoothing, factor)


SHARPNESS = 10.0
"""The factor of the cosine similarities in the contrastive loss, the inverse of its temperature 0.1."""


def contrastive_losses(vectors: Float[Tensor, "rows d_model"], classes: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """Return -mean log p(other row of the class) for each row, with p = softmax of scaled cosine similarities.

    This is the supervised contrastive loss (Khosla et al. 2020, eq. 2). A row whose class has no other row has loss 0.

    >>> contrastive_losses(torch.eye(2)[[0, 0, 1]], torch.tensor([0, 0, 1])).round(decimals=4) + 0.0
    tensor([0., 0., 0.])
    """
    units = torch.nn.functional.normalize(vectors, dim=-1)
    myself = torch.eye(len(units), dtype=torch.bool, device=units.device)
    log_probs = (SHARPNESS * units @ units.mT).masked_fill(myself, -1e9).log_softmax(-1)
    others = (classes[:, None] == classes) & ~myself
    return -(log_probs * others).sum(-1) / others.sum(-1).clamp(min=1)


def answer_log_probs(model: Trainable, batch: Batch) -> Float[Tensor, "*answers"]:
    """Return the log-probability of each answer in nats. The answers of preferences are `[pairs, 2]`."""
    hidden = model.hidden(**{name: tensor.flatten(0, -2) for name, tensor in batch.inputs.items()})
    targets = batch.targets.flatten(0, -2)
    real = targets != batch.pad_id
    losses = token_losses(model.output_proj(hidden[real]).float(), targets[real])
    return -losses.new_zeros(targets.shape).masked_scatter(real, losses).sum(1).view(batch.targets.shape[:-1])


def preference_losses(
    margin: Float[Tensor, " pairs"], reference: Float[Tensor, " pairs"], beta: Float[Tensor, " pairs"]
) -> Float[Tensor, " pairs"]:
    """Return the DPO loss of each pair, -log σ(β (margin - reference)) (Rafailov et al. 2023, eq. 7).

    The margins are log-probabilities of the better answer minus those of the worse answer, under both models.

    >>> preference_losses(torch.tensor([3.0]), torch.tensor([3.0]), torch.tensor([0.1]))
    tensor([0.6931])
    """
    return -nn.functional.logsigmoid(beta * (margin - reference))


# the logits of one chunk fit into a CPU's cache: about 250 rows at a vocabulary of 8,000
CHUNK_VALUES = 2_000_000


def token_losses(
    logits: Float[Tensor, "n vocab"], targets: Int[Tensor, " n"], label_smoothing: float = 0.0
) -> Float[Tensor, " n"]:
    """Return -Σ q log softmax(logits) for each token in nats, with q = (1 - ε) · onehot + ε / vocab.

    ε is `label_smoothing` (Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4).

    >>> token_losses(torch.zeros(1, 4), torch.tensor([2]), 0.1)
    tensor([1.3863])
    """
    log_probs = logits.log_softmax(-1)
    chosen = log_probs.gather(-1, targets[:, None]).squeeze(-1)
    return -(1.0 - label_smoothing) * chosen - label_smoothing * log_probs.mean(-1)


class _LinearCrossEntropy(torch.autograd.Function):
    """Output layer and loss in one pass over chunks of rows, with both gradients and without stored logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        smoothing: float,
        factor: float,
        onednn: bool,
    ) -> Tensor:
        device = hidden.device.type
        compute = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        vocab = weight.shape[0]
        rows = max(1, CHUNK_VALUES // vocab)
        total = torch.zeros((), dtype=weight.dtype, device=hidden.device)
        grad_hidden = torch.empty_like(hidden)
        # by columns, as in `weight_gradient`: hidden states are narrower than a vocabulary
        learns = ctx.needs_input_grad[1]
        columns = torch.zeros(weight.shape[::-1], dtype=weight.dtype, device=weight.device) if learns else None
        with torch.autocast(device, enabled=False):
            matrix = weight.to(compute)
            for start in range(0, hidden.shape[0], rows):
                h, t = hidden[start : start + rows].to(compute), targets[start : start + rows, None]
                logits = _product(h, matrix, onednn).to(weight.dtype)
                probs = logits.softmax(-1)
                # log Σ exp from the largest entry, whose probability can't underflow
                log_norm = logits.amax(-1) - probs.amax(-1).log()
                total += log_norm.sum() - (1.0 - smoothing) * logits.gather(-1, t).sum()
                # d loss / d logits = softmax - q; the even part of q, ε / vocab, is added in closed form below
                probs.scatter_add_(-1, t, torch.full_like(t, smoothing - 1.0, dtype=probs.dtype))
                grad = probs.to(compute)
                grad_hidden[start : start + rows] = _product(grad, matrix.mT, onednn)
                if columns is not None:
                    _add_product(columns, h, grad, factor, onednn)
            grad_weight = None if columns is None else columns.mT.contiguous()
            if smoothing:
                mean_row = weight.mean(0)
                hidden_sum = hidden.to(weight.dtype).sum(0)
                total -= smoothing * (hidden_sum @ mean_row)
                grad_hidden -= (smoothing * mean_row).to(grad_hidden.dtype)
                if grad_weight is not None:
                    grad_weight -= (factor * smoothing / vocab) * hidden_sum
        ctx.save_for_backward(grad_hidden.mul_(factor), grad_weight)
        return total * factor

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        (upstream,) = grads
        # in place, because PyTorch rejects a second backward pass through the same loss
        of_weight = None if grad_weight is None else grad_weight.mul_(upstream)
        return grad_hidden.mul_(upstream), of_weight, None, None, None, None


def _product(left: Tensor, right: Tensor, onednn: bool) -> Tensor:
    """left · rightᵀ."""
    return onednn_product(left, right) if onednn and left.dtype == torch.float32 else left @ right.mT


def _add_product(total: Tensor, left: Tensor, right: Tensor, factor: float, onednn: bool) -> None:
    """total += factor · leftᵀ · right."""
    if total.dtype == left.dtype and not onednn:
        total.addmm_(left.mT, right, alpha=factor)
    else:
        total.add_(_product(left.mT, right.mT, onednn), alpha=factor)


def linear_cross_entropy(
    hidden: Float[Tensor, "n d_model"],
    output: nn.Linear,
    targets: Int[Tensor, " n"],
    label_smoothing: float = 0.0,
    factor: float = 1.0,
) -> Float[Tensor, ""]:
    """Return factor · Σ token_losses(output(hidden)), with the same gradients in far less memory and time.

    `factor` is usually 1 / (number of all targets of the step). Second-order gradients are not supported.
    """
    weight = output.weight
    if isinstance(output, CappedLinear):  # the pass below has no limit of the logits
        return factor * token_losses(output(hidden).float(), targets, label_smoothing).sum()
    if output.bias is not None:  # W h + b = [W, b] [h; 1]
        hidden = torch.cat([hidden, hidden.new_ones(len(hidden), 1)], dim=1)
        weight = torch.cat([weight, output.bias[:, None]], dim=1)
    arguments = (hidden, weight, targets, label_smoothing, factor, isinstance(output, OneDnnLinear))
    return _LinearCrossEntropy.apply(*arguments)  # pyright: ignore[reportReturnType]


# ---- the loss and its gradients in a training step


class ModelWithLoss(nn.Module):
    """Module that computes a model and its loss in one `forward`, as DDP and FSDP2 require to exchange gradients."""

    def __init__(self, model: nn.Module, training: TrainingConfig):
        super().__init__()
        self.model = model
        self.precision: acceleration.Precision = training.precision
        self.label_smoothing = training.label_smoothing

    def forward(self, batch: Batch, factor: float) -> Float[Tensor, ""]:
        """Return `factor` times the summed losses of the batch."""
        device = next(self.model.parameters()).device
        with acceleration.autocast(self.precision, device):
            return batch_loss(self.model, batch, self.label_smoothing, factor)


class TrainStepExecutor:
    """Executor of training steps, which computes the losses and gradients of a model in one process or in all ranks.

    The given model is evaluated and saved. The optimizer changes the parameters of `trained_model`, which have the
    same names as the parameters of the given model. Usually, `trained_model` is the given model. With adapters,
    `trained_model` is a second tree of modules around the same parameters, with the adapters. With FSDP2,
    `trained_model` is a copy in which each rank has some rows of each parameter, and the given model has no weights.
    Inside `whole`, the given model has all weights, with the adapters merged.
    """

    def __init__(self, model: nn.Module, training: TrainingConfig, ranks: Ranks = ALONE, lora: LoraConfig = OFF):
        """Prepare the model according to the settings: matrix library, frozen parts, adapters and changed blocks."""
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
        """Return `factor` times the summed losses of this rank's part of a batch. Its backward pass sums over ranks.

        With DDP, only the backward pass of the `last` part of an update exchanges gradients, so ranks can process
        different numbers of parts. With FSDP2, every backward pass exchanges gradients.
        """
        wait = not last and isinstance(self._forward, DistributedDataParallel)
        with cast(DistributedDataParallel, self._forward).no_sync() if wait else nullcontext():
            return self._forward(batch, factor)

    def clip(self, max_norm: float) -> float:
        """Scale the summed gradient down to the norm `max_norm` if its norm is larger. Return the norm before clipping.

        With `max_norm=0`, the gradient is not clipped. A non-finite gradient is not changed.
        """
        total = nn.utils.get_total_norm([p.grad for p in self.trained_model.parameters() if p.grad is not None])
        norm = float(cast(Any, total).full_tensor() if self.is_sharded else total)
        if max_norm and math.isfinite(norm) and norm > max_norm:
            nn.utils.clip_grads_with_norm_(self.trained_model.parameters(), max_norm, total)
        return norm

    def warm_up(self, batch: Batch) -> None:
        """Run a forward and backward pass without effect at the start of a run.

        DDP orders its buckets by the first pass, and the order of its sums follows from the buckets.
        """
        self.trained_model.train()
        before = torch_states()
        self.loss(batch, 1.0).backward()
        set_torch_states(before)
        for parameter in self.trained_model.parameters():
            parameter.grad = None

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Provide the given model with all its weights during the `with` block, for evaluation or saving.

        All ranks must enter the block together.
        """
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
        """Return the whole parameters that the optimizer changes, by name. All ranks must call this method together."""
        return {
            name: gathered(parameter.detach())
            for name, parameter in self.trained_model.named_parameters()
            if parameter.requires_grad
        }


def _replicated(with_loss: ModelWithLoss) -> DistributedDataParallel:
    """Return DDP that sums gradients, with the weights of rank 0. Each rank has its own buffers."""
    names = [name for name, _ in with_loss.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(with_loss, names)
    wrapped = DistributedDataParallel(with_loss, gradient_as_bucket_view=True)
    # no annotations, because DDP would compare their text with its own types
    wrapped.register_comm_hook(None, lambda state, bucket: _summed(bucket))
    return wrapped


def _summed(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Return the sum over the ranks. The loss is already divided by the number of all targets."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def _sharded(with_loss: ModelWithLoss, ranks: Ranks) -> nn.Module:
    """Return the FSDP2 module. Each block is gathered when it is used, and all other parameters at once."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard  # takes half a second

    for parameter in with_loss.parameters():
        dist.broadcast(parameter.detach(), 0)
    device = next(with_loss.parameters()).device.type
    mesh = init_device_mesh(device, (ranks.world,))
    parts = [module for module in with_loss.modules() if isinstance(module, EncoderBlock | DecoderBlock)]
    for module in (*parts, with_loss):
        fsdp = cast(FSDPModule, fully_shard(module, mesh=mesh))
        fsdp.set_gradient_divide_factor(1.0)  # sums instead of means, as in `_summed`
        fsdp.set_force_sum_reduction_for_comms(True)  # gloo supports nothing else
    return with_loss


def _fill(model: nn.Module, shards: dict[str, nn.Parameter]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
            parameter.copy_(gathered(shards[name]))


def _free(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)
