"""What a module of torch or of attendo is built with, in one form for both; what has no counterpart is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, TypeGuard, get_args

import torch.nn.functional as F
from torch import nn

from attendo.errors import AttendoError
from attendo.nn.attention import Attend, Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import ACTIVATIONS, Activation

TorchModule = (
    nn.MultiheadAttention
    | nn.TransformerEncoderLayer
    | nn.TransformerEncoder
    | nn.TransformerDecoderLayer
    | nn.TransformerDecoder
)
OurModule = Attention | EncoderBlock | Encoder | DecoderBlock | Decoder
_TORCH = TorchModule.__args__
_OURS = OurModule.__args__


@dataclass(frozen=True)
class AttentionShape:
    """d_key, d_value: widths of what keys and values are made of; bias: of query, key and value projections."""

    d_model: int
    n_heads: int
    d_key: int
    d_value: int
    bias: bool
    out_bias: bool
    dropout: float


@dataclass(frozen=True)
class NormShape:
    """A LayerNorm over d_model."""

    d_model: int
    eps: float
    bias: bool


@dataclass(frozen=True)
class BlockShape:
    """One storey; without cross_attention it is an encoder's, or a decoder's that stands alone."""

    self_attention: AttentionShape
    cross_attention: AttentionShape | None
    d_ff: int
    activation: Activation
    bias: bool
    norm_first: bool
    norms: tuple[NormShape, ...]
    dropouts: tuple[float, ...]
    activation_dropout: float


@dataclass(frozen=True)
class StackShape:
    """Blocks, and a norm behind the last, if any."""

    blocks: tuple[BlockShape, ...]
    norm: NormShape | None


Shape = AttentionShape | BlockShape | StackShape
_NO_WEIGHT = {"dropout", "dropouts", "activation_dropout"}


def is_torch(module: nn.Module) -> TypeGuard[TorchModule]:
    """Whether it is exactly one of torch's modules that have a counterpart: a subclass may compute anything.

    >>> is_torch(nn.MultiheadAttention(8, 2)), is_torch(nn.Linear(8, 2))
    (True, False)
    """
    return type(module) in _TORCH


def is_ours(module: nn.Module) -> TypeGuard[OurModule]:
    """Whether it is one of attendo's modules that torch has, too.

    >>> is_ours(Attention(8, 2)), is_ours(nn.MultiheadAttention(8, 2))
    (True, False)
    """
    return type(module) in _OURS


def describe(module: OurModule | TorchModule) -> Shape:
    """What the module is built with. Raises AttendoError naming an option that the other side lacks.

    >>> describe(Attention(8, 2))
    AttentionShape(d_model=8, n_heads=2, d_key=8, d_value=8, bias=True, out_bias=True, dropout=0.0)
    >>> describe(nn.MultiheadAttention(8, 2)) == describe(Attention(8, 2))
    True
    """
    match module:
        case Attention():
            return _attention(module)
        case EncoderBlock() | DecoderBlock():
            return _block(module)
        case Encoder() | Decoder():
            last = None if isinstance(module.norm, nn.Identity) else module.norm
            return _stack(map(_block, module.blocks), last)
        case nn.MultiheadAttention():
            return _torch_attention(module)
        case nn.TransformerEncoderLayer() | nn.TransformerDecoderLayer():
            return _torch_block(module)
        case _:
            return _stack((_torch_block(_torch_layer(layer)) for layer in module.layers), module.norm)


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Where two shapes differ, in words; dropout aside, which is no weight.

    >>> list(differences(NormShape(4, 1e-5, True), NormShape(4, 1e-6, True), "norm"))
    ['norm.eps is 1e-05 in attendo and 1e-06 in torch']
    """
    if is_dataclass(ours) and type(ours) is type(theirs):
        for field in fields(ours):
            if field.name not in _NO_WEIGHT:
                inner = f"{path}.{field.name}" if path else field.name
                yield from differences(getattr(ours, field.name), getattr(theirs, field.name), inner)
    elif isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{path}.{number}")
    elif ours != theirs:
        yield f"{path} is {_brief(ours)} in attendo and {_brief(theirs)} in torch"


def _brief(value: Any) -> str:
    return f"{len(value)} of them" if isinstance(value, tuple) else str(value)


def _require(condition: object, option: str, remedy: str) -> None:
    if not condition:
        raise AttendoError(f"{option} can't go between torch and attendo; {remedy}")


def _stack(shapes: Iterable[BlockShape], norm: nn.Module | None) -> StackShape:
    blocks = tuple(shapes)
    alike = {block.cross_attention is None for block in blocks}
    _require(len(alike) == 1, "a stack of no layers, or with cross-attention in some", "make all alike")
    return StackShape(blocks, None if norm is None else _norm(norm, "norm"))


