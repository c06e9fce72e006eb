"""What a run has spent, over all its sittings: CPU time of all threads and wall time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attendo.training.optimizer import TrainingConfig
    from attendo.training.state import Progress


@dataclass
class Clock:
    """Counts from its making, or from `cpu_start` and `wall_start`: a command counts from the process's start."""

    cpu_start: float = field(default_factory=time.process_time)
    wall_start: float = field(default_factory=time.monotonic)
    _before: tuple[float, float] = (0.0, 0.0)
    _agreed: tuple[float, float] | None = None
    _first_step: tuple[int, float] | None = None

    @classmethod
    def of_process(cls) -> Clock:
        """A clock that started with the process, for a command: loading torch costs the user's time, too.

        When Python itself started is not known to it; the CPU time it has spent since is the nearest to that.
        """
        return cls(cpu_start=0.0, wall_start=time.monotonic() - time.process_time())

    def resume(self, progress: Progress) -> None:
        """Adds what earlier sittings spent."""
        self._before = (progress.cpu_seconds, progress.wall_seconds)
        self._first_step = None

    def elapsed(self) -> tuple[float, float]:
        """CPU and wall seconds of this process in this sitting."""
        return time.process_time() - self.cpu_start, time.monotonic() - self.wall_start

    def agree(self, cpu_seconds: float, wall_seconds: float) -> None:
        """What several processes have spent together counts from now on, so that all decide the same."""
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
        """The pace of this sitting, evaluations and checkpoints included; None before it can be told."""
        spent = self.spent(progress, config)
        if self._first_step is None:
            self._first_step = (progress.step, spent)
        steps = progress.step - self._first_step[0]
        return (spent - self._first_step[1]) / steps if steps >= 5 else None
