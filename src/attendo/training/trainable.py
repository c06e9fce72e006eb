"""What training asks of a model, and the loss of a batch."""

from __future__ import annotations

from typing import Protocol, cast

from jaxtyping import Float
from torch import Tensor, nn

from attendo.data.batches import Batch
from attendo.training.losses import linear_cross_entropy, token_losses


class Trainable(Protocol):
    """A module with hidden states, and the layer that reads them."""

    output_proj: nn.Linear

    def hidden(self, **inputs: Tensor) -> Tensor:
        """States `[*targets, d_model]`, from which each target is predicted."""
        ...


def width(model: nn.Module) -> int:
    """d_model, as the output layer sees it."""
    return cast(Trainable, model).output_proj.in_features


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
