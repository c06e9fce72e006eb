"""F12 to F14, F23, F24 and the other kinds of positions, against direct transcriptions in NumPy float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attendo.nn import positions as module
from attendo.nn.attention import Attention
from attendo.nn.masks import Mask
from attendo_course.claims.positions import shift_matrix
from attendo_course.presets import distinct_sums, one_hot_embedding, scalar_embedding

EXACT = {"rtol": 0.0, "atol": 1e-10}


def encoding(positions, d_model, base=10000.0, **options):
    positions = torch.as_tensor(positions)
    return module.sinusoidal_encoding(positions, d_model, base, dtype=torch.float64, **options).numpy()


def test_f12_base_10000():
    table = encoding(range(64), 128)
    for p in range(64):
        for i in range(64):
            assert table[p, 2 * i] == pytest.approx(math.sin(p / 10000 ** (2 * i / 128)), abs=1e-10)
            assert table[p, 2 * i + 1] == pytest.approx(math.cos(p / 10000 ** (2 * i / 128)), abs=1e-10)
    assert table[1, :4].round(6).tolist() == [0.841471, 0.540302, 0.761720, 0.647906]
    np.testing.assert_allclose((table**2).sum(1), 64.0, **EXACT)


def test_f13_base_is_the_length():
    row = encoding([1], 5, 50.0, first_index=1)[0]
    assert row[:4].round(6).tolist() == [0.207607, 0.978212, 0.043721, 0.999044]
    table = encoding(range(1, 51), 6, 50.0, first_index=1)
    for t in range(1, 51):
        for i in (1, 2, 3):  # W_p[2i-1, t] and W_p[2i, t], rows from 1
            assert table[t - 1, 2 * i - 2] == pytest.approx(math.sin(t / 50 ** (2 * i / 6)), abs=1e-10)
            assert table[t - 1, 2 * i - 1] == pytest.approx(math.cos(t / 50 ** (2 * i / 6)), abs=1e-10)


def test_f14_as_plotted():
    table = encoding(range(50), 5, 50.0, order="cossin")
    for x in range(50):
        for i in range(1, 6):
            angle = x / 50 ** ((i if i % 2 == 0 else i - 1) / 5)
            expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
            assert table[x, i - 1] == pytest.approx(expected, abs=1e-10)
    assert table[1].round(6).tolist() == [0.540302, 0.207607, 0.978212, 0.043721, 0.999044]
    periods = (2 * math.pi / module.frequencies(3, 5, 50.0)).tolist()
    assert [round(period, 2) for period in periods] == [6.28, 30.04, 143.67]


@given(d=st.integers(1, 17), p=st.integers(0, 10_000), base=st.floats(2.0, 1e5))
def test_halves_are_the_same_numbers_in_another_order(d, p, base):
    pairs, halves = encoding([p], 2 * d, base)[0], encoding([p], 2 * d, base, order="halves")[0]
    np.testing.assert_array_equal(halves, np.concatenate([pairs[0::2], pairs[1::2]]))


@given(d=st.integers(1, 17), order=st.sampled_from(["sincos", "cossin"]), first=st.sampled_from([0, 1]))
def test_an_odd_width_is_the_wider_row_cut(d, order, first):
    # the frequencies depend on the width, so the wider row is made from those of the odd one
    row = encoding([7], 2 * d - 1, 100.0, order=order, first_index=first)[0]
    full = []
    for i in range(first, first + d + 1):
        angle = 7 * 100.0 ** (-2 * i / (2 * d - 1))
        full += [math.sin(angle), math.cos(angle)]
    start = 1 if order == "cossin" else 0
    np.testing.assert_allclose(row, full[start : start + 2 * d - 1], **EXACT)


@given(
    pairs=st.integers(1, 16),
    p=st.integers(0, 500),
    k=st.integers(-500, 500),
    order=st.sampled_from(["sincos", "halves"]),
    first=st.sampled_from([0, 1]),
)
def test_the_shift_matrix_moves_every_position(pairs, p, k, order, first):
    d, options = 2 * pairs, {"order": order, "first_index": first}
    m = shift_matrix(k, d, 1000.0, dtype=torch.float64, **options).numpy()
    np.testing.assert_allclose(
        m @ encoding([p], d, 1000.0, **options)[0], encoding([p + k], d, 1000.0, **options)[0], **EXACT
    )
    np.testing.assert_allclose(m.T @ m, np.eye(d), **EXACT)


@pytest.mark.parametrize(("d", "order"), [(3, "sincos"), (4, "cossin"), (5, "halves")])
def test_a_phase_without_its_partner_can_not_be_shifted(d, order):
    with pytest.raises(ValueError, match="without its partner"):
        shift_matrix(1, d, order=order)


def test_f23_scalar_weather():
    days = torch.tensor([[0, 1, 2, 0]])
    ramp = scalar_embedding("ramp", length=10)(days)[0, :, 0]
    np.testing.assert_allclose(ramp, [-1 + 0.1, 0 + 0.2, 1 + 0.3, -1 + 0.4], atol=1e-6)
    inverse = scalar_embedding("inverse")(days)[0, :, 0]
    np.testing.assert_allclose(inverse, [-1 + 1, 0 + 1 / 2, 1 + 1 / 3, -1 + 1 / 4], atol=1e-6)
    assert distinct_sums(scalar_embedding("ramp", length=10), 10) == 30  # injective up to the length
    assert distinct_sums(scalar_embedding("ramp", length=10), 20) == 40
    assert distinct_sums(scalar_embedding("inverse"), 20) == 60
    exact = {round(w + t / 10, 9) for w in (-1, 0, 1) for t in range(1, 21)}
    assert len(exact) == 40


def test_f24_one_hot_weather():
    embedded = one_hot_embedding()(torch.tensor([[2, 0]]))[0]
    np.testing.assert_allclose(embedded, [[0, 0, 1, 1 / 20], [1, 0, 0, 2 / 20]], atol=1e-7)


def test_ramp_and_inverse_count_from_their_start():
    torch.testing.assert_close(module.ramp_encoding(torch.arange(1, 4), 4).flatten(), torch.tensor([0.25, 0.5, 0.75]))
    positions = module.FixedPositions(module.inverse_encoding, max_len=2, start=1)
    seen = positions(torch.arange(5), 5).flatten()  # beyond the table, which grows
    torch.testing.assert_close(seen, 1 / torch.arange(1.0, 6.0))


def rotated_in_numpy(x, p, base=10000.0):
    """Su et al. 2021, eq. 34, one 2 by 2 rotation after another."""
    d, turned = len(x), np.empty_like(x)
    for i in range(d // 2):
        angle = p * base ** (-2 * i / d)
        turned[2 * i] = x[2 * i] * math.cos(angle) - x[2 * i + 1] * math.sin(angle)
        turned[2 * i + 1] = x[2 * i] * math.sin(angle) + x[2 * i + 1] * math.cos(angle)
    return turned


@given(pairs=st.integers(1, 8), p=st.integers(0, 1000), seed=st.integers(0, 99))
def test_rotary_turns_pairs(pairs, p, seed):
    x = np.random.default_rng(seed).normal(size=2 * pairs)
    turned = module.rotate(torch.tensor(x)[None], torch.tensor([p]), module.frequencies(len(x) // 2, len(x)))[0].numpy()
    np.testing.assert_allclose(turned, rotated_in_numpy(x, p), **EXACT)


def test_rotary_products_depend_on_the_distance_alone():
    x, y = torch.randn(2, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    omega = module.frequencies(4, 8)
    products = [
        module.rotate(x, torch.tensor([p]), omega) @ module.rotate(y, torch.tensor([p + 3]), omega).T
        for p in (0, 1, 17, 400)
    ]
    torch.testing.assert_close(torch.cat(products), products[0].expand(4, 1), rtol=0, atol=1e-10)
    assert torch.autograd.gradcheck(lambda x: module.rotate(x, torch.tensor([5]), omega), x.requires_grad_())


def test_alibi_slopes_of_the_paper():
    assert module.alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]
    assert module.alibi_slopes(16).tolist() == pytest.approx([2.0 ** (-h / 2) for h in range(1, 17)])
    twelve = [2.0**-h for h in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]
    assert module.alibi_slopes(12).tolist() == pytest.approx(twelve)


@pytest.mark.parametrize("kind", ["rotary", "alibi", "relative"])
def test_attention_with_positions_inside_equals_a_transcription(kind):
    d, heads, n, head_dim = 8, 2, 5, 4
    bias = module.RelativeBias(heads, 3, 4, causal=True)
    bias.weight.data = torch.arange(6.0).view(3, 2)
    positions = {"rotary": module.Rotary(), "alibi": module.Alibi(heads), "relative": bias}[kind]
    layer = Attention(d, heads, positions=positions).double()
    x = torch.randn(1, n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        seen = layer(x, x, Mask(causal=True))[0].numpy()
        q, k, v = ((p(x)[0]).numpy().reshape(n, heads, head_dim) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
        mixed = np.zeros((n, heads, head_dim))
        for h in range(heads):
            for i in range(n):
                scores = np.empty(i + 1)
                for j in range(i + 1):
                    if kind == "rotary":
                        scores[j] = rotated_in_numpy(q[i, h], i) @ rotated_in_numpy(k[j, h], j) / 2.0
                    elif kind == "relative":  # a bucket for 0, one for 1, one for the rest
                        scores[j] = q[i, h] @ k[j, h] / 2.0 + [0, 2, 4, 4, 4][i - j] + h
                    else:
                        scores[j] = q[i, h] @ k[j, h] / 2.0 - 2.0 ** (-4 * (h + 1)) * (i - j)
                weights = np.exp(scores) / np.exp(scores).sum()
                mixed[i, h] = sum(weights[j] * v[j, h] for j in range(i + 1))
        expected = layer.out_proj(torch.tensor(mixed.reshape(n, d))).numpy()
    np.testing.assert_allclose(seen, expected, **EXACT)


@given(st.integers(-400, 400), st.integers(1, 20), st.integers(1, 300), st.booleans())
def test_relative_buckets_are_those_of_the_paper(distance, half, more, causal):
    """Half of a side's buckets are exact, the others grow by logarithm up to the reach; both sides share them out."""
    side, reach = 2 * half, half + more
    buckets = side if causal else 2 * side
    bucket = module.relative_buckets(torch.tensor([distance]), buckets, reach, causal=causal).item()
    behind = distance > 0
    far = (0 if behind else -distance) if causal else abs(distance)
    place = bucket - side * (behind and not causal)
    if far < half:
        assert place == far
    elif far >= reach:
        assert place == side - 1
    else:
        grown = math.log(far / half) / math.log(reach / half) * half
        assert place in {half + int(grown - 1e-4), half + int(grown + 1e-4)}


@pytest.mark.parametrize("causal", [False, True])
def test_relative_buckets_never_go_back(causal):
    assert (module.relative_buckets(-torch.arange(1000), causal=causal).diff() >= 0).all()
