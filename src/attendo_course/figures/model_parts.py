"""The content of the block diagram of a model: its parts in order, their shapes and parameter counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from attendo.config import override, read_toml, to_table
from attendo.display.i18n import Localized
from attendo.errors import AttendoError
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
from attendo.runs.settings import check_names, joined, preset_names, preset_tables, section
from attendo.runs.task_specs import family_of
from attendo_course.book import translated
from attendo_course.presets import PRESETS

PRESET = "base"
VOCABULARY = 37_000
"""The vocabulary size of Vaswani et al. 2017, section 5.1, which English and German share."""


def chosen_model(preset: str | None = None, assignments: Sequence[str] = ()) -> ModelConfig:
    """Return the [model] table of a preset ("base" if None) after applying each `model.key=value` setting.

    `preset` is a training preset, the model of a source (`attendo_course.presets`), a settings file or a run folder.
    The vocabulary size is that of the preset's tokenizer (default: 37,000, as in Vaswani et al. 2017). Raises
    AttendoError for an unknown preset or key, and for a setting of another table.

    >>> chosen_model("big", ["model.n_heads=8"]).n_heads, chosen_model("gpt2_small").architecture
    (8, 'decoder')
    """
    tables = _preset_tables(PRESET if preset is None else preset)
    given = override({}, assignments)
    check_names(family_of("translation"), given, "--set")
    if others := given.keys() - {"model"}:
        name = sorted(others)[0]
        raise AttendoError(f"[{name}] changes nothing in the figure of a model; set model.KEY=VALUE only")
    model = {**tables.get("model", {}), **given.get("model", {})}
    if "pooling" in model and "architecture" not in model:
        raise AttendoError(
            f"{preset or 'the settings'}: a classifier without its number of labels cannot be drawn. Draw the preset"
            " nyu_classifier (the lecture's model with 2 labels) or a run folder, or set"
            f" model.architecture=classifier and model.n_classes. The figure draws {', '.join(_drawable())}"
        )
    vocab_size = tables.get("tokenizer", {}).get("vocab_size", VOCABULARY)
    whole = joined({"model": {"vocab_size": vocab_size}}, {"model": tables.get("model", {})}, given)
    return section(ModelConfig, whole, "model", "the settings")


def _preset_tables(preset: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a training preset, the model of a source, a file or a run folder."""
    path = Path(preset)
    if path.suffix == ".toml" or path.is_dir():
        return read_toml(path / "config.toml" if path.is_dir() else path)
    if preset in PRESETS:
        config = _source_model(preset)
        if config is None:
            raise AttendoError(f"{preset} is a single attention, which has no blocks to draw; take a whole model")
        return {"model": to_table(config)}
    if preset in preset_names():
        return preset_tables(preset)
    known = _drawable()
    near = get_close_matches(preset, known, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}, or give F.toml or a run folder"
    raise AttendoError(f"no preset is called {preset!r}; {remedy}")


def _drawable() -> list[str]:
    """Return the names of all presets of complete models."""
    whole = [name for name in preset_names() if "pooling" not in preset_tables(name)["model"]]
    return [*whole, *(name for name in PRESETS if _source_model(name) is not None)]


@cache
def _source_model(name: str) -> ModelConfig | None:
    """Return the configuration of a source's model, or None if the source describes only attention."""
    with torch.device("meta"):  # the numbers are not needed
        config = getattr(PRESETS[name].build(), "config", None)
    return config if isinstance(config, ModelConfig) else None


Kind = Literal["embedding", "positions", "attention", "feed_forward", "norm", "output"]

ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU (tanh)", "silu": "SiLU"}
NORMS = {"layer": translated("LayerNorm"), "rms": translated("RMSNorm")}
ADDED_POSITIONS = {
    "sinusoidal": translated("sinusoidal positions"),
    "learned": translated("learned positions"),
    "ramp": translated("positions p/L"),
    "inverse": translated("positions 1/p"),
}
POOLINGS = {
    "max": translated("Max over time"),
    "mean": translated("Mean over time"),
    "first": translated("First token"),
}
IDS = translated("token ids")
SOURCE = translated("source token ids")
TARGET = translated("target token ids, shifted right")
TITLES = {
    "encoder-decoder": translated("Transformer: encoder and decoder"),
    "classifier": translated("Transformer encoder as a classifier"),
    "decoder": translated("Transformer decoder as a language model"),
    "masked": translated("Transformer encoder as a masked language model"),
}


