"""Positional encodings and the embeddings that they are added to."""

import math
from functools import partial

import pytest
import torch

from attendo.nn.layers import InputEmbedding, TokenEmbedding
from attendo.nn.positions import (
    Alibi,
    FixedPositions,
    LearnedPositions,
    RelativeBias,
    relative_buckets,
    sinusoidal_encoding,
)


def test_a_far_position_is_as_exact_as_a_near_one():
    far = sinusoidal_encoding(torch.tensor(1_000_003), 4)
    assert far[0].item() == pytest.approx(math.sin(1_000_003), abs=1e-7)


def test_the_table_grows_on_demand_and_is_not_saved():
    positions = FixedPositions(partial(sinusoidal_encoding, d_model=8), max_len=4)
    wanted = torch.tensor([[0, 3], [4, 90]])
    assert positions(wanted, 91).equal(sinusoidal_encoding(wanted, 8))
    assert len(positions.table) >= 91
    assert not positions.state_dict()
    assert not list(positions.parameters())


def test_a_table_grown_for_inference_serves_training():
    embedding = InputEmbedding(TokenEmbedding(5, 8), FixedPositions(partial(sinusoidal_encoding, d_model=8), max_len=2))
    token_ids = torch.tensor([[1, 2, 3, 4]])
    with torch.inference_mode():
        embedding(token_ids)
    embedding(token_ids).square().sum().backward()
    assert embedding.tokens.weight.grad is not None


def test_a_grown_table_keeps_the_precision_of_the_model():
    positions = FixedPositions(partial(sinusoidal_encoding, d_model=8), max_len=2).double()
    assert positions(torch.arange(5), 5).dtype == torch.float64


def test_learned_positions_end_at_max_len():
    positions = LearnedPositions(4, max_len=3)
    torch.nn.init.normal_(positions.weight)
    assert positions(torch.tensor([2, 0]), 3).equal(positions.weight[[2, 0]])
    with pytest.raises(ValueError, match=r"the text has 4 tokens.*max_len=3.*larger model\.max_len"):
        positions(torch.arange(4), 4)


def test_tokens_behind_a_cache_stand_where_it_ends():
    embedding = InputEmbedding(TokenEmbedding(5, 4), FixedPositions(partial(sinusoidal_encoding, d_model=4), max_len=3))
    starts = torch.tensor([0, 7])
    placed = embedding(torch.tensor([[1, 2], [1, 2]]), starts, 9)
    assert placed.equal(sinusoidal_encoding(torch.tensor([[0, 1], [7, 8]]), 4))  # the weight is still zero


@pytest.mark.parametrize("order", ["sincos", "cossin", "halves"])
def test_positions_of_any_shape_are_encoded_one_by_one(order):
    positions = torch.tensor([[0, 5, 1], [7, 2, 9]])
    one_by_one = [[sinusoidal_encoding(p, 6, order=order) for p in row] for row in positions]
    expected = torch.stack([torch.stack(row) for row in one_by_one])
    assert sinusoidal_encoding(positions, 6, order=order).equal(expected)


def test_slopes_are_not_saved():
    assert not Alibi(4).state_dict()


def test_relative_positions_have_the_paper_s_32_buckets_up_to_128():
    distances = torch.arange(-300, 300)
    for causal in (False, True):
        assert relative_buckets(distances, causal=causal).equal(relative_buckets(distances, 32, 128, causal=causal))
    bias = RelativeBias(2)
    assert (bias.weight.shape, bias.reach, bias.causal) == ((32, 2), 128, False)
