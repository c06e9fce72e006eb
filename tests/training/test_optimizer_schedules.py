"""Learning rates: the paper's figures, and shapes that hold for all settings."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo.training.optimizer import (
    Horizon,
    TrainingConfig,
    cosine,
    learning_rate,
    noam,
    warmup_stable_decay,
)


@pytest.mark.parametrize(("step", "rate"), [(1, 1.74693e-7), (4000, 6.98771e-4), (50_000, 1.97642e-4)])
def test_the_figures_of_the_paper(step, rate):
    assert noam(step, 512, 4000) == pytest.approx(rate, rel=5e-6)


def test_noam_peaks_where_its_branches_meet():
    rates = [noam(step, 256, 50) for step in range(1, 200)]
    assert max(rates) == rates[49] == pytest.approx(256**-0.5 * 50**-0.5)


@given(st.integers(1, 50), st.integers(0, 100), st.integers(1, 100), st.floats(1e-5, 1e-2))
def test_warmup_stable_decay_rises_stays_and_falls(warmup, stable, decay, peak):
    start, end = warmup + stable, warmup + stable + decay
    rates = [warmup_stable_decay(step, peak, warmup, Horizon(start, end)) for step in range(1, end + 1)]
    assert rates[warmup - 1 : start] == [peak] * (stable + 1)
    assert all(a < b for a, b in itertools.pairwise(rates[:warmup]))
    assert all(a > b > 0 for a, b in itertools.pairwise(rates[start - 1 :]))
    assert rates[-1] == pytest.approx(peak / (decay + 1))


def test_an_open_end_means_no_decay():
    assert warmup_stable_decay(10**6, 1e-3, 10, Horizon()) == 1e-3


def test_cosine_ends_at_zero():
    assert cosine(5, 1.0, 10, 100) == 0.5
    assert cosine(10, 1.0, 10, 100) == 1.0
    assert cosine(55, 1.0, 10, 100) == pytest.approx(0.5)
    assert cosine(100, 1.0, 10, 100) == pytest.approx(0.0)


@pytest.mark.parametrize("schedule", ["wsd", "cosine", "noam"])
def test_the_schedule_is_chosen_by_name(schedule):
    config = TrainingConfig(steps=100, schedule=schedule, warmup_steps=10, learning_rate=0.5)
    wanted = {"wsd": 0.5, "cosine": cosine(50, 0.5, 10, 100), "noam": 0.5 * noam(50, 64, 10)}
    assert learning_rate(config, 64, 50, Horizon(75, 100)) == wanted[schedule]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of"),
        ({"steps": 5, "epochs": 1}, "exactly one of"),
        ({"steps": 0}, "steps=0 must be above 0"),
        ({"minutes": 1, "schedule": "cosine"}, "needs its end in steps"),
        ({"steps": 5, "label_smoothing": 1.0}, "label_smoothing=1.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**settings)
