"""The training loop for every kind of model and task: updates, evaluations and checkpoints until the run ends."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from attendo.custom_modules import custom_module_at, is_not_finite
from attendo.data.batches import Batch, EpochBatches
from attendo.errors import AttendoError, diverged
from attendo.training import checkpoints
from attendo.training.checkpoints import (
    Saver,
    load_weights,
    set_torch_states,
    torch_states,
    unchanged_random_states,
    weights_of,
)
from attendo.training.distributed import local
from attendo.training.losses import Trainable
from attendo.training.optimizer import learning_rate
from attendo.training.run import Evaluation, Interrupted, Report, Run, Task, due, plan_end, share_done

T = TypeVar("T")


def prefetched(items: Iterable[T], ahead: int) -> Generator[T]:
    """Yield the items in order, while a thread prepares up to `ahead` items in advance.

    With `ahead=0`, no thread is used. An error is raised in the place of the item that caused it.

    >>> list(prefetched(range(5), 2))
    [0, 1, 2, 3, 4]
    """
    if ahead < 1:
        yield from items
        return
    iterator = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="loading") as thread:
        try:
            coming = deque(thread.submit(lambda: list(islice(iterator, 1))) for _ in range(ahead))
            while item := coming.popleft().result():
                coming.append(thread.submit(lambda: list(islice(iterator, 1))))
                yield item[0]
        finally:
            thread.shutdown(cancel_futures=True)


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size` items. The last list may be shorter.

    >>> list(grouped("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def train(run: Run) -> Iterator[Report]:
    """Train until the end of the run, and yield a report of each action.

    The caller prints and logs the reports and keeps the best model. If the run is stopped, it saves its state without
    the unfinished action before this function returns.

    Args:
        run: The run, new or restored from a checkpoint.

    Raises:
        AttendoError: The loss or the gradient stays non-finite.
        OSError: A checkpoint cannot be written.
    """
    with closing(actions(run)) as reports:
        for report in reports:
            with unchanged_random_states():  # the caller may draw random numbers
                yield report


def actions(run: Run) -> Generator[Report]:
    """Yield the reports of `train`."""
    saver = Saver(run)
    try:
        with suppress(Interrupted):
            run.clock.resume(run.progress)
            if run.folder is not None or run.ranks.world > 1:
                try_largest_batches(run)
            run.sync_ranks(0.0)
            yield from steps(run, saver)
            if run.progress.ended and run.folder is not None:
                if run.training.average_last > 1:
                    yield from evaluate_average(run, saver, run.folder)
                if (task := run.task.final) is not None:
                    yield from choose_best(run, saver, task, run.folder)
        if run.progress.ended:
            yield Report("end", run.progress, note=run.progress.ended, done=1.0)
        elif not saver.is_saved(run.progress):
            yield from save(run, saver)
    finally:
        saver.wait()


def steps(run: Run, saver: Saver) -> Iterator[Report]:
    """Yield a report of each update, evaluation and checkpoint, until the run has ended or has to stop."""
    progress, config = run.progress, run.training
    if progress.evaluation_due:
        yield from evaluate_and_save(run, saver)
    plan_end(run)
    while progress.ended is None and not run.stopping:
        batches = run.task.batches(config.seed, progress.epoch, progress.batch)
        ready = map(Batch.pinned, batches) if run.device.type == "cuda" else batches
        with closing(prefetched(ready, config.prefetch)) as coming:
            for micro_batches in grouped(coming, config.accumulation):
                report = update(run, micro_batches)
                saver.wait()  # otherwise a killed process could lose the steps of more than one interval
                yield report
                if report.kind == "step":
                    yield from evaluate_and_save(run, saver)
                if progress.ended or run.stopping:
                    return
        progress.epoch += 1
        progress.batch = 0


def evaluate_and_save(run: Run, saver: Saver) -> Iterator[Report]:
    """Evaluate the model and save a checkpoint after a step, if they are due. Decide whether the run has ended."""
    progress, config = run.progress, run.training
    ended = plan_end(run)
    is_best = False
    progress.evaluation_due = due(progress.step, config.evaluate_every) or ended is not None
    if progress.evaluation_due and not run.stopping:
        report = evaluate(run)
        is_best = report.is_best
        yield report
    if not progress.evaluation_due:
        progress.ended = ended or plan_end(run)
    if due(progress.step, run.save_every) or is_best or progress.ended:
        yield from save(run, saver)


def evaluate(run: Run) -> Report:
    """Evaluate the model on the validation set, and record whether it is the best model so far."""
    progress = run.progress
    evaluation = measure(run, run.task)
    progress.evaluation_due = False
    is_best = progress.best is None or run.task.better(evaluation.value, progress.best)
    if is_best:
        progress.best = evaluation.value
        progress.best_step = progress.step
        progress.evaluations_since_best = 0
    else:
        progress.evaluations_since_best += 1
    return Report("evaluation", progress, evaluation=evaluation, is_best=is_best, done=share_done(run))


def measure(run: Run, task: Task, *, to_the_end: bool = False) -> Evaluation:
    """Evaluate the model on a task without dropout. The random states do not change.

    A stop interrupts the evaluation, unless `to_the_end` is set. Raises AttendoError if a weight is non-finite.
    """
    checkpoints.require_finite(run.executor.trained_model, run.progress.step)
    run.model.eval()
    interruption = nullcontext() if to_the_end else run.interruption()
    with unchanged_random_states(), run.evaluation_weights(), torch.inference_mode(), interruption:
        evaluation = task.evaluate(run.model, run.ranks)
        if run.ranks.world == 1:
            return evaluation
        # all ranks use the evaluation of the first rank, because their decisions must be bit-equal
        values = run.ranks.broadcast(asdict(evaluation))
        return Evaluation(**values | {"samples": list(map(tuple, values["samples"]))})


def save(run: Run, saver: Saver) -> Iterator[Report]:
    """Pass all state of the run to the saver. If a checkpoint is written, yield a report."""
    run.clock.note(run.progress)
    run.progress.threads = torch.get_num_threads()
    run.progress.world = run.ranks.world
    run.progress.planned_end = run.training.planned_end
    if saver.save(run):
        yield Report("checkpoint", run.progress, note=f"step-{run.progress.step}", done=share_done(run))


def evaluate_average(run: Run, saver: Saver, folder: Path) -> Iterator[Report]:
    """Evaluate the mean weights of the last checkpoints. The model keeps the mean weights if they are the best so far.

    If the evaluation is interrupted, the model has its own weights again, and the evaluation stays due.
    """
    saver.wait()
    folders = checkpoints.regular_checkpoints(folder, run.save_every)[-run.training.average_last :]
    if len(folders) < 2:
        return
    own = copied(weights_of(run.executor.trained_model))
    mean = checkpoints.average_weights(folders, own)
    load_weights(run.executor.trained_model, mean, "the averaged weights")
    try:
        report = evaluate(run)
    except Interrupted:
        load_weights(run.executor.trained_model, own, "the run's weights")
        run.progress.ended = None
        run.progress.evaluation_due = True
        raise
    yield replace(report, note=f"mean of the last {len(folders)} checkpoints", done=1.0)
    if not report.is_best:
        load_weights(run.executor.trained_model, own, "the run's weights")


def choose_best(run: Run, saver: Saver, task: Task, folder: Path) -> Iterator[Report]:
    """Evaluate the last and the best weights on all validation rows, and report the better weights.

    The weights of the model do not change. The choice is stored in the last checkpoint. The evaluation cannot be
    interrupted, because the run has already ended.
    """
    saver.wait()
    progress = run.progress
    own = copied(weights_of(run.executor.trained_model))
    average = copied({} if run.average is None else run.average.tensors)

    def put_back() -> None:
        load_weights(run.executor.trained_model, own, "the run's weights")
        if run.average is not None:
            run.average.load(average)

    step = progress.step
    path = folder / f"step-{progress.best_step}"
    if progress.best_step != step and not path.is_dir():
        return  # the best state cannot be compared
    try:
        chosen = measure(run, task, to_the_end=True)
        if progress.best_step != step:
            checkpoints.load_state(path, run)
            best = measure(run, task, to_the_end=True)
            if task.better(chosen.value, best.value):
                put_back()
            else:
                step, chosen = progress.best_step, best
        is_last = step != progress.best_step
        progress.best_step = step
        note = f"all validation rows: step {step:,} is kept"
        yield Report("evaluation", progress, evaluation=chosen, is_best=True, note=note, done=1.0)
    finally:
        put_back()
    if is_last:
        yield from save(run, saver)


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a clone of each tensor."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


# ---- an update of the weights


def update(run: Run, micro_batches: Sequence[Batch]) -> Report:
    """Perform one optimizer step on one or several batches. Skip the step if the loss or the gradient is non-finite.

    The loss is the sum over all targets without padding, divided once by their number. The number of batches and the
    padding therefore do not change the loss. Raises AttendoError after MOST_SKIPPED_IN_A_ROW skipped updates in a row.
    Raises Interrupted if the run has to stop before the last batch; the state is then the state before the update.
    """
    progress, config = run.progress, run.training
    if samplers := [batch.sample for batch in micro_batches if batch.sample is not None]:
        with run.executor.whole():
            micro_batches = [sample() for sample in samplers]
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
            f"out of memory with a batch of {progress.too_large:,} positions: such batches are now split, "
            "with equal gradients. A smaller training.batch_tokens with a larger training.accumulation also "
            "does this"
        )
    return Report("step", progress, loss, rate, norm, note=note, done=share_done(run))


# ---- gradients


def summed_gradients(run: Run, batches: Sequence[Batch], factor: float, trial: bool = False) -> float:
    """Sum the gradients of `factor` times the losses of all batches over all ranks. Return the loss of this rank.

    If the memory is not sufficient, the function starts again from the same random numbers, with the batch split into
    halves. From then on, all batches of this size are split in advance. Each rank processes its rows of every batch.
    The ranks exchange gradients in the last backward pass. Several ranks can therefore split batches only in a
    `trial`, without the exchange, and never with FSDP2.

    Raises AttendoError if a batch does not fit and cannot be split. Raises Interrupted between two batches if the run
    has to stop; the state is then unchanged.
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
        undo_update(run, before)  # after the `except` block, because its traceback keeps the memory


