"""What the block diagram of a model shows: its parts in order, their shapes and parameter counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from attendo.display.i18n import Localized
from attendo.model_config import ModelConfig
from attendo.models import (
    DecoderLM,
    EncoderClassifier,
    EncoderDecoder,
    MaskedLM,
    Model,
    build_model,
    parameter_count,
)
from attendo.nn.attention import Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import FeedForward, InputEmbedding
from attendo.nn.positions import Alibi, DistanceBias, Rotary

Kind = Literal["embedding", "positions", "attention", "feed_forward", "norm", "output"]

ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU (tanh)", "silu": "SiLU"}
NORMS = {"layer": Localized("LayerNorm", "層正規化"), "rms": Localized("RMSNorm", "RMS 正規化")}
ADDED_POSITIONS = {
    "sinusoidal": Localized("sinusoidal positions", "正弦波の位置符号化"),
    "learned": Localized("learned positions", "学習する位置埋め込み"),
    "ramp": Localized("positions p/L", "位置 p/L"),
    "inverse": Localized("positions 1/p", "位置 1/p"),
}
POOLINGS = {
    "max": Localized("Max over time", "時間方向の最大値"),
    "mean": Localized("Mean over time", "時間方向の平均"),
    "first": Localized("First token", "先頭トークン"),
}
IDS = Localized("token ids", "トークン ID")
SOURCE = Localized("source token ids", "原文のトークン ID")
TARGET = Localized("target token ids, shifted right", "出力文のトークン ID（右に 1 つずらす）")
TITLES = {
    "encoder-decoder": Localized("Transformer: encoder and decoder", "Transformer：エンコーダとデコーダ"),
    "classifier": Localized("Transformer encoder as a classifier", "Transformer エンコーダによる分類器"),
    "decoder": Localized("Transformer decoder as a language model", "Transformer デコーダによる言語モデル"),
    "masked": Localized(
        "Transformer encoder as a masked language model", "Transformer エンコーダによるマスク言語モデル"
    ),
}


@dataclass(frozen=True)
class Part:
    """One box. parameters: those that no box before it has. shared: whether a box before it has some of its own."""

    kind: Kind
    name: Localized
    detail: Localized
    parameters: int
    shared: bool = False


@dataclass(frozen=True)
class Sublayer:
    """A part in its residual; `reads_memory` in cross-attention."""

    part: Part
    norm: Part
    norm_first: bool
    reads_memory: bool = False


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder from its ids to its last norm; the sub-layers are those of each of its blocks.

    positions: None where none are added to the embeddings. embedding_norm, last_norm: None where there is none.
    """

    name: Localized
    block: Localized
    ids: Localized
    length: str
    embedding: Part
    positions: Part | None
    embedding_norm: Part | None
    n_blocks: int
    sublayers: tuple[Sublayer, ...]
    last_norm: Part | None

    @property
    def block_parameters(self) -> int:
        """Of one block."""
        return sum(layer.part.parameters + layer.norm.parameters for layer in self.sublayers)

    @property
    def parameters(self) -> int:
        """Of all blocks and the last norm."""
        return self.n_blocks * self.block_parameters + (self.last_norm.parameters if self.last_norm else 0)

    @property
    def input_parameters(self) -> int:
        """Of what stands before the blocks."""
        parts = (self.embedding, self.positions, self.embedding_norm)
        return sum(part.parameters for part in parts if part is not None)


@dataclass(frozen=True)
class ModelDiagram:
    """A model as boxes. The stacks stand from left to right, `head` is what follows the last.

    head_inputs: the shape of what enters each part of the head. result: what the model gives, with its shape. total:
    all trained numbers of the model, shared ones once; the boxes' counts add up to it.
    """

    title: Localized
    d_model: int
    stacks: tuple[Stack, ...]
    head: tuple[Part, ...]
    head_inputs: tuple[str, ...]
    result: Localized
    total: int

    @property
    def sums(self) -> tuple[tuple[Localized, int], ...]:
        """What the total is made of."""
        inputs = sum(stack.input_parameters for stack in self.stacks)
        output = sum(part.parameters for part in self.head)
        rows = [(Localized("embeddings", "埋め込み"), inputs)]
        rows += [(stack.name, stack.parameters) for stack in self.stacks]
        return (*rows, (Localized("output", "出力"), output))


