"""Our modules compute what torch's compute with the same weights: values and gradients, in float64."""

import pytest
import torch
from random_weights import randomized
from torch import nn
from torch_modules import pairs, to_torch

from attendo.nn.attention import Attention, attention_weights
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import FeedForward
from attendo.nn.masks import Mask

D, HEADS, D_FF, BATCH, SRC, TGT = 12, 3, 20, 3, 5, 4
LENGTHS = torch.tensor([5, 1, 3])
PADDING = torch.arange(SRC) >= LENGTHS[:, None]  # torch's sense: True is hidden
FUTURE = torch.ones(TGT, TGT, dtype=torch.bool).triu(1)
HIDDEN = torch.rand(TGT, SRC, generator=torch.Generator().manual_seed(0)) < 0.4
HIDDEN[:, 0] = False  # where torch gives NaN for a query without keys, there is nothing to compare
WINDOW = Mask(key_lengths=torch.tensor([5, 3, 4]), window=4)
MASKS = {
    "nothing": (None, None, None),
    "padding": (Mask(key_lengths=LENGTHS), PADDING, None),
    "pairs": (Mask(allowed=~HIDDEN), None, HIDDEN),
    "both": (Mask(allowed=~HIDDEN) & Mask(key_lengths=LENGTHS), PADDING, HIDDEN),
    "window": (WINDOW, None, ~WINDOW.dense(TGT, SRC).repeat_interleave(HEADS, 0)[:, 0]),
}
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


pytestmark = pytest.mark.usefixtures("float64")


def inputs(*shapes):
    return [torch.randn(*shape, requires_grad=True) for shape in shapes]


def gradients(output, leaves, slope):
    return torch.autograd.grad(output, leaves, slope, retain_graph=True)


def assert_same(mixed, expected, leaves, *modules):
    """The same values, and the same gradients of inputs and parameters for a random slope; modules: ours, theirs."""
    slope = torch.randn_like(mixed)
    torch.testing.assert_close(mixed, expected, **CLOSE)
    torch.testing.assert_close(gradients(mixed, leaves, slope), gradients(expected, leaves, slope), **CLOSE)
    found = {}
    for module, output in zip(modules, (mixed, expected), strict=True):
        parameters = list(module.parameters())
        found |= {id(p): g for p, g in zip(parameters, gradients(output, parameters, slope), strict=True)}
    both = list(pairs(*modules, lambda parameter: found[id(parameter)]))
    assert len(both) == len(list(modules[0].parameters()))
    torch.testing.assert_close([one for one, _ in both], [other for _, other in both], **CLOSE)


def swapped(x, batch_first):
    return x if batch_first else x.transpose(0, 1)


def attention(n_heads=HEADS, bias=True, out_bias=True, **more):
    return Attention(D, n_heads, bias=bias, out_proj=nn.Linear(D, D, bias=out_bias), **more)


def residuals(norm_first, bias=True):
    """Makes the residuals of a block, each with an ε of its own."""
    eps = iter((1e-3, 0.1, 1e-5))
    return lambda: Residual(nn.LayerNorm(D, eps=next(eps), bias=bias), norm_first=norm_first)


def encoder_block(norm_first, activation="relu", bias=True, n_heads=HEADS):
    net = FeedForward(D, D_FF, activation=activation, bias=bias)
    return EncoderBlock(attention(n_heads, bias, bias), net, residuals(norm_first, bias))


def decoder_block(norm_first, activation="relu", d_memory=D, *, alone=False):
    cross = None if alone else attention(d_memory=d_memory)
    net = FeedForward(D, D_FF, activation=activation)
    return DecoderBlock(attention(), cross, net, residuals(norm_first))


@pytest.mark.some(10)
@pytest.mark.parametrize(("bias", "out_bias"), [(True, True), (False, False), (False, True)])
@pytest.mark.parametrize("widths", [(D, D), (7, 7), (7, 5)])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", MASKS)
def test_multihead_attention(bias, out_bias, widths, batch_first, masked):
    """Torch's constructor can't give a bias to the output alone; its forward can run that."""
    ours = randomized(attention(bias=bias, out_bias=out_bias, d_memory=widths))
    theirs = to_torch(ours, batch_first=batch_first)
    mask, padding, hidden = MASKS[masked]
    x, memory, values = inputs((BATCH, TGT, D), (BATCH, SRC, widths[0]), (BATCH, SRC, widths[1]))
    expected, weights = theirs(
        *(swapped(tensor, batch_first) for tensor in (x, memory, values)),
        key_padding_mask=padding,
        attn_mask=hidden,
        average_attn_weights=False,
    )
    mixed = ours(x, memory, mask, values)
    assert_same(mixed, swapped(expected, batch_first), [x, memory, values], ours, theirs)
    query = ours.q_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    key, _ = ours.keys_values(memory, values)
    dense = None if mask is None else mask.dense(TGT, SRC)
    torch.testing.assert_close(attention_weights(query, key, dense), weights, **CLOSE)