def require_divisible(run: Run, batch: Batch, trial: bool, error: BaseException) -> None:
    """Raise AttendoError if a batch that did not fit into memory cannot be split."""
    remedy = ""
    if len(batch.ids) < 2:
        remedy = " in a single row. Choose a smaller model, or remove the longest rows"
    elif run.executor.is_sharded or (run.ranks.world > 1 and not trial):
        remedy = ". Use a smaller training.batch_tokens with a larger training.accumulation; the result is the same"
    if remedy:
        size = f"out of memory at step {run.progress.step + 1} with {positions(batch):,} positions"
        raise AttendoError(f"{size}{remedy}") from error


def undo_update(run: Run, before: dict[str, Tensor]) -> None:
    """Remove the gradients of an unfinished update, and restore the random states."""
    run.optimizer.zero_grad(set_to_none=True)
    set_torch_states(before)
    if run.device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that there was not enough memory. On a CPU, PyTorch has no type for this error.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."))
    True
    """
    words = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error).lower() for word in words)


def positions(batch: Batch) -> int:
    """Return the number of positions in all inputs and targets of a batch, padding included."""
    return batch.targets.numel() + sum(t.numel() for t in batch.inputs.values() if t.ndim > 1)


def parts_that_fit(batch: Batch, too_large: int) -> Iterator[Batch]:
    """Yield a batch in parts of fewer than `too_large` positions each (0: no limit), by repeated halving."""
    n_rows = len(batch.ids)
    if not too_large or positions(batch) < too_large or n_rows < 2:
        yield batch
        return
    for part in (slice(0, n_rows // 2), slice(n_rows // 2, n_rows)):
        yield from parts_that_fit(batch.part(part), too_large)


def try_largest_batches(run: Run) -> None:
    """Compute trial gradients of the batches that take the most memory: those with the most rows and the longest rows.

    All ranks call this function at every start (`TrainStepExecutor.warm_up`). Only `progress.too_large` changes.
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
"""Number of skipped updates in a row that stops the run."""


