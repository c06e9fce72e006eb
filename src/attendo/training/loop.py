"""The training loop, visible in one piece: every kind of model and task goes through it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from attendo.data.batches import Batch
from attendo.training import checkpoints
from attendo.training.checkpoints import Saver, load_weights, weights_of
from attendo.training.run import Evaluation, Interrupted, Report, Run, Task
from attendo.training.stopping import due, plan_end, share_done
from attendo.training.update import try_largest_batches, update

T = TypeVar("T")


def prefetched(items: Iterable[T], ahead: int) -> Generator[T]:
    """The items in their order; a thread makes up to `ahead` of them in advance (0 = no thread).

    An error in making an item is raised in its place. Closing the iterator ends the thread.

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
    """The items in lists of `size`; the last list may be shorter.

    >>> list(grouped("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def train(run: Run) -> Iterator[Report]:
    """Trains until the run's end and reports each action; the caller prints, logs and keeps the best state.

    A run that is to stop saves all state first, without the unfinished action. Raises AttendoError where numbers stay
    non-finite, and OSError where a checkpoint cannot be written.
    """
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
    """Updates, evaluations and checkpoints, until the run has ended or is to stop."""
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
                yield report
                saver.check()
                if report.kind == "step":
                    yield from evaluate_and_save(run, saver)
                if progress.ended or run.stopping:
                    return
        progress.epoch += 1
        progress.batch = 0


def evaluate_and_save(run: Run, saver: Saver) -> Iterator[Report]:
    """After a step: decides whether the run has ended; evaluates and saves where that is due."""
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
    """Evaluates the model on the validation set, and notes whether it is the best so far."""
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
    """A task's evaluation of the model without dropout; random states are restored.

    It can be interrupted, unless `to_the_end`. Raises AttendoError where a weight is not finite.
    """
    checkpoints.require_finite(run.executor.trained_model, run.progress.step)
    before = checkpoints.random_states()
    run.model.eval()
    interruption = nullcontext() if to_the_end else run.interruption()
    try:
        with run.evaluation_weights(), torch.inference_mode(), interruption:
            evaluation = task.evaluate(run.model, run.ranks)
            if run.ranks.world == 1:
                return evaluation
            # the first rank's, on all ranks: their decisions must be bit-equal
            values = run.ranks.broadcast(asdict(evaluation))
            return Evaluation(**values | {"samples": list(map(tuple, values["samples"]))})
    finally:
        checkpoints.set_random_states(before)


def save(run: Run, saver: Saver) -> Iterator[Report]:
    """Hands all state to the saver, and reports a checkpoint that is kept."""
    run.clock.note(run.progress)
    run.progress.threads = torch.get_num_threads()
    run.progress.world = run.ranks.world
    run.progress.planned_end = run.training.planned_end
    if saver.save(run):
        yield Report("checkpoint", run.progress, note=f"step-{run.progress.step}", done=share_done(run))


def evaluate_average(run: Run, saver: Saver, folder: Path) -> Iterator[Report]:
    """Evaluates the mean of the last checkpoints; the model keeps these weights only if they are the best so far.

    An interruption restores the run's own weights, and the evaluation stays due.
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
    """Measures the last state, and the best so far, on all validation rows of a task; reports the better one.

    The model keeps its weights, and the last checkpoint has the choice. It cannot be interrupted: the run has ended.
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
    """A clone of each tensor."""
    return {name: tensor.clone() for name, tensor in tensors.items()}