styles = pytest.mark.parametrize("norm_first", [False, True])
activations = pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])


@pytest.mark.some(4)
@styles
@activations
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("padded", [False, True])
def test_transformer_encoder_layer(norm_first, activation, bias, padded):
    ours = randomized(encoder_block(norm_first, activation, bias))
    theirs = to_torch(ours)
    (x,) = inputs((BATCH, SRC, D))
    mask = Mask(key_lengths=LENGTHS) if padded else None
    expected = theirs(x, src_key_padding_mask=PADDING if padded else None)
    assert_same(ours(x, mask), expected, [x], ours, theirs)


@pytest.mark.some(4)
@styles
@activations
@pytest.mark.parametrize(("padded", "d_memory"), [(False, D), (True, D), (True, 7)])
def test_transformer_decoder_layer(norm_first, activation, padded, d_memory):
    ours = randomized(decoder_block(norm_first, activation, d_memory))
    theirs = to_torch(ours)
    x, memory = inputs((BATCH, TGT, D), (BATCH, SRC, d_memory))
    padding = PADDING if padded else None
    memory_mask = Mask(key_lengths=LENGTHS) if padded else None
    expected = theirs(x, memory, tgt_mask=FUTURE, memory_key_padding_mask=padding, tgt_is_causal=True)
    assert_same(ours(x, memory, Mask(causal=True), memory_mask), expected, [x, memory], ours, theirs)


@pytest.mark.some(3)
@styles
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("batch_first", [True, False])
def test_stacks(norm_first, last, batch_first):
    norms = [nn.LayerNorm(D, eps=eps) if last else None for eps in (1e-2, 1e-1)]
    ours = nn.ModuleList(
        [
            randomized(Encoder([encoder_block(norm_first) for _ in range(2)], norms[0])),
            randomized(Decoder([decoder_block(norm_first) for _ in range(2)], norms[1])),
        ]
    )
    encoder, decoder = (to_torch(stack, batch_first=batch_first) for stack in ours)
    src, tgt = inputs((BATCH, SRC, D), (BATCH, TGT, D))
    padding = Mask(key_lengths=LENGTHS)
    memory = ours[0](src, padding)
    their_memory = encoder(swapped(src, batch_first), src_key_padding_mask=PADDING)
    assert_same(memory, swapped(their_memory, batch_first), [src], ours[0], encoder)
    mixed = ours[1](tgt, memory, Mask(causal=True), padding)
    expected = decoder(swapped(tgt, batch_first), their_memory, tgt_mask=FUTURE, memory_key_padding_mask=PADDING)
    assert_same(mixed, swapped(expected, batch_first), [src, tgt], ours[1], decoder)


def test_a_decoder_that_stands_alone_is_an_encoder_under_a_causal_mask():
    ours = randomized(Decoder([decoder_block(True, alone=True) for _ in range(2)], nn.LayerNorm(D)))
    theirs = to_torch(ours)
    (x,) = inputs((BATCH, TGT, D))
    assert isinstance(theirs, nn.TransformerEncoder)
    assert_same(ours(x, None, Mask(causal=True)), theirs(x, mask=FUTURE), [x], ours, theirs)


@pytest.mark.parametrize("bias", [True, False])
def test_what_torch_does_at_inference(bias):
    """Its fast path wants an even number of heads and hands every bias to a kernel."""
    block = encoder_block(norm_first=False, n_heads=2)
    block.self_attention = attention(2, bias)
    ours = randomized(Encoder([block])).eval()
    theirs = to_torch(ours)
    x = torch.randn(BATCH, SRC, D)
    with torch.no_grad():
        expected = theirs(x, src_key_padding_mask=PADDING)
        torch.testing.assert_close(ours(x, Mask(key_lengths=LENGTHS)), expected, **CLOSE)
        found = ours.blocks[0].self_attention(x, x)
        torch.testing.assert_close(found, theirs.layers[0].self_attn(x, x, x)[0], **CLOSE)
