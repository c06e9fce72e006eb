"""When a run ends: by steps, epochs, a budget of time or patience; decided once, and kept."""

from __future__ import annotations

import math

from attendo.display.formats import plural
from attendo.training.optimizer import Horizon
from attendo.training.run import Run


def plan_end(run: Run) -> str | None:
    """Decides when the decay starts and when the run ends; gives the reason once it has ended.

    With a number of steps or epochs both are known from the start. With a budget of time the clock decides the
    start of the decay, and there, from the pace so far, its last step; both are kept in the progress.
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
    """Start of the decay and end, in steps; still open while a budget of time has more left than the decay takes."""
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
    """The number of updates where steps or epochs were asked for, else None."""
    config = run.training
    if config.steps is not None:
        return config.steps
    if config.epochs is not None:
        per_epoch = math.ceil(len(run.task.batches(config.seed, 0, 0)) / config.accumulation)
        return max(1, math.ceil(per_epoch * config.epochs))
    return None


def share_done(run: Run) -> float:
    """How much of the run is behind it, from 0 to 1."""
    end = run.progress.horizon.end
    if run.training.seconds is None and end:
        return min(1.0, run.progress.step / end)
    return min(1.0, run.clock.spent(run.progress, run.training) / (run.training.seconds or math.inf))


def standing(run: Run) -> str:
    """How far a run is that has yet to go on, and what it aims at."""
    progress, config = run.progress, run.training
    if (total := total_steps(run)) is not None:
        return f"{progress.step:,} of {total:,} steps"
    assert config.seconds is not None, "the config has exactly one end"
    on_wall = config.minutes is not None
    spent = progress.wall_seconds if on_wall else progress.cpu_seconds
    unit = "seconds" if on_wall else "CPU-seconds"
    return f"{plural(progress.step, 'step')}, {spent:,.0f} of {config.seconds:,.0f} {unit} used"


def more_time(run: Run) -> str:
    """The option that doubles a budget of time, as a sentence goes on with it; "" where another end was set."""
    config = run.training
    if config.seconds is None:
        return ""
    option = "`minutes`" if config.minutes is not None else "`cpu_minutes`"
    return f", or {option} {2 * config.seconds / 60:g} in all"


def due(step: int, every: int) -> bool:
    """Whether something done every so many steps (0 = never) is due after this one."""
    return every > 0 and step % every == 0
