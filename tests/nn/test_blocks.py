"""Residuals, the feed-forward net, blocks and stacks: the order of what they do."""

import pytest
import torch
from random_weights import randn
from torch import nn

from attendo.nn.attention import Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import FeedForward
from attendo.nn.masks import Mask


def residual(norm_first, width=8):
    return Residual(nn.LayerNorm(width), norm_first=norm_first)


def encoder_block(norm_first=False):
    return EncoderBlock(Attention(8, 2), FeedForward(8, 16), lambda: residual(norm_first)).double()


def decoder_block(norm_first=False, d_memory=8):
    cross = Attention(8, 2, d_memory=d_memory)
    parts = Attention(8, 2), cross, FeedForward(8, 16)
    return DecoderBlock(*parts, lambda: residual(norm_first)).double()


def test_the_norm_stands_behind_the_sum_or_before_the_sublayer():
    x, norm = randn(3, 8), nn.LayerNorm(8).double()
    assert Residual(norm, norm_first=False)(x, torch.sin).equal(norm(x + x.sin()))
    assert Residual(norm, norm_first=True)(x, torch.sin).equal(x + norm(x).sin())


def test_dropout_falls_on_the_sublayer_not_on_the_sum():
    torch.manual_seed(0)
    branch = Residual(nn.Identity(), norm_first=True, dropout=0.5)
    added = branch(torch.full((1000,), 3.0), torch.ones_like) - 3.0
    assert set(added.tolist()) == {0.0, 2.0}
    assert branch.eval()(torch.full((1000,), 3.0), torch.ones_like).eq(4.0).all()


def test_feed_forward_drops_inner_activations():
    torch.manual_seed(0)
    feed_forward = FeedForward(4, 16, dropout=0.5)
    x = torch.randn(2, 4)
    assert not feed_forward(x).equal(feed_forward(x))
    feed_forward.eval()
    assert feed_forward(x).equal(feed_forward(x))


def test_blocks_are_the_formulas_of_figure_1():
    x, memory, causal = randn(2, 3, 8), randn(2, 5, 8, seed=1), Mask(causal=True)
    storey = encoder_block()
    a, f = storey.self_attention_residual.norm, storey.feed_forward_residual.norm
    y = a(x + storey.self_attention(x, x, causal))
    torch.testing.assert_close(storey(x, causal), f(y + storey.feed_forward(y)))

    storey = decoder_block()
    a, c, f = (getattr(storey, f"{n}_residual").norm for n in ("self_attention", "cross_attention", "feed_forward"))
    y = a(x + storey.self_attention(x, x, causal))
    y = c(y + storey.cross_attention(y, memory, Mask(window=2)))
    torch.testing.assert_close(storey(x, memory, causal, Mask(window=2)), f(y + storey.feed_forward(y)))


def test_each_residual_has_a_norm_of_its_own():
    storey = decoder_block()
    assert sum(isinstance(module, nn.LayerNorm) for module in storey.modules()) == 3


def test_a_stack_is_its_blocks_in_order_and_a_last_norm():
    x, norm = randn(2, 3, 8), nn.LayerNorm(8).double()
    first, second = encoder_block(norm_first=True), encoder_block(norm_first=True)
    torch.testing.assert_close(Encoder([first, second], norm)(x), norm(second(first(x))))
    torch.testing.assert_close(Encoder([first, second])(x), second(first(x)))


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_of_wider_memory_steps_as_it_runs(norm_first):
    decoder = Decoder([decoder_block(norm_first, d_memory=6) for _ in range(2)], nn.LayerNorm(8).double())
    x, memory, padding = randn(2, 4, 8), randn(2, 5, 6, seed=1), Mask(key_lengths=torch.tensor([5, 2]))
    full = decoder(x, memory, Mask(causal=True), padding)
    cache = decoder.start(memory, padding, rows_per_source=1, capacity=4)
    steps = [decoder.step(x[:, :2], cache), decoder.step(x[:, 2:3], cache), decoder.step(x[:, 3:], cache)]
    torch.testing.assert_close(torch.cat(steps, 1), full, rtol=1e-12, atol=1e-12)
    assert cache.lengths.tolist() == [4, 4]


def test_a_cache_of_fewer_blocks_is_refused():
    one, two = (Decoder([decoder_block() for _ in range(n)]) for n in (1, 2))
    cache = one.start(randn(2, 5, 8), None, rows_per_source=1, capacity=4)
    with pytest.raises(ValueError, match="shorter"):
        two.step(randn(2, 1, 8), cache)
