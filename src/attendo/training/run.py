"""A training run: its model, task and state, its end (steps, epochs, time or a signal), and its reports as text."""

from __future__ import annotations

import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from types import FrameType
from typing import Any, Literal, Protocol

import torch
from torch import nn

from attendo.data.batches import Batch
from attendo.display.formats import duration, plural
from attendo.display.width import fitted
from attendo.training.acceleration import build_scaler
from attendo.training.checkpoints import CheckpointConfig, Progress
from attendo.training.distributed import ALONE, Ranks
from attendo.training.losses import TrainStepExecutor
from attendo.training.optimizer import (
    OFF,
    Horizon,
    LoraConfig,
    TrainingConfig,
    WeightAverage,
    build_optimizer,
)


@dataclass
class Clock:
    """Clock that counts CPU and wall-clock seconds from its creation, or from `cpu_start` and `wall_start`."""

    cpu_start: float = field(default_factory=time.process_time)
    wall_start: float = field(default_factory=time.monotonic)
    _before: tuple[float, float] = (0.0, 0.0)
    _agreed: tuple[float, float] | None = None
    _first_step: tuple[int, float] | None = None

    @classmethod
    def of_process(cls) -> Clock:
        """Return a clock that started with the process, so the time for loading PyTorch is included.

        The wall time before this call is assumed to be equal to the CPU time.
        """
        return cls(cpu_start=0.0, wall_start=time.monotonic() - time.process_time())

    def resume(self, progress: Progress) -> None:
        """Add the time of earlier sessions, which the progress contains."""
        self._before = (progress.cpu_seconds, progress.wall_seconds)
        self._first_step = None

    def elapsed(self) -> tuple[float, float]:
        """Return the CPU seconds and the wall-clock seconds of this process in this session."""
        return time.process_time() - self.cpu_start, time.monotonic() - self.wall_start

    def agree(self, cpu_seconds: float, wall_seconds: float) -> None:
        """Set the elapsed time to the values agreed on by all processes, so that they make the same decisions."""
        self._agreed = cpu_seconds, wall_seconds

    def note(self, progress: Progress) -> None:
        """Write the time spent so far into the progress."""
        cpu, wall = self.elapsed() if self._agreed is None else self._agreed
        progress.cpu_seconds = self._before[0] + cpu
        progress.wall_seconds = self._before[1] + wall

    def spent(self, progress: Progress, config: TrainingConfig) -> float:
        """Return the seconds spent so far: wall time if `minutes` is set, otherwise CPU time."""
        self.note(progress)
        return progress.wall_seconds if config.minutes is not None else progress.cpu_seconds

    def seconds_per_step(self, progress: Progress, config: TrainingConfig) -> float | None:
        """Return the mean seconds per step in this session, or None in its first 5 steps.

        The time of evaluations and checkpoints is included.
        """
        spent = self.spent(progress, config)
        if self._first_step is None:
            self._first_step = (progress.step, spent)
        steps = progress.step - self._first_step[0]
        return (spent - self._first_step[1]) / steps if steps >= 5 else None


class Task(Protocol):
    """A task for the training loop: batches, an evaluation, and the comparison of two results."""

    def batches(self, seed: int, epoch: int, start: int) -> Sequence[Batch]:
        """Return the batches of an epoch from number `start` on. The result depends only on the arguments.

        Batches are created when they are used, and their number is known in advance.

        Args:
            seed: The random seed of the run.
            epoch: The number of the epoch, from 0.
            start: The number of the first batch to return, from 0.
        """
        ...

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Return the measures on the validation set. Only the result of the first rank is used.

        Args:
            model: The model in training.
            ranks: The processes that can share the evaluation.
        """
        ...

    def better(self, value: float, than: float) -> bool:
        """Return whether one value of the deciding measure is better than another value.

        Args:
            value: The new value of the deciding measure.
            than: The value to compare with.
        """
        ...

    @property
    def final(self) -> Task | None:
        """The task with all validation rows for the final evaluation, or None if every evaluation uses all rows."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return facts about the training data for the model card, for example the numbers of rows and tokens."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation: its measures by name, the name of the measure that selects the best model, and samples.

    Each sample consists of the texts (input, target, output).
    """

    measures: dict[str, float]
    deciding: str
    samples: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The value of the deciding measure."""
        return self.measures[self.deciding]


