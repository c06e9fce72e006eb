"""Cross-entropy over a vocabulary: a readable form, and a form that never holds all logits at once."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.data.batches import Batch
from attendo.training.acceleration import OneDnnLinear, onednn_product


class Trainable(Protocol):
    """A module with hidden states and an output layer."""

    output_proj: nn.Linear

    def hidden(self, **inputs: Tensor) -> Tensor:
        """States `[*targets, d_model]`, from which each target is predicted."""
        ...


def batch_loss(model: nn.Module, batch: Batch, label_smoothing: float, factor: float) -> Float[Tensor, ""]:
    """factor times the summed cross-entropy of a batch's real targets; logits of padding are never computed."""
    reader = cast(Trainable, model)
    batch = batch.to(reader.output_proj.weight.device)
    hidden = reader.hidden(**batch.inputs).flatten(0, -2)
    targets = batch.targets.flatten()
    if batch.weights is not None:  # for classes, which are few
        losses = token_losses(reader.output_proj(hidden).float(), targets, label_smoothing)
        return factor * (batch.weights.flatten() * losses).sum()
    if batch.n_targets < targets.numel():
        real = (targets != batch.pad_id).nonzero().squeeze(1)
        hidden, targets = hidden[real], targets[real]
    return linear_cross_entropy(hidden, reader.output_proj, targets, label_smoothing, factor)


# one chunk's logits stay in a processor's cache: about 250 rows at a vocabulary of 8,000
CHUNK_VALUES = 2_000_000


def token_losses(
    logits: Float[Tensor, "n vocab"], targets: Int[Tensor, " n"], label_smoothing: float = 0.0
) -> Float[Tensor, " n"]:
    """-Σ q log softmax(logits) for each token, in nats; q = (1 - ε) · onehot + ε / vocab.

    Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4. ε = 0 is the plain cross-entropy.

    >>> token_losses(torch.zeros(1, 4), torch.tensor([2]), 0.1)
    tensor([1.3863])
    """
    log_probs = logits.log_softmax(-1)
    chosen = log_probs.gather(-1, targets[:, None]).squeeze(-1)
    return -(1.0 - label_smoothing) * chosen - label_smoothing * log_probs.mean(-1)


class _LinearCrossEntropy(torch.autograd.Function):
    """Output layer and loss in one pass over chunks of rows: the loss and both gradients, and no logits kept."""

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
        columns = (
            torch.zeros(weight.shape[::-1], dtype=weight.dtype, device=weight.device) if learns else None
        )
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
        # in place: a second backward pass through the same loss is refused by torch
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
    """factor · Σ token_losses(output(hidden), targets): the same number and gradients in far less memory and time.

    factor: usually 1 / (all targets of the step). Gradients of second order do not exist.
    """
    weight = output.weight
    if output.bias is not None:  # W h + b = [W, b] [h; 1]
        hidden = torch.cat([hidden, hidden.new_ones(len(hidden), 1)], dim=1)
        weight = torch.cat([weight, output.bias[:, None]], dim=1)
    arguments = (hidden, weight, targets, label_smoothing, factor, isinstance(output, OneDnnLinear))
    return _LinearCrossEntropy.apply(*arguments)  # pyright: ignore[reportReturnType]
