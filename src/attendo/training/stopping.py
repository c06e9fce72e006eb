"""The end of a run: after its steps, epochs or time budget, without progress, or on a signal."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attendo.display.formats import plural
from attendo.training.optimizer import Horizon

if TYPE_CHECKING:
    from types import FrameType

    from attendo.training.checkpoints import Progress
    from attendo.training.optimizer import TrainingConfig
    from attendo.training.run import Run


@dataclass
class Clock:
    """Counts from its creation, or from `cpu_start` and `wall_start`."""

    cpu_start: float = field(default_factory=time.process_time)
    wall_start: float = field(default_factory=time.monotonic)
    _before: tuple[float, float] = (0.0, 0.0)
    _agreed: tuple[float, float] | None = None
    _first_step: tuple[int, float] | None = None

    @classmethod
    def of_process(cls) -> Clock:
        """A clock that started with the process, so that it counts loading torch; wall time starts CPU seconds ago."""
        return cls(cpu_start=0.0, wall_start=time.monotonic() - time.process_time())

    def resume(self, progress: Progress) -> None:
        """Adds the time of earlier sessions."""
        self._before = (progress.cpu_seconds, progress.wall_seconds)
        self._first_step = None

    def elapsed(self) -> tuple[float, float]:
        """CPU and wall seconds of this process in this session."""
        return time.process_time() - self.cpu_start, time.monotonic() - self.wall_start

    def agree(self, cpu_seconds: float, wall_seconds: float) -> None:
        """Counts the time of several processes together from now on, so that all decide the same."""
        self._agreed = cpu_seconds, wall_seconds

    def note(self, progress: Progress) -> None:
        """Writes the time spent so far into the progress."""
        cpu, wall = self.elapsed() if self._agreed is None else self._agreed
        progress.cpu_seconds = self._before[0] + cpu
        progress.wall_seconds = self._before[1] + wall

    def spent(self, progress: Progress, config: TrainingConfig) -> float:
        """Seconds spent on the clock that the budget names (CPU unless `minutes` was given)."""
        self.note(progress)
        return progress.wall_seconds if config.minutes is not None else progress.cpu_seconds

    def seconds_per_step(self, progress: Progress, config: TrainingConfig) -> float | None:
        """The pace of this session, evaluations and checkpoints included; None in its first 5 steps."""
        spent = self.spent(progress, config)
        if self._first_step is None:
            self._first_step = (progress.step, spent)
        steps = progress.step - self._first_step[0]
        return (spent - self._first_step[1]) / steps if steps >= 5 else None


def plan_end(run: Run) -> str | None:
    """Decides when the decay starts and when the run ends; returns the reason once it has ended.

    With a number of steps or epochs both are known from the start. With a time budget the clock decides the start of
    the decay, and at that step, by the pace so far, the last step; both are kept in the progress.
    """
    progress, config = run.progress, run.training
    spent = run.clock.spent(progress, config)
    if progress.horizon.end is None:
        progress.horizon = horizon(run, spent)
    if progress.horizon.end is not None and progress.step >= progress.horizon.end:
        return f"all {progress.horizon.end:,} steps done" if config.seconds is None else "time budget used"
    if config.seconds is not None and spent >= config.seconds:
        return "time budget used"
    if config.patience and progress.evaluations_since_best >= config.patience:
        return f"no better for {config.patience} evaluations"
    return None


def horizon(run: Run, spent: float) -> Horizon:
    """The start of the decay and the end, in steps; open while a time budget has more left than the decay takes."""
    progress, config = run.progress, run.training
    if (total := total_steps(run)) is not None:
        return Horizon(round(total * (1 - config.decay_share)), total)
    assert config.seconds is not None, "the config has exactly one end"
    pace = run.clock.seconds_per_step(progress, config)
    left = config.seconds * (1 - config.reserve_share) - spent
    if pace is None or left > config.decay_share * config.seconds:
        return Horizon()
    return Horizon(progress.step, progress.step + max(1, int(left / pace)))


def total_steps(run: Run) -> int | None:
    """The number of updates of a run with steps or epochs, otherwise None."""
    config = run.training
    if config.steps is not None:
        return config.steps
    if config.epochs is not None:
        per_epoch = math.ceil(len(run.task.batches(config.seed, 0, 0)) / config.accumulation)
        return max(1, math.ceil(per_epoch * config.epochs))
    return None


def share_done(run: Run) -> float:
    """The finished share of a run, from 0 to 1."""
    end = run.progress.horizon.end
    if run.training.seconds is None and end:
        return min(1.0, run.progress.step / end)
    return min(1.0, run.clock.spent(run.progress, run.training) / (run.training.seconds or math.inf))


def standing(run: Run) -> str:
    """The progress of a run that continues, and its end."""
    progress, config = run.progress, run.training
    if (total := total_steps(run)) is not None:
        return f"{progress.step:,} of {total:,} steps"
    assert config.seconds is not None, "the config has exactly one end"
    on_wall = config.minutes is not None
    spent = progress.wall_seconds if on_wall else progress.cpu_seconds
    unit = "seconds" if on_wall else "CPU-seconds"
    return f"{plural(progress.step, 'step')}, {spent:,.0f} of {config.seconds:,.0f} {unit} used"


def more_time(run: Run) -> str:
    """The setting that doubles a time budget, to continue a sentence; "" for another end."""
    config = run.training
    if config.seconds is None:
        return ""
    option = "`minutes`" if config.minutes is not None else "`cpu_minutes`"
    return f", or {option} {2 * config.seconds / 60:g} in all"


def due(step: int, every: int) -> bool:
    """Whether an action of every `every` steps (0 = never) is due after this step."""
    return every > 0 and step % every == 0


# ---- signals


class Stopped:
    """Notes SIGINT and SIGTERM, so that a run can save first; `code` is then the exit code.

    before: the handlers of a second signal; without one it ends the process at once.
    """

    def __init__(self, stop: Callable[[], None]):
        self.stop = stop
        self.code: int | None = None
        self.before: dict[signal.Signals, Any] = {}

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if self.code is not None:
            signal.signal(number, self.before.get(signal.Signals(number), signal.SIG_DFL))
            signal.raise_signal(number)
            return
        self.code = 128 + number
        self.stop()

    def leave(self) -> None:
        """Raises KeyboardInterrupt for a noted Ctrl-C, and SystemExit(143) for SIGTERM."""
        if self.code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        if self.code is not None:
            raise SystemExit(self.code)


@contextmanager
def stopping(stop: Callable[[], None], ends_process: bool = True) -> Iterator[Stopped]:
    """Within it, the two signals call `stop` instead of ending the process.

    ends_process: whether a second signal ends the process; otherwise the handlers from before get it.
    """
    stopped = Stopped(stop)
    if threading.current_thread() is not threading.main_thread():  # only the main one may handle signals
        yield stopped
        return
    before = {number: signal.signal(number, stopped.note) for number in (signal.SIGINT, signal.SIGTERM)}
    if not ends_process:
        stopped.before = before
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
