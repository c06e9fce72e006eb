"""An update of the weights, which is skipped if loss or gradient are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from attendo.custom_modules import custom_module_at, is_not_finite
from attendo.data.batches import Batch, EpochBatches
from attendo.errors import AttendoError
from attendo.training.checkpoints import checkpoints, set_torch_states, torch_states
from attendo.training.distributed import local
from attendo.training.losses import Trainable
from attendo.training.optimizer import learning_rate
from attendo.training.run import Report, Run
from attendo.training.stopping import share_done


def update(run: Run, micro_batches: Sequence[Batch]) -> Report:
    """A step of the optimizer on one or several batches; skipped where loss or gradient are not finite.

    The loss is the sum over all real targets, divided once by their number, whatever the padding and the accumulation.
    Raises AttendoError after MOST_SKIPPED_IN_A_ROW skipped updates in a row, and Interrupted when the run is to stop
    before the last of the batches; the state is then that before the update.
    """
    progress, config = run.progress, run.training
    run.executor.trained_model.train()
    before = torch_states()
    too_large = progress.too_large
    n_targets = sum(batch.n_targets for batch in micro_batches)
    loss = run.sync_ranks(summed_gradients(run, micro_batches, 1.0 / n_targets))
    if run.scaler is not None:
        run.scaler.unscale_(run.optimizer)
    norm = run.executor.clip(config.clip_norm)
    d_model = cast(Trainable, run.model).output_proj.in_features
    rate = learning_rate(config, d_model, progress.step + 1, progress.horizon)
    source = ""
    if finite := math.isfinite(norm) and math.isfinite(loss):
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        if run.scaler is None:
            run.optimizer.step()
        else:
            run.scaler.step(run.optimizer)
        if run.average is not None:
            run.average.update(run.executor.trained_model, progress.step + 1)
    else:
        source = find_nonfinite_source(run, micro_batches, before)
    if run.scaler is not None:
        run.scaler.update()
    run.optimizer.zero_grad(set_to_none=True)
    progress.batch += len(micro_batches)
    progress.saw(batch.ids for batch in micro_batches)
    if not finite:
        return skipped_report(run, source, loss, norm)
    progress.step += 1
    progress.skipped_in_a_row = 0
    progress.tokens += sum(b.n_targets if b.n_tokens is None else b.n_tokens for b in micro_batches)
    progress.link(loss, norm)
    note = ""
    if too_large != progress.too_large:
        note = (
            f"out of memory with a batch of {progress.too_large:,} positions: such batches are cut in parts from now"
            " on, with an equal gradient; a smaller training.batch_tokens with more training.accumulation does the same"
        )
    return Report("step", progress, loss, rate, norm, note=note, done=share_done(run))


# ---- gradients


def summed_gradients(run: Run, batches: Sequence[Batch], factor: float, trial: bool = False) -> float:
    """Adds up the gradients of factor times the losses of all batches, over all ranks; returns this rank's loss.

    Where memory does not suffice, it starts again, from the same random numbers, with the batch in halves; larger
    batches are halved beforehand from then on. Each rank takes its rows of every batch. Ranks exchange gradients in the
    last backward pass, so they can cut batches only in a `trial`, without exchange, and not with FSDP2. Raises
    AttendoError where a batch does not fit and cannot be cut, and Interrupted between two batches where the run is to
    stop; nothing has changed then.
    """
    before = torch_states()
    progress = run.progress
    ranks = run.ranks
    while True:
        shares = [batch.share(ranks.rank, ranks.world) for batch in batches]
        parts = [(p, weight) for own, weight in shares for p in parts_that_fit(own, progress.too_large)]
        place = 0
        try:
            loss = 0.0
            for place, (part, weight) in enumerate(parts):
                if run.stopping and place and ranks.world == 1:
                    undo_update(run, before)
                    run.interrupt()
                is_last = place == len(parts) - 1 and not trial
                one = run.executor.loss(part, weight * factor, is_last)
                (one if run.scaler is None else run.scaler.scale(one)).backward()
                loss = loss + one.detach()
            return float(loss)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            require_divisible(run, parts[place][0], trial, error)
            progress.too_large = positions(parts[place][0])
        undo_update(run, before)  # here, since the traceback above kept the memory


def require_divisible(run: Run, batch: Batch, trial: bool, error: BaseException) -> None:
    """Raises AttendoError where a batch that did not fit into memory cannot be cut."""
    remedy = ""
    if len(batch.ids) < 2:
        remedy = " of a single row; choose a smaller model, or leave out the longest rows"
    elif run.executor.is_sharded or (run.ranks.world > 1 and not trial):
        remedy = "; take a smaller training.batch_tokens with more training.accumulation, which is the same"
    if remedy:
        size = f"out of memory at step {run.progress.step + 1} with {positions(batch):,} positions"
        raise AttendoError(f"{size}{remedy}") from error


def undo_update(run: Run, before: dict[str, Tensor]) -> None:
    """Removes the gradients of an unfinished update, and restores the random states."""
    run.optimizer.zero_grad(set_to_none=True)
    set_torch_states(before)
    if run.device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory did not suffice; on the CPU torch has no type for it.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."))
    True
    """
    words = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        word in str(error).lower() for word in words
    )


