"""Claims C05-C13, C19 and C21 against NumPy, against attention that must fail them, and for any shapes."""

import math

import numpy as np
import pytest
import torch
from claim_findings import finding
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_transcription import softmax

from attendo.inspecting.residual_stream import head_matrices
from attendo.nn.attention import attention, masked_softmax
from attendo.nn.masks import Mask
from attendo.nn.positions import sinusoidal_encoding
from attendo_course.claims import attention as shapes
from attendo_course.claims import temperature
from attendo_course.claims.samples import normal, random_attention

CLAIMS = shapes.CLAIMS | temperature.CLAIMS


def multi_head(layer, x, mask=None):
    """Concat(head_1, ...)Wᵒ in NumPy, with the layer's weights; also the heads' own W_hᵛ and W_hᵒ."""
    wq, wk, wv, wo = (getattr(layer, f"{name}_proj").weight.numpy() for name in ("q", "k", "v", "out"))
    heads, pairs = [], []
    for h in range(layer.n_heads):
        k, v = layer.head_dim, layer.value_dim
        query, key = x @ wq[h * k : (h + 1) * k].T, x @ wk[h * k : (h + 1) * k].T
        scores = query @ key.T / np.sqrt(k)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf)
        heads.append(softmax(scores) @ x @ wv[h * v : (h + 1) * v].T)
        pairs.append((wv[h * v : (h + 1) * v].T, wo[:, h * v : (h + 1) * v].T))
    return np.concatenate(heads, axis=1) @ wo.T, pairs


# C05, C06, C11, C19, C21: weights


def test_weights_of_the_pictures():
    query, key = normal(0, 2, 5, 4).numpy()
    np.testing.assert_allclose(finding("C05").picture.values, softmax(query @ key.T), rtol=0, atol=1e-10)
    x = normal(0, 100, 8, 16).numpy()[0]
    np.testing.assert_allclose(finding("C06").picture.values, softmax(x @ x.T), rtol=0, atol=1e-10)
    scores = np.where(np.tri(6, dtype=bool), normal(0, 6, 6).numpy(), -np.inf)
    np.testing.assert_allclose(finding("C19").picture.values, softmax(scores), rtol=0, atol=1e-10)


def test_weights_and_jacobian_by_inverse_temperature():
    betas = np.geomspace(0.1, 100.0, 31)
    weights = softmax(betas[:, None] * np.array([1.0, 0.5, 0.2]))
    np.testing.assert_allclose(finding("C11").picture.values, weights.T, rtol=0, atol=1e-10)
    largest = [np.abs(np.diag(y) - np.outer(y, y)).max() for y in weights]
    np.testing.assert_allclose(finding("C21").picture.values[0], largest, rtol=0, atol=1e-10)


@given(n=st.integers(1, 8), seed=st.integers(0, 2**31), spread=st.floats(0.0, 100.0))
@settings(max_examples=40)
def test_the_jacobian_is_that_of_automatic_differentiation(n, seed, spread):
    scores = spread * normal(seed, 1, n)
    found = temperature.softmax_jacobian(masked_softmax(scores)[0])
    automatic = torch.autograd.functional.jacobian(lambda s: masked_softmax(s[None])[0], scores[0])
    torch.testing.assert_close(found, automatic, rtol=0, atol=1e-10)
    assert found.abs().max() <= 0.25 + 1e-15


# C07, C10: sizes of scores


@pytest.mark.full
def test_products_by_dimension():
    for d, known in ((1, 1.018), (16, 15.99), (64, 63.87)):
        names = [check for check in finding("C07").checks if check.name.en.startswith(f"D = {d}:")]
        assert [check.bound for check in names] == [d, known, 1.0]
        assert names[2].value == pytest.approx(names[0].value / d)
        assert names[0].tolerance < 0.03 * d
    generator = torch.Generator().manual_seed(0)
    a, b = (temperature.standard_normal((200_000, 1, 1), generator).numpy().ravel() for _ in range(2))
    assert finding("C07").checks[0].value == pytest.approx(np.mean((a * b) ** 2), abs=1e-10)


@pytest.mark.full
def test_the_largest_weight_by_dimension():
    generator = torch.Generator().manual_seed(0)
    for column, d in enumerate((4, 8, 16)):
        query, key = (temperature.standard_normal((1000, n, d), generator).numpy() for n in (8, 16))
        scores = np.einsum("sqd,skd->sqk", query, key)
        for row, scale in enumerate((1.0, d**-0.5)):
            mean = softmax((scores * scale).reshape(-1, 16)).max(-1).mean()
            assert finding("C10").picture.values[row, column] == pytest.approx(mean, abs=1e-10)