@dataclass(frozen=True)
class Part:
    """A box of the diagram. The parameter count of a box excludes parameters that it shares with earlier boxes.

    `scale` is the scale of an attention, or None. `unscaled` is True if the scores are not divided by √d_k.
    """

    kind: Kind
    name: Localized
    detail: Localized
    parameters: int
    shared: bool = False
    scale: Localized | None = None
    unscaled: bool = False


@dataclass(frozen=True)
class Sublayer:
    """A part with its residual connection. `reads_memory` is True for cross-attention."""

    part: Part
    norm: Part
    norm_first: bool
    reads_memory: bool = False


@dataclass(frozen=True)
class Stack:
    """An encoder or a decoder from the token ids to the last norm, with the sub-layers of one block.

    `positions`, `embedding_norm` and `last_norm` are None if the model has no such part.
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
        """The number of parameters of one block."""
        return sum(layer.part.parameters + layer.norm.parameters for layer in self.sublayers)

    @property
    def parameters(self) -> int:
        """The number of parameters of all blocks and the last norm."""
        return self.n_blocks * self.block_parameters + (self.last_norm.parameters if self.last_norm else 0)

    @property
    def input_parameters(self) -> int:
        """The number of parameters before the blocks."""
        parts = (self.embedding, self.positions, self.embedding_norm)
        return sum(part.parameters for part in parts if part is not None)


@dataclass(frozen=True)
class ModelDiagram:
    """A model as boxes: the stacks from left to right, and the `head` after the last stack.

    Attributes:
        head_inputs: The input shape of each part of the head.
        result: The output of the model with its shape.
        total: The number of all trainable parameters. Shared parameters count once. The counts of the boxes sum to
            the total.
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
        """The summands of the total number of parameters."""
        inputs = sum(stack.input_parameters for stack in self.stacks)
        output = sum(part.parameters for part in self.head)
        rows = [(translated("embeddings"), inputs)]
        rows += [(stack.name, stack.parameters) for stack in self.stacks]
        return (*rows, (translated("output"), output))


