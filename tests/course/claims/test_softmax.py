"""Claim C17: the softmax of four scores, the temperatures that weights imply, and what no softmax can print."""

import math

import numpy as np
import pytest
from claim_findings import failing, figures
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo_course.claims.softmax import (
    SCORES,
    SLIDE,
    implied_temperatures,
    nearest_temperature,
    slides_numbers_are_no_softmax,
    softmax_at,
)

PAIRS = "slides: temperatures that pairs imply, largest / least"
DISTANCE = "its largest difference from the slides"
FAR = "slides: largest difference from the softmax"
TOTAL, NEAREST = "slides: sum of the numbers", "nearest temperature"
NEAR_WEIGHTS = {f"nearest temperature: weight of the score {score:g}" for score in SCORES}
# for a list of scores, all apart by more than rounding errors can hide
apart = st.lists(st.integers(-40, 40), min_size=2, max_size=6, unique=True).map(
    lambda scores: [score / 4 for score in scores]
)


def softmax(scores, temperature=1.0):
    exponentials = np.exp(np.array(scores) / temperature)
    return exponentials / exponentials.sum()


@given(
    scores=st.lists(st.floats(-30.0, 30.0), min_size=1, max_size=7),
    temperature=st.floats(0.1, 100.0),
    offset=st.floats(-1e3, 1e3),
)
def test_the_softmax_is_numpys(scores, temperature, offset):
    found = softmax_at(temperature, scores)
    np.testing.assert_allclose(found, softmax(scores, temperature), rtol=0, atol=1e-10)
    shifted = softmax_at(temperature, [score + offset for score in scores])
    np.testing.assert_allclose(shifted, found, rtol=0, atol=1e-10)


@given(scores=apart, temperature=st.floats(0.5, 50.0))
def test_every_pair_of_a_softmax_implies_its_temperature(scores, temperature):
    found = implied_temperatures(softmax(scores, temperature).tolist(), scores)
    assert len(found) == math.comb(len(scores), 2)
    np.testing.assert_allclose(found, temperature, rtol=1e-9)


@given(scores=apart, temperature=st.floats(0.5, 50.0), place=st.integers(0, 5), factor=st.floats(1.1, 3.0))
def test_pairs_with_another_weight_imply_other_temperatures(scores, temperature, place, factor):
    place, weights = place % len(scores), softmax(scores, temperature)
    weights[place] *= factor
    found = implied_temperatures(weights.tolist(), scores)
    pairs = [(i, j) for i in range(len(scores)) for j in range(i)]
    same = {pair for pair, implied in zip(pairs, found, strict=True) if implied == pytest.approx(temperature)}
    assert same == {pair for pair in pairs if place not in pair}


@settings(max_examples=25)
@given(temperature=st.floats(0.5, 100.0))
def test_the_nearest_temperature_of_a_softmax_is_its_own(temperature):
    weights = softmax(SCORES, temperature).tolist()
    assert nearest_temperature(weights) == pytest.approx(temperature, rel=1e-6)


def test_no_other_temperature_is_nearer_to_the_slides():
    grid = np.geomspace(0.05, 500.0, 5001)
    far = [np.abs(softmax(SCORES, temperature) - SLIDE).max() for temperature in grid]
    found = nearest_temperature(SLIDE)
    assert found == pytest.approx(grid[int(np.argmin(far))], rel=2e-3)
    assert np.abs(softmax(SCORES, found) - SLIDE).max() <= min(far)


def test_the_figures_are_those_that_the_claim_prints():
    found = figures(slides_numbers_are_no_softmax())
    printed = [f"{value:.2g}" for value in softmax(SCORES)[:3]]
    assert printed == ["0.00091", "1.7e-05", "2.1e-09"]
    assert f"{softmax(SCORES)[3]:.5f}" == "0.99907"
    for score, value in zip(SCORES, softmax(SCORES), strict=True):
        assert found[f"weight of the score {score:g}"] == pytest.approx(value, abs=1e-12)
    assert f"{found[NEAREST]:.1f}" == "9.3"
    near = [found[f"nearest temperature: weight of the score {score:g}"] for score in SCORES]
    assert [f"{value:.3f}" for value in near] == ["0.249", "0.162", "0.061", "0.528"]
    assert f"{found[DISTANCE]:.3f}" == "0.051"
    temperatures = implied_temperatures(SLIDE)
    expected = {(1, 0): "9.9", (2, 1): "3.0", (3, 0): "14.3"}
    pairs = [(i, j) for i in range(4) for j in range(i)]
    assert {pair: f"{temperatures[pairs.index(pair)]:.1f}" for pair in expected} == expected
    assert found[PAIRS] == pytest.approx(7 / math.log(0.49 / 0.3) * math.log(0.2 / 0.01) / 9)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (softmax(SCORES, 9.3), {FAR, PAIRS, DISTANCE}),
        (softmax(SCORES), {FAR, PAIRS, DISTANCE, NEAREST} | NEAR_WEIGHTS),
        (softmax(SCORES, 30.0), {PAIRS, DISTANCE, NEAREST} | NEAR_WEIGHTS),
        (2.0 * np.array(SLIDE), {TOTAL, NEAREST} | NEAR_WEIGHTS),
    ],
    ids=["nearest", "T = 1", "T = 30", "sum of 2"],
)
def test_what_a_softmax_fails(printed, expected):
    assert failing(slides_numbers_are_no_softmax(tuple(printed.tolist()))) == expected
