"""Torch's own Transformer modules with the weights of ours, to compare with: attention, layers and stacks.

The new module computes the same, in value and gradient. Only what torch has is built: one width of heads, LayerNorm,
feed-forward nets of two layers, no dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from attendo.nn.attention import Attention
from attendo.nn.blocks import DecoderBlock, EncoderBlock


def to_torch(module: nn.Module, *, batch_first: bool = True) -> nn.Module:
    """A new module of torch that computes what the one of attendo computes.

    A decoder without cross-attention becomes torch's encoder, which is the same when called with a causal mask.
    """
    match module:
        case Attention():
            theirs = _attention(module, batch_first)
        case EncoderBlock() | DecoderBlock():
            theirs = _layer(module, batch_first)
        case _:
            layers = nn.ModuleList(_layer(block, batch_first) for block in module.blocks)
            kind = nn.TransformerDecoder if _has_cross(module.blocks[0]) else nn.TransformerEncoder
            more = {} if kind is nn.TransformerDecoder else {"enable_nested_tensor": False}
            norm = None if isinstance(module.norm, nn.Identity) else _norm(module.norm)
            theirs = kind(layers[0], 1, norm, **more)
            # torch copies one layer; ours may differ in ε
            theirs.layers = layers
            theirs.num_layers = len(layers)
    copy_to_torch(module, theirs)
    return theirs.train(module.training)


def copy_to_torch(ours: nn.Module, theirs: nn.Module) -> None:
    """Copies the weights of attendo's module into one of torch, in place."""
    for our_tensor, their_tensor in pairs(ours, theirs, Tensor.detach):
        their_tensor.copy_(our_tensor)


def _has_cross(block: nn.Module) -> bool:
    return isinstance(block, DecoderBlock) and block.cross_attention is not None


def _attention(ours: Attention, batch_first: bool) -> nn.MultiheadAttention:
    d_model = ours.q_proj.in_features
    has_bias = ours.q_proj.bias is not None
    theirs = nn.MultiheadAttention(
        d_model,
        ours.n_heads,
        bias=has_bias,
        kdim=ours.k_proj.in_features,
        vdim=ours.v_proj.in_features,
        batch_first=batch_first,
    )
    if ours.out_proj.bias is not None and not has_bias:  # torch's constructor has one switch for both
        theirs.out_proj.bias = nn.Parameter(torch.zeros(d_model))
    return theirs


def _layer(ours: EncoderBlock | DecoderBlock, batch_first: bool) -> nn.Module:
    net = ours.feed_forward
    kind = nn.TransformerDecoderLayer if _has_cross(ours) else nn.TransformerEncoderLayer
    layer = kind(
        net.in_proj.in_features,
        ours.self_attention.n_heads,
        net.in_proj.out_features,
        dropout=0.0,
        activation=net.activation,
        batch_first=batch_first,
        norm_first=ours.feed_forward_residual.norm_first,
        bias=net.in_proj.bias is not None,
    )
    layer.self_attn = _attention(ours.self_attention, batch_first)
    if _has_cross(ours):
        layer.multihead_attn = _attention(ours.cross_attention, batch_first)
    for number, norm in enumerate(_norms(ours), 1):
        setattr(layer, f"norm{number}", _norm(norm))
    return layer


def _norms(ours: EncoderBlock | DecoderBlock) -> list[nn.Module]:
    names = ["self_attention", *(["cross_attention"] if _has_cross(ours) else []), "feed_forward"]
    return [ours.get_submodule(f"{name}_residual.norm") for name in names]


def _norm(norm: nn.LayerNorm) -> nn.LayerNorm:
    return nn.LayerNorm(norm.normalized_shape, eps=norm.eps, bias=norm.bias is not None)


Pairs = Iterator[tuple[Tensor, Tensor]]


def pairs(ours: nn.Module, theirs: nn.Module, of: Callable[[Tensor], Tensor]) -> Pairs:
    """`of` each parameter of ours beside that of torch's which holds the same numbers: the values, or gradients."""
    match ours:
        case Attention():
            yield from _attention_pairs(ours, theirs, of)
        case EncoderBlock() | DecoderBlock():
            yield from _attention_pairs(ours.self_attention, theirs.self_attn, of)
            if _has_cross(ours):
                yield from _attention_pairs(ours.cross_attention, theirs.multihead_attn, of)
            yield from _same_names(ours.feed_forward.in_proj, theirs.linear1, of)
            yield from _same_names(ours.feed_forward.out_proj, theirs.linear2, of)
            for number, norm in enumerate(_norms(ours), 1):
                yield from _same_names(norm, theirs.get_submodule(f"norm{number}"), of)
        case _:
            for block, layer in zip(ours.blocks, theirs.layers, strict=True):
                yield from pairs(block, layer, of)
            if theirs.norm is not None:
                yield from _same_names(ours.norm, theirs.norm, of)


def _attention_pairs(ours: Attention, theirs: nn.MultiheadAttention, of: Callable[[Tensor], Tensor]) -> Pairs:
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    if theirs.in_proj_weight is not None:
        weights = of(theirs.in_proj_weight).chunk(3)
    else:
        weights = [of(theirs.get_parameter(f"{name}_proj_weight")) for name in "qkv"]
    yield from ((of(linear.weight), weight) for linear, weight in zip(projections, weights, strict=True))
    if theirs.in_proj_bias is not None:
        biases = of(theirs.in_proj_bias).chunk(3)
        yield from ((of(linear.bias), bias) for linear, bias in zip(projections, biases, strict=True))
    yield from _same_names(ours.out_proj, theirs.out_proj, of)


def _same_names(ours: nn.Module, theirs: nn.Module, of: Callable[[Tensor], Tensor]) -> Pairs:
    for name, parameter in ours.named_parameters(recurse=False):
        yield of(parameter), of(theirs.get_parameter(name))
