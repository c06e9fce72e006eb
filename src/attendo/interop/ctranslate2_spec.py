"""A model's weights in the layout of CTranslate2's specifications; the only table of its names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ctranslate2.specs import common_spec, transformer_spec
from ctranslate2.specs.model_spec import ModelSpec
from torch import Tensor, nn

from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM, Model, ModelConfig
from attendo.nn.attention import Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.embeddings import InputEmbedding
from attendo.nn.positions import Alibi, RelativeBias, alibi_slopes

IN_ATTENTION = ("rotary", "alibi", "relative")
"""Positions that are part of self-attention, so that nothing is added to the embedding."""

LONGEST = 1025
"""CTranslate2's max_input_length, and the end."""

ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "gelu_tanh": common_spec.Activation.GELUTanh,
    "silu": common_spec.Activation.SWISH,
}


def spec_of(model: Model, entries: Sequence[str]) -> ModelSpec:
    """The model as CTranslate2's Transformer, decoder or encoder; entries: a token for each id; ids
    beyond them, as a padded vocabulary has, get names of their own.

    The head of a classifier or of a masked model has no place there and is left out. Positions that are added are
    written as a table.

    >>> from attendo.models import build_model
    >>> sizes = dict(d_model=8, d_ff=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1)
    >>> spec = spec_of(build_model(ModelConfig(vocab_size=5, **sizes)), ["<pad>", "<unk>", "<s>", "</s>", "a"])
    >>> spec.name, spec.decoder.layer[0].attention.linear[1].weight.shape  # keys and values in one
    ('TransformerSpec', (16, 8))
    """
    unused = (f"<unused {number}>" for number in range(len(entries), model.config.vocab_size))
    spec = _unchecked(model, [*entries, *unused])
    spec.validate()
    return spec


def _unchecked(model: Model, entries: list[str]) -> Any:
    config = model.config
    match model:
        case EncoderDecoder():
            encoder, decoder = _encoder(config), _decoder(config)
            _fill_stack(encoder, encoder.embeddings[0], model.encoder, model.source_embedding, config)
            _fill_stack(decoder, decoder.embeddings, model.decoder, model.target_embedding, config)
            _linear(decoder.projection, model.output_proj)
            spec: Any = transformer_spec.TransformerSpec(encoder, decoder)
            spec.register_source_vocabulary(entries)
            spec.register_target_vocabulary(entries)
        case DecoderLM():
            decoder = _decoder(config)
            _fill_stack(decoder, decoder.embeddings, model.decoder, model.embedding, config)
            _linear(decoder.projection, model.output_proj)
            spec = transformer_spec.TransformerDecoderModelSpec(decoder)
            spec.register_vocabulary(entries)
        case EncoderClassifier() | MaskedLM():
            encoder = _encoder(config)
            _fill_stack(encoder, encoder.embeddings[0], model.encoder, model.embedding, config)
            spec = transformer_spec.TransformerEncoderModelSpec(encoder)
            spec.register_vocabulary(entries)
    return spec


def _options(config: ModelConfig) -> dict[str, Any]:
    """What encoder and decoder are told alike."""
    head_dim = config.head_width
    grouped = config.n_kv_heads not in (None, config.n_heads)
    return {
        "num_heads": config.n_heads,
        "pre_norm": config.norm_first,
        "activation": ACTIVATIONS[config.activation],
        "layernorm_embedding": config.embedding_norm_eps is not None,
        "ffn_glu": config.feed_forward_gated,
        "rms_norm": config.norm == "rms",
        "num_heads_kv": config.n_kv_heads if grouped else None,
        "head_dim": None if head_dim * config.n_heads == config.d_model else head_dim,
        "qk_norm": config.attention_norm,
        **({"rotary_dim": 0, "rotary_base": config.wavelength_base} if config.positions == "rotary" else {}),
    }


def _encoder(config: ModelConfig) -> Any:
    biased = config.positions in ("relative", "alibi")
    return transformer_spec.TransformerEncoderSpec(
        config.n_encoder_layers, relative_attention_bias=biased, **_options(config)
    )


def _decoder(config: ModelConfig) -> Any:
    return transformer_spec.TransformerDecoderSpec(
        config.n_decoder_layers,
        with_encoder_attention=config.n_encoder_layers > 0,
        alibi=config.positions == "alibi",
        alibi_use_positive_positions=True,
        relative_attention_bias=config.positions == "relative",
        **_options(config),
    )