def model_diagram(config: ModelConfig) -> ModelDiagram:
    """Return the parts of the model with this configuration.

    The parameters are counted in the model itself, which is built on the meta device without storage.
    The blocks are as in figure 1 of Vaswani et al. 2017, in the order that the configuration requires.

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
    """Conversion of modules into parts. It records which parameters are already counted."""

    def __init__(self, config: ModelConfig):
        self.config = config
        self.counted: set[int] = set()

    def part(self, kind: Kind, name: Localized, detail: Localized, module: nn.Module | None) -> Part:
        owned = [] if module is None else [p for p in module.parameters() if p.requires_grad]
        new = [parameter for parameter in owned if id(parameter) not in self.counted]
        self.counted |= {id(parameter) for parameter in new}
        return Part(kind, name, detail, sum(p.numel() for p in new), shared=len(new) < len(owned))

    def stack(self, embedding: InputEmbedding, stack: Encoder | Decoder, length: str, ids: Localized) -> Stack:
        name = translated("encoder") if isinstance(stack, Encoder) else translated("decoder")
        block = Localized(f"{name.en.capitalize()} block", f"{name.ja}ブロック")
        vocab, d_model = embedding.tokens.weight.shape
        size = _same(f"{vocab:,} × {d_model:,}")
        if embedding.tokens.scale != 1.0:
            size = translated("{size.en}, scaled by √{d_model:,}", size=size, d_model=d_model)
        tokens = self.part("embedding", translated("Token embedding"), size, embedding.tokens)
        positions = None
        if embedding.positions is not None:
            kind = ADDED_POSITIONS[self.config.positions]
            positions = self.part("positions", kind, _same(""), embedding.positions)
        embedding_norm, last_norm = self.optional_norm(embedding.norm), self.optional_norm(stack.norm)
        layers = self.sublayers(stack.blocks[0])
        return Stack(name, block, ids, length, tokens, positions, embedding_norm, len(stack.blocks), layers, last_norm)

    def sublayers(self, block: EncoderBlock | DecoderBlock) -> tuple[Sublayer, ...]:
        itself = translated("Self-attention")
        if isinstance(block, EncoderBlock):
            layers = [self.sublayer(itself, block.self_attention, block.self_attention_residual)]
        else:
            causal = translated("Causal self-attention")
            layers = [self.sublayer(causal, block.self_attention, block.self_attention_residual)]
            if block.cross_attention is not None and block.cross_attention_residual is not None:
                cross = translated("Cross-attention")
                layers.append(self.sublayer(cross, block.cross_attention, block.cross_attention_residual, True))
        net = translated("Feed-forward")
        return (*layers, self.sublayer(net, block.feed_forward, block.feed_forward_residual))

    def sublayer(
        self, name: Localized, module: Attention | FeedForward, residual: Residual, reads_memory: bool = False
    ) -> Sublayer:
        if isinstance(module, Attention):
            part = self.part("attention", name, _heads(module), module)
            part = replace(part, scale=_scale(module), unscaled=module.attend.scale == 1.0)
        else:
            part = self.part("feed_forward", name, self.net(module), module)
        return Sublayer(part, self.norm(residual.norm), residual.norm_first, reads_memory)

    def net(self, module: FeedForward) -> Localized:
        into, out = module.in_proj, module.out_proj
        activation = ACTIVATIONS[self.config.activation]
        sizes = f"{into.in_features:,} → {into.out_features:,} → {out.out_features:,}, {activation}"
        gated = module.gate_proj is not None
        return translated("{sizes}, gated", sizes=sizes) if gated else _same(sizes)

    def norm(self, module: nn.Module) -> Part:
        return self.part("norm", NORMS[self.config.norm], _same(""), module)

    def optional_norm(self, module: nn.Module) -> Part | None:
        return None if isinstance(module, nn.Identity) else self.norm(module)

    def head(self, model: Model) -> tuple[Part, ...]:
        match model:
            case EncoderClassifier():
                pooling = self.part("output", POOLINGS[self.config.pooling], _same(""), None)
                return pooling, self.dense(translated("Dense layer"), model.output_proj)
            case MaskedLM():
                hidden = self.dense(translated("Dense layer"), model.output_hidden)
                activation = ACTIVATIONS[self.config.activation]
                hidden = Part(hidden.kind, hidden.name, _same(f"{hidden.detail.en}, {activation}"), hidden.parameters)
                return hidden, self.norm(model.output_norm), self.output(model.output_proj)
            case EncoderDecoder() | DecoderLM():
                return (self.output(model.output_proj),)

    def output(self, projection: nn.Linear) -> Part:
        return self.dense(translated("Output projection"), projection)

    def dense(self, name: Localized, projection: nn.Linear) -> Part:
        size = _same(f"{projection.in_features:,} → {projection.out_features:,}")
        return self.part("output", name, size, projection)

    def head_inputs(self, length: str) -> tuple[str, ...]:
        d_model, states = self.config.d_model, f"[batch, {length}, {self.config.d_model:,}]"
        match self.config.architecture:
            case "classifier":
                return states, f"[batch, {d_model:,}]"
            case "masked":
                return (states, *[f"[batch, {length}, {self.config.d_output or d_model:,}]"] * 2)
            case _:
                return (states,)

    def result(self, length: str) -> Localized:
        if self.config.architecture == "classifier":
            return _same(f"logits [batch, {self.config.n_classes:,}]")
        return _same(f"logits [batch, {length}, {self.config.vocab_size:,}]")


def _heads(module: Attention) -> Localized:
    widths = f"{module.head_dim:,}"
    if module.value_dim != module.head_dim:
        widths += f"/{module.value_dim:,}"
    english, japanese = f"{module.n_heads} heads × {widths}", f"{module.n_heads} ヘッド × {widths}"
    if module.n_kv_heads != module.n_heads:
        english, japanese = f"{english}, {module.n_kv_heads} kv", f"{japanese}, kv {module.n_kv_heads}"
    match module.positions:
        case Rotary():
            return translated("{english}, rotary", english=english, japanese=japanese)
        case Alibi():
            return translated("{english}, ALiBi", english=english, japanese=japanese)
        case DistanceBias():
            return translated("{english}, relative bias", english=english, japanese=japanese)
        case None:
            return Localized(english, japanese)


def _scale(module: Attention) -> Localized:
    """Return how the scores are scaled before the softmax."""
    match module.attend.scale:
        case None:
            return _same(f"QKᵀ/√{module.head_dim:,}")
        case 1.0:
            return translated("QKᵀ without 1/√{head_dim:,}", head_dim=module.head_dim)
        case scale:
            return _same(f"QKᵀ · {scale:g}")


def _same(text: str) -> Localized:
    return Localized(text, text)