def _attention(module: Attention) -> AttentionShape:
    d_model, out, attend = module.q_proj.in_features, module.out_proj, module.attend
    one_width = "torch's heads are all d_model / n_heads wide"
    _require(
        module.n_kv_heads == module.n_heads, f"n_kv_heads={module.n_kv_heads}", "torch groups no queries"
    )
    _require(module.head_dim * module.n_heads == d_model, f"head_dim={module.head_dim}", one_width)
    _require(module.value_dim == module.head_dim, f"value_dim={module.value_dim}", one_width)
    kind = type(module.positions).__name__
    _require(module.positions is None, f"positions={kind}", "torch's attention knows no positions")
    _require(
        type(out) is nn.Linear, f"out_proj={type(out).__name__}", "torch's attention ends in a dense layer"
    )
    assert isinstance(out, nn.Linear)
    _require(out.out_features == d_model, f"out_proj to {out.out_features}", f"torch projects to {d_model}")
    _require(
        type(attend) is Attend, f"attend={type(attend).__name__}", "take the model itself, not a view of it"
    )
    standard = attend.scale is None or attend.scale == module.head_dim**-0.5
    _require(standard, f"scale={attend.scale}", "torch's is always 1/√head_dim")
    beta = attend.inverse_temperature
    _require(beta == 1.0, f"inverse_temperature={beta}", "torch's is always 1")
    biases = {linear.bias is not None for linear in (module.q_proj, module.k_proj, module.v_proj)}
    _require(len(biases) == 1, "a bias in only some of q_proj, k_proj, v_proj", "torch has one for all three")
    shape = AttentionShape(
        d_model,
        module.n_heads,
        module.k_proj.in_features,
        module.v_proj.in_features,
        bias=biases.pop(),
        out_bias=out.bias is not None,
        dropout=attend.dropout,
    )
    # torch's fast path hands every bias to a kernel that takes no None
    _require(
        shape.out_bias or not shape.bias, "out_proj without bias where q_proj has one", "add a bias of 0"
    )
    return shape


def _torch_attention(module: nn.MultiheadAttention) -> AttentionShape:
    _require(module.bias_k is None and module.bias_v is None, "add_bias_kv=True", "build it without")
    _require(not module.add_zero_attn, "add_zero_attn=True", "build it without")
    return AttentionShape(
        module.embed_dim,
        module.num_heads,
        module.kdim,
        module.vdim,
        bias=module.in_proj_bias is not None,
        out_bias=module.out_proj.bias is not None,
        dropout=module.dropout,
    )


def _block(block: EncoderBlock | DecoderBlock) -> BlockShape:
    cross = block.cross_attention if isinstance(block, DecoderBlock) else None
    net = block.feed_forward
    _require(net.gate_proj is None, "gated=True", "torch's feed-forward net has two layers")
    names = ("self_attention", *(() if cross is None else ("cross_attention",)), "feed_forward")
    residuals: list[Residual] = [getattr(block, f"{name}_residual") for name in names]
    first = {residual.norm_first for residual in residuals}
    _require(len(first) == 1, "norm_first in only some residuals", "torch has one for the layer")
    shape = BlockShape(
        _attention(block.self_attention),
        None if cross is None else _attention(cross),
        net.in_proj.out_features,
        _activation(net.activation),
        _one_bias(net.in_proj, net.out_proj),
        first.pop(),
        tuple(_norm(residual.norm, "norm") for residual in residuals),
        tuple(residual.dropout.p for residual in residuals),
        net.dropout.p,
    )
    everywhere = shape.bias and all(norm.bias for norm in shape.norms)
    # torch's fast path, as above
    _require(
        everywhere or not shape.self_attention.bias,
        "a layer without bias beside attention with one",
        "add a bias of 0",
    )
    return shape


def _torch_block(layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> BlockShape:
    cross = layer.multihead_attn if isinstance(layer, nn.TransformerDecoderLayer) else None
    numbers = range(1, 3 if cross is None else 4)
    return BlockShape(
        _torch_attention(layer.self_attn),
        None if cross is None else _torch_attention(cross),
        layer.linear1.out_features,
        _activation(layer.activation),
        _one_bias(layer.linear1, layer.linear2),
        layer.norm_first,
        tuple(_norm(getattr(layer, f"norm{n}"), f"norm{n}") for n in numbers),
        tuple(getattr(layer, f"dropout{n}").p for n in numbers),
        layer.dropout.p,
    )


def _torch_layer(layer: nn.Module) -> nn.TransformerEncoderLayer | nn.TransformerDecoderLayer:
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    _require(type(layer) in kinds, f"a layer of type {type(layer).__name__}", "stack torch's own layers")
    assert isinstance(layer, kinds)
    return layer


def _norm(norm: nn.Module, name: str) -> NormShape:
    plain = type(norm) is nn.LayerNorm and len(norm.normalized_shape) == 1 and norm.weight is not None
    _require(plain, f"{name}={norm}", "only a LayerNorm over d_model with its weight can")
    assert isinstance(norm, nn.LayerNorm)
    return NormShape(norm.normalized_shape[0], norm.eps, norm.bias is not None)


def _one_bias(first: nn.Linear, second: nn.Linear) -> bool:
    both = (first.bias is None) == (second.bias is None)
    _require(both, "a bias in only one of the feed-forward net's layers", "give both one, or none")
    return first.bias is not None


def _activation(function: Any) -> Activation:
    """Our name of an activation, be it a function or a module."""
    match function:
        case nn.ReLU():
            return "relu"
        case nn.SiLU():
            return "silu"
        case nn.GELU():
            return "gelu_tanh" if function.approximate == "tanh" else "gelu"
        case partial(func=F.gelu, keywords={"approximate": "tanh"}):
            return "gelu_tanh"
    for name in get_args(Activation):
        if function is ACTIVATIONS[name]:
            return name
    known = ", ".join(ACTIVATIONS)
    raise AttendoError(f"activation={function} can't go between torch and attendo; known are {known}")
