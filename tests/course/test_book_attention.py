"""F01 to F09 against direct transcriptions in NumPy float64."""

import math

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy_transcription import arrays, multi_head, softmax
from random_weights import randn
from torch import nn

from attendo.inspecting.residual_stream import head_contributions, head_matrices
from attendo.nn.attention import (
    Attend,
    Attention,
    attention,
    attention_scores,
    attention_weights,
    masked_softmax,
)
from attendo_course.lecture import stacked_projection

EXACT = {"rtol": 0.0, "atol": 1e-10}


@given(n=st.integers(1, 8), beta=st.floats(0.0, 30.0), seed=st.integers(0, 99))
def test_f01_softargmax(n, beta, seed):
    s = randn(1, n, seed=seed)
    powers = [math.exp(beta * (score - float(s.max()))) for score in s[0].tolist()]
    weights = masked_softmax(s, inverse_temperature=beta)
    np.testing.assert_allclose(weights[0], np.array(powers) / sum(powers), **EXACT)
    assert weights.sum().item() == pytest.approx(1.0, abs=1e-12)


def test_f01_from_even_to_one_hot():
    s = torch.tensor([[1.0, 0.5, 0.2]], dtype=torch.float64)
    assert round(masked_softmax(s, inverse_temperature=20.0)[0, 0].item(), 5) == 0.99995
    assert masked_softmax(s, inverse_temperature=0.0).tolist() == [[1 / 3] * 3]
    assert masked_softmax(s, inverse_temperature=math.inf).tolist() == [[1.0, 0.0, 0.0]]
    extreme = torch.tensor([[1e4, 0.0]])
    assert masked_softmax(extreme).tolist() == [[1.0, 0.0]]


