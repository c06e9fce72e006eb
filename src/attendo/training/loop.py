"""The training loop, visible in one piece: every kind of model and task goes through it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from typing import TypeVar

import torch
from torch import Tensor

from attendo.data.batches import Batch
from attendo.training.checkpoints import (
    Saver,
    average_weights,
    load_state,
    load_weights,
    place_of,
    random_states,
    regular_checkpoints,
    require_finite,
    set_random_states,
    snapshot,
    weights_of,
)
from attendo.training.distributed import Ranks
from attendo.training.run import Evaluation, Interrupted, Report, Run, Task
from attendo.training.stopping import due, plan_end, share_done
from attendo.training.update import try_largest_batches, update

T = TypeVar("T")


def prefetched(items: Iterable[T], ahead: int) -> Generator[T]:
    """The items in their order, up to `ahead` of them made by a thread before they are asked for; 0 = without one.

    An error in making one comes where that item would. Closing the iterator ends the thread.

    >>> list(prefetched(range(5), 2))
    [0, 1, 2, 3, 4]
    """
    if ahead < 1:
        yield from items
        return
    made: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(ahead)
    closed = threading.Event()

    def hand_over(entry: tuple[bool, T | BaseException | None]) -> None:
        while not closed.is_set():
            try:
                made.put(entry, timeout=0.1)
                return
            except queue.Full:
                pass

    def make() -> None:
        try:
            for item in items:
                hand_over((True, item))
                if closed.is_set():
                    return
            hand_over((False, None))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asks
            hand_over((False, error))

    thread = threading.Thread(target=make, name="loading", daemon=True)
    thread.start()
    try:
        while True:
            is_item, value = made.get()
            if is_item:
                yield value  # pyright: ignore[reportReturnType]
            elif isinstance(value, BaseException):
                raise value
            else:
                return
    finally:
        closed.set()
        thread.join()


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`; the last list may be shorter.

    >>> list(grouped("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    group: list[T] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def train(run: Run) -> Iterator[Report]:
    """Trains until the run's end and reports each thing done; the caller prints, logs and keeps the best.

    Where the run is to stop, all state is saved first, as it was before the piece of work that was left. Raises
    AttendoError where numbers stay infinite or none, and OSError where a checkpoint cannot be written.
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
                    yield from evaluate_average(run, saver)
                if (final := run.task.final) is not None:
                    yield from choose_finally(run, saver, final)
        if run.progress.ended:
            yield Report("end", run.progress, note=run.progress.ended, done=1.0)
        elif saver.last != place_of(run.progress):
            yield from save(run, saver)
    finally:
        saver.wait()


def steps(run: Run, saver: Saver) -> Iterator[Report]:
    """Updates and what is due after each, until the run has ended or is to stop."""
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
    """After a step: decides whether the run has ended; evaluates and saves, if it is time to."""
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
    """Measures the model on the validation set and notes whether it is the best so far."""
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
    """A task's evaluation of the model as it stands, dropout off; random states are untouched.

    It can be interrupted, but not `to_the_end`. Raises AttendoError where a weight is not finite.
    """
    require_finite(run.executor.trained_model, run.progress.step)
    before = random_states()
    run.model.eval()
    try:
        with (
            run.evaluation_weights(),
            torch.inference_mode(),
            nullcontext() if to_the_end else run.interruption(),
        ):
            return agreed(task.evaluate(run.model, run.ranks), run.ranks)
    finally:
        set_random_states(before)


def agreed(evaluation: Evaluation, ranks: Ranks) -> Evaluation:
    """The first rank's evaluation, on all of them: what it decides must be the same to the bit."""
    if ranks.world == 1:
        return evaluation
    values = ranks.broadcast([evaluation.measures, evaluation.deciding, evaluation.samples])
    return Evaluation(values[0], values[1], [(source, wanted, given) for source, wanted, given in values[2]])


def save(run: Run, saver: Saver) -> Iterator[Report]:
    """Hands all state over to be saved; nothing where the run keeps no checkpoints."""
    if saver.folder is None:
        return
    run.clock.note(run.progress)
    run.progress.threads = torch.get_num_threads()
    run.progress.world = run.ranks.world
    run.progress.planned_end = run.training.planned_end
    saver.save(snapshot(run))
    yield Report("checkpoint", run.progress, note=f"step-{run.progress.step}", done=share_done(run))


def evaluate_average(run: Run, saver: Saver) -> Iterator[Report]:
    """Tries the mean of the last checkpoints; the model keeps those weights only if they are the best so far.

    Interrupted, it leaves the run's own weights, and an end that is still to come.
    """
    assert saver.folder is not None
    saver.wait()
    folders = regular_checkpoints(saver.folder, run.save_every)[-run.training.average_last :]
    if len(folders) < 2:
        return
    own = _copies(weights_of(run.executor.trained_model))
    load_weights(run.executor.trained_model, average_weights(folders, own), "the averaged weights")
    try:
        report = evaluate(run)
    except Interrupted:
        load_weights(run.executor.trained_model, own, "the run's weights")
        run.progress.ended = None
        run.progress.evaluation_due = True
        raise
    note = f"mean of the last {len(folders)} checkpoints"
    yield Report(
        "evaluation", run.progress, evaluation=report.evaluation, is_best=report.is_best, note=note, done=1.0
    )
    if not report.is_best:
        load_weights(run.executor.trained_model, own, "the run's weights")


def choose_finally(run: Run, saver: Saver, task: Task) -> Iterator[Report]:
    """Measures the last state, and the best so far, on all validation rows; the better one is reported, to be kept.

    The model keeps its weights, and the last checkpoint has the choice. It cannot be interrupted: the run has ended.
    """
    assert saver.folder is not None
    saver.wait()
    progress = run.progress
    own = _copies(weights_of(run.executor.trained_model))
    average = _copies({} if run.average is None else run.average.tensors)
    step = progress.step
    path = saver.folder / f"step-{progress.best_step}"
    if progress.best_step != step and not path.is_dir():
        return  # what was kept cannot be compared
    try:
        chosen = measure(run, task, to_the_end=True)
        if progress.best_step != step:
            load_state(path, run)
            best = measure(run, task, to_the_end=True)
            if task.better(chosen.value, best.value):
                _put_back(run, own, average)
            else:
                step, chosen = progress.best_step, best
        is_last = step != progress.best_step
        progress.best_step = step
        note = f"all validation rows: step {step:,} is kept"
        yield Report("evaluation", progress, evaluation=chosen, is_best=True, note=note, done=1.0)
    finally:
        _put_back(run, own, average)
    if is_last:
        yield from save(run, saver)


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _put_back(run: Run, own: Mapping[str, Tensor], average: Mapping[str, Tensor]) -> None:
    load_weights(run.executor.trained_model, own, "the run's weights")
    if run.average is not None:
        run.average.load(average)
