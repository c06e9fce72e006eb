"""What holds for attention under every mask: its rows, its twin, its gradients."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.nn.attention import (
    Attend,
    attention,
    attention_scores,
    attention_weights,
    masked_softmax,
    share_heads,
)
from attendo.nn.masks import Mask

KINDS = ("causal", "key_lengths", "segments", "window", "allowed")
COMBINATIONS = [kinds for n in range(6) for kinds in itertools.combinations(KINDS, n)]
EXACT = {"rtol": 1e-12, "atol": 1e-12}


class Case:
    """Random queries, keys, values, bias, and a mask of these kinds; small, so that empty rows are common."""

    def __init__(self, kinds, seed, sizes, with_bias=False):
        self.random = torch.Generator().manual_seed(seed)
        self.batch, self.kv_heads, groups, self.q_len, self.k_len = sizes
        self.heads = self.kv_heads * groups
        if "segments" in kinds:  # the queries are among the keys
            self.k_len = max(self.k_len, self.q_len)
        self.query = self.randn(self.batch, self.heads, self.q_len, 3)
        self.key = self.randn(self.batch, self.kv_heads, self.k_len, 3)
        self.value = self.randn(self.batch, self.kv_heads, self.k_len, 2)
        self.bias = self.randn(self.heads, self.q_len, self.k_len) if with_bias else None
        self.mask = Mask(**{kind: getattr(self, kind)() for kind in kinds})

    def randn(self, *shape):
        return torch.randn(*shape, dtype=torch.float64, generator=self.random)

    def randint(self, low, high, *shape):
        return torch.randint(low, high, shape, generator=self.random)

    def causal(self):
        return True

    def key_lengths(self):
        return self.randint(0, self.k_len + 1, self.batch)

    def segments(self):
        return self.randint(-1, 2, self.batch, self.k_len)

    def window(self):
        return int(self.randint(1, 4, 1))

    def allowed(self):
        shapes = [
            (self.q_len, self.k_len),
            (1, self.k_len),
            (self.heads, self.q_len, self.k_len),
            (self.batch, 1, self.q_len, self.k_len),
            (self.batch, self.heads, self.q_len, 1),
        ]
        return self.randint(0, 3, *shapes[int(self.randint(0, 5, 1))]) > 0

    @property
    def dense(self):
        return self.mask.dense(self.q_len, self.k_len)

    def may_attend(self, row, head, query, key):
        """The meaning of a mask, one pair at a time."""
        mask, place = self.mask, self.k_len - self.q_len + query
        allowed = None if mask.allowed is None else mask.allowed.expand(self.batch, self.heads, self.q_len, self.k_len)
        return (
            not (mask.causal and key > place)
            and not (mask.key_lengths is not None and key >= mask.key_lengths[row])
            and not (mask.segments is not None and mask.segments[row, place] != mask.segments[row, key])
            and not (mask.window is not None and abs(key - place) >= mask.window)
            and not (allowed is not None and not allowed[row, head, query, key])
        )

    def twin(self, query, key, value):
        """The readable twin of the fused kernel."""
        key, value = share_heads(key, self.heads), share_heads(value, self.heads)
        return attention(query, key, value, self.dense, bias=self.bias)

    def fused(self, query, key, value):
        return Attend()(query, key, value, self.mask, self.bias)

    def without_keys(self):
        """Which queries may attend to nothing, `[batch, heads, q_len]`."""
        return ~self.dense.any(-1).expand(self.batch, self.heads, self.q_len)


seeds = st.integers(0, 2**31)
sizes = st.tuples(*[st.integers(1, n) for n in (3, 2, 2, 5, 5)])
every_mask = pytest.mark.parametrize("kinds", COMBINATIONS, ids=lambda kinds: "+".join(kinds) or "none")


def gradients(function, case):
    """The gradients of a random linear function of the result, by query, key and value."""
    leaves = [tensor.clone().requires_grad_() for tensor in (case.query, case.key, case.value)]
    mixed = function(*leaves)
    return torch.autograd.grad(mixed, leaves, torch.linspace(-1, 2, mixed.numel()).view_as(mixed).to(mixed))


@pytest.mark.some(12)
@every_mask
@settings(max_examples=3)
@given(seed=seeds, sizes=sizes)
def test_the_matrix_of_a_mask_is_its_meaning_pair_by_pair(kinds, seed, sizes):
    case = Case(kinds, seed, sizes)
    dense = case.dense.expand(case.batch, case.heads, case.q_len, case.k_len)
    for pair in itertools.product(*map(range, dense.shape)):
        assert bool(dense[pair]) == bool(case.may_attend(*pair))


@settings(max_examples=60)
@given(
    kinds=st.tuples(st.sampled_from(COMBINATIONS), st.sampled_from(COMBINATIONS)),
    seeds=st.tuples(seeds, seeds),
    length=st.integers(1, 5),
)
def test_both_of_two_masks_is_the_product_of_their_matrices(kinds, seeds, length):
    one, two = (Case(k, seed, (2, 2, 1, length, length)) for k, seed in zip(kinds, seeds, strict=True))
    both = one.mask & two.mask
    assert both.dense(length, length).equal(one.dense & two.dense)
    assert both.dense(length, length).equal((two.mask & one.mask).dense(length, length))


@pytest.mark.some(12)
@every_mask
@settings(max_examples=5)
@given(seed=seeds, sizes=sizes, with_bias=st.booleans())
def test_rows_of_weights_sum_to_one_over_allowed_keys_and_are_zero_elsewhere(kinds, seed, sizes, with_bias):
    case = Case(kinds, seed, sizes, with_bias)
    key = share_heads(case.key, case.heads)
    weights = attention_weights(case.query, key, case.dense, bias=case.bias)
    assert (weights >= 0).all()
    assert not weights[~case.dense.expand_as(weights)].any()
    torch.testing.assert_close(weights.sum(-1), (~case.without_keys()).double(), **EXACT)


@pytest.mark.some(16)
@every_mask
@settings(max_examples=8)
@given(seed=seeds, sizes=sizes, with_bias=st.booleans())
def test_the_fused_kernel_equals_its_readable_twin(kinds, seed, sizes, with_bias):
    case = Case(kinds, seed, sizes, with_bias)
    args = case.query, case.key, case.value
    torch.testing.assert_close(case.fused(*args), case.twin(*args), **EXACT)
    for fused, twin in zip(gradients(case.fused, case), gradients(case.twin, case), strict=True):
        torch.testing.assert_close(fused, twin, **EXACT)


@pytest.mark.parametrize("path", ["fused", "twin"])
@pytest.mark.parametrize("with_bias", [False, True])
@settings(max_examples=40)
@given(kinds=st.sampled_from(COMBINATIONS[1:]), seed=seeds, sizes=sizes, empty=st.integers(0, 4))
def test_a_query_without_keys_gets_zeros_in_value_and_gradient(path, with_bias, kinds, seed, sizes, empty):
    case = Case(kinds, seed, sizes, with_bias)
    closed = torch.ones(case.q_len, 1, dtype=torch.bool)
    closed[empty % case.q_len] = False
    case.mask = case.mask & Mask(allowed=closed)
    function, lost = getattr(case, path), case.without_keys()
    assert lost.any()
    mixed = function(case.query, case.key, case.value)
    assert mixed.isfinite().all()
    assert not mixed[lost].any()
    by_query, by_key, by_value = gradients(function, case)
    assert all(gradient.isfinite().all() for gradient in (by_query, by_key, by_value))
    assert not by_query[lost].any()
    if lost.all():
        assert not by_key.any()
        assert not by_value.any()


@pytest.mark.some(2)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kinds", [(), ("causal",), ("causal", "key_lengths"), ("allowed",)])
def test_gradients_are_those_of_finite_differences(kinds, with_bias):
    case = Case(kinds, 3, (2, 2, 1, 4, 3), with_bias)
    dense = case.dense
    query, key, value = (tensor.requires_grad_() for tensor in (case.query, case.key, case.value))
    scores = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: masked_softmax(s, dense), scores)
    assert torch.autograd.gradcheck(lambda q, k: attention_scores(q, k, 0.7, case.bias), (query, key))
    assert torch.autograd.gradcheck(lambda q, k: attention_weights(q, k, dense, bias=case.bias), (query, key))
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, dense, bias=case.bias), (query, key, value))
    assert torch.autograd.gradcheck(case.fused, (query, key, value))