def _fill_stack(
    spec: Any, tokens: Any, stack: Encoder | Decoder, embedding: InputEmbedding, config: ModelConfig
) -> None:
    tokens.weight = _array(embedding.tokens.weight)
    spec.scale_embeddings = config.embedding_scale
    if config.embedding_norm_eps is not None:
        _norm(spec.layernorm_embedding, embedding.norm)
    if config.positions not in IN_ATTENTION:
        spec.position_encodings.encodings = _position_table(embedding, config)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        _fill_layer(layer, block, config)
    if config.norm_first:
        _norm(spec.layer_norm, stack.norm)


def _position_table(embedding: InputEmbedding, config: ModelConfig) -> np.ndarray:
    """What is added at each position [positions, d_model]; where the table ends, CTranslate2 stops with an error.

    Positions that are computed go as far as the longest source that it reads unless told.
    """
    n = config.max_len if config.positions == "learned" else max(config.max_len, LONGEST)
    if embedding.positions is None:
        return np.zeros((n, config.d_model), np.float32)
    return _array(embedding.positions(torch.arange(n), n).expand(n, config.d_model))


def _fill_layer(layer: Any, block: EncoderBlock | DecoderBlock, config: ModelConfig) -> None:
    own, net = block.self_attention, block.feed_forward
    _attention(layer.self_attention, own, block.self_attention_residual)
    _linear(layer.self_attention.linear[0], own.q_proj, own.k_proj, own.v_proj)
    if config.attention_norm:
        _norm(layer.self_attention.q_norm, own.q_norm)
        _norm(layer.self_attention.k_norm, own.k_norm)
    if isinstance(own.positions, RelativeBias):
        _bias(layer.self_attention, own.positions.weight, own.positions.reach)
    elif isinstance(own.positions, Alibi) and isinstance(block, EncoderBlock):
        _bias(layer.self_attention, _alibi_buckets(config), 2 * config.max_len)
    if isinstance(block, DecoderBlock) and block.cross_attention is not None:
        cross = block.cross_attention
        _attention(layer.attention, cross, block.cross_attention_residual)
        _linear(layer.attention.linear[0], cross.q_proj)
        _linear(layer.attention.linear[1], *_for_every_head(cross))
        vars(layer.attention).pop("num_heads_kv", None)
    if net.gate_proj is None:
        _linear(layer.ffn.linear_0, net.in_proj)
    else:
        _linear(layer.ffn.linear_0, net.gate_proj)  # the one with the activation
        _linear(layer.ffn.linear_0_noact, net.in_proj)
    _linear(layer.ffn.linear_1, net.out_proj)
    _norm(layer.ffn.layer_norm, block.feed_forward_residual.norm)


def _attention(target: Any, source: Attention, residual: Residual | None) -> None:
    assert residual is not None
    _norm(target.layer_norm, residual.norm)
    _linear(target.linear[-1], source.out_proj)
    if source.attend.scale is not None:
        target.queries_scale = np.float32(source.attend.scale)


def _bias(target: Any, buckets: Tensor, reach: int) -> None:
    target.relative_attention_bias = _array(buckets)
    target.relative_attention_max_distance = np.int32(reach)


def _alibi_buckets(config: ModelConfig) -> Tensor:
    """ALiBi's bias [4·max_len, heads] in T5's buckets, one for each distance below max_len on either side.

    CTranslate2 knows ALiBi in decoders only, where no key stands behind its query.
    """
    distances = torch.arange(2 * config.max_len, dtype=torch.float32)
    return -distances.repeat(2)[:, None] * alibi_slopes(config.n_heads)


def _for_every_head(cross: Attention) -> tuple[nn.Linear, nn.Linear]:
    """The projections of keys and values with a head for each query head, as groups are for self-attention alone."""
    if cross.n_kv_heads == cross.n_heads:
        return cross.k_proj, cross.v_proj
    whole = []
    for projection in (cross.k_proj, cross.v_proj):
        heads = torch.arange(projection.out_features).view(cross.n_kv_heads, -1)
        rows = heads.repeat_interleave(cross.n_heads // cross.n_kv_heads, dim=0).flatten()
        bias = projection.bias is not None
        wide = nn.Linear(projection.in_features, len(rows), bias=bias)
        wide.weight.data = projection.weight[rows]
        if bias:
            wide.bias.data = projection.bias[rows]
        whole.append(wide)
    return whole[0], whole[1]


def _linear(target: Any, *projections: nn.Module) -> None:
    """Several projections of one input stand one below the other."""
    weights, biases = [], []
    for projection in projections:
        assert isinstance(projection, nn.Linear)
        weights.append(projection.weight)
        biases += [] if projection.bias is None else [projection.bias]
    target.weight = _array(torch.cat(weights))
    if biases:
        target.bias = _array(torch.cat(biases))


def _norm(target: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    target.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        target.beta = _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()  # quantized in place