@dataclass(frozen=True)
class Report:
    """Report of one action of a run, for example an update, an evaluation, a checkpoint or advice of the coach.

    Attributes:
        loss, rate: Training loss of an update in nats per target, and its learning rate.
        gradient_norm: Norm of the gradient before clipping.
        evaluation: Result of an evaluation. The report of the end has the result of the kept model, if it is known.
        is_best: Whether an evaluation is the best so far.
        note: Additional text, for example the reason why the run has ended.
        done: Completed share of the run, from 0 to 1.
    """

    kind: Literal["step", "skipped", "evaluation", "checkpoint", "advice", "end"]
    progress: Progress
    loss: float = math.nan
    rate: float = math.nan
    gradient_norm: float = math.nan
    evaluation: Evaluation | None = None
    is_best: bool = False
    note: str = ""
    done: float = 0.0


class Interrupted(BaseException):
    """Exception that stops work which can be interrupted at any time, because the run has to stop.

    It is no `Exception`, so a user's reward function does not catch it.
    """


@dataclass
class Run:
    """A model in training, with all state that the training loop changes.

    Attributes:
        folder: The folder of the checkpoints, or None to save no checkpoints.
        ranks: The processes that train the model.
        lora: The settings of adapters, which are trained instead of the weights.
        stopping: Whether all ranks have to save and return, as requested by `stop`.
        executor: Executor of training steps. Its `trained_model` has the parameters that the optimizer changes.
    """

    model: nn.Module
    task: Task
    training: TrainingConfig
    checkpoint: CheckpointConfig
    folder: Path | None
    progress: Progress = field(default_factory=Progress)
    clock: Clock = field(default_factory=Clock)
    ranks: Ranks = ALONE
    lora: LoraConfig = OFF
    stopping: bool = False
    _asked_to_stop: bool = False
    _can_be_interrupted: bool = False

    def __post_init__(self):
        self.executor = TrainStepExecutor(self.model, self.training, self.ranks, self.lora)
        self.optimizer = build_optimizer(self.executor.trained_model, self.training)
        self.scaler = build_scaler(self.training.precision, self.device)
        decay = self.training.ema_decay
        self.average = WeightAverage(self.executor.trained_model, decay) if decay else None

    @contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        """Use the weights for evaluation during the `with` block: whole weights, averaged if `ema_decay` is set.

        All ranks must enter the block together.
        """
        average = self.average
        averaged = nullcontext() if average is None else average.swapped(self.executor.trained_model)
        with averaged, self.executor.whole():
            yield

    @property
    def save_every(self) -> int:
        """Number of steps between two checkpoints."""
        return self.checkpoint.every_steps or self.training.evaluate_every

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def sync_ranks(self, loss: float) -> float:
        """Return the sum of a loss over the ranks. The ranks also agree on the elapsed time and on whether to stop.

        Args:
            loss: The loss of this rank.
        """
        if self.ranks.world == 1:
            return loss
        cpu, wall = self.clock.elapsed()
        own = [loss, float(self._asked_to_stop), cpu, wall if self.ranks.is_first else 0.0]
        loss, n_asked, cpu, wall = self.ranks.total(torch.tensor(own, dtype=torch.float64)).tolist()
        self.stopping = n_asked > 0
        self.clock.agree(cpu, wall)
        return loss

    def stop(self) -> None:
        """Make the training loop save the run and return soon. A signal handler may call this method.

        The method may raise Interrupted. Several ranks stop after the same update (see `sync_ranks`).
        """
        self._asked_to_stop = True
        if self.ranks.world == 1:
            self.stopping = True
        if self._can_be_interrupted:
            self.interrupt()

    def interrupt(self) -> None:
        """Abandon the current work by an exception.

        Raises:
            Interrupted: Always.
        """
        self._can_be_interrupted = False
        raise Interrupted

    @contextmanager
    def interruption(self) -> Iterator[None]:
        """Allow `stop` to raise Interrupted at any time during the `with` block, which must have no side effects."""
        try:
            self._can_be_interrupted = self.ranks.world == 1  # other ranks would wait for this one
            if self._can_be_interrupted and self.stopping:
                self.interrupt()
            yield
        finally:
            self._can_be_interrupted = False


# ---- the end of a run


