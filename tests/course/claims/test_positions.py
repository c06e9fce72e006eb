"""Claims C01-C04 and C24 against NumPy, against encodings that must fail them, and for any position and width."""

import numpy as np
import pytest
import torch
from claim_findings import figures
from hypothesis import given
from hypothesis import strategies as st

from attendo.nn.positions import sinusoidal_encoding
from attendo_course.claims.positions import (
    heat_map,
    longest_wave_falls_short,
    only_distance_counts,
    shifting_rotates,
    sines_alone,
    sines_alone_lose_it,
    sines_and_cosines,
)
from attendo_course.figures.arrays import heatmap


def encode(positions, d, base=10000.0):
    """The paper's table, entry by entry."""
    table = np.zeros((len(positions), d))
    for row, p in enumerate(positions):
        for column in range(d):
            angle = p / base ** (2 * (column // 2) / d)
            table[row, column] = np.sin(angle) if column % 2 == 0 else np.cos(angle)
    return table


def varied(**changes):
    return lambda positions, d_model: sinusoidal_encoding(positions, d_model, dtype=torch.float64, **changes)


def pictured(finding):
    assert finding.picture is not None
    return finding.picture.values


def test_the_shift_matrix_is_made_of_rotations():
    expected = np.zeros((8, 8))
    for i in range(4):
        angle = 5 / 10000 ** (2 * i / 8)
        turn = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        expected[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = turn
    np.testing.assert_allclose(pictured(shifting_rotates()), expected, rtol=0, atol=1e-10)


def test_products_by_distance():
    rows = pictured(only_distance_counts())
    for row, d in zip(rows, (128, 512), strict=True):
        sums = [sum(np.cos(k / 10000 ** (2 * i / d)) for i in range(d // 2)) for k in range(64)]
        np.testing.assert_allclose(row, np.array(sums) / (d / 2), rtol=0, atol=1e-10)
        rises = [k for k in range(63) if sums[k + 1] > sums[k]]
        assert rises[0] == {128: 11, 512: 43}[d]


def test_products_of_sines_alone():
    table = encode(range(64), 128)[:, 0::2]
    gram = table @ table.T
    spread = max(np.ptp(np.diagonal(gram, k)) for k in range(64))
    finding = sines_alone_lose_it()
    assert figures(finding)["same distance: largest difference of the products"] == pytest.approx(spread)
    assert round(spread) == 20
    np.testing.assert_allclose(pictured(finding)[0], np.diagonal(gram, 1), rtol=0, atol=1e-10)


def test_the_heat_map():
    pairs = [d for d in range(128) if d % 8 < 2]  # every fourth sine with its cosine, dimension 0 on top
    np.testing.assert_allclose(pictured(heat_map()), encode(range(64), 128).T[pairs], rtol=0, atol=1e-10)


def test_the_wavelengths():
    expected = [2 * np.pi * 10000 ** (2 * i / 512) for i in range(256)]
    np.testing.assert_allclose(10.0 ** pictured(longest_wave_falls_short())[0], expected, rtol=1e-10)
    assert round(expected[-1]) == 60611


@pytest.mark.parametrize(
    "wrong",
    [sines_alone, varied(order="halves"), varied(order="cossin"), varied(base=9999.0), varied(first_index=1)],
    ids=["sines", "halves", "cosine first", "base", "first index"],
)
def test_another_encoding_is_not_shifted_by_these_rotations(wrong):
    assert not shifting_rotates(wrong).holds


@pytest.mark.parametrize("wrong", [sines_alone, varied(order="cossin"), varied(base=1000.0)])
def test_another_encoding_has_other_products(wrong):
    assert not only_distance_counts(wrong).holds


def test_products_do_not_see_the_order_of_the_phases():
    assert only_distance_counts(varied(order="halves")).holds


def test_a_random_table_has_neither_property():
    def drawn(positions, d_model):
        generator = torch.Generator().manual_seed(0)
        table = torch.randn(200, d_model, generator=generator, dtype=torch.float64)
        return table[positions]

    assert not shifting_rotates(drawn).holds
    assert not only_distance_counts(drawn).holds
    assert not sines_alone_lose_it(drawn).holds


def test_with_cosines_nothing_is_lost():
    assert not sines_alone_lose_it(sines_and_cosines).holds


@pytest.mark.parametrize(
    "wrong",
    [
        lambda max_len, d_model: heatmap(max_len, d_model).T,
        lambda max_len, d_model: heatmap(max_len, d_model)[::-1],
        lambda max_len, d_model: heatmap(max_len + 1, d_model)[:, 1:],
        lambda max_len, d_model: heatmap(max_len, d_model).clip(-0.9, 0.9),
    ],
    ids=["not transposed", "upside down", "from position 1", "clipped"],
)
def test_another_heat_map_fails(wrong):
    assert not heat_map(wrong).holds


def test_waves_of_another_length_fail():
    assert not longest_wave_falls_short(varied(base=10000.0 ** (512 / 510))).holds
    assert not longest_wave_falls_short(d_model=256).holds


widths = st.integers(1, 40).map(lambda pairs: 2 * pairs)


@given(p=st.integers(0, 10_000), q=st.integers(0, 10_000), k=st.integers(0, 1_000), d=widths)
def test_the_product_is_that_of_any_other_pair_of_the_distance(p, q, k, d):
    rows = sines_and_cosines(torch.tensor([p, p + k, q, q + k]), d)
    assert rows[0] @ rows[1] == pytest.approx((rows[2] @ rows[3]).item(), abs=1e-9)
    assert rows[0] @ rows[0] == pytest.approx(d / 2)


@given(d=widths, shifts=st.tuples(st.integers(0, 300), st.integers(0, 300)), n=st.integers(2, 9))
def test_shifting_rotates_at_any_width(d, shifts, n):
    assert shifting_rotates(d_model=d, n=n, shifts=shifts).holds