def test_hard_attention_takes_the_first_of_equals_and_only_allowed_keys():
    s = torch.tensor([[2.0, 5.0, 5.0], [2.0, 5.0, 1.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    assert masked_softmax(s, mask, math.inf).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert masked_softmax(torch.zeros(2, 0), inverse_temperature=math.inf).shape == (2, 0)


@pytest.mark.parametrize("beta", [-1.0, math.nan, -math.inf])
def test_an_inverse_temperature_below_0_is_refused(beta):
    with pytest.raises(ValueError, match=r"inverse_temperature=.* must be at least 0"):
        masked_softmax(torch.zeros(1, 2), inverse_temperature=beta)
    with pytest.raises(ValueError, match=r"inverse_temperature=.* must be at least 0"):
        Attend(inverse_temperature=beta)


@pytest.mark.parametrize("beta", [2.0, math.inf])
def test_f02_attention_without_parameters(beta):
    X = randn(3, 5)  # columns are the elements
    columns = X.T
    A = attention_weights(columns, columns, scale=1.0, inverse_temperature=beta).mT.numpy()
    H = attention(columns, columns, columns, scale=1.0, inverse_temperature=beta).mT.numpy()
    scores = X.T.numpy() @ X.numpy()
    if beta == math.inf:
        expected = np.stack([np.eye(5)[scores[:, j].argmax()] for j in range(5)], axis=1)
        assert all(any(np.array_equal(h, x) for x in X.numpy().T) for h in H.T)
    else:
        expected = np.stack([softmax(beta * scores[:, j]) for j in range(5)], axis=1)
    np.testing.assert_allclose(A, expected, **EXACT)
    np.testing.assert_allclose(A.sum(0), 1.0, **EXACT)
    np.testing.assert_allclose(H, X.numpy() @ expected, **EXACT)


def test_f03_projections_of_any_width():
    layer = Attention(5, 2, head_dim=3, value_dim=4, d_memory=(6, 7)).double()
    x, memory, values = randn(1, 2, 5), randn(1, 3, 6, seed=1), randn(1, 3, 7, seed=2)
    expected = multi_head(x[0].numpy(), memory[0].numpy(), arrays(layer), 2, values=values[0].numpy())
    H = layer(x, memory, values=values)
    np.testing.assert_allclose(H[0].detach(), expected, **EXACT)
    with pytest.raises((RuntimeError, jaxtyping.TypeCheckError)):  # dim(q) ≠ dim(k); the latter under the hook
        attention_scores(randn(2, 3), randn(2, 4))


@given(d_in=st.integers(1, 6), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3), bias=st.booleans())
def test_f04_stacked_projection(d_in, sizes, bias):
    projections = [nn.Linear(d_in, size, bias=bias).double() for size in sizes]
    x = randn(4, d_in)
    parts = stacked_projection(*projections)(x).split(sizes, -1)
    for part, projection in zip(parts, projections, strict=True):
        torch.testing.assert_close(part, projection(x), rtol=0, atol=1e-14)


def test_f05_retrieval():
    K, V, q = randn(4, 6), randn(3, 6, seed=1), randn(4, seed=2)  # columns are the entries
    a = softmax(K.T.numpy() @ q.numpy() / math.sqrt(4))
    weights = attention_weights(q[None], K.T)
    np.testing.assert_allclose(weights[0], a, **EXACT)
    np.testing.assert_allclose(attention(q[None], K.T, V.T)[0], V.numpy() @ a, **EXACT)
    hard = attention(q[None], K.T, V.T, inverse_temperature=math.inf)[0]
    np.testing.assert_array_equal(hard, V[:, int(a.argmax())])


def test_f06_single_query():
    query, key, value = randn(1, 6), randn(5, 6, seed=1), randn(5, 2, seed=2)
    powers = [math.exp(sum(float(query[0, i] * key[t, i]) for i in range(6)) / math.sqrt(6)) for t in range(5)]
    expected = sum(powers[t] / sum(powers) * value[t].numpy() for t in range(5))
    np.testing.assert_allclose(attention(query, key, value)[0], expected, **EXACT)
    assert attention(query, key[:1], value[:1]).equal(value[:1])  # T = 1
    several = attention(randn(3, 6, seed=3).index_copy(0, torch.tensor([1]), query), key, value)
    np.testing.assert_allclose(several[1], expected, **EXACT)  # one column of the matrix form


@given(q_len=st.integers(1, 5), k_len=st.integers(1, 5), d=st.integers(1, 4), seed=st.integers(0, 99))
def test_f07_matrix_attention(q_len, k_len, d, seed):
    Q, K, V = randn(q_len, d, seed=seed), randn(k_len, d, seed=seed + 1), randn(k_len, 3, seed=seed + 2)
    scale = 0.7
    rows = softmax(Q.numpy() @ K.numpy().T * scale) @ V.numpy()
    columns = V.numpy().T @ softmax((K.numpy() @ Q.numpy().T * scale).T).T
    seen = attention(Q, K, V, scale=scale)
    np.testing.assert_allclose(seen, rows, **EXACT)
    np.testing.assert_allclose(seen.T, columns, **EXACT)
    mask = torch.rand(q_len, k_len, generator=torch.Generator().manual_seed(seed)) < 0.6
    weights = attention_weights(Q, K, mask, scale)
    assert weights[~mask].eq(0.0).all()


@pytest.mark.parametrize("bias", [False, True])
def test_f08_multi_head_attention(bias):
    layer = Attention(12, 3, bias=False, out_proj=nn.Linear(12, 12, bias=bias)).double()
    x, memory = randn(1, 4, 12), randn(1, 6, 12, seed=1)
    H = layer(x, memory)[0].detach()
    expected = multi_head(x[0].numpy(), memory[0].numpy(), arrays(layer), 3)
    np.testing.assert_allclose(H, expected, **EXACT)


def test_f09_heads_of_full_size():
    d, h = 6, 3
    full = Attention(d, h, head_dim=d, bias=False)
    assert sum(p.numel() for p in full.parameters()) == 4 * h * d**2
    assert sum(p.numel() for p in Attention(d, h, bias=False).parameters()) == 4 * d**2
    assert full(torch.zeros(1, 2, d), torch.zeros(1, 2, d)).shape == (1, 2, d)


@given(heads=st.sampled_from([1, 2, 4]), kv=st.sampled_from([1, 2]), value_dim=st.integers(1, 3))
def test_heads_add_up_to_the_output(heads, kv, value_dim):
    kv = min(kv, heads)
    layer = Attention(8, heads, n_kv_heads=kv, value_dim=value_dim, bias=False).double()
    x = randn(1, 3, 8)
    key, value = layer.keys_values(x)
    query = layer.q_proj(x).unflatten(-1, (heads, -1)).transpose(1, 2)
    parts = head_contributions(layer.attend(query, key, value), layer.out_proj.weight)
    torch.testing.assert_close(parts.sum(1), layer(x, x), **EXACT)
    matrices = head_matrices(layer)
    for head in range(heads):
        keys = key[:, head * kv // heads]
        direct = attention_weights(query[:, head], keys) @ x @ matrices[head].T
        torch.testing.assert_close(parts[:, head], direct, **EXACT)
