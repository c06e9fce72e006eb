"""Our blocks equal torch's own with copied weights: values and gradients, in float64."""

import pytest
import torch
from torch import nn

from attendo.nn.attention import Attention, attention_weights
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.feedforward import FeedForward
from attendo.nn.masks import Mask

D, HEADS, D_FF, BATCH, SRC, TGT = 12, 3, 20, 3, 5, 4
LENGTHS = torch.tensor([5, 1, 3])
PADDING = torch.arange(SRC) >= LENGTHS[:, None]  # torch's sense: True is hidden
FUTURE = torch.ones(TGT, TGT, dtype=torch.bool).triu(1)
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


@pytest.fixture(autouse=True)
def float64():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def randomized(module):
    """Every parameter random: biases that are zero and norms that are one would hide a wrong place."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


def copy_attention(ours: Attention, theirs: nn.MultiheadAttention):
    projections = ours.q_proj, ours.k_proj, ours.v_proj
    if theirs.in_proj_weight is not None:
        weights = theirs.in_proj_weight.chunk(3)
    else:
        weights = theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
    for projection, weight in zip(projections, weights, strict=True):
        projection.load_state_dict({"weight": weight}, strict=theirs.in_proj_bias is None)
    if theirs.in_proj_bias is not None:
        for projection, bias in zip(projections, theirs.in_proj_bias.chunk(3), strict=True):
            projection.bias.data.copy_(bias)
    ours.out_proj.load_state_dict(theirs.out_proj.state_dict())


def copy_block(ours, theirs):
    copy_attention(ours.self_attention, theirs.self_attn)
    sublayers = ["self_attention", "feed_forward"]
    if isinstance(ours, DecoderBlock):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        sublayers.insert(1, "cross_attention")
    for number, sublayer in enumerate(sublayers, 1):
        norm = getattr(theirs, f"norm{number}")
        getattr(ours, f"{sublayer}_residual").norm.load_state_dict(norm.state_dict())
    ours.feed_forward.in_proj.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.out_proj.load_state_dict(theirs.linear2.state_dict())


def assert_same(ours, theirs, inputs):
    """The same values, and the same gradients of the inputs for a random slope."""
    slope = torch.randn_like(ours)
    torch.testing.assert_close(ours, theirs, **CLOSE)
    by_ours = torch.autograd.grad(ours, inputs, slope)
    for one, other in zip(by_ours, torch.autograd.grad(theirs, inputs, slope), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def inputs(*shapes):
    return [torch.randn(*shape, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("d_memory", [None, 7])
@pytest.mark.parametrize("masked", ["nothing", "padding", "pairs", "both"])
def test_multihead_attention(bias, d_memory, masked):
    theirs = randomized(
        nn.MultiheadAttention(D, HEADS, bias=bias, kdim=d_memory, vdim=d_memory, batch_first=True)
    )
    ours = Attention(D, HEADS, d_memory=d_memory, bias=bias)
    copy_attention(ours, theirs)
    x, memory = inputs((BATCH, TGT, D), (BATCH, SRC, d_memory or D))
    hidden = torch.rand(TGT, SRC) < 0.4
    hidden[:, 0] = False  # where torch gives NaN for a query without keys, there is nothing to compare
    mask = Mask(
        key_lengths=LENGTHS if masked in ("padding", "both") else None,
        allowed=~hidden if masked in ("pairs", "both") else None,
    )
    expected, weights = theirs(
        x,
        memory,
        memory,
        key_padding_mask=PADDING if masked in ("padding", "both") else None,
        attn_mask=hidden if masked in ("pairs", "both") else None,
        average_attn_weights=False,
    )
    assert_same(ours(x, memory, mask), expected, [x, memory])
    query = ours.q_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    key, _ = ours.keys_values(memory)
    torch.testing.assert_close(attention_weights(query, key, mask.dense(TGT, SRC)), weights, **CLOSE)


def test_causal_multihead_attention():
    theirs = randomized(nn.MultiheadAttention(D, HEADS, batch_first=True))
    ours = Attention(D, HEADS)
    copy_attention(ours, theirs)
    (x,) = inputs((BATCH, TGT, D))
    expected, _ = theirs(x, x, x, attn_mask=FUTURE, is_causal=True, need_weights=False)
    assert_same(ours(x, x, Mask(causal=True)), expected, [x])


styles = pytest.mark.parametrize(
    ("norm_first", "activation"), [(False, "relu"), (False, "gelu"), (True, "relu"), (True, "gelu")]
)


def sizes(norm_first, activation):
    """What torch's layers are built with. They stay in training, off the inference path, without dropout."""
    return {
        "d_model": D,
        "nhead": HEADS,
        "dim_feedforward": D_FF,
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": norm_first,
        "layer_norm_eps": 1e-3,
    }


