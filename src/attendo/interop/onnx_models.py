"""The ONNX graphs of each model: an encoder and the step of a decoder, or one graph from ids to logits."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from attendo.interop.onnx_attention import (
    FLOOR,
    Places,
    attention,
    keys_values,
    length_bias,
    real_keys,
    step_places,
    text_places,
)
from attendo.interop.onnx_graph import Graph, Weights
from attendo.interop.onnx_modules import activation, embedding, feed_forward, linear, norm, residual
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM, Model
from attendo.nn.attention import Attention
from attendo.nn.blocks import DecoderBlock, Encoder
from attendo.nn.embeddings import InputEmbedding
from attendo.nn.pooling import Pooling


def graphs_of(model: Model, weights: Weights) -> Iterator[tuple[str, Graph]]:
    """The graphs of a model and their names; each is made when it is asked for.

    >>> import tempfile, pathlib
    >>> from attendo.interop.onnx_graph import weights_file
    >>> from attendo.models import ModelConfig, build_model
    >>> model = build_model(ModelConfig(vocab_size=11, d_model=8, d_ff=8, n_encoder_layers=1, n_decoder_layers=1))
    >>> with tempfile.TemporaryDirectory() as folder, weights_file(pathlib.Path(folder, "w"), model) as weights:
    ...     for name, graph in graphs_of(model, weights):
    ...         print(name, *[value.name for value in graph.outputs])
    encoder memory memory_key_0 memory_value_0
    decoder present_key_0 present_value_0 logits
    """
    match model:
        case EncoderDecoder():
            yield "encoder", _encoder_graph(model, Graph(weights))
            yield "decoder", _decoder_graph(model, Graph(weights))
        case DecoderLM():
            yield "decoder", _decoder_graph(model, Graph(weights))
        case EncoderClassifier() | MaskedLM():
            yield "model", _text_graph(model, Graph(weights))


def _encoder_graph(model: EncoderDecoder, graph: Graph) -> Graph:
    """From source ids to the memory, and to its keys and values in each block of the decoder."""
    config = model.config
    ids = graph.input("source_ids", ["sources", "source_len"], integer=True)
    lengths = graph.input("source_lengths", ["sources"], integer=True)
    memory = _encoded(graph, config, model.source_embedding, model.encoder, ids, lengths)
    graph.output("memory", memory, ["sources", "source_len", config.d_model])
    for number, block in enumerate(model.decoder.blocks):
        cross = block.cross_attention
        assert cross is not None
        _give(
            graph,
            f"memory_{{}}_{number}",
            cross,
            keys_values(graph, cross, memory),
            ("sources", "source_len"),
        )
    return graph


def _decoder_graph(model: EncoderDecoder | DecoderLM, graph: Graph) -> Graph:
    """From the next ids of every row, and the keys and values of what it has, to logits and all keys and values."""
    config = model.config
    ids = graph.input("token_ids", ["rows", "n"], integer=True)
    lengths = graph.input("lengths", ["rows"], integer=True)
    places, memory_bias = step_places(graph, ids, lengths, "past_key_0", config.max_len), None
    if isinstance(model, EncoderDecoder):
        memory_lengths = graph.input("memory_lengths", ["rows"], integer=True)
        memory_bias = length_bias(graph, memory_lengths, graph.size("memory_key_0", 2))
    tokens = model.target_embedding if isinstance(model, EncoderDecoder) else model.embedding
    x = embedding(graph, tokens, ids, places.positions, config.max_len)
    for number, block in enumerate(model.decoder.blocks):
        x = _decoder_block(graph, block, number, x, places, memory_bias)
        net = block.feed_forward
        x = residual(
            graph,
            block.feed_forward_residual,
            x,
            lambda h, net=net: feed_forward(graph, net, config.activation, h),
        )
    logits = linear(graph, model.output_proj, norm(graph, model.decoder.norm, x))
    graph.output("logits", logits, ["rows", "n", config.vocab_size])
    return graph


def _decoder_block(
    graph: Graph, block: DecoderBlock, number: int, x: str, places: Places, memory_bias: str | None
) -> str:
    """A block of the decoder but for its feed-forward net."""
    own, cross = block.self_attention, block.cross_attention
    past = _take(graph, f"past_{{}}_{number}", own, ("rows", "past_len"))

    def attend_to_past(h: str) -> str:
        new = keys_values(graph, own, h, places)
        key, value = (graph.op("Concat", old, part, axis=2) for old, part in zip(past, new, strict=True))
        _give(graph, f"present_{{}}_{number}", own, (key, value), ("rows", "total_len"))
        return attention(graph, own, h, key, value, places.bias, places)

    x = residual(graph, block.self_attention_residual, x, attend_to_past)
    if cross is None or block.cross_attention_residual is None or memory_bias is None:
        return x
    memory = _take(graph, f"memory_{{}}_{number}", cross, ("rows", "source_len"))
    return residual(
        graph, block.cross_attention_residual, x, lambda h: attention(graph, cross, h, *memory, memory_bias)
    )


def _text_graph(model: EncoderClassifier | MaskedLM, graph: Graph) -> Graph:
    """From ids to the encoder's states and to logits: of each text, or of each position."""
    config = model.config
    ids = graph.input("token_ids", ["rows", "len"], integer=True)
    lengths = graph.input("lengths", ["rows"], integer=True)
    states = _encoded(graph, config, model.embedding, model.encoder, ids, lengths)
    graph.output("states", states, ["rows", "len", config.d_model])
    if isinstance(model, EncoderClassifier):
        pooled = _pooled(graph, config.pooling, states, lengths)
        if isinstance(model.output_hidden, nn.Linear):
            kind = config.output_activation.capitalize()  # Tanh or Relu
            pooled = graph.op(kind, linear(graph, model.output_hidden, pooled))
        classes = isinstance(model.output_proj, nn.Linear)
        logits = linear(graph, model.output_proj, pooled) if classes else pooled
        graph.output("logits", logits, ["rows", config.n_classes or config.d_output or config.d_model])
        return graph
    hidden = activation(graph, config.activation, linear(graph, model.output_hidden, states))
    logits = linear(graph, model.output_proj, norm(graph, model.output_norm, hidden))
    graph.output("logits", logits, ["rows", "len", config.vocab_size])
    return graph


