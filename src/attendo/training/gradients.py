"""Gradients of a batch's real targets, in as many parts as memory asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attendo.data.batches import Batch, EpochBatches
from attendo.errors import AttendoError
from attendo.training.run import Run
from attendo.training.state import set_torch_states, torch_states


def summed_gradients(run: Run, batches: Sequence[Batch], factor: float, trial: bool = False) -> float:
    """Adds up the gradients of factor times the losses of all batches, over all ranks; gives this rank's loss.

    Where memory does not suffice, all is done again, from the same random numbers, with the batch in halves; larger
    ones are halved beforehand from then on. Of several ranks each takes its rows of every batch; they meet in the last
    backward pass, so their batches can be cut in a `trial`, where none meets, and only if no rank holds a part of the
    model alone. Raises AttendoError where a batch does not fit and cannot be cut, and Interrupted between two batches
    where the run is to stop; nothing has changed then.
    """
    before, progress, ranks = torch_states(), run.progress, run.ranks
    while True:
        shares = [batch.share(ranks.rank, ranks.world) for batch in batches]
        parts = [(p, weight) for own, weight in shares for p in fitting(own, progress.too_large)]
        place = 0
        try:
            loss = 0.0
            for place, (part, weight) in enumerate(parts):
                if run.stopping and place and ranks.world == 1:
                    take_back(run, before)
                    run.interrupt()
                is_last = place == len(parts) - 1 and not trial
                one = run.engine.loss(part, weight * factor, is_last)
                (one if run.scaler is None else run.scaler.scale(one)).backward()
                loss = loss + one.detach()
            return float(loss)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            refuse_to_cut(run, parts[place][0], trial, error)
            progress.too_large = positions(parts[place][0])
        take_back(run, before)  # the traceback above held on to the memory


def refuse_to_cut(run: Run, batch: Batch, trial: bool, error: BaseException) -> None:
    """Raises AttendoError where a batch that did not fit into memory cannot be cut."""
    size = f"out of memory at step {run.progress.step + 1} with {positions(batch):,} positions"
    if len(batch.ids) < 2:
        raise AttendoError(
            f"{size} of a single row; choose a smaller model, or leave out the longest rows"
        ) from error
    if run.engine.is_sharded or (run.ranks.world > 1 and not trial):
        raise AttendoError(
            f"{size}; take a smaller training.batch_tokens with more training.accumulation, which is the same"
        ) from error


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
    run's state changes but `progress.too_large`, where one did not fit. All ranks do it at every start: see
    `Engine.settle`.
    """
    batches, before = run.task.batches(run.training.seed, run.progress.epoch, 0), torch_states()
    if not len(batches):
        return
    sizes = batches.sizes.tolist() if isinstance(batches, EpochBatches) else [0]
    run.engine.model.train()
    for number in dict.fromkeys((sizes.index(max(sizes)), sizes.index(min(sizes)))):
        batch = batches[number]
        summed_gradients(run, [batch], 1.0 / batch.n_targets, trial=True)
        take_back(run, before)
    if run.ranks.world > 1:
        sizes = [size for size in run.ranks.gathered(run.progress.too_large) if size]
        run.progress.too_large = min(sizes, default=0)
        run.engine.settle(batches[0].share(run.ranks.rank, run.ranks.world)[0])
        take_back(run, before)
