"""Modules made from torch's, and torch's made from ours, compute the same: values and gradients, in float64."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from random_weights import randomized
from torch import nn
from torch_masks import mask_from_torch
from torch_modules import copy_from_torch, copy_to_torch, from_torch, to_torch

from attendo.errors import AttendoError
from attendo.nn.attention import Attend, Attention, attention_weights
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import ACTIVATIONS, FeedForward
from attendo.nn.masks import Mask
from attendo.nn.positions import Rotary

D, HEADS, D_FF, BATCH, SRC, TGT = 12, 3, 20, 3, 5, 4
LENGTHS = torch.tensor([5, 1, 3])
PADDING = torch.arange(SRC) >= LENGTHS[:, None]  # torch's sense: True is hidden
FUTURE = torch.ones(TGT, TGT, dtype=torch.bool).triu(1)
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


pytestmark = pytest.mark.usefixtures("float64")


def inputs(*shapes):
    return [torch.randn(*shape, requires_grad=True) for shape in shapes]


def assert_same(one, other, inputs):
    """The same values, and the same gradients of the inputs for a random slope."""
    slope = torch.randn_like(one)
    torch.testing.assert_close(one, other, **CLOSE)
    by_one = torch.autograd.grad(one, inputs, slope, retain_graph=True)
    for ours, theirs in zip(
        by_one, torch.autograd.grad(other, inputs, slope, retain_graph=True), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def assert_equal_parameters(one, other):
    assert dict(one.named_parameters()).keys() == dict(other.named_parameters()).keys()
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name


def assert_round_trip(theirs, ours, batch_first=True):
    """To attendo and back: the same parameters, bit for bit, and no parameter shared with either."""
    back = to_torch(ours, batch_first=batch_first)
    assert type(back) is type(theirs)
    assert_equal_parameters(theirs, back)
    assert_equal_parameters(ours, from_torch(back))
    tensors = [p.data_ptr() for module in (theirs, ours, back) for p in module.parameters()]
    assert len(set(tensors)) == len(tensors)


def gradients_of(module, output, slope):
    """The same module with each parameter's gradient in the parameter's place."""
    slopes = torch.autograd.grad(output, list(module.parameters()), slope, retain_graph=True)
    twin = copy.deepcopy(module)
    for parameter, gradient in zip(twin.parameters(), slopes, strict=True):
        parameter.data = gradient
    return twin


def assert_same_gradients_of_parameters(ours, theirs, our_output, their_output):
    """Torch's gradients, carried over as weights are, are ours; and ours carried over are torch's."""
    slope = torch.randn_like(our_output)
    by_ours, by_theirs = gradients_of(ours, our_output, slope), gradients_of(theirs, their_output, slope)
    for one, other in ((by_ours, from_torch(by_theirs)), (to_torch(by_ours), by_theirs)):
        torch.testing.assert_close(dict(one.named_parameters()), dict(other.named_parameters()), **CLOSE)


def swapped(x, batch_first):
    return x if batch_first else x.transpose(0, 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("d_key", "d_value"), [(None, None), (7, 7), (7, 5)])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", ["nothing", "padding", "pairs", "both"])
def test_multihead_attention(bias, d_key, d_value, batch_first, masked):
    theirs = randomized(
        nn.MultiheadAttention(D, HEADS, bias=bias, kdim=d_key, vdim=d_value, batch_first=batch_first)
    )
    ours = from_torch(theirs)
    x, memory, values = inputs((BATCH, TGT, D), (BATCH, SRC, d_key or D), (BATCH, SRC, d_value or D))
    hidden = torch.rand(TGT, SRC) < 0.4
    hidden[:, 0] = False  # where torch gives NaN for a query without keys, there is nothing to compare
    attn_mask = hidden if masked in ("pairs", "both") else None
    padding = PADDING if masked in ("padding", "both") else None
    mask = mask_from_torch(attn_mask, padding)
    arguments = [swapped(tensor, batch_first) for tensor in (x, memory, values)]
    back = to_torch(ours, batch_first=batch_first)
    for module in (theirs, back):
        expected, weights = module(
            *arguments, key_padding_mask=padding, attn_mask=attn_mask, average_attn_weights=False
        )
        assert_same(ours(x, memory, mask, values), swapped(expected, batch_first), [x, memory, values])
    query = ours.q_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    key, _ = ours.keys_values(memory, values)
    dense = None if mask is None else mask.dense(TGT, SRC)
    torch.testing.assert_close(attention_weights(query, key, dense), weights, **CLOSE)
    assert_round_trip(theirs, ours, batch_first)


def test_causal_multihead_attention():
    theirs = randomized(nn.MultiheadAttention(D, HEADS, batch_first=True))
    ours = from_torch(theirs)
    (x,) = inputs((BATCH, TGT, D))
    expected, _ = theirs(x, x, x, attn_mask=FUTURE, is_causal=True, need_weights=False)
    assert_same(ours(x, x, Mask(causal=True)), expected, [x])


def test_attention_with_a_bias_on_the_output_alone():
    """The lecture's and the base preset's kind; torch's constructor can't make it, its forward can run it."""
    ours = randomized(Attention(D, 2, bias=False, out_proj=nn.Linear(D, D)))
    theirs = to_torch(ours)
    (x,) = inputs((BATCH, TGT, D))
    assert theirs.in_proj_bias is None
    assert_same(ours(x, x), theirs(x, x, x)[0], [x])
    assert_round_trip(theirs, ours)
    with torch.no_grad():  # where torch would take its fast path
        torch.testing.assert_close(ours(x, x), theirs.eval()(x, x, x)[0], **CLOSE)


styles = pytest.mark.parametrize("norm_first", [False, True])
activations = pytest.mark.parametrize("activation", ["relu", "gelu", F.silu, nn.GELU("tanh")])


def sizes(**changes):
    """What torch's layers are built with. They stay in training, off the inference path, without dropout."""
    style = {"d_model": D, "nhead": HEADS, "dim_feedforward": D_FF, "dropout": 0.0, "batch_first": True}
    return style | {"layer_norm_eps": 1e-3} | changes


