"""The coach: looks on while a model is trained, and says once what goes wrong, and what to do about it.

Its rules are in `coach_rules` and `coach_collapse`. Here is what it remembers of a run for them, which is little, and
stands in every checkpoint: a resumed run hears what the unbroken one would have heard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from attendo.training.coach_collapse import (
    HeadMeasure,
    Outputs,
    dead_heads,
    names_of_dead,
    output_collapse,
    outputs,
)
from attendo.training.coach_rules import (
    BLOCK,
    EARLY_BLOCKS,
    EVALUATIONS,
    LONG_BLOCKS,
    Advice,
    Evaluated,
    long_warmup,
    loss_jump,
    no_fall,
    overfitting,
    small_batch,
)
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import Report

SETTLED = 0.25
"""The share of a run that must be done before outputs and heads are judged: at first all are alike."""
KEPT_EVALUATIONS = 8


@dataclass
class Memory:
    """What the coach keeps of a run, in plain values.

    said: rules that have spoken. losses: of the block under way. blocks: means of the last LONG_BLOCKS whole ones.
    untrained, early: means of steps 1 to 10 and 51 to 100, nats. total, count: training losses since the last
    evaluation. evaluations: the one of the lowest validation loss, and those after it. outputs: of the last ones. dead:
    heads that did nothing at the last one. peak: the highest rate so far. at_peak: whole blocks since it was reached.
    """

    said: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    untrained: float | None = None
    early: list[float] = field(default_factory=list)
    total: float = 0.0
    count: int = 0
    evaluations: list[Evaluated] = field(default_factory=list)
    outputs: list[Outputs] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    peak: float = 0.0
    at_peak: int = 0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Memory:
        """The memory that `Coach.as_json` described."""
        plain = {name: list(value) if isinstance(value, list) else value for name, value in values.items()}
        evaluations = [Evaluated(**each) for each in values.get("evaluations", [])]
        outputs = [Outputs(**each) for each in values.get("outputs", [])]
        return cls(**{**plain, "evaluations": evaluations, "outputs": outputs})


class Coach:
    """Told each Report of a run, it gives the advice that this one calls for; each rule speaks once in a run.

    dropout: of the model. memory: what `as_json` gave, to go on from a checkpoint. fresh: whether the weights were
    drawn, rather than taken from another run, whose loss need not fall far.

    >>> coach = Coach(TrainingConfig(steps=9, warmup_steps=20), dropout=0.1)
    >>> from attendo.training.schedules import Horizon
    >>> from attendo.training.state import Progress
    >>> progress = Progress(step=1, horizon=Horizon(None, 9))
    >>> step = Report("step", progress, loss=8.0, rate=1e-4)
    >>> [advice.rule for advice in coach.hear(step)], coach.hear(step)
    (['long_warmup'], [])
    """

    def __init__(
        self,
        training: TrainingConfig,
        dropout: float,
        memory: Mapping[str, Any] | None = None,
        fresh: bool = True,
    ):
        self.training = training
        self.dropout = dropout
        self.fresh = fresh
        self.memory = Memory.from_json(memory or {})

    def as_json(self) -> dict[str, Any]:
        """All that the coach remembers, a few kilobytes; cheap enough for every step."""
        memory = self.memory
        nested = {
            "evaluations": [vars(each) for each in memory.evaluations],
            "outputs": [vars(each) for each in memory.outputs],
        }
        return {
            name: list(value) if isinstance(value, list) else value for name, value in vars(memory).items()
        } | nested

    def hear(self, report: Report, heads: Sequence[HeadMeasure] = ()) -> list[Advice]:
        """What there is to say now. heads: measured at this evaluation, if they were."""
        match report.kind:
            case "step":
                found = self._step(report)
            case "evaluation" if not report.note:  # a note: of other weights than the run's
                found = self._evaluation(report, heads)
            case _:
                found = []
        new = [advice for advice in found if advice is not None and advice.rule not in self.memory.said]
        self.memory.said += [advice.rule for advice in new]
        return new

    def _step(self, report: Report) -> list[Advice | None]:
        memory, config, step = self.memory, self.training, report.progress.step
        memory.total += report.loss
        memory.count += 1
        memory.losses.append(report.loss)
        if report.rate > memory.peak:
            memory.peak, memory.at_peak = report.rate, 0
        found = [long_warmup(config.warmup_steps, report.progress.horizon.end, config.learning_rate)]
        if len(memory.losses) < BLOCK:
            return found
        mean = fmean(memory.losses)
        memory.losses.clear()
        memory.blocks = [*memory.blocks, mean][-LONG_BLOCKS:]
        memory.at_peak = memory.at_peak + 1 if report.rate == memory.peak else 0
        if step == BLOCK:
            memory.untrained = mean
        elif EARLY_BLOCKS < step // BLOCK <= 2 * EARLY_BLOCKS:
            memory.early.append(mean)
        return found + self._losses(report)

    def _losses(self, report: Report) -> list[Advice | None]:
        memory, config, progress = self.memory, self.training, report.progress
        untrained = memory.untrained if self.fresh else None
        found = [loss_jump(memory.blocks, untrained, progress.step, config.learning_rate)]
        if len(memory.early) < EARLY_BLOCKS:
            return found
        early = fmean(memory.early)
        if untrained is not None:
            warmup, peak = config.warmup_steps, memory.peak
            found.append(no_fall(memory.blocks, early, untrained, progress.step, warmup, peak))
        if self.fresh and memory.at_peak >= LONG_BLOCKS:
            tokens = progress.tokens / progress.step
            found.append(small_batch(memory.blocks, early, tokens, config.batch_tokens, config.accumulation))
        return found

    def _evaluation(self, report: Report, heads: Sequence[HeadMeasure]) -> list[Advice | None]:
        memory, config, evaluation = self.memory, self.training, report.evaluation
        assert evaluation is not None
        found: list[Advice | None] = []
        if "loss" in evaluation.measures and memory.count >= BLOCK:
            self._keep(
                Evaluated(
                    report.progress.step,
                    memory.total / memory.count,
                    evaluation.measures["loss"],
                    report.is_best,
                )
            )
            found.append(overfitting(memory.evaluations, self.dropout))
            memory.total, memory.count = 0.0, 0
        if report.done >= SETTLED and report.progress.step > config.warmup_steps:
            memory.outputs = [*memory.outputs, outputs(evaluation.samples)][-EVALUATIONS:]
            found.append(output_collapse(memory.outputs, config.learning_rate))
            if heads:
                before, memory.dead = memory.dead, names_of_dead(heads)
                rate, warmup = config.learning_rate, config.warmup_steps
                found.append(dead_heads(memory.dead, before, len(heads), rate, warmup))
        return found

    def _keep(self, evaluated: Evaluated) -> None:
        """The best so far, and the latest after it."""
        memory = self.memory
        if not memory.evaluations or evaluated.validation_loss < memory.evaluations[0].validation_loss:
            memory.evaluations = [evaluated]
        else:
            best, *later = memory.evaluations
            memory.evaluations = [best, *[*later, evaluated][-KEPT_EVALUATIONS:]]
