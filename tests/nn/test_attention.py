"""Attention on examples that can be checked by hand, its module's shapes and refusals."""

import math

import jaxtyping
import pytest
import torch
from random_weights import randn
from torch import nn

from attendo.nn.attention import (
    Attend,
    Attention,
    attention,
    attention_scores,
    attention_weights,
    masked_softmax,
    share_heads,
)
from attendo.nn.masks import Mask
from attendo.nn.positions import Rotary, frequencies, rotate


def test_weights_by_hand():
    query, key = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 5.0], [0.0, 5.0]])
    odds = math.exp(2.0 / math.sqrt(2.0))  # the scores are 2/√2 and 0
    weights = attention_weights(query, key)
    torch.testing.assert_close(weights, torch.tensor([[odds / (odds + 1), 1 / (odds + 1)]]))


def test_scale_and_bias_act_on_the_scores():
    query, key, bias = randn(2, 4), randn(3, 4, seed=1), randn(2, 3, seed=2)
    expected = (query @ key.T * 0.25 + bias).softmax(-1)
    torch.testing.assert_close(attention_weights(query, key, scale=0.25, bias=bias), expected)
    assert attention_scores(query, key).equal(query @ key.T * 0.5)


def test_allowed_keys_with_the_lowest_scores_still_win_over_forbidden_ones():
    scores = torch.tensor([[-1e30, 5.0]])
    assert masked_softmax(scores, torch.tensor([[True, False]])).equal(torch.tensor([[1.0, 0.0]]))


def test_groups_of_query_heads_share_their_key_head():
    query, key, value = randn(2, 4, 3, 5), randn(2, 2, 6, 5, seed=1), randn(2, 2, 6, 7, seed=2)
    mixed = Attend()(query, key, value)
    for head in range(4):
        alone = attention(query[:, head], key[:, head // 2], value[:, head // 2])
        torch.testing.assert_close(mixed[:, head], alone, rtol=1e-12, atol=1e-12)
    assert share_heads(key, 2) is key


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("mask", [None, Mask(causal=True), Mask(causal=True, key_lengths=torch.tensor([0, 3]))])
@pytest.mark.parametrize("beta", [0.0, 0.5, 2.0, math.inf])
def test_the_kernel_tempers_as_the_formula_does(beta, mask, biased):
    query, key, value, bias = (randn(2, 2, 5, size, seed=seed) for seed, size in enumerate((4, 4, 3, 5)))
    query = query.requires_grad_()
    own = bias if biased else None
    mixed = Attend(inverse_temperature=beta)(query, key, value, mask, own)
    allowed = None if mask is None else mask.dense(5, 5)
    torch.testing.assert_close(
        mixed,
        attention(query, key, value, allowed, bias=own, inverse_temperature=beta),
        rtol=1e-12,
        atol=1e-12,
    )
    if beta not in (0.0, math.inf):  # else no score matters
        mixed.sum().backward()
        assert query.grad is not None and query.grad.isfinite().all() and query.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_forbidden_keys_have_no_part_in_any_precision(dtype):
    query, key, value = (randn(1, 1, 3, 8, seed=seed).to(dtype) for seed in range(3))
    mask = Mask(key_lengths=torch.tensor([2]))
    mixed = Attend()(query, key, value, mask)
    value[:, :, 2], key[:, :, 2] = 100.0, 30.0
    assert Attend()(query, key, value, mask).equal(mixed)
    twin = attention(query, key, value, mask.dense(3, 3))
    torch.testing.assert_close(mixed, twin, rtol=0.02, atol=0.02)


def test_forbidden_keys_have_no_part_however_high_their_scores():
    query, key = torch.ones(1, 1, 1, 1), torch.tensor([0.0, 1e30]).view(1, 1, 2, 1)
    value = torch.tensor([3.0, 5.0]).view(1, 1, 2, 1)
    assert Attend()(query, key, value, Mask(key_lengths=torch.tensor([1]))).item() == 3.0


def test_a_source_without_keys_gives_zeros():
    query, nothing = randn(1, 2, 3, 4), torch.zeros(1, 2, 0, 4, dtype=torch.float64)
    assert Attend()(query, nothing, nothing).equal(torch.zeros_like(query))
    assert attention(query, nothing, nothing).equal(torch.zeros_like(query))


@pytest.mark.parametrize("mask", [None, Mask(key_lengths=torch.tensor([64]))])
def test_dropout_falls_on_weights_and_only_in_training(mask):
    n = 64 if mask is None else 65
    query, key, value = randn(1, 1, 1, 4), randn(1, 1, n, 4, seed=1), torch.eye(n, dtype=torch.float64)
    attend, value = Attend(dropout=0.5), value[None, None]
    # the values are one-hot: attention gives its own weights
    weights = attention_weights(query, key, None if mask is None else mask.dense(1, n))
    dropped = attend(query, key, value, mask)
    kept = dropped != 0
    assert 10 < kept.sum() < 54
    torch.testing.assert_close(dropped[kept], 2 * weights[kept])
    torch.testing.assert_close(attend.eval()(query, key, value, mask), weights)


def test_the_module_is_the_heads_side_by_side_projected_back():
    module = Attention(8, 2).double()
    x, memory = randn(2, 3, 8), randn(2, 5, 8, seed=1)
    query, key, value = module.q_proj(x), module.k_proj(memory), module.v_proj(memory)
    heads = [attention(query[..., h], key[..., h], value[..., h]) for h in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(module(x, memory), module.out_proj(torch.cat(heads, -1)))


def test_projected_keys_can_be_kept():
    module = Attention(8, 4, n_kv_heads=2).double()
    x, memory = randn(2, 3, 8), randn(2, 5, 8, seed=1)
    key, value = module.keys_values(memory)
    assert key.shape == value.shape == (2, 2, 5, 2)
    assert module.attend_to(x, key, value).equal(module(x, memory))


def test_the_seam_has_a_fixed_place_and_no_parameters():
    module = Attention(8, 2)
    assert isinstance(module.get_submodule("attend"), Attend)
    assert list(module.attend.parameters()) == []

    class Constant(nn.Module):
        def forward(self, query, key, value, mask, bias=None):
            return torch.ones_like(query)

    module.attend = Constant()
    ones = module.out_proj(torch.ones(8))
    torch.testing.assert_close(module(torch.randn(1, 2, 8), torch.randn(1, 3, 8))[0, 1], ones)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_heads": 3}, "d_model=8 is not divisible by n_heads=3"),
        ({"n_heads": 4, "n_kv_heads": 3}, "n_heads=4 must be a multiple of n_kv_heads=3"),
        ({"n_heads": 4, "n_kv_heads": 0}, "n_heads=4 must be a multiple of n_kv_heads=0"),
    ],
)
def test_heads_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Attention(8, **sizes)


def test_shapes_are_checked_in_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        Attend()(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5), torch.zeros(1, 2, 3, 4))


