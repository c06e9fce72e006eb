"""The weather Markov chain: its known first states, and its closed-form figures against long samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo_course import weather_chain as weather


def letters(states):
    return " ".join(weather.STATES[state][0].upper() for state in states)


def rng_of(seed):
    return np.random.Generator(np.random.PCG64(seed))


def test_the_first_twenty_states_with_the_known_seed():
    assert letters(weather.generate(20, rng_of(11111))) == "C R R R R R R C S R R R C C C S C R C S"


@given(seed=st.integers(0, 2**32), n=st.integers(0, 40))
def test_generate_draws_exactly_as_numpy_choice_does(seed, n):
    rng = rng_of(seed)
    expected, row = [], weather.INITIAL
    for _ in range(n):
        state = int(rng.choice(3, p=row))
        expected.append(state)
        row = weather.TRANSITION[state]
    assert weather.generate(n, rng_of(seed)).tolist() == expected


def test_a_start_state_continues_the_chain():
    whole = weather.generate(30, rng_of(5))
    rng = rng_of(5)
    first = weather.generate(12, rng)
    rest = weather.generate(18, rng, start=int(first[-1]))
    assert np.array_equal(np.concatenate([first, rest]), whole)


@pytest.mark.parametrize(("n", "start"), [(-1, None), (3, 3), (3, -1)])
def test_a_bad_length_or_start_is_refused(n, start):
    with pytest.raises(ValueError, match="must be"):
        weather.generate(n, rng_of(0), start)


def test_the_stationary_distribution_is_exact_and_stationary():
    stationary = weather.stationary_distribution()
    assert stationary == pytest.approx([7 / 18, 1 / 3, 5 / 18], abs=1e-12)
    assert stationary @ weather.transition_matrix() == pytest.approx(stationary, abs=1e-12)


def test_the_figures_of_the_chain():
    assert weather.entropy_rate() == pytest.approx(0.99818, abs=5e-6)
    assert float(weather.entropy(weather.stationary_distribution())) == pytest.approx(1.08931, abs=5e-6)
    assert weather.bayes_accuracy() == pytest.approx(0.5056, abs=5e-5)
    assert weather.majority_accuracy() == pytest.approx(0.3889, abs=5e-5)
    assert float(weather.entropy(np.array([1.0, 0.0, 0.0]))) == 0.0