def residual(norm_first):
    return Residual(nn.LayerNorm(D, eps=1e-3), norm_first=norm_first)


def encoder_block(norm_first, activation):
    return EncoderBlock(
        Attention(D, HEADS), FeedForward(D, D_FF, activation=activation), lambda: residual(norm_first)
    )


def decoder_block(norm_first, activation):
    feed_forward = FeedForward(D, D_FF, activation=activation)
    return DecoderBlock(Attention(D, HEADS), Attention(D, HEADS), feed_forward, lambda: residual(norm_first))


@styles
@pytest.mark.parametrize("padded", [False, True])
def test_transformer_encoder_layer(norm_first, activation, padded):
    theirs = randomized(nn.TransformerEncoderLayer(**sizes(norm_first, activation)))
    ours = encoder_block(norm_first, activation)
    copy_block(ours, theirs)
    (x,) = inputs((BATCH, SRC, D))
    expected = theirs(x, src_key_padding_mask=PADDING if padded else None)
    assert_same(ours(x, Mask(key_lengths=LENGTHS) if padded else None), expected, [x])


@styles
@pytest.mark.parametrize("padded", [False, True])
def test_transformer_decoder_layer(norm_first, activation, padded):
    theirs = randomized(nn.TransformerDecoderLayer(**sizes(norm_first, activation)))
    ours = decoder_block(norm_first, activation)
    copy_block(ours, theirs)
    x, memory = inputs((BATCH, TGT, D), (BATCH, SRC, D))
    padding = PADDING if padded else None
    expected = theirs(x, memory, tgt_mask=FUTURE, memory_key_padding_mask=padding, tgt_is_causal=True)
    memory_mask = Mask(key_lengths=LENGTHS) if padded else None
    assert_same(ours(x, memory, Mask(causal=True), memory_mask), expected, [x, memory])


@pytest.mark.parametrize("norm_first", [False, True])
def test_stacks_with_a_last_norm(norm_first):
    style = sizes(norm_first, "relu")
    last = randomized(nn.LayerNorm(D))
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**style), 2, last, enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**style), 2, last)
    our_encoder = Encoder([encoder_block(norm_first, "relu") for _ in range(2)], last)
    our_decoder = Decoder([decoder_block(norm_first, "relu") for _ in range(2)], last)
    for ours, theirs in ((our_encoder, randomized(encoder)), (our_decoder, randomized(decoder))):
        for block, layer in zip(ours.blocks, theirs.layers, strict=True):
            copy_block(block, layer)
    src, tgt = inputs((BATCH, SRC, D), (BATCH, TGT, D))
    expected = decoder(
        tgt, encoder(src, src_key_padding_mask=PADDING), tgt_mask=FUTURE, memory_key_padding_mask=PADDING
    )
    padding = Mask(key_lengths=LENGTHS)
    mixed = our_decoder(tgt, our_encoder(src, padding), Mask(causal=True), padding)
    assert_same(mixed, expected, [src, tgt])