@styles
@activations
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("padded", [False, True])
def test_transformer_encoder_layer(norm_first, activation, bias, padded):
    style = sizes(norm_first=norm_first, activation=activation, bias=bias)
    theirs = randomized(nn.TransformerEncoderLayer(**style))
    theirs.norm2.eps = 0.1
    ours = from_torch(theirs)
    (x,) = inputs((BATCH, SRC, D))
    mask = Mask(key_lengths=LENGTHS) if padded else None
    for module in (theirs, to_torch(ours)):
        expected, mixed = module(x, src_key_padding_mask=PADDING if padded else None), ours(x, mask)
        assert_same(mixed, expected, [x])
        assert_same_gradients_of_parameters(ours, module, mixed, expected)
    assert_round_trip(theirs, ours)


@styles
@activations
@pytest.mark.parametrize("padded", [False, True])
def test_transformer_decoder_layer(norm_first, activation, padded):
    theirs = randomized(nn.TransformerDecoderLayer(**sizes(norm_first=norm_first, activation=activation)))
    theirs.norm3.eps = 0.1
    ours = from_torch(theirs)
    x, memory = inputs((BATCH, TGT, D), (BATCH, SRC, D))
    padding = PADDING if padded else None
    memory_mask = Mask(key_lengths=LENGTHS) if padded else None
    for module in (theirs, to_torch(ours)):
        expected = module(x, memory, tgt_mask=FUTURE, memory_key_padding_mask=padding, tgt_is_causal=True)
        mixed = ours(x, memory, Mask(causal=True), memory_mask)
        assert_same(mixed, expected, [x, memory])
        assert_same_gradients_of_parameters(ours, module, mixed, expected)
    assert_round_trip(theirs, ours)


@styles
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("batch_first", [True, False])
def test_stacks(norm_first, last, batch_first):
    style = sizes(norm_first=norm_first, batch_first=batch_first)
    encoder_norm, decoder_norm = (nn.LayerNorm(D, eps=eps) if last else None for eps in (1e-2, 1e-1))
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**style), 2, encoder_norm, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**style), 2, decoder_norm)
    ours = from_torch(randomized(encoder)), from_torch(randomized(decoder))
    src, tgt = inputs((BATCH, SRC, D), (BATCH, TGT, D))
    padding = Mask(key_lengths=LENGTHS)
    mixed = ours[1](tgt, ours[0](src, padding), Mask(causal=True), padding)
    back = to_torch(ours[0], batch_first=batch_first), to_torch(ours[1], batch_first=batch_first)
    for their_encoder, their_decoder in ((encoder, decoder), back):
        memory = their_encoder(swapped(src, batch_first), src_key_padding_mask=PADDING)
        expected = their_decoder(
            swapped(tgt, batch_first), memory, tgt_mask=FUTURE, memory_key_padding_mask=PADDING
        )
        assert_same(mixed, swapped(expected, batch_first), [src, tgt])
    assert_round_trip(encoder, ours[0], batch_first)
    assert_round_trip(decoder, ours[1], batch_first)


