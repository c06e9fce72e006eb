"""The training loop, visible in one piece: every kind of model and task goes through it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from attendo.data.batches import Batch
from attendo.errors import AttendoError
from attendo.training.clock import Clock
from attendo.training.losses import linear_cross_entropy, token_losses
from attendo.training.optimizer import TrainingConfig, build_optimizer, learning_rate
from attendo.training.precision import autocast
from attendo.training.products import use_onednn
from attendo.training.schedules import Horizon
from attendo.training.state import (
    CheckpointConfig,
    Progress,
    average_weights,
    checkpoints,
    load_weights,
    prune_checkpoints,
    save_checkpoint,
)


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
    """What the loop has just done: an update, an evaluation, a checkpoint, or its end."""

    kind: Literal["step", "evaluation", "checkpoint", "end"]
    progress: Progress
    loss: float = math.nan
    rate: float = math.nan
    gradient_norm: float = math.nan
    evaluation: Evaluation | None = None
    is_best: bool = False
    note: str = ""
    done: float = 0.0


@dataclass
class Run:
    """A model on its way: everything the loop changes. `folder` takes the checkpoints; None: none are kept.

    stopping: set from outside (by a signal, say), it makes the loop save after the step it is at, and return.
    """

    model: nn.Module
    task: Task
    training: TrainingConfig
    checkpoint: CheckpointConfig
    folder: Path | None
    progress: Progress = field(default_factory=Progress)
    clock: Clock = field(default_factory=Clock)
    stopping: bool = False

    def __post_init__(self):
        if self.training.products == "onednn":
            use_onednn(self.model)
        self.optimizer = build_optimizer(self.model, self.training)


def train(run: Run) -> Iterator[Report]:
    """Trains until the run's end and reports each thing done; the caller prints, logs and keeps the best.

    The loss of an update is the sum over its real targets, divided once by their number, whatever the padding
    and the accumulation. Raises AttendoError when the loss is not finite.
    """
    progress, config = run.progress, run.training
    run.clock.resume(progress)
    plan_end(run)
    while progress.ended is None:
        batches = run.task.batches(config.seed, progress.epoch, progress.batch)
        for micro_batches in groups(batches, config.accumulation):
            yield update(run, micro_batches)
            if (reason := plan_end(run)) is not None:
                progress.ended = reason
            if due(progress.step, config.evaluate_every) or progress.ended:
                yield evaluate(run)
            every = run.checkpoint.every_steps or config.evaluate_every
            if run.folder and (due(progress.step, every) or progress.ended or run.stopping):
                yield save(run, run.folder)
            if progress.ended:
                break
            if run.stopping:
                return
        else:
            progress.epoch, progress.batch = progress.epoch + 1, 0
            continue
    if run.folder and config.average_last > 1:
        yield from evaluate_average(run, run.folder)
    yield Report("end", progress, note=progress.ended or "", done=1.0)


def update(run: Run, micro_batches: Sequence[Batch]) -> Report:
    """One step of the optimizer on one or several batches."""
    progress, config = run.progress, run.training
    run.model.train()
    n_targets = sum(batch.n_targets for batch in micro_batches)
    device = next(run.model.parameters()).device
    loss = torch.zeros((), device=device)
    for batch in micro_batches:
        with autocast(config.precision, device):
            part = batch_loss(run.model, batch, config.label_smoothing, 1.0 / n_targets)
        part.backward()
        loss += part.detach()
    gradient_norm = float(nn.utils.clip_grad_norm_(run.model.parameters(), config.clip_norm or math.inf))
    if not math.isfinite(gradient_norm):
        raise AttendoError(
            f"the loss is not finite at step {progress.step + 1}; train with a lower training.learning_rate"
            f" (now {config.learning_rate}), then resume from the last checkpoint"
        )
    rate = learning_rate(config, width(run.model), progress.step + 1, progress.horizon)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    progress.step += 1
    progress.batch += len(micro_batches)
    progress.tokens += sum(
        batch.n_targets if batch.n_tokens is None else batch.n_tokens for batch in micro_batches
    )
    return Report("step", progress, float(loss), rate, gradient_norm, done=share_done(run))


def batch_loss(model: nn.Module, batch: Batch, label_smoothing: float, factor: float) -> Tensor:
    """factor times the summed cross-entropy of a batch's real targets; logits of padding are never computed."""
    reader = cast(Trainable, model)
    batch = batch.to(reader.output_proj.weight.device)
    hidden = reader.hidden(**batch.inputs).flatten(0, -2)
    targets = batch.targets.flatten()
    if batch.weights is not None:  # for classes, which are few
        losses = token_losses(reader.output_proj(hidden).float(), targets, label_smoothing)
        return factor * (batch.weights.flatten() * losses).sum()
    if batch.n_targets < targets.numel():
        real = (targets != batch.pad_id).nonzero().squeeze(1)
        hidden, targets = hidden[real], targets[real]
    return linear_cross_entropy(hidden, reader.output_proj, targets, label_smoothing, factor)


def width(model: nn.Module) -> int:
    """d_model, as the output layer sees it."""
    return cast(Trainable, model).output_proj.in_features


def groups(batches: Sequence[Batch], size: int) -> Iterator[list[Batch]]:
    """The batches in lists of `size`; the last list of an epoch may be shorter."""
    group: list[Batch] = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def due(step: int, every: int) -> bool:
    """Whether something done every so many steps (0 = never) is due after this one."""
    return every > 0 and step % every == 0


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


def evaluate(run: Run) -> Report:
    """Measures the model on the validation set and notes whether it is the best so far."""
    progress = run.progress
    evaluation = measure(run)
    is_best = progress.best is None or run.task.better(evaluation.value, progress.best)
    if is_best:
        progress.best, progress.best_step, progress.evaluations_since_best = (
            evaluation.value,
            progress.step,
            0,
        )
    else:
        progress.evaluations_since_best += 1
    return Report("evaluation", progress, evaluation=evaluation, is_best=is_best, done=share_done(run))


def measure(run: Run) -> Evaluation:
    """The task's evaluation of the model as it stands, dropout off; random states are untouched."""
    run.model.eval()
    random_state = torch.get_rng_state()
    with torch.inference_mode():
        evaluation = run.task.evaluate(run.model)
    torch.set_rng_state(random_state)
    return evaluation


def save(run: Run, folder: Path) -> Report:
    """Saves all state and removes the oldest checkpoints."""
    run.clock.note(run.progress)
    run.progress.threads = torch.get_num_threads()
    run.progress.planned_end = run.training.planned_end
    path = save_checkpoint(folder, run.model, run.optimizer, run.progress)
    prune_checkpoints(folder, max(run.checkpoint.keep_last, run.training.average_last))
    return Report("checkpoint", run.progress, note=path.name, done=share_done(run))


def evaluate_average(run: Run, folder: Path) -> Iterator[Report]:
    """Tries the mean of the last checkpoints; the model keeps those weights only if they are the best so far."""
    folders = checkpoints(folder)[-run.training.average_last :]
    if len(folders) < 2:
        return
    own = {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}
    load_weights(run.model, average_weights(folders), "the averaged weights")
    report = evaluate(run)
    yield Report(
        "evaluation",
        run.progress,
        evaluation=report.evaluation,
        is_best=report.is_best,
        done=1.0,
        note=f"mean of the last {len(folders)} checkpoints",
    )
    if not report.is_best:
        load_weights(run.model, own, "the run's weights")
