"""A training run: its model, task and state, and its reports, also in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn

from attendo.data.batches import Batch
from attendo.display.formats import duration, plural
from attendo.display.width import fitted
from attendo.training.acceleration import build_scaler
from attendo.training.checkpoints import CheckpointConfig, Progress
from attendo.training.distributed import ALONE, Ranks
from attendo.training.lora import OFF, LoraConfig
from attendo.training.optimizer import TrainingConfig, WeightAverage, build_optimizer
from attendo.training.parallel import TrainStepExecutor
from attendo.training.stopping import Clock


class Task(Protocol):
    """A task of the loop: batches, an evaluation, and which of two values is better."""

    def batches(self, seed: int, epoch: int, start: int) -> Sequence[Batch]:
        """The batches of an epoch from number `start` on: a pure function, read lazily, of known length."""
        ...

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """The measures on the validation set; the ranks may share the work, and the first one's result counts."""
        ...

    def better(self, value: float, than: float) -> bool:
        """Whether one value of the deciding metric beats another."""
        ...

    @property
    def final(self) -> Task | None:
        """The task with all validation rows, for the last choice; None where each evaluation has all of them."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for the card: rows, tokens, hashes."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """Measures by name, the deciding one, and some samples of (input, wanted, given) texts."""

    measures: dict[str, float]
    deciding: str
    samples: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The deciding measure."""
        return self.measures[self.deciding]


@dataclass(frozen=True)
class Report:
    """An action of a run: an update, a skipped update, an evaluation, a checkpoint, the end, or advice of the coach.

    evaluation: at the end that of the state that was kept, if it is known.
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


class Interrupted(Exception):
    """Raised inside work that can be interrupted at any instant, when the run is to stop."""


@dataclass
class Run:
    """A model in training, and all state that the loop changes. folder: of the checkpoints; None: none are kept.

    ranks: the processes that train it. lora: adapters that are trained in place of its weights. stopping: all ranks
    save and return; see `stop`. executor: computes losses and gradients; its `trained_model` has the parameters that
    the optimizer changes.
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
        """Within it the model has the weights of evaluations: whole, averaged if set. All ranks enter it together."""
        average = self.average
        averaged = nullcontext() if average is None else average.swapped(self.executor.trained_model)
        with averaged, self.executor.whole():
            yield

    @property
    def save_every(self) -> int:
        """Steps between two checkpoints."""
        return self.checkpoint.every_steps or self.training.evaluate_every

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return next(self.model.parameters()).device

    def sync_ranks(self, loss: float) -> float:
        """The sum of a loss over the ranks, which also agree on the time spent, and on whether to stop."""
        if self.ranks.world == 1:
            return loss
        cpu, wall = self.clock.elapsed()
        own = [loss, float(self._asked_to_stop), cpu, wall if self.ranks.is_first else 0.0]
        loss, n_asked, cpu, wall = self.ranks.total(torch.tensor(own, dtype=torch.float64)).tolist()
        self.stopping = n_asked > 0
        self.clock.agree(cpu, wall)
        return loss

    def stop(self) -> None:
        """Makes the loop save and return soon; a signal handler may call it, and it may raise Interrupted.

        Several ranks end after the same update, which the next `sync_ranks` decides.
        """
        self._asked_to_stop = True
        if self.ranks.world == 1:
            self.stopping = True
        if self._can_be_interrupted:
            self.interrupt()

    def interrupt(self) -> None:
        """Interrupts the present work."""
        self._can_be_interrupted = False
        raise Interrupted

    @contextmanager
    def interruption(self) -> Iterator[None]:
        """Around work without effects: within it `stop` raises Interrupted at any instant."""
        try:
            self._can_be_interrupted = self.ranks.world == 1  # other ranks would wait
            if self._can_be_interrupted and self.stopping:
                self.interrupt()
            yield
        finally:
            self._can_be_interrupted = False


# ---- reports in words


WIDTH = 79
_FORMS: dict[str, Callable[[float], str]] = {
    "bleu": "BLEU {:.1f}".format,
    "chrf": "chrF {:.1f}".format,
    "exact": "exact {:.1f} %".format,
    "loss": "loss {:.3f}".format,
    "perplexity": "perplexity {:.2f}".format,
    "bits_per_byte": "{:.3f} bits a byte".format,
    "accuracy": lambda share: f"accuracy {100 * share:.1f} %",
    "macro_f1": lambda share: f"macro-F1 {100 * share:.1f} %",
    "ece": lambda share: f"calibration error {100 * share:.1f} %",
}
_NAMES = {"chrf": "chrF", "macro_f1": "macro-F1"}
"""Deciding measures that are written differently from their names."""


def report_lines(report: Report) -> list[str]:
    """The lines of a report; none for an ordinary update and a checkpoint."""
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
            from attendo.training.coach import advice_lines

            return advice_lines(report.note)
        case "step" | "skipped" if report.note:
            return [f"step {done.step:,}: {report.note}"]
        case _:
            return []


def evaluation_lines(report: Report) -> list[str]:
    """An evaluation's measures, and a sample: input, output and wanted text.

    The sample of translations is always the first, which becomes better; that of labels changes.
    """
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
    are_labels = "macro_f1" in report.evaluation.measures
    samples = report.evaluation.samples
    at = report.progress.step % len(samples) if are_labels and samples else 0
    for source, wanted, given in samples[at : at + 1]:
        right = f"{given} (right)" if are_labels else given
        texts = [("  ", source), *([("→ ", right)] if given == wanted else [("→ ", given), ("≠ ", wanted)])]
        lines += [fitted(f"    {mark}{' '.join(text.splitlines())}", WIDTH) for mark, text in texts]
    return lines


def kept_lines(report: Report) -> list[str]:
    """The kept state and its deciding measure, a loss with its perplexity; advice where counting words is better."""
    if report.evaluation is None:
        return []
    deciding, measures = report.evaluation.deciding, report.evaluation.measures
    shown = {deciding, "perplexity"} if deciding == "loss" else {deciding}
    chosen = {name: value for name, value in measures.items() if name in shown}
    lines = [", ".join([f"kept: step {report.progress.best_step:,}", *measured(chosen)])]
    counting = measures.get(f"{deciding}_counting_words", -math.inf)
    if report.evaluation.value < counting:
        [reached] = measured({deciding: counting})
        lines += [
            f"counting words does better, {reached}: give it more rows,",
            "    or a start that has read other texts (masked-language-model, `init_from`)",
        ]
    return lines


def counted(measures: Mapping[str, float]) -> list[str]:
    """The measures of counting words on the same texts, in words; none where it was not tried.

    >>> counted({"accuracy": 0.9, "accuracy_counting_words": 0.875, "macro_f1_counting_words": 0.75})
    ['counting words: accuracy 87.5 %, macro-F1 75.0 %']
    """
    names = [name for name in _FORMS if f"{name}_counting_words" in measures]
    found = {name: measures[f"{name}_counting_words"] for name in names}
    return [f"counting words: {', '.join(measured(found))}"] if found else []


def measured(measures: Mapping[str, float]) -> list[str]:
    """The measures that have a form for people, in words.

    >>> measured({"loss": 0.5, "accuracy": 0.875, "macro_f1": 0.75})
    ['loss 0.500', 'accuracy 87.5 %', 'macro-F1 75.0 %']
    """
    return [form(measures[name]) for name, form in _FORMS.items() if name in measures]