def positions(batch: Batch) -> int:
    """Positions of a batch in all its inputs and targets, padding included."""
    return batch.targets.numel() + sum(t.numel() for t in batch.inputs.values() if t.ndim > 1)


def parts_that_fit(batch: Batch, too_large: int) -> Iterator[Batch]:
    """The batch, or its repeated halves, until each has fewer positions than `too_large` (0: no limit)."""
    n_rows = len(batch.ids)
    if not too_large or positions(batch) < too_large or n_rows < 2:
        yield batch
        return
    for part in (slice(0, n_rows // 2), slice(n_rows // 2, n_rows)):
        yield from parts_that_fit(batch.part(part), too_large)


def try_largest_batches(run: Run) -> None:
    """Tries the gradients of the batches that take the most memory, before training.

    They are the batches of the epoch with the most rows, and with the fewest, which are the longest. The run's state
    stays, except `progress.too_large`. All ranks do it at every start: see `TrainStepExecutor.warm_up`.
    """
    batches = run.task.batches(run.training.seed, run.progress.epoch, 0)
    before = torch_states()
    if not len(batches):
        return
    sizes = batches.sizes.tolist() if isinstance(batches, EpochBatches) else [0]
    run.executor.trained_model.train()
    for number in dict.fromkeys((sizes.index(max(sizes)), sizes.index(min(sizes)))):
        batch = batches[number]
        summed_gradients(run, [batch], 1.0 / batch.n_targets, trial=True)
        undo_update(run, before)
    if run.ranks.world > 1:
        sizes = [size for size in run.ranks.gathered(run.progress.too_large) if size]
        run.progress.too_large = min(sizes, default=0)
        run.executor.warm_up(batches[0].share(run.ranks.rank, run.ranks.world)[0])
        undo_update(run, before)


# ---- updates that are not finite


MOST_SKIPPED_IN_A_ROW = 3
"""Skipped updates in a row that stop the run."""


def skipped_report(run: Run, source: str, loss: float, norm: float) -> Report:
    """Counts an update that was skipped because of `source`; its batches count as seen.

    Raises AttendoError after MOST_SKIPPED_IN_A_ROW of them. A gradient that overflows in float16 does not count, as
    long as the loss can be scaled down.
    """
    progress = run.progress
    progress.skipped += 1
    place = f"{source} is not finite at step {progress.step + 1}"
    note = f"{place}: its update was left out"
    if run.scaler is not None and math.isfinite(loss) and (scale := run.scaler.get_scale()) >= 1.0:
        note += f", and the loss is scaled by {scale:,.0f} from now on"
    else:
        progress.skipped_in_a_row += 1
    if progress.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
        raise AttendoError(
            f"{place}: {MOST_SKIPPED_IN_A_ROW} updates in a row were not finite; {remedy(run, source)}"
        )
    return Report("skipped", progress, loss, gradient_norm=norm, note=note, done=share_done(run))


def remedy(run: Run, source: str) -> str:
    """The remedy for skipped updates, by their `source` (see `find_nonfinite_source`)."""
    part = custom_module_at(run.executor.trained_model, source.removeprefix("the gradient of "))
    lower = f"with a lower training.learning_rate (now {run.training.learning_rate:.2g})"
    saved = run.folder is not None and checkpoints(run.folder)
    again = "resume from the last checkpoint" if saved else "train again"
    if part is not None:
        return f"{type(part).__name__}, your part, gives NaN or infinity: correct its formula, then {again}"
    return f"train {lower}, then {again}" if saved else f"{again} {lower}"


def find_nonfinite_source(run: Run, micro_batches: Sequence[Batch], before: dict[str, Tensor]) -> str:
    """The source of the first non-finite number, found by a second pass with the same random numbers."""
    after = torch_states()
    model = run.executor.trained_model
    ranks = run.ranks
    set_torch_states(before)
    try:
        parts = [batch.share(ranks.rank, ranks.world)[0] for batch in micro_batches]
        found = [first_nonfinite_module(model, partial(run.executor.loss, part, 1.0)) for part in parts]
    finally:
        set_torch_states(after)
    found = [
        path for of_rank in ranks.gathered([*found, nonfinite_gradient(model)]) for path in of_rank if path
    ]
    return found[0] if found else "the norm of the gradient"


def first_nonfinite_module(model: nn.Module, forward: Callable[[], Tensor]) -> str | None:
    """The path of the first module with a non-finite output while `forward` runs; None if all outputs are finite.

    Inner modules end first, so this is the smallest such part; "the loss" if only the result is not finite.
    """
    found: list[str] = []
    names = {module: path for path, module in model.named_modules()}

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not found and isinstance(output, Tensor) and is_not_finite(module, output):
            found.append(names[module] or "the model")

    handles = [module.register_forward_hook(hook) for module in names]
    try:
        with torch.no_grad():
            result = forward()
    finally:
        for handle in handles:
            handle.remove()
    if not found and not result.isfinite().all():
        found.append("the loss")
    return found[0] if found else None


def nonfinite_gradient(model: nn.Module) -> str | None:
    """The parameter nearest to the output whose gradient is not finite; None if all are."""
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not local(parameter.grad).isfinite().all():
            return f"the gradient of {name}"
    return None
