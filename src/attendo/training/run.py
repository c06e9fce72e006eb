"""What the training loop works on, and what it tells: the run, its task, and its reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from attendo.data.batches import Batch
from attendo.training.clock import Clock
from attendo.training.optimizer import TrainingConfig, build_optimizer
from attendo.training.products import use_onednn
from attendo.training.state import CheckpointConfig, Progress


class Trainable(Protocol):
    """What the loop knows of a model, beside that it is a module: hidden states, and the layer that reads them."""

    output_proj: nn.Linear

    def hidden(self, **inputs: Tensor) -> Tensor:
        """States `[*targets, d_model]`, from which each target is predicted."""
        ...


class Task(Protocol):
    """What the loop knows of its purpose: batches, a measure, and which of two values is better."""

    def batches(self, seed: int, epoch: int, start: int) -> Sequence[Batch]:
        """The batches of an epoch from number `start` on: a pure function, read lazily, of known length."""
        ...

    def evaluate(self, model: nn.Module) -> Evaluation:
        """The measures on the validation set."""
        ...

    def better(self, value: float, than: float) -> bool:
        """Whether one value of the deciding metric beats another."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for the card: rows, tokens, hashes."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """Measures by name, the one that decides, and some (input, wanted, given) texts to look at."""

    measures: dict[str, float]
    deciding: str
    samples: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The deciding measure."""
        return self.measures[self.deciding]


@dataclass(frozen=True)
class Report:
    """What the loop has just done: an update, one left out, an evaluation, a checkpoint, or its end."""

    kind: Literal["step", "skipped", "evaluation", "checkpoint", "end"]
    progress: Progress
    loss: float = math.nan
    rate: float = math.nan
    gradient_norm: float = math.nan
    evaluation: Evaluation | None = None
    is_best: bool = False
    note: str = ""
    done: float = 0.0


class Interrupted(Exception):
    """Raised inside a piece of work that can be left at any instant, because the run is to stop."""


@dataclass
class Run:
    """A model on its way: everything the loop changes. `folder` takes the checkpoints; None: none are kept.

    stopping: set from outside by `stop`; the loop then saves what is done and returns.
    """

    model: nn.Module
    task: Task
    training: TrainingConfig
    checkpoint: CheckpointConfig
    folder: Path | None
    progress: Progress = field(default_factory=Progress)
    clock: Clock = field(default_factory=Clock)
    stopping: bool = False
    _can_be_interrupted: bool = False

    def __post_init__(self):
        if self.training.products == "onednn":
            use_onednn(self.model)
        self.optimizer = build_optimizer(self.model, self.training)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def stop(self) -> None:
        """Makes the loop save and return, soon; a signal handler may call it, and it raises Interrupted at times."""
        self.stopping = True
        if self._can_be_interrupted:
            self.interrupt()

    def interrupt(self) -> None:
        """Leaves the work at hand."""
        self._can_be_interrupted = False
        raise Interrupted

    @contextmanager
    def interruption(self) -> Iterator[None]:
        """Around work that changes nothing: within it, `stop` raises Interrupted, at any instant."""
        try:
            self._can_be_interrupted = True
            if self.stopping:
                self.interrupt()
            yield
        finally:
            self._can_be_interrupted = False