def test_a_query_without_keys_gets_zeros_however_low_its_scores():
    query, key = torch.ones(1, 1, 1, 1), torch.full((1, 1, 2, 1), -1e33)
    assert Attend()(query, key, key, Mask(key_lengths=torch.tensor([0]))).item() == 0.0


def test_norms_put_on_heads_act_before_positions():
    module = Attention(8, 2, positions=Rotary()).double()
    module.q_norm, module.k_norm = nn.LayerNorm(4).double(), nn.RMSNorm(4).double()
    x = randn(1, 3, 8)
    places = torch.arange(3)
    projected = (project(x) for project in (module.q_proj, module.k_proj, module.v_proj))
    query, key, value = (heads.unflatten(-1, (2, 4)).transpose(1, 2) for heads in projected)
    omega = frequencies(2, 4)
    turned = (rotate(x, places, omega) for x in (module.q_norm(query), module.k_norm(key)))
    mixed = attention(*turned, value)
    torch.testing.assert_close(module(x, x), module.out_proj(mixed.transpose(1, 2).flatten(2)))


def test_parts_that_are_given_are_taken():
    out_proj, attend = nn.Linear(8, 3, bias=False), Attend(scale=2.0)
    module = Attention(8, 2, out_proj=out_proj, attend=attend)
    assert module.out_proj is out_proj and module.attend is attend
    plain = Attention(8, 2, bias=False)
    assert [name for name, _ in plain.named_parameters() if "bias" in name] == []
    assert plain.attend.scale is None and plain.attend.dropout == 0.0


@pytest.mark.parametrize("mask", [None, Mask(key_lengths=torch.tensor([2]))])
def test_a_bias_may_be_of_another_precision_than_the_queries(mask):
    query, bias = randn(1, 2, 3, 4).float(), randn(2, 3, 3, seed=1).bfloat16()
    expected = Attend()(query, query, query, mask, bias.float())
    assert Attend()(query, query, query, mask, bias).equal(expected)
    assert Attend()(*[query.bfloat16()] * 3, mask, bias).dtype == torch.bfloat16