def skipped_report(run: Run, source: str, loss: float, norm: float) -> Report:
    """Return the report of an update that was skipped because `source` is non-finite. The batches count as seen.

    Raises AttendoError after MOST_SKIPPED_IN_A_ROW skipped updates in a row. Float16 overflows that loss scaling can
    prevent are not counted.
    """
    progress = run.progress
    progress.skipped += 1
    place = f"{source} is non-finite at step {progress.step + 1}"
    note = f"{place}: this update was skipped"
    if run.scaler is not None and math.isfinite(loss) and (scale := run.scaler.get_scale()) >= 1.0:
        note += f", and the loss scale is now {scale:,.0f}"
    else:
        progress.skipped_in_a_row += 1
    if progress.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
        raise diverged(
            f"training diverged: {MOST_SKIPPED_IN_A_ROW} updates in a row had NaN or infinity (the last: {place})."
            f" {remedy(run, source)}"
        )
    return Report("skipped", progress, loss, gradient_norm=norm, note=note, done=share_done(run))


def remedy(run: Run, source: str) -> str:
    """Return the remedy for skipped updates as text. `source` is the result of `find_nonfinite_source`."""
    part = custom_module_at(run.executor.trained_model, source.removeprefix("the gradient of "))
    rate = f"training.learning_rate (now {run.training.learning_rate:.2g})"
    saved = run.folder is not None and checkpoints.checkpoints(run.folder)
    again = "resume from the last checkpoint" if saved else "train again"
    if part is not None:
        return f"Custom module {type(part).__name__} returns NaN or infinity: fix its formula, then {again}"
    if not saved:
        return f"Train again with a lower {rate}"
    return f"Lower {rate} in {run.folder}/config.toml, then run: attendo resume {run.folder}"


def find_nonfinite_source(run: Run, micro_batches: Sequence[Batch], before: dict[str, Tensor]) -> str:
    """Return the source of the first non-finite number, found by a second pass with the same random numbers."""
    after = torch_states()
    model = run.executor.trained_model
    ranks = run.ranks
    set_torch_states(before)
    try:
        parts = [batch.share(ranks.rank, ranks.world)[0] for batch in micro_batches]
        found = [first_nonfinite_module(model, partial(run.executor.loss, part, 1.0)) for part in parts]
    finally:
        set_torch_states(after)
    found = [path for of_rank in ranks.gathered([*found, nonfinite_gradient(model)]) for path in of_rank if path]
    return found[0] if found else "the norm of the gradient"


def first_nonfinite_module(model: nn.Module, forward: Callable[[], Tensor]) -> str | None:
    """Return the path of the first module with a non-finite output during `forward`, or None if all outputs are finite.

    Inner modules finish first, so the result is the innermost such module. If only the loss is non-finite, the result
    is "the loss".
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
    """Return the name of the gradient nearest to the output that is non-finite, or None if all gradients are finite."""
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not local(parameter.grad).isfinite().all():
            return f"the gradient of {name}"
    return None