def plan_end(run: Run) -> str | None:
    """Decide when the decay starts and when the run ends. Return the reason for the end, or None before the end.

    With a number of steps or epochs, both decisions are known from the start. With a time budget, the clock decides
    when the decay starts. The last step is then computed from the speed so far. The progress stores both decisions.
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
        return f"no improvement in {config.patience} evaluations (early stopping)"
    return None


def horizon(run: Run, spent: float) -> Horizon:
    """Return the start of the decay and the end of the run, in steps.

    With a time budget, both values are None as long as more time is left than the decay takes.
    """
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
    """Return the total number of updates if the run is limited by steps or epochs, otherwise None."""
    config = run.training
    if config.steps is not None:
        return config.steps
    if config.epochs is not None:
        per_epoch = math.ceil(len(run.task.batches(config.seed, 0, 0)) / config.accumulation)
        return max(1, math.ceil(per_epoch * config.epochs))
    return None


def share_done(run: Run) -> float:
    """Return the completed share of a run, from 0 to 1."""
    end = run.progress.horizon.end
    if run.training.seconds is None and end:
        return min(1.0, run.progress.step / end)
    return min(1.0, run.clock.spent(run.progress, run.training) / (run.training.seconds or math.inf))


def standing(run: Run) -> str:
    """Describe the progress of a resumed run and its limit as text."""
    progress, config = run.progress, run.training
    if (total := total_steps(run)) is not None:
        return f"{progress.step:,} of {total:,} steps"
    assert config.seconds is not None, "the config has exactly one end"
    on_wall = config.minutes is not None
    spent = progress.wall_seconds if on_wall else progress.cpu_seconds
    unit = "seconds" if on_wall else "CPU-seconds"
    return f"{plural(progress.step, 'step')}, {spent:,.0f} of {config.seconds:,.0f} {unit} used"


def more_time(run: Run) -> str:
    """Return the option that doubles the time budget, as the end of a sentence. Without a time budget, return ""."""
    config = run.training
    if config.seconds is None:
        return ""
    option = "`minutes`" if config.minutes is not None else "`cpu_minutes`"
    return f", or {option} {2 * config.seconds / 60:g} in total"


def due(step: int, every: int) -> bool:
    """Return whether an action with an interval of `every` steps (0: never) is due after this step."""
    return every > 0 and step % every == 0


# ---- signals


class Stopped:
    """Recorder of SIGINT and SIGTERM, which lets the run save first. After a signal, `code` is the exit code."""

    def __init__(self, stop: Callable[[], None]):
        self.stop = stop
        self.code: int | None = None
        self.before: dict[signal.Signals, Any] = {}

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: call `stop`. A second signal calls the earlier handler, or has the default effect."""
        if self.code is not None:
            signal.signal(number, self.before.get(signal.Signals(number), signal.SIG_DFL))
            signal.raise_signal(number)
            return
        self.code = 128 + number
        self.stop()

    def leave(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was recorded, or SystemExit(143) if SIGTERM was recorded."""
        if self.code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        if self.code is not None:
            raise SystemExit(self.code)


@contextmanager
def stopping(stop: Callable[[], None], ends_process: bool = True) -> Iterator[Stopped]:
    """Make SIGINT and SIGTERM call `stop` during the `with` block.

    A second signal ends the process. If `ends_process` is False, the second signal calls the earlier handlers.
    """
    stopped = Stopped(stop)
    if threading.current_thread() is not threading.main_thread():  # signals require it
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


# ---- reports in words


WIDTH = 79
_FORMS: dict[str, Callable[[float], str]] = {
    "bleu": "BLEU {:.1f}".format,
    "chrf": "chrF {:.1f}".format,
    "exact": "exact {:.1f}%".format,
    "loss": "loss {:.3f}".format,
    "perplexity": "perplexity {:.2f}".format,
    "bits_per_byte": "{:.3f} bits per byte".format,
    "accuracy": lambda share: f"accuracy {100 * share:.1f}%",
    "macro_f1": lambda share: f"macro-F1 {100 * share:.1f}%",
    "f1": lambda share: f"span F1 {100 * share:.1f}%",
    "micro_f1": lambda share: f"micro-F1 {100 * share:.1f}%",
    "mae": "mean absolute error {:.4g}".format,
    "rmse": "root mean square error {:.4g}".format,
    "r2": "R² {:.3f}".format,
    "precision": lambda share: f"precision {100 * share:.1f}%",
    "recall": lambda share: f"recall {100 * share:.1f}%",
    "reward": "reward {:.3f}".format,
    "ended": lambda share: f"ended {100 * share:.0f}%",
    "ece": lambda share: f"calibration error {100 * share:.1f}%",
}
LOWER_IS_BETTER = ("loss", "perplexity", "bits_per_byte", "ece", "mae", "rmse")
"""Measures whose lower values are better. Higher values of all other measures are better."""
_NAMES = {"chrf": "chrF", "macro_f1": "macro-F1", "f1": "span F1"}
"""Deciding measures that are written differently from their names."""


def report_lines(report: Report) -> list[str]:
    """Return the lines of a report as text. Reports of ordinary updates and of checkpoints have no lines."""
    done = report.progress
    match report.kind:
        case "evaluation":
            return evaluation_lines(report)
        case "end":
            return [
                f"done: {report.note}; {plural(done.step, 'step')} in {duration(done.wall_seconds)}"
                f" ({done.cpu_seconds:,.0f} CPU-seconds)",
                *kept_lines(report),
            ]
        case "advice":
            return advice_lines(report.note)
        case "step" | "skipped" if report.note:
            return [f"step {done.step:,}: {report.note}"]
        case _:
            return []


def advice_lines(note: str) -> list[str]:
    """Format the `note` of an Advice as lines for a terminal, three lines at most.

    >>> advice_lines("the loss is high; lower it")
    ['coach: the loss is high; lower it']
    """
    # non-breaking spaces keep each command on one line
    whole = re.sub(r"(--set|attendo) (?=\w)", "\\1\xa0", f"coach: {note}")
    lines = wrap(whole, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def evaluation_lines(report: Report) -> list[str]:
    """Format the measures of an evaluation as lines, followed by a sample: input, output and target."""
    assert report.evaluation is not None
    first, *parts = measured(report.evaluation.measures)
    deciding = report.evaluation.deciding
    if report.note:
        parts.append(f"({report.note})")
    if report.is_best and not report.note.startswith("all"):
        parts.append(f"best {_NAMES.get(deciding, deciding)} so far")
    lines = [f"step {report.progress.step:,}: {first}"]
    for part in parts:
        if len(lines[-1]) + 2 + len(part) <= WIDTH:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"    {part}")
    are_labels = not {"macro_f1", "f1"}.isdisjoint(report.evaluation.measures)
    samples = report.evaluation.samples
    at = report.progress.step % len(samples) if are_labels and samples else 0
    for source, wanted, given in samples[at : at + 1]:
        right = f"{given} (right)" if are_labels else given
        texts = [("  ", source), *([("→ ", right)] if given == wanted else [("→ ", given), ("≠ ", wanted)])]
        lines += [fitted(f"    {mark}{' '.join(text.splitlines())}", WIDTH) for mark, text in texts]
    return lines


def kept_lines(report: Report) -> list[str]:
    """Return lines about the kept model: its step and its deciding measure (for a loss, also perplexity and accuracy).

    For a classifier, they also contain the scores of its parts, and advice if the share of the encoder is small.
    """
    if report.evaluation is None:
        return []
    deciding, measures = report.evaluation.deciding, report.evaluation.measures
    shown = {deciding, "perplexity", "accuracy"} if deciding == "loss" else {deciding}
    chosen = {name: value for name, value in measures.items() if name in shown}
    lines = [
        ", ".join([f"kept: step {report.progress.best_step:,}", *measured(chosen)]),
        *parts_alone(measures),
    ]
    if measures.get("share", 1.0) < LEAST_SHARE:
        lines += [
            "the encoder has hardly any share, so the n-grams decide nearly alone:",
            "    give more rows, or start from a masked-language-model run (`init_from`)"
            if report.progress.epoch
            else "    the run ended within its first epoch, so give it more time",
        ]
    return lines


LEAST_SHARE = 0.075
"""The share of a classifier's encoder below which advice is printed."""


def parts_alone(measures: Mapping[str, float]) -> list[str]:
    """Format the accuracy of a classifier's n-grams and encoder alone. For other models, the list is empty.

    >>> parts_alone({"accuracy": 0.9, "accuracy_ngrams": 0.875, "accuracy_encoder": 0.85, "share": 0.4})
    ['accuracy of the n-grams alone 87.5%, of the encoder alone 85.0%; share of the encoder 40%']
    """
    if "share" not in measures or "accuracy_ngrams" not in measures:
        return []
    ngrams, encoder = measures["accuracy_ngrams"], measures["accuracy_encoder"]
    return [
        f"accuracy of the n-grams alone {ngrams:.1%}, of the encoder alone {encoder:.1%};"
        f" share of the encoder {measures['share']:.0%}"
    ]


def measured(measures: Mapping[str, float]) -> list[str]:
    """Format the measures that have a display format as text. Other measures are left out.

    >>> measured({"loss": 0.5, "accuracy": 0.875, "macro_f1": 0.75})
    ['loss 0.500', 'accuracy 87.5%', 'macro-F1 75.0%']
    """
    return [form(measures[name]) for name, form in _FORMS.items() if name in measures]