def model_diagram(config: ModelConfig) -> ModelDiagram:
    """The parts of the model of this configuration, counted in the model itself, built without storage.

    The blocks are those of Vaswani et al. 2017, figure 1, placed as the configuration has them.

    >>> base = ModelConfig(vocab_size=37000, d_model=512, d_ff=2048, n_heads=8, n_encoder_layers=6,
    ...                    n_decoder_layers=6, attention_bias=False)
    >>> model_diagram(base).total
    63045632
    >>> [count for _, count in model_diagram(base).sums]
    [18944000, 18902016, 25199616, 0]
    """
    with torch.device("meta"):
        model = build_model(config)
    reader = _Reader(config)
    match model:
        case EncoderDecoder():
            stacks = (
                reader.stack(model.source_embedding, model.encoder, "src_len", SOURCE),
                reader.stack(model.target_embedding, model.decoder, "tgt_len", TARGET),
            )
        case DecoderLM():
            stacks = (reader.stack(model.embedding, model.decoder, "len", IDS),)
        case EncoderClassifier() | MaskedLM():
            stacks = (reader.stack(model.embedding, model.encoder, "len", IDS),)
    return ModelDiagram(
        TITLES[config.architecture],
        config.d_model,
        stacks,
        reader.head(model),
        reader.head_inputs(stacks[-1].length),
        reader.result(stacks[-1].length),
        parameter_count(model),
    )


