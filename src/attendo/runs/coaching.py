"""The coach beside a run: it hears each report, sees the heads at each evaluation, and remembers in the progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from torch import Tensor

from attendo.models import Model
from attendo.runs.head_measures import even_inputs, measured_heads
from attendo.training.coach import Coach
from attendo.training.coach_collapse import HeadMeasure
from attendo.training.coach_rules import Advice
from attendo.training.run import Report, Run

NOTE = "coach"
"""The name under which the coach's memory stands in a run's progress, and so in its checkpoints."""


@dataclass
class Coaching:
    """A run and its coach."""

    run: Run
    coach: Coach

    @classmethod
    def of(cls, run: Run, dropout: float, fresh: bool) -> Coaching:
        """The coach of a run, with what it remembers if the run was resumed; the rest as for `Coach`."""
        return cls(run, Coach(run.training, dropout, run.progress.notes.get(NOTE), fresh))

    def hear(self, report: Report) -> list[Advice]:
        """What there is to say now; the progress then holds what the coach remembers. All ranks call it together."""
        advice = self.coach.hear(report, self._heads(report))
        self.run.progress.notes[NOTE] = self.coach.as_json()
        return advice

    def _heads(self, report: Report) -> Sequence[HeadMeasure]:
        if report.kind != "evaluation" or report.note:
            return ()
        with self.run.engine.whole():
            return (
                measured_heads(cast(Model, self.run.model), self._inputs) if self.run.ranks.is_first else ()
            )

    @cached_property
    def _inputs(self) -> dict[str, Tensor]:
        """Some rows of a training batch, the same at each evaluation."""
        batches = self.run.task.batches(self.run.training.seed, 0, 0)
        return even_inputs(batches[len(batches) // 2].to(self.run.device))
