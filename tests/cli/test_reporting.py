"""What a command shows of a run while it trains."""

import pytest

from attendo.cli.reporting import Screen
from attendo.training.run import Report
from attendo.training.state import Progress


@pytest.mark.parametrize(
    ("step_seconds", "told_from"),
    [(0.125, 81), (2.0, 21), (30.0, 3)],
    ids=["10 seconds", "20 steps", "a minute"],
)
def test_the_time_left_is_told_once_it_rests_on_enough(monkeypatch, capsys, step_seconds, told_from):
    monkeypatch.setattr("attendo.cli.reporting.PLAIN_EVERY", 0.0)
    screen, told = Screen(), []
    for step in range(1, 111):
        now = Progress(step=500 + step, tokens=100 * step, wall_seconds=1000 + step_seconds * step)
        screen.show(Report("step", now, loss=1.0, done=step / 200))
        line = capsys.readouterr().err
        assert f"step {500 + step}" in line
        if " left" in line:
            told.append(step)
    assert told == list(range(told_from, 111))
