"""What the training loop works on, and what it tells: the run, its task, and its reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from attendo.data.batches import Batch
from attendo.training.averages import WeightAverage
from attendo.training.clock import Clock
from attendo.training.compiling import compile_blocks
from attendo.training.distributed import ALONE, Ranks
from attendo.training.lora import OFF, LoraConfig, freeze
from attendo.training.losses import batch_loss
from attendo.training.optimizer import TrainingConfig, build_optimizer
from attendo.training.parallel import Engine
from attendo.training.precision import autocast, build_scaler, recompute_blocks, set_tf32
from attendo.training.products import use_onednn
from attendo.training.state import CheckpointConfig, Progress


class Task(Protocol):
    """What the loop knows of its purpose: batches, a measure, and which of two values is better."""

    def batches(self, seed: int, epoch: int, start: int) -> Sequence[Batch]:
        """The batches of an epoch from number `start` on: a pure function, read lazily, of known length."""
        ...

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """The measures on the validation set; ranks: who may share the work. The first one's result counts."""
        ...

    def better(self, value: float, than: float) -> bool:
        """Whether one value of the deciding metric beats another."""
        ...

    @property
    def final(self) -> Task | None:
        """The task with all validation rows, which the last choice is made on; None where each evaluation has all."""
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
    """What was just done: an update, or one left out; an evaluation; a checkpoint; the end. Or what the coach says.

    evaluation: the one just made; at the end that of the state that was kept, if it is known.
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
    """Raised inside a piece of work that can be left at any instant, because the run is to stop."""


@dataclass
class Run:
    """A model on its way: everything the loop changes. `folder` takes the checkpoints; None: none are kept.

    ranks: the processes that train it. lora: adapters that are trained in place of its weights. stopping: all ranks are
    to save what is done, and return; see `stop`. engine: computes losses and gradients, by all ranks; its model has the
    parameters that the optimizer changes.
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
        if self.training.products == "onednn":
            use_onednn(self.model)
        set_tf32(self.training.precision, self.device)
        freeze(self.model, self.training.frozen)
        how = self.training.parallel, self.ranks, self._prepare, self.lora
        self.engine = Engine(self.model, self._loss, *how)
        self.optimizer = build_optimizer(self.engine.model, self.training)
        self.scaler = build_scaler(self.training.precision, self.device)
        decay = self.training.ema_decay
        self.average = WeightAverage(self.engine.model, decay) if decay else None

    def _prepare(self, model: nn.Module) -> None:
        if self.training.activation_checkpointing:
            recompute_blocks(model)
        if self.training.compile:
            compile_blocks(model)

    def _loss(self, model: nn.Module, batch: Batch, factor: float) -> Tensor:
        with autocast(self.training.precision, self.device):
            return batch_loss(model, batch, self.training.label_smoothing, factor)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Within it the model is as it is evaluated and kept: whole on each rank, with the average of its weights.

        All ranks enter it together.
        """
        averaged = nullcontext() if self.average is None else self.average.swapped(self.engine.model)
        with averaged, self.engine.whole():
            yield

    @property
    def save_every(self) -> int:
        """Steps between two checkpoints."""
        return self.checkpoint.every_steps or self.training.evaluate_every

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def agree(self, loss: float) -> float:
        """The sum of a loss over the ranks; they agree as well on the time that is spent, and on whether to stop."""
        if self.ranks.world == 1:
            return loss
        cpu, wall = self.clock.elapsed()
        own = [loss, float(self._asked_to_stop), cpu, wall if self.ranks.is_first else 0.0]
        total, n_asked, cpu, wall = self.ranks.total(torch.tensor(own, dtype=torch.float64)).tolist()
        self.stopping = n_asked > 0
        self.clock.agree(cpu, wall)
        return total

    def stop(self) -> None:
        """Makes the loop save and return, soon; a signal handler may call it, and it raises Interrupted at times.

        Where there are several ranks, all end after the same update, which the next `agree` decides.
        """
        self._asked_to_stop = True
        if self.ranks.world == 1:
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
            self._can_be_interrupted = self.ranks.world == 1  # others would wait for this one
            if self._can_be_interrupted and self.stopping:
                self.interrupt()
            yield
        finally:
            self._can_be_interrupted = False