def residual():
    return Residual(nn.LayerNorm(D), norm_first=True)


def our_block(d_memory=None, **attention):
    self_attention, net = Attention(D, HEADS, **attention), FeedForward(D, D_FF, activation="gelu_tanh")
    if d_memory is None:
        return EncoderBlock(self_attention, net, residual)
    return DecoderBlock(self_attention, Attention(D, HEADS, d_memory=d_memory), net, residual)


def test_a_memory_of_another_width():
    ours = randomized(our_block(d_memory=7))
    theirs = to_torch(ours)
    x, memory = inputs((BATCH, TGT, D), (BATCH, SRC, 7))
    assert_same(ours(x, memory), theirs(x, memory), [x, memory])
    assert_round_trip(theirs, ours)


def test_a_decoder_that_stands_alone_is_an_encoder_under_a_causal_mask():
    ours = randomized(Decoder([alone(), alone()], nn.LayerNorm(D)))
    theirs = to_torch(ours)
    (x,) = inputs((BATCH, TGT, D))
    assert isinstance(theirs, nn.TransformerEncoder)
    assert_same(ours(x, None, Mask(causal=True)), theirs(x, mask=FUTURE), [x])
    fresh = Decoder([alone(), alone()])
    with pytest.raises(AttendoError, match=r"^norm is None in attendo and NormShape"):
        copy_from_torch(theirs, fresh)
    fresh.norm = nn.LayerNorm(D)
    copy_from_torch(theirs, fresh)
    assert_equal_parameters(ours, fresh)


@pytest.mark.parametrize("attention_bias", [True, False])
def test_what_torch_does_at_inference(attention_bias):
    """Its fast path wants an even number of heads and hands every bias to a kernel."""
    attention = Attention(D, 2, bias=attention_bias, out_proj=nn.Linear(D, D))
    ours = randomized(
        Encoder(
            [
                EncoderBlock(
                    attention, FeedForward(D, D_FF), lambda: Residual(nn.LayerNorm(D), norm_first=False)
                )
            ]
        )
    )
    theirs = to_torch(ours.eval())
    x = torch.randn(BATCH, SRC, D)
    with torch.no_grad():
        expected = theirs(x, src_key_padding_mask=PADDING)
        torch.testing.assert_close(ours(x, Mask(key_lengths=LENGTHS)), expected, **CLOSE)


def test_dropout_dtype_and_mode_are_carried():
    torch.set_default_dtype(torch.float32)
    theirs = nn.TransformerDecoderLayer(D, HEADS, D_FF, dropout=0.3, dtype=torch.float64).eval()
    theirs.self_attn.dropout, theirs.dropout2.p, theirs.dropout.p = 0.1, 0.2, 0.4
    state = torch.get_rng_state()
    ours = from_torch(theirs)
    back = to_torch(ours)
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn"
    assert ours.self_attention.attend.dropout == back.self_attn.dropout == 0.1
    assert ours.cross_attention_residual.dropout.p == back.dropout2.p == 0.2
    assert ours.self_attention_residual.dropout.p == back.dropout1.p == 0.3
    assert ours.feed_forward.dropout.p == back.dropout.p == 0.4
    assert not any(module.training for module in (*ours.modules(), *back.modules()))
    assert {p.dtype for p in (*ours.parameters(), *back.parameters())} == {torch.float64}


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        (nn.ReLU(), F.relu),
        (nn.GELU(), F.gelu),
        (nn.SiLU(), F.silu),
        (partial(F.gelu, approximate="tanh"), ACTIVATIONS["gelu_tanh"]),
    ],
)
def test_activations_under_their_other_names(activation, function):
    ours = from_torch(nn.TransformerEncoderLayer(**sizes(activation=activation)))
    assert ours.feed_forward.activation is function


