"""Weights from and to torch's own Transformer modules, to compare with: attention, layers and stacks.

    encoder = from_torch(torch.nn.TransformerEncoder(...))   # an attendo.nn.blocks.Encoder with the same weights
    theirs = to_torch(model.encoder)                          # a torch.nn.TransformerEncoder

The new module computes the same, in value and gradient. Ours are batch first, whatever torch's `batch_first` says.
Masks: `torch_masks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, overload

import torch
from torch import Tensor, nn
from torch_shapes import (
    AttentionShape,
    BlockShape,
    NormShape,
    OurModule,
    Shape,
    StackShape,
    TorchModule,
    describe,
    differences,
    is_ours,
    is_torch,
)

from attendo.errors import AttendoError
from attendo.nn.attention import Attend, Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import ACTIVATIONS, FeedForward

Pairs = Iterator[tuple[Tensor, Tensor]]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


@overload
def from_torch(module: nn.MultiheadAttention) -> Attention: ...
@overload
def from_torch(module: nn.TransformerEncoderLayer) -> EncoderBlock: ...
@overload
def from_torch(module: nn.TransformerEncoder) -> Encoder: ...
@overload
def from_torch(module: nn.TransformerDecoderLayer) -> DecoderBlock: ...
@overload
def from_torch(module: nn.TransformerDecoder) -> Decoder: ...
def from_torch(module: nn.Module) -> nn.Module:
    """A new module of attendo that computes what the one of torch computes (Vaswani et al. 2017, figure 1).

    Weights are copied; ε, norm place, activation, every dropout, dtype, device and training mode are carried over;
    which parameters are frozen is not. Raises AttendoError naming what has no counterpart: `add_bias_kv`,
    `add_zero_attn`, another norm than LayerNorm, an unknown activation, a subclass.

    >>> theirs = nn.MultiheadAttention(6, 2, batch_first=True)
    >>> ours, x = from_torch(theirs), torch.ones(1, 3, 6)
    >>> torch.allclose(ours(x, x), theirs(x, x, x)[0], atol=1e-6)
    True
    """
    if not is_torch(module):
        raise AttendoError(f"{type(module).__name__} has no counterpart in attendo; {_KNOWN}")
    with torch.device("meta"):  # so that nothing is drawn or computed to be overwritten
        ours = _ours(describe(module))
    ours = _placed(ours, module)
    copy_from_torch(module, ours)
    return ours.train(module.training)


@overload
def to_torch(module: Attention, *, batch_first: bool = True) -> nn.MultiheadAttention: ...
@overload
def to_torch(module: EncoderBlock, *, batch_first: bool = True) -> nn.TransformerEncoderLayer: ...
@overload
def to_torch(module: Encoder, *, batch_first: bool = True) -> nn.TransformerEncoder: ...
@overload
def to_torch(
    module: DecoderBlock, *, batch_first: bool = True
) -> nn.TransformerDecoderLayer | nn.TransformerEncoderLayer: ...
@overload
def to_torch(
    module: Decoder, *, batch_first: bool = True
) -> nn.TransformerDecoder | nn.TransformerEncoder: ...
def to_torch(module: nn.Module, *, batch_first: bool = True) -> nn.Module:
    """A new module of torch that computes what the one of attendo computes; the way back of `from_torch`.

    batch_first: the layout of the new module. A decoder without cross-attention becomes torch's encoder, which is
    the same when called with a causal mask. Raises AttendoError naming what torch's modules lack: grouped queries,
    free head widths, another scale or temperature, rotary positions and ALiBi, RMSNorm, gated nets.

    >>> ours = Attention(6, 2)
    >>> theirs, x = to_torch(ours), torch.ones(1, 3, 6)
    >>> torch.allclose(ours(x, x), theirs(x, x, x)[0], atol=1e-6)
    True
    >>> to_torch(Attention(6, 2, n_kv_heads=1))
    Traceback (most recent call last):
    attendo.errors.AttendoError: n_kv_heads=1 can't go between torch and attendo; torch groups no queries
    """
    if not is_ours(module):
        raise AttendoError(f"{type(module).__name__} has no counterpart in torch; {_KNOWN}")
    with torch.device("meta"):
        theirs = _theirs(describe(module), batch_first)
    theirs = _placed(theirs, module)
    copy_to_torch(module, theirs)
    return theirs.train(module.training)


def copy_from_torch(theirs: TorchModule, ours: OurModule) -> None:
    """Copies the weights of torch's module into one of attendo that is there, in place.

    Raises AttendoError naming the first width or option in which the two differ (dropout aside) and then changes
    nothing.

    >>> ours, theirs = Attention(6, 2), nn.MultiheadAttention(6, 2)
    >>> copy_from_torch(theirs, ours)
    >>> torch.equal(ours.out_proj.weight, theirs.out_proj.weight)
    True
    """
    _check_same(ours, theirs)
    with torch.no_grad():
        for our_tensor, their_tensor in _pairs(ours, theirs):
            our_tensor.copy_(their_tensor)


def copy_to_torch(ours: OurModule, theirs: TorchModule) -> None:
    """Copies the weights of attendo's module into one of torch that is there, in place; as `copy_from_torch`.

    >>> copy_to_torch(Attention(6, 2), nn.MultiheadAttention(6, 3))
    Traceback (most recent call last):
    attendo.errors.AttendoError: n_heads is 2 in attendo and 3 in torch; build both alike
    """
    _check_same(ours, theirs)
    with torch.no_grad():
        for our_tensor, their_tensor in _pairs(ours, theirs):
            their_tensor.copy_(our_tensor)


_KNOWN = (
    "known are Attention, EncoderBlock, Encoder, DecoderBlock, Decoder, and MultiheadAttention,"
    " TransformerEncoderLayer, TransformerEncoder, TransformerDecoderLayer, TransformerDecoder"
)


def _check_same(ours: OurModule, theirs: TorchModule) -> None:
    here, there = describe(ours), describe(theirs)
    if type(here) is not type(there):
        raise AttendoError(f"{type(ours).__name__} and {type(theirs).__name__} are no counterparts; {_KNOWN}")
    for difference in differences(here, there):
        raise AttendoError(f"{difference}; build both alike")


def _placed(module: ModuleT, like: nn.Module) -> ModuleT:
    """The module without storage, given storage where and as the other has it."""
    parameter = next(like.parameters())
    return module.to(parameter.dtype).to_empty(device=parameter.device)


def _ours(shape: Shape) -> OurModule:
    match shape:
        case AttentionShape():
            return _our_attention(shape)
        case BlockShape():
            return _our_block(shape)
        case StackShape():
            norm = None if shape.norm is None else _layer_norm(shape.norm)
            blocks = [_our_block(block) for block in shape.blocks]
            encoder_blocks = [block for block in blocks if isinstance(block, EncoderBlock)]
            if len(encoder_blocks) == len(blocks):
                return Encoder(encoder_blocks, norm)
            return Decoder([block for block in blocks if isinstance(block, DecoderBlock)], norm)


def _our_attention(shape: AttentionShape) -> Attention:
    return Attention(
        shape.d_model,
        shape.n_heads,
        d_memory=(shape.d_key, shape.d_value),
        bias=shape.bias,
        out_proj=nn.Linear(shape.d_model, shape.d_model, bias=shape.out_bias),
        attend=Attend(dropout=shape.dropout),
    )


def _our_block(shape: BlockShape) -> EncoderBlock | DecoderBlock:
    d_model = shape.self_attention.d_model
    feed_forward = FeedForward(
        d_model,
        shape.d_ff,
        activation=shape.activation,
        bias=shape.bias,
        dropout=shape.activation_dropout,
    )
    residuals = iter(
        [
            Residual(_layer_norm(norm), norm_first=shape.norm_first, dropout=dropout)
            for norm, dropout in zip(shape.norms, shape.dropouts, strict=True)
        ]
    )
    attention = _our_attention(shape.self_attention)
    if shape.cross_attention is None:
        return EncoderBlock(attention, feed_forward, lambda: next(residuals))
    cross = _our_attention(shape.cross_attention)
    return DecoderBlock(attention, cross, feed_forward, lambda: next(residuals))


def _theirs(shape: Shape, batch_first: bool) -> TorchModule:
    match shape:
        case AttentionShape():
            return _their_attention(shape, batch_first)
        case BlockShape():
            return _their_layer(shape, batch_first)
        case StackShape():
            layers = nn.ModuleList(_their_layer(block, batch_first) for block in shape.blocks)
            norm = None if shape.norm is None else _layer_norm(shape.norm)
            first = layers[0]
            if isinstance(first, nn.TransformerEncoderLayer):
                stack = nn.TransformerEncoder(first, 1, norm, enable_nested_tensor=False)
            else:
                assert isinstance(first, nn.TransformerDecoderLayer)
                stack = nn.TransformerDecoder(first, 1, norm)
            # torch copies one layer; ours may differ in ε, dropout or width
            stack.layers, stack.num_layers = layers, len(layers)
            return stack


def _their_attention(shape: AttentionShape, batch_first: bool) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(
        shape.d_model,
        shape.n_heads,
        shape.dropout,
        bias=shape.bias,
        kdim=shape.d_key,
        vdim=shape.d_value,
        batch_first=batch_first,
    )
    if shape.out_bias and not shape.bias:  # torch's constructor has one switch for both
        theirs.out_proj.bias = nn.Parameter(theirs.out_proj.weight.new_zeros(shape.d_model))
    return theirs


def _their_layer(
    shape: BlockShape, batch_first: bool
) -> nn.TransformerEncoderLayer | nn.TransformerDecoderLayer:
    attention = shape.self_attention
    kind = nn.TransformerEncoderLayer if shape.cross_attention is None else nn.TransformerDecoderLayer
    layer = kind(
        attention.d_model,
        attention.n_heads,
        shape.d_ff,
        shape.activation_dropout,
        ACTIVATIONS[shape.activation],
        batch_first=batch_first,
        norm_first=shape.norm_first,
        bias=shape.bias,
    )
    layer.self_attn = _their_attention(attention, batch_first)
    if isinstance(layer, nn.TransformerDecoderLayer) and shape.cross_attention is not None:
        layer.multihead_attn = _their_attention(shape.cross_attention, batch_first)
    for number, (norm, dropout) in enumerate(zip(shape.norms, shape.dropouts, strict=True), 1):
        setattr(layer, f"norm{number}", _layer_norm(norm))
        setattr(layer, f"dropout{number}", nn.Dropout(dropout))
    return layer


def _layer_norm(shape: NormShape) -> nn.LayerNorm:
    return nn.LayerNorm(shape.d_model, eps=shape.eps, bias=shape.bias)


def _pairs(ours: nn.Module, theirs: nn.Module) -> Pairs:
    """Each tensor of ours beside the one of torch that holds the same numbers; the only table of the names."""
    match ours, theirs:
        case Attention(), nn.MultiheadAttention():
            yield from _attention_pairs(ours, theirs)
        case ((Encoder() | Decoder()), (nn.TransformerEncoder() | nn.TransformerDecoder())):
            for block, layer in zip(ours.blocks, theirs.layers, strict=True):
                yield from _pairs(block, layer)
            if theirs.norm is not None:
                yield from _same_names(ours.norm, theirs.norm)
        case ((EncoderBlock() | DecoderBlock()), _):
            assert isinstance(theirs, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
            norms = ["self_attention", "feed_forward"]
            yield from _attention_pairs(ours.self_attention, theirs.self_attn)
            if isinstance(ours, DecoderBlock) and ours.cross_attention is not None:
                norms.insert(1, "cross_attention")
                yield from _pairs(ours.cross_attention, theirs.get_submodule("multihead_attn"))
            yield from _same_names(ours.feed_forward.in_proj, theirs.linear1)
            yield from _same_names(ours.feed_forward.out_proj, theirs.linear2)
            for number, name in enumerate(norms, 1):
                norm = ours.get_submodule(f"{name}_residual.norm")
                yield from _same_names(norm, theirs.get_submodule(f"norm{number}"))


def _attention_pairs(ours: Attention, theirs: nn.MultiheadAttention) -> Pairs:
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    if theirs.in_proj_weight is not None:
        weights = theirs.in_proj_weight.detach().chunk(3)
    else:
        weights = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
    yield from ((linear.weight, weight) for linear, weight in zip(projections, weights, strict=True))
    if theirs.in_proj_bias is not None:
        biases = theirs.in_proj_bias.detach().chunk(3)
        yield from ((linear.bias, bias) for linear, bias in zip(projections, biases, strict=True))
    yield from _same_names(ours.out_proj, theirs.out_proj)


def _same_names(ours: nn.Module, theirs: nn.Module) -> Pairs:
    for name, parameter in ours.named_parameters(recurse=False):
        yield parameter, theirs.get_parameter(name)
