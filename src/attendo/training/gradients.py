"""Gradients of a batch's real targets, in as many parts as memory asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from attendo.data.batches import Batch, EpochBatches
from attendo.errors import AttendoError
from attendo.training.losses import linear_cross_entropy, token_losses
from attendo.training.precision import autocast
from attendo.training.run import Run, Trainable
from attendo.training.state import set_torch_states, torch_states


def batch_loss(model: nn.Module, batch: Batch, label_smoothing: float, factor: float) -> Tensor:
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


def summed_gradients(run: Run, batches: Sequence[Batch], factor: float) -> float:
    """Adds up the gradients of factor times the losses of all batches; gives that loss.

    Where memory does not suffice, all is done again, from the same random numbers, with the batch in halves; larger
    ones are halved beforehand from then on. Raises AttendoError if a batch of a single row does not fit, and
    Interrupted between two batches where the run is to stop; nothing has changed then.
    """
    before, progress = torch_states(), run.progress
    while True:
        parts = [part for batch in batches for part in fitting(batch, progress.too_large)]
        place = 0
        try:
            loss = torch.zeros((), device=run.device)
            for place, part in enumerate(parts):
                if run.stopping and place:
                    take_back(run, before)
                    run.interrupt()
                loss += one_gradient(run, part, factor)
            return float(loss)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(parts[place].ids) < 2:
                raise AttendoError(
                    f"out of memory at step {progress.step + 1} with a single row of {positions(parts[place]):,}"
                    " positions; choose a smaller model, or leave out the longest rows"
                ) from error
            progress.too_large = positions(parts[place])
        take_back(run, before)  # the traceback above held on to the memory


def one_gradient(run: Run, batch: Batch, factor: float) -> Tensor:
    """Adds the gradient of one batch; gives its loss, on the device."""
    with autocast(run.training.precision, run.device):
        loss = batch_loss(run.model, batch, run.training.label_smoothing, factor)
    loss.backward()
    return loss.detach()


def take_back(run: Run, before: dict[str, Tensor]) -> None:
    """Forgets the gradients and random numbers of an update that has begun."""
    run.optimizer.zero_grad(set_to_none=True)
    set_torch_states(before)
    if run.device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it says that memory did not suffice; on the CPU torch has no type of its own for that.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."))
    True
    """
    words = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        word in str(error).lower() for word in words
    )


def positions(batch: Batch) -> int:
    """Positions that a batch takes in all its inputs and targets, padding included."""
    return batch.targets.numel() + sum(t.numel() for t in batch.inputs.values() if t.ndim > 1)


def fitting(batch: Batch, too_large: int) -> Iterator[Batch]:
    """The batch, or its halves, their halves and so on, until each has fewer positions than did not fit (0: any)."""
    n_rows = len(batch.ids)
    if not too_large or positions(batch) < too_large or n_rows < 2:
        yield batch
        return
    for part in (slice(0, n_rows // 2), slice(n_rows // 2, n_rows)):
        yield from fitting(batch.part(part), too_large)


def split_note(size: int) -> str:
    """What is said when a batch of so many positions had to be cut."""
    return (
        f"out of memory with a batch of {size:,} positions: such batches are cut in parts from now on, with an equal"
        " gradient; a smaller training.batch_tokens with more training.accumulation does the same"
    )


def try_largest(run: Run) -> None:
    """Tries the gradients of the batches that take the most memory, before anything is trained.

    They are those of the epoch at hand with the most rows, and with the fewest, which are the longest. Nothing of the
    run's state changes but `progress.too_large`, where one did not fit.
    """
    batches = run.task.batches(run.training.seed, run.progress.epoch, 0)
    if not isinstance(batches, EpochBatches) or not len(batches):
        return
    sizes, before = [len(rows) for rows in batches.rows], torch_states()
    run.model.train()
    for number in dict.fromkeys((sizes.index(max(sizes)), sizes.index(min(sizes)))):
        batch = batches[number]
        summed_gradients(run, [batch], 1.0 / batch.n_targets)
        take_back(run, before)
