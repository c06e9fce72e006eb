"""What errata 21 to 42, 49 and 50 say in words (weather post, exercises, papers), checked by numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attendo.nn.attention import masked_softmax
from attendo.nn.positions import sinusoidal_encoding
from attendo_course.errata import all_errata
from attendo_course.presets import distinct_sums, scalar_embedding
from attendo_course.weather_chain import entropy, generate, stationary_distribution, transition_matrix

ERRATA = {erratum.number: erratum for erratum in all_errata()}
CODES = torch.tensor([-1.0, 0.0, 1.0]).double()  # of rain, cloud, sun


def test_the_formula_and_the_plot_differ_at_every_point():
    """Errata 26 and 27: F13 and F14 as printed, against the rows that attendo computes."""
    length, d = 50, 5
    times = torch.arange(1, length + 1)
    formula = sinusoidal_encoding(times, d, float(length), first_index=1, dtype=torch.float64)[:, :4]
    plotted = sinusoidal_encoding(times, d, float(length), order="cossin", dtype=torch.float64)
    for t, row, drawn in zip(times.tolist(), formula.tolist(), plotted.tolist(), strict=True):
        angles = [t / length ** (2 * i / d) for i in (1, 2)]
        assert row == pytest.approx([f(angle) for angle in angles for f in (math.sin, math.cos)], abs=1e-10)
        phases = [t / length ** ((i - i % 2) / d) for i in range(1, d + 1)]
        assert drawn == pytest.approx(
            [math.cos(phase) if i % 2 else math.sin(phase) for i, phase in enumerate(phases, 1)], abs=1e-10
        )
    assert not torch.isclose(formula, plotted[:, :4], atol=1e-3).all(-1).any()


@given(st.integers(1, 30), st.integers(1, 40))
def test_a_ramp_keeps_apart_what_fits_its_length(length, n_days):
    """Erratum 29: (w, t) and (w', t') collide where w·L + t = w'·L + t'; never where t ≤ L."""
    torch.set_default_dtype(torch.float64)  # in float32, equal sums above 8 differ in the sixth decimal
    try:
        kept = distinct_sums(scalar_embedding("ramp", length=length), n_days)
    finally:
        torch.set_default_dtype(torch.float32)
    assert kept == len({code * length + t for code in (-1, 0, 1) for t in range(1, n_days + 1)})
    assert (kept == 3 * n_days) == (n_days <= length)


def test_the_squared_error_hides_the_chain():
    """Erratum 33: the best guesses are -.5, 0, .3, and cost .5444; the entropy rate is what there is to learn."""
    matrix, days = torch.from_numpy(transition_matrix()), torch.from_numpy(stationary_distribution())
    guesses = matrix @ CODES
    assert guesses.tolist() == pytest.approx([-0.5, 0.0, 0.3])
    floor = days @ (matrix @ CODES.square() - guesses.square())
    variance = days @ CODES.square() - (days @ CODES).square()
    assert (round(floor.item(), 4), round(variance.item(), 4)) == (0.5444, 0.6543)
    assert stationary_distribution() @ entropy(transition_matrix()) == pytest.approx(0.99818, abs=5e-6)


def test_the_windows_of_the_post_are_the_days_it_draws():
    """Erratum 34: the right form's first row and targets are the 20 days of the post's seed."""
    days = generate(20, np.random.Generator(np.random.PCG64(11111))).tolist()
    right = ERRATA[34].right_code
    assert right is not None
    assert right.outcome() == f"((10, 10), {days[:10]}, {days[10:]})"


@given(st.integers(2, 12))
def test_the_post_s_mask_reads_from_the_wrong_end(n_days):
    """Erratum 35: under it, position 0 averages all days and the last one copies itself; turned round, the reverse."""
    masked = torch.from_numpy(np.tri(n_days, k=-1, dtype=bool))
    scores = torch.zeros(n_days, n_days).double()
    post, right = masked_softmax(scores, ~masked), masked_softmax(scores, ~masked.mT)
    assert torch.allclose(post[0], torch.full((n_days,), 1 / n_days).double())
    assert torch.equal(post[-1], torch.eye(n_days).double()[-1])
    assert torch.equal(right, post.flip(0, 1))


@given(st.floats(1e-3, 1e3), st.sampled_from([-1.0, 1.0]))
def test_adam_s_first_step_knows_only_the_sign(size, sign):
    """Erratum 37: 1e-2 against the gradient, whatever its size."""
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    x.grad = torch.tensor(sign * size, dtype=torch.float64)
    torch.optim.Adam([x], lr=1e-2).step()
    assert x.item() == pytest.approx(-sign * 1e-2, rel=1e-4)