def _encoded(
    graph: Graph, config: ModelConfig, embed: InputEmbedding, encoder: Encoder, ids: str, lengths: str
) -> str:
    """What an encoder makes of texts that are read at once."""
    places, kind = text_places(graph, ids, lengths, config.max_len), config.activation
    x = embedding(graph, embed, ids, places.positions, config.max_len)
    for block in encoder.blocks:

        def attend(h: str, own: Attention = block.self_attention) -> str:
            return attention(graph, own, h, *keys_values(graph, own, h, places), places.bias, places)

        x = residual(graph, block.self_attention_residual, x, attend)
        net = block.feed_forward
        x = residual(
            graph, block.feed_forward_residual, x, lambda h, net=net: feed_forward(graph, net, kind, h)
        )
    return norm(graph, encoder.norm, x)


def _pooled(graph: Graph, kind: Pooling, states: str, lengths: str) -> str:
    """One vector a text `[rows, d_model]`, of its tokens without the padding."""
    if kind == "first":
        return graph.op("Gather", states, graph.constant(0), axis=1)
    real = graph.op("Unsqueeze", real_keys(graph, lengths, graph.size(states, 1)), graph.constant([2]))
    if kind == "max":
        states = graph.op("Where", real, states, graph.constant(2 * FLOOR))
        return graph.op("ReduceMax", states, graph.constant([1]), keepdims=0)
    total = graph.op("Where", real, states, graph.constant(0.0))
    total = graph.op("ReduceSum", total, graph.constant([1]), keepdims=0)
    n = graph.op("Cast", graph.op("Unsqueeze", lengths, graph.constant([1])), to=1)  # 1: float32
    return graph.op("Div", total, n)


def _take(graph: Graph, name: str, attention: Attention, axes: tuple[str, str]) -> tuple[str, str]:
    """Keys and values as inputs of this name, `{}` being which of them; axes: names of the rows and of the length."""
    key = graph.input(name.format("key"), _shape(attention, axes, attention.head_dim))
    return key, graph.input(name.format("value"), _shape(attention, axes, attention.value_dim))


def _give(
    graph: Graph, name: str, attention: Attention, values: tuple[str, str], axes: tuple[str, str]
) -> None:
    """Keys and values as outputs; as in `_take`."""
    graph.output(name.format("key"), values[0], _shape(attention, axes, attention.head_dim))
    graph.output(name.format("value"), values[1], _shape(attention, axes, attention.value_dim))


def _shape(attention: Attention, axes: tuple[str, str], dim: int) -> list[str | int]:
    return [axes[0], attention.n_kv_heads, axes[1], dim]