def test_copies_into_what_is_there():
    theirs, ours = (
        randomized(nn.TransformerEncoderLayer(**sizes(norm_first=True, layer_norm_eps=1e-5))),
        our_block(),
    )
    with pytest.raises(AttendoError, match=r"^activation is gelu_tanh in attendo and relu in torch; "):
        copy_from_torch(theirs, ours)
    ours.feed_forward.activation = F.relu
    copy_from_torch(theirs, ours)
    assert_equal_parameters(from_torch(theirs), ours)
    other = randomized(our_block())
    other.feed_forward.activation = F.relu
    before = theirs.linear1.weight
    copy_to_torch(other, theirs)
    assert theirs.linear1.weight is before
    assert_equal_parameters(from_torch(theirs), other)
    with pytest.raises(AttendoError, match="no counterparts"):
        copy_to_torch(other.self_attention, theirs)
    two = Encoder([our_block(), our_block()])
    with pytest.raises(AttendoError, match=r"^blocks is 2 of them in attendo and 1 of them in torch; "):
        copy_from_torch(nn.TransformerEncoder(theirs, 1, enable_nested_tensor=False), two)


def changed(module, **attributes):
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def alone():
    return DecoderBlock(Attention(D, 2), None, FeedForward(D, D_FF), residual)


def gated():
    return EncoderBlock(Attention(D, HEADS), FeedForward(D, D_FF, gated=True), residual)


def half_first():
    block = our_block()
    block.feed_forward_residual.norm_first = False
    return block


def rms():
    return EncoderBlock(
        Attention(D, HEADS), FeedForward(D, D_FF), lambda: Residual(nn.RMSNorm(D), norm_first=True)
    )


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: our_block(n_kv_heads=1), "n_kv_heads=1"),
        (lambda: our_block(positions=Rotary()), "positions=Rotary"),
        (lambda: Attention(D, HEADS, head_dim=5), "head_dim=5"),
        (lambda: Attention(D, HEADS, value_dim=5), "value_dim=5"),
        (lambda: Attention(D, HEADS, attend=Attend(scale=1.0)), "scale=1.0"),
        (lambda: Attention(D, HEADS, attend=Attend(inverse_temperature=2.0)), "inverse_temperature=2.0"),
        (lambda: Attention(D, HEADS, out_proj=nn.Identity()), "out_proj=Identity"),
        (lambda: Attention(D, HEADS, out_proj=nn.Linear(D, 5)), "out_proj to 5"),
        (lambda: Attention(D, HEADS, out_proj=nn.Linear(D, D, bias=False)), "out_proj without bias"),
        (gated, "gated=True"),
        (rms, "norm=RMSNorm"),
        (lambda: EncoderBlock(Attention(D, HEADS), FeedForward(D, D_FF, bias=False), residual), "without bias"),
        (lambda: changed(Attention(D, HEADS), q_proj=nn.Linear(D, D, bias=False)), "only some of q_proj"),
        (lambda: changed(Attention(D, HEADS), attend=nn.Identity()), "attend=Identity"),
        (half_first, "norm_first in only some"),
        (lambda: Encoder([]), "a stack of no layers"),
        (lambda: Decoder([our_block(d_memory=D), alone()]), "cross-attention in some"),
        (lambda: nn.Linear(D, D), "Linear has no counterpart"),
    ],
)  # fmt: skip
def test_what_torch_lacks_is_refused(build, named):
    with pytest.raises(AttendoError, match=named):
        to_torch(build())


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: nn.MultiheadAttention(D, HEADS, add_bias_kv=True), "add_bias_kv=True"),
        (lambda: nn.MultiheadAttention(D, HEADS, add_zero_attn=True), "add_zero_attn=True"),
        (lambda: nn.TransformerEncoderLayer(**sizes(activation=torch.tanh)), "activation="),
        (lambda: changed(nn.TransformerEncoderLayer(**sizes()), norm1=nn.RMSNorm(D)), "norm1=RMSNorm"),
        (lambda: changed(nn.TransformerEncoderLayer(**sizes()), linear1=nn.Linear(D, D_FF, bias=False)), "in only one"),
        (lambda: nn.Transformer(D, 2, batch_first=True), "Transformer has no counterpart"),
        (lambda: type("Mine", (nn.MultiheadAttention,), {})(D, HEADS), "Mine has no counterpart"),
    ],
)  # fmt: skip
def test_what_attendo_lacks_is_refused(build, named):
    with pytest.raises(AttendoError, match=named):
        from_torch(build())