class _Reader:
    """Makes parts of modules, and knows which parameters it has counted."""

    def __init__(self, config: ModelConfig):
        self.config = config
        self.counted: set[int] = set()

    def part(self, kind: Kind, name: Localized, detail: Localized, module: nn.Module | None) -> Part:
        """A box for a module, or for a step without parameters."""
        owned = [] if module is None else [p for p in module.parameters() if p.requires_grad]
        new = [parameter for parameter in owned if id(parameter) not in self.counted]
        self.counted |= {id(parameter) for parameter in new}
        return Part(kind, name, detail, sum(p.numel() for p in new), shared=len(new) < len(owned))

    def stack(
        self, embedding: InputEmbedding, stack: Encoder | Decoder, length: str, ids: Localized
    ) -> Stack:
        """An encoder or a decoder with what stands before it."""
        name = (
            Localized("encoder", "エンコーダ")
            if isinstance(stack, Encoder)
            else Localized("decoder", "デコーダ")
        )
        block = Localized(f"{name.en.capitalize()} block", f"{name.ja}ブロック")
        vocab, d_model = embedding.tokens.weight.shape
        size = _same(f"{vocab:,} × {d_model:,}")
        if embedding.tokens.scale != 1.0:
            size = Localized(f"{size.en}, scaled by √{d_model:,}", f"{size.ja}, √{d_model:,} 倍")
        tokens = self.part(
            "embedding", Localized("Token embedding", "トークン埋め込み"), size, embedding.tokens
        )
        positions = None
        if embedding.positions is not None:
            kind = ADDED_POSITIONS[self.config.positions]
            positions = self.part("positions", kind, _same(""), embedding.positions)
        embedding_norm, last_norm = self.optional_norm(embedding.norm), self.optional_norm(stack.norm)
        layers = self.sublayers(stack.blocks[0])
        return Stack(
            name, block, ids, length, tokens, positions, embedding_norm, len(stack.blocks), layers, last_norm
        )

    def sublayers(self, block: EncoderBlock | DecoderBlock) -> tuple[Sublayer, ...]:
        """The sub-layers of one block, in the order in which they run."""
        itself = Localized("Self-attention", "セルフアテンション")
        if isinstance(block, EncoderBlock):
            layers = [self.sublayer(itself, block.self_attention, block.self_attention_residual)]
        else:
            causal = Localized("Causal self-attention", "因果マスク付きセルフアテンション")
            layers = [self.sublayer(causal, block.self_attention, block.self_attention_residual)]
            if block.cross_attention is not None and block.cross_attention_residual is not None:
                cross = Localized("Cross-attention", "クロスアテンション")
                layers.append(
                    self.sublayer(cross, block.cross_attention, block.cross_attention_residual, True)
                )
        net = Localized("Feed-forward", "フィードフォワード層")
        return (*layers, self.sublayer(net, block.feed_forward, block.feed_forward_residual))

    def sublayer(
        self, name: Localized, module: Attention | FeedForward, residual: Residual, reads_memory: bool = False
    ) -> Sublayer:
        """A sub-layer and its norm."""
        if isinstance(module, Attention):
            part = self.part("attention", name, _heads(module), module)
        else:
            part = self.part("feed_forward", name, self.net(module), module)
        return Sublayer(part, self.norm(residual.norm), residual.norm_first, reads_memory)

    def net(self, module: FeedForward) -> Localized:
        """The widths of a feed-forward net and its activation."""
        into, out = module.in_proj, module.out_proj
        activation = ACTIVATIONS[self.config.activation]
        sizes = f"{into.in_features:,} → {into.out_features:,} → {out.out_features:,}, {activation}"
        gated = module.gate_proj is not None
        return Localized(f"{sizes}, gated", f"{sizes}, ゲート") if gated else _same(sizes)

    def norm(self, module: nn.Module) -> Part:
        """A box for a norm."""
        return self.part("norm", NORMS[self.config.norm], _same(""), module)

    def optional_norm(self, module: nn.Module) -> Part | None:
        """A box for a norm, None where nothing is normalized."""
        return None if isinstance(module, nn.Identity) else self.norm(module)

    def head(self, model: Model) -> tuple[Part, ...]:
        """What follows the last stack."""
        match model:
            case EncoderClassifier():
                pooling = self.part("output", POOLINGS[self.config.pooling], _same(""), None)
                return pooling, self.dense(Localized("Dense layer", "全結合層"), model.output_proj)
            case MaskedLM():
                hidden = self.dense(Localized("Dense layer", "全結合層"), model.output_hidden)
                activation = ACTIVATIONS[self.config.activation]
                hidden = Part(
                    hidden.kind, hidden.name, _same(f"{hidden.detail.en}, {activation}"), hidden.parameters
                )
                return hidden, self.norm(model.output_norm), self.output(model.output_proj)
            case EncoderDecoder() | DecoderLM():
                return (self.output(model.output_proj),)

    def output(self, projection: nn.Linear) -> Part:
        """The projection to the vocabulary."""
        return self.dense(Localized("Output projection", "出力射影"), projection)

    def dense(self, name: Localized, projection: nn.Linear) -> Part:
        """A box for a dense layer."""
        size = _same(f"{projection.in_features:,} → {projection.out_features:,}")
        return self.part("output", name, size, projection)

    def head_inputs(self, length: str) -> tuple[str, ...]:
        """The shapes of what enters the parts of the head."""
        d_model, states = self.config.d_model, f"[batch, {length}, {self.config.d_model:,}]"
        match self.config.architecture:
            case "classifier":
                return states, f"[batch, {d_model:,}]"
            case "masked":
                return (states, *[f"[batch, {length}, {self.config.d_output or d_model:,}]"] * 2)
            case _:
                return (states,)

    def result(self, length: str) -> Localized:
        """What comes out, with its shape."""
        if self.config.architecture == "classifier":
            return _same(f"logits [batch, {self.config.n_classes:,}]")
        return _same(f"logits [batch, {length}, {self.config.vocab_size:,}]")


def _heads(module: Attention) -> Localized:
    """How many heads of which width, and what turns or biases them by position."""
    widths = f"{module.head_dim:,}"
    if module.value_dim != module.head_dim:
        widths += f"/{module.value_dim:,}"
    english, japanese = f"{module.n_heads} heads × {widths}", f"{module.n_heads} ヘッド × {widths}"
    if module.n_kv_heads != module.n_heads:
        english, japanese = f"{english}, {module.n_kv_heads} kv", f"{japanese}, kv {module.n_kv_heads}"
    match module.positions:
        case Rotary():
            return Localized(f"{english}, rotary", f"{japanese}, 回転位置")
        case Alibi():
            return Localized(f"{english}, ALiBi", f"{japanese}, ALiBi")
        case DistanceBias():
            return Localized(f"{english}, relative bias", f"{japanese}, 相対バイアス")
        case None:
            return Localized(english, japanese)


def _same(text: str) -> Localized:
    return Localized(text, text)