def test_only_the_scaled_weights_stay():
    plain, scaled = finding("C10").picture.values
    assert (np.diff(plain) > 0.01).all()
    assert np.ptp(scaled) < 0.02


# C08, C09, C12, C13: maps of sets


def test_the_sum_over_heads():
    layer, x = random_attention(0, 16, 4, 0.25), normal(1, 1, 6, 16)
    expected, pairs = multi_head(layer, x[0].numpy())
    np.testing.assert_allclose(layer(x, x)[0].numpy(), expected, rtol=0, atol=1e-10)
    singular = np.stack([np.linalg.svd(value @ out, compute_uv=False) for value, out in pairs])
    np.testing.assert_allclose(finding("C08").picture.values, singular, rtol=0, atol=1e-10)
    assert (singular > 1e-10).sum(-1).tolist() == [4, 4, 4, 4]


@given(
    n=st.integers(1, 6),
    n_heads=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    value_dim=st.none() | st.integers(1, 6),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40)
def test_heads_add_up_for_any_shapes(n, n_heads, head_dim, value_dim, seed):
    found = shapes.heads_add_up(head_matrices, n, n_heads * head_dim, n_heads, value_dim, seed)
    assert found.holds, found.checks


@given(
    order=st.integers(1, 8).flatmap(lambda n: st.permutations(range(n))),
    n_heads=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40)
def test_order_goes_through_for_any_shapes(order, n_heads, head_dim, seed):
    layer = random_attention(seed, n_heads * head_dim, n_heads, 0.5)
    x = normal(seed + 1, 1, len(order), n_heads * head_dim)
    p = np.eye(len(order))[order]
    expected, _ = multi_head(layer, x[0].numpy())
    after = layer(x[:, order], x[:, order])[0].numpy()
    np.testing.assert_allclose(after, p @ expected, rtol=0, atol=1e-10)


def test_the_permuted_weights_of_the_picture():
    x = normal(1, 6, 8).numpy()
    before, after = np.split(finding("C09").picture.values, 2, axis=1)
    np.testing.assert_allclose(before, softmax(x @ x.T / np.sqrt(8)), rtol=0, atol=1e-10)
    order = [int(name[1:]) - 1 for name in finding("C09").picture.columns[6:]]
    assert sorted(order) == [0, 1, 2, 3, 4, 5] != order
    np.testing.assert_allclose(after, before[np.ix_(order, order)], rtol=0, atol=1e-10)


def test_a_causal_layer_is_the_transcription_and_fails_c09():
    layer, x = random_attention(0, 8, 2, 1.0), normal(1, 6, 8)
    masked = layer(x[None], x[None], Mask(causal=True))[0]
    expected, _ = multi_head(layer, x.numpy(), np.tri(6, dtype=bool))
    np.testing.assert_allclose(masked.numpy(), expected, rtol=0, atol=1e-10)
    assert not shapes.order_goes_through(lambda t: layer(t[None], t[None], Mask(causal=True))[0]).holds


def test_a_layer_that_normalizes_over_the_set_holds():
    assert shapes.sets_to_sets(lambda x, memory: 10 * x / memory.norm(dim=0)).holds


def test_lengths_by_angle():
    angles = np.linspace(0.0, 2 * np.pi, 37)
    for row, w in zip(finding("C13").picture.values, (shapes.random_rotation(0, 2), normal(0, 2, 2)), strict=True):
        expected = np.linalg.norm(w.numpy() @ np.stack([np.cos(angles), np.sin(angles)]), axis=0)
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-10)


@given(d=st.integers(2, 12), seed=st.integers(0, 2**31))
@settings(max_examples=25)
def test_any_rotation_keeps_lengths(d, seed):
    w = shapes.random_rotation(seed, d)
    checks = {check.name.en: check for check in shapes.only_orthogonal_maps_rotate(w, seed).checks}
    assert all(check.holds for check in checks.values() if not check.counterexample)


def test_the_distance_of_sets():
    first, second = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0]])
    assert shapes.set_distance(first, second) == 5.0
    assert shapes.set_distance(second, first) == 5.0
    assert shapes.set_distance(first, first.flip(0)) == 0.0


