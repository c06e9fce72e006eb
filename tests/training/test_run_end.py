"""How far a run is and what it aims at, in words."""

from types import SimpleNamespace

import pytest

from attendo.training.checkpoints import Progress
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import more_time, standing


@pytest.mark.parametrize(
    ("budget", "stands", "more"),
    [
        ({"steps": 1989}, "172 of 1,989 steps", ""),
        ({"epochs": 2.5}, "172 of 250 steps", ""),
        ({"minutes": 30}, "172 steps, 415 of 1,800 seconds used", ", or `minutes` 60 in total"),
        ({"cpu_minutes": 0.5}, "172 steps, 31 of 30 CPU-seconds used", ", or `cpu_minutes` 1 in total"),
    ],
)
def test_the_words_are_of_the_budget_that_a_run_has(budget, stands, more):
    task = SimpleNamespace(batches=lambda seed, epoch, start: range(100))
    progress = Progress(step=172, cpu_seconds=31.2, wall_seconds=415.4)
    run = SimpleNamespace(task=task, progress=progress, training=TrainingConfig(**budget))
    assert (standing(run), more_time(run)) == (stands, more)
    assert progress == Progress(step=172, cpu_seconds=31.2, wall_seconds=415.4)
