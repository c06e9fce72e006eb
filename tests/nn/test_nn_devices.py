"""What nn makes of its own stands on the device of what it is given, tried on torch's device of shapes alone."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from attendo.decoding.protocols import join_rows
from attendo.nn.attention import Attend, Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Residual
from attendo.nn.layers import Dropout, FeedForward, InputEmbedding, TokenEmbedding, keep_mask, pool
from attendo.nn.masks import Mask, banded, causal, within_lengths
from attendo.nn.positions import (
    Alibi,
    FixedPositions,
    LearnedPositions,
    RelativeBias,
    Rotary,
    sinusoidal_encoding,
)

META = torch.device("meta")
LENGTHS = torch.zeros(2, dtype=torch.long, device=META)


def heads(length, dtype=None):
    return torch.zeros(2, 2, length, 4, device=META, dtype=dtype)


def test_masks_stand_where_they_are_asked_for_or_where_their_parts_are():
    made = [causal(2, 3, META), banded(2, 3, 2, META), within_lengths(LENGTHS, 3)]
    allowed = torch.ones(3, 3, dtype=torch.bool, device=META)
    made += [Mask(causal=True, window=2).dense(3, 3, META), Mask().dense(2, 3, META)]
    made += [Mask(causal=True, window=2, key_lengths=LENGTHS).dense(3, 3)]
    made += [Mask(causal=True, segments=LENGTHS[:, None].expand(2, 3)).dense(3, 3)]
    made += [Mask(window=2, allowed=allowed).dense(3, 3)]
    assert [mask.device for mask in made] == [META] * len(made)


@pytest.mark.parametrize("beta", [1.0, math.inf])
@pytest.mark.parametrize("mask", [None, Mask(causal=True), Mask(window=2), Mask(key_lengths=LENGTHS)])
def test_attention_makes_its_matrices_where_the_queries_are(beta, mask):
    attend = Attend(inverse_temperature=beta)
    assert attend(heads(3), heads(3), heads(3), mask).device == META
    assert attend(heads(2), heads(3), heads(3), mask).device == META


@pytest.mark.parametrize("positions", [None, Rotary(), Alibi(2), RelativeBias(2)])
def test_a_decoder_and_its_cache_stand_where_the_memory_is(positions):
    def block():
        own, residual = (
            Attention(8, 2, positions=positions),
            partial(Residual, nn.LayerNorm(8), norm_first=True),
        )
        return DecoderBlock(own, Attention(8, 2), FeedForward(8, 8), residual)

    decoder = Decoder([block() for _ in range(2)]).to(META)
    memory, x = torch.zeros(2, 5, 8, device=META), torch.zeros(4, 3, 8, device=META)
    assert decoder(x, memory.repeat(2, 1, 1), Mask(causal=True)).device == META
    cache = decoder.start(memory, Mask(key_lengths=LENGTHS), rows_per_source=2, capacity=8)
    assert decoder.step(x, cache).device == META
    other = decoder.start(memory[:1], None, rows_per_source=1, capacity=8)
    join_rows(cache, other)  # rows of two lengths, sources with unlike numbers of rows
    assert decoder.step(torch.zeros(5, 2, 8, device=META), cache).device == META
    assert cache.lengths.device == cache.memory_lengths.device == META
    assert cache.self_mask(2).dense(2, 7).device == META
    assert cache._source_index.device == META


@pytest.mark.parametrize("kind", ["fixed", "learned"])
def test_positions_are_counted_where_the_ids_are(kind):
    fixed = FixedPositions(partial(sinusoidal_encoding, d_model=4), max_len=2)
    positions = fixed if kind == "fixed" else LearnedPositions(4, max_len=9)
    embed = InputEmbedding(TokenEmbedding(5, 4), positions).to(META)
    ids = torch.zeros(2, 3, dtype=torch.long, device=META)
    assert embed(ids).device == META
    assert embed(ids, start=LENGTHS, end=9).device == META  # where a table has to grow
    assert kind == "learned" or positions.table.device == META


def test_pooling_and_dropout_stay_where_they_are():
    x = torch.zeros(2, 3, 4, device=META)
    assert [pool(x, kind, LENGTHS).device for kind in ("max", "mean", "first")] == [META] * 3
    assert keep_mask(x, 0.5).device == META


class Elsewhere(torch.Tensor):
    """Says that it stands on a GPU."""

    is_cuda = True


def test_a_gpu_drops_by_its_own_kernel():
    dropout, x = Dropout(0.3), torch.ones(2000)
    torch.manual_seed(0)
    dropped = dropout(x.as_subclass(Elsewhere))
    torch.manual_seed(0)
    assert dropped.equal(nn.functional.dropout(x, 0.3))
    assert dropout.eval()(x.as_subclass(Elsewhere)).equal(x)


def test_bfloat16_is_attended_to_in_float32_on_a_cpu():
    query = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    seen = []

    class Watched(Attend):
        def fused(self, query, key, value, mask, bias):
            seen.append((query.dtype, key.dtype, value.dtype, torch.is_autocast_enabled("cpu")))
            return super().fused(query, key, value, mask, bias)

    with torch.autocast("cpu", torch.bfloat16):
        assert Watched()(query, query, query).dtype == torch.bfloat16
    Watched()(*[query.to(META)] * 3)  # another device has kernels of its own
    assert seen == [(torch.float32,) * 3 + (False,), (torch.bfloat16,) * 3 + (False,)]