PLACES = 0.1 * sinusoidal_encoding(torch.arange(8), 8, dtype=torch.float64)
FEWER = {"C07": {"draws": 50_000}, "C10": {"sets": 300}}
BREAKS = {
    "C05 scaled": attention,
    "C05 by column": lambda q, k, v: (q @ k.T).softmax(0) @ v,
    "C05 key by query": lambda q, k, v: (k @ q.T).softmax(1) @ v,
    "C05 not normalized": lambda q, k, v: (q @ k.T).exp() @ v,
    "C06 overflows": lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True),
    "C06 over queries": lambda scores: scores.softmax(-2),
    "C06 sigmoid": lambda scores: scores.sigmoid(),
    "C06 hard": lambda scores: masked_softmax(scores, inverse_temperature=math.inf),
    "C06 float32": lambda scores: scores.float().softmax(-1).double(),
    "C07 uniform": lambda shape, generator: torch.rand(shape, generator=generator, dtype=torch.float64),
    "C07 wider": lambda shape, generator: 1.1 * temperature.standard_normal(shape, generator),
    "C07 all entries equal": lambda shape, generator: temperature.standard_normal((*shape[:-1], 1), generator).expand(
        shape
    ),
    "C08 heads in another order": lambda layer: head_matrices(layer).flip(0),
    "C08 transposed": lambda layer: head_matrices(layer).mT,
    "C08 all alike": lambda layer: head_matrices(layer).mean(0, keepdim=True).expand(4, -1, -1),
    "C08 full rank": lambda layer: head_matrices(layer) + 1e-9 * torch.eye(16),
    "C09 positions": lambda x: x + PLACES[: len(x)],
    "C09 invariant": lambda x: x.sum(0, keepdim=True).expand(len(x), -1),
    "C09 sorted": lambda x: x.sort(0).values,
    "C10 1.0": lambda d: 1.0,
    "C10 1 / d": lambda d: 1 / d,
    "C10 1.05 * d**-0.5": lambda d: 1.05 * d**-0.5,
    "C11 β ignored": lambda scores, beta: masked_softmax(scores),
    "C11 never hard": lambda scores, beta: masked_softmax(scores, inverse_temperature=min(beta, 5.0)),
    "C11 hard at the lowest": lambda scores, beta: masked_softmax(-scores, inverse_temperature=beta),
    "C11 overflows": lambda scores, beta: (
        (min(beta, 1e9) * scores).exp() / (min(beta, 1e9) * scores).exp().sum(-1, True)
    ),
    "C12 positions": lambda x, memory: x + PLACES[: len(x)],
    "C12 ordered memory": lambda x, memory: x + (memory * torch.arange(len(memory))[:, None]).sum(0),
    "C12 one output": lambda x, memory: x[:1],
    "C12 prefixes": lambda x, memory: x.cumsum(0),
    "C13 random": normal(0, 8, 8) * 8**-0.5,
    "C13 stretched": (1 + 1e-9) * shapes.random_rotation(0, 8),
    "C13 odd permutation": shapes.random_rotation(0, 8).flip(0)[:, [1, 0, *range(2, 8)]],
    "C13 mirror": torch.diag(torch.tensor([-1.0, *[1.0] * 7], dtype=torch.float64)),
    "C13 zero": torch.zeros(8, 8, dtype=torch.float64),
    "C19 no mask": lambda scores, mask: scores.softmax(-1),
    "C19 finite": lambda scores, mask: (scores - 30.0 * ~mask).softmax(-1),
    "C19 after the softmax": lambda scores, mask: scores.softmax(-1) * mask,
    "C19 the past": lambda scores, mask: masked_softmax(scores, mask.T),
    "C19 not itself": lambda scores, mask: masked_softmax(scores, mask & ~torch.eye(6, dtype=torch.bool)),
    "C21 diagonal": torch.diag,
    "C21 outer": lambda y: torch.outer(y, y),
    "C21 sign": lambda y: torch.outer(y, y) - y.diag(),
    "C21 no mixed terms": lambda y: (y * (1 - y)).diag(),
}
"""What must fail a claim in place of what is right there."""


@pytest.mark.some(8)
@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_a_claim(name):
    claim = name[:3]
    assert not CLAIMS[claim](BREAKS[name], **FEWER.get(claim, {})).holds


# C40: directions


@given(seed=st.integers(0, 99), factor=st.floats(0.1, 10.0))
def test_lengths_change_weights_unless_normalized(seed, factor):
    q, k = normal(seed, 3, 4), normal(seed + 1, 5, 4)
    angles = shapes.unit_rows(q).numpy() @ shapes.unit_rows(k).numpy().T
    expected = softmax(factor * angles / 2.0)  # 1/√4
    np.testing.assert_allclose(
        shapes.attention_weights(factor * shapes.unit_rows(q), shapes.unit_rows(k)),
        expected,
        rtol=0,
        atol=1e-10,
    )


def test_attention_by_angles_alone_has_no_counterexample():
    def by_angle(query, key):
        return shapes.attention_weights(shapes.unit_rows(query), shapes.unit_rows(key))

    found = shapes.lengths_matter_too(by_angle)
    assert [check.holds for check in found.checks] == [not check.counterexample for check in found.checks]
