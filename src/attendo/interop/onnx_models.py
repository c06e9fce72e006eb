"""The ONNX graphs of each model: an encoder and a decoder step, or one graph from token ids to logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attendo.interop.onnx_graph import Graph, Weights
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM, Model
from attendo.nn.attention import Attention
from attendo.nn.blocks import DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import Activation, InputEmbedding, Pooling
from attendo.nn.positions import Alibi, FixedPositions, RelativeBias, Rotary


def _linear(graph: Graph, module: nn.Linear, x: str) -> str:
    """Compute x Wᵀ + b."""
    product = graph.op("MatMul", x, graph.transposed(module.weight))
    return product if module.bias is None else graph.op("Add", product, graph.weight(module.bias))


def _norm(graph: Graph, module: nn.Module, x: str) -> str:
    """Compute a LayerNorm, an RMSNorm, or no normalization."""
    match module:
        case nn.Identity():
            return x
        case nn.LayerNorm():
            weights = graph.weight(module.weight), graph.weight(module.bias)
            return graph.op("LayerNormalization", x, *weights, epsilon=module.eps)
        case nn.RMSNorm():
            assert module.eps is not None
            mean = graph.op("ReduceMean", graph.op("Mul", x, x), graph.constant([-1]))
            size = graph.op("Sqrt", graph.op("Add", mean, graph.constant(module.eps)))
            return graph.op("Mul", graph.op("Div", x, size), graph.weight(module.weight))
    raise AssertionError(f"not a norm: {type(module).__name__}")


def _activation(graph: Graph, kind: Activation, x: str) -> str:
    """Compute ReLU, GELU, the tanh approximation of GELU, or SiLU."""
    match kind:
        case "relu":
            return graph.op("Relu", x)
        case "gelu":
            return graph.op("Gelu", x)
        case "gelu_tanh":
            return graph.op("Gelu", x, approximate="tanh")
        case "silu":
            return graph.op("Mul", x, graph.op("Sigmoid", x))


def _residual(graph: Graph, module: Residual, x: str, sublayer: Callable[[str], str]) -> str:
    """Compute norm(x + f(x)), or x + f(norm(x))."""
    if module.norm_first:
        return graph.op("Add", x, sublayer(_norm(graph, module.norm, x)))
    return _norm(graph, module.norm, graph.op("Add", x, sublayer(x)))


def _feed_forward_sublayer(graph: Graph, block: EncoderBlock | DecoderBlock, kind: Activation, x: str) -> str:
    """Compute the last sublayer of a block: W₂ · activation(W₁x + b₁) + b₂, or a gated feed-forward network."""
    module = block.feed_forward

    def net(h: str) -> str:
        inner = _linear(graph, module.in_proj, h)
        if module.gate_proj is None:
            inner = _activation(graph, kind, inner)
        else:
            inner = graph.op("Mul", _activation(graph, kind, _linear(graph, module.gate_proj, h)), inner)
        return _linear(graph, module.out_proj, inner)

    return _residual(graph, block.feed_forward_residual, x, net)


def _embedding(graph: Graph, module: InputEmbedding, token_ids: str, positions: str, max_len: int) -> str:
    """Compute the token embedding plus the positional encoding, with optional normalization."""
    tokens = module.tokens
    x = graph.op("Gather", graph.weight(tokens.weight), token_ids)
    if tokens.scale != 1.0:
        x = graph.op("Mul", x, graph.constant(tokens.scale))
    if module.positions is not None:
        if isinstance(module.positions, FixedPositions):
            start = module.positions.start
            rows = module.positions.encode(torch.arange(start, start + max_len))
            table = graph.table("positions", rows)
        else:
            table = graph.weight(module.positions.weight)
        x = graph.op("Add", x, graph.op("Gather", table, positions))
    return _norm(graph, module.norm, x)


FLOOR = torch.finfo(torch.float32).min / 2  # added to the scores of masked keys


@dataclass(frozen=True)
class Places:
    """The positions of queries and keys in self-attention, as names of graph values.

    Attributes:
        positions: The positions of the queries `[rows or 1, n]`.
        distances: The position of each key minus the position of each query `[n, keys]`.
        bias: The mask as a term of the scores: 0 for allowed keys, and FLOOR for masked keys `[rows, 1, n or 1, keys]`.
        max_len: The number of positions of the model.
    """

    positions: str
    distances: str
    bias: str
    max_len: int


def _keys_values(graph: Graph, module: Attention, memory: str, places: Places | None = None) -> tuple[str, str]:
    """Return the projected keys and values `[rows, kv_heads, len, dim]` of the hidden states in `memory`."""
    key = _heads(graph, _linear(graph, module.k_proj, memory), module.n_kv_heads, module.head_dim)
    value = _heads(graph, _linear(graph, module.v_proj, memory), module.n_kv_heads, module.value_dim)
    return _turned(graph, module, _norm(graph, module.k_norm, key), places), value


def _attention(
    graph: Graph, module: Attention, x: str, key: str, value: str, bias: str, places: Places | None = None
) -> str:
    """Compute the attention of x to projected keys and values. `places` is only for self-attention."""
    n_heads, n_kv_heads = module.n_heads, module.n_kv_heads
    query = _heads(graph, _linear(graph, module.q_proj, x), n_heads, module.head_dim)
    query = _turned(graph, module, _norm(graph, module.q_norm, query), places)
    scale = module.head_dim**-0.5 if module.attend.scale is None else module.attend.scale
    query = graph.op("Mul", query, graph.constant(scale * module.attend.inverse_temperature))
    if isinstance(module.positions, Alibi | RelativeBias):
        assert places is not None
        bias = graph.op("Add", _position_bias(graph, module.positions, places.distances), bias)
    # query heads that share a key head become additional queries of the key head
    grouped = n_kv_heads != n_heads
    query = graph.reshaped(query, [0, n_kv_heads, -1, module.head_dim]) if grouped else query
    scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = graph.reshaped(scores, [0, n_heads, -1, 0]) if grouped else scores
    weights = graph.op("Softmax", graph.op("Add", scores, bias), axis=-1)
    weights = graph.reshaped(weights, [0, n_kv_heads, -1, 0]) if grouped else weights
    mixed = graph.op("MatMul", weights, value)
    mixed = graph.reshaped(mixed, [0, n_heads, -1, module.value_dim]) if grouped else mixed
    together = graph.op("Transpose", mixed, perm=[0, 2, 1, 3])
    assert isinstance(module.out_proj, nn.Linear)
    return _linear(graph, module.out_proj, graph.reshaped(together, [0, 0, n_heads * module.value_dim]))


def _real_keys(graph: Graph, lengths: str, n_keys: str) -> str:
    """Return a mask `[rows, keys]` of the keys within the length of each row."""
    return graph.op("Less", graph.numbers(n_keys), graph.op("Unsqueeze", lengths, graph.constant([1])))


def _length_bias(graph: Graph, lengths: str, n_keys: str) -> str:
    """Return 0 for the first `lengths` keys of each row, and FLOOR for padding `[rows, 1, 1, keys]`."""
    real = _real_keys(graph, lengths, n_keys)
    bias = graph.op("Where", real, graph.constant(0.0), graph.constant(FLOOR))
    return graph.op("Unsqueeze", bias, graph.constant([1, 2]))


def _text_places(graph: Graph, token_ids: str, lengths: str, max_len: int) -> Places:
    """Return the places of whole texts, padded at the end, without a causal mask."""
    size = graph.size(token_ids, 1)
    positions = graph.op("Unsqueeze", graph.numbers(size), graph.constant([0]))
    queries = graph.op("Unsqueeze", graph.numbers(size), graph.constant([1]))
    distances = graph.op("Sub", positions, queries)
    return Places(positions, distances, _length_bias(graph, lengths, size), max_len)


def _step_places(graph: Graph, token_ids: str, lengths: str, past_key: str, max_len: int) -> Places:
    """Return the places of the next n tokens of left-padded texts with `lengths` real keys, including these tokens.

    All rows end together. The distance from query i to key j is therefore j - past - i in every row.
    """
    n, past = graph.size(token_ids, 1), graph.size(past_key, 2)
    keys = graph.numbers(graph.op("Add", past, n))
    own = graph.op("Sub", graph.numbers(n), n)  # -n, ..., -1: counted from the end
    column = graph.op("Unsqueeze", lengths, graph.constant([1]))
    positions = graph.op("Max", graph.op("Add", own, column), graph.constant(0))
    places = graph.op("Add", graph.numbers(n), past)
    distances = graph.op("Sub", keys, graph.op("Unsqueeze", places, graph.constant([1])))
    total = graph.op("Add", past, n)
    real = graph.op("GreaterOrEqual", keys, graph.op("Sub", total, column))  # [rows, keys]
    real = graph.op("Unsqueeze", real, graph.constant([1]))
    allowed = graph.op("And", real, graph.op("LessOrEqual", distances, graph.constant(0)))
    bias = graph.op("Where", allowed, graph.constant(0.0), graph.constant(FLOOR))
    return Places(positions, distances, graph.op("Unsqueeze", bias, graph.constant([1])), max_len)


def _heads(graph: Graph, x: str, n_heads: int, dim: int) -> str:
    return graph.op("Transpose", graph.reshaped(x, [0, 0, n_heads, dim]), perm=[0, 2, 1, 3])


def _turned(graph: Graph, module: Attention, heads: str, places: Places | None) -> str:
    """Apply RoPE: each pair of neighbors (a, b) becomes (a cos - b sin, b cos + a sin)."""
    if not isinstance(module.positions, Rotary):
        return heads
    assert places is not None
    half = module.head_dim // 2
    # the rotations of the vector (1, 0) are the cos and sin of all angles, [max_len, half]
    upright = torch.tensor([1.0, 0.0]).repeat(half).expand(1, 1, places.max_len, module.head_dim)
    angles = module.positions(upright, torch.arange(places.max_len)[None])[0, 0]

    def gathered(name: str, table: Tensor) -> str:  # [rows, 1, n, half, 1]
        rows = graph.op("Gather", graph.table(f"positions.{name}", table), places.positions)
        return graph.op("Unsqueeze", rows, graph.constant([1, -1]))

    cos = gathered("cos", angles[:, 0::2])
    sin = gathered("sin", angles[:, 1::2])
    pairs = graph.reshaped(heads, [0, 0, 0, half, 2])
    swapped = graph.op("Gather", pairs, graph.constant([1, 0]), axis=-1)
    across = graph.op("Mul", swapped, graph.op("Mul", sin, graph.constant([-1.0, 1.0])))
    turned = graph.op("Add", graph.op("Mul", pairs, cos), across)
    return graph.reshaped(turned, [0, 0, 0, module.head_dim])


def _position_bias(graph: Graph, module: Alibi | RelativeBias, distances: str) -> str:
    """Return the position bias `[heads, n, keys]` for any distances."""
    if isinstance(module, Alibi):
        far = graph.op("Cast", graph.op("Abs", distances), to=1)  # 1: float32
        return graph.op("Mul", far, graph.constant(-module.slopes[:, None, None].numpy()))
    end = 2 * module.reach  # all larger distances share a bucket
    with torch.no_grad():
        by_distance = module(torch.tensor([[end]]), torch.arange(2 * end + 1))[0, :, 0].T
    table = graph.table(f"{graph.weights.names[id(module.weight)]}.by_distance", by_distance)
    at = graph.op("Add", distances, graph.constant(end))
    at = graph.op("Min", graph.op("Max", at, graph.constant(0)), graph.constant(2 * end))
    return graph.op("Transpose", graph.op("Gather", table, at), perm=[2, 0, 1])


def graphs_of(model: Model, weights: Weights) -> Iterator[tuple[str, Graph]]:
    """Yield the name and the graph of each part of a model. A graph is built when it is requested.

    >>> import os
    >>> from attendo.models import ModelConfig, build_model
    >>> model = build_model(ModelConfig(vocab_size=11, d_model=8, d_ff=8, n_encoder_layers=1, n_decoder_layers=1))
    >>> with Weights(os.devnull, model) as weights:
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
    """Map source ids to the memory, and to its keys and values in each decoder block."""
    config = model.config
    ids = graph.input("source_ids", ["sources", "source_len"], integer=True)
    lengths = graph.input("source_lengths", ["sources"], integer=True)
    memory = _encoded(graph, config, model.source_embedding, model.encoder, ids, lengths)
    graph.output("memory", memory, ["sources", "source_len", config.d_model])
    for number, block in enumerate(model.decoder.blocks):
        cross = block.cross_attention
        assert cross is not None
        pair = _keys_values(graph, cross, memory)
        _give(graph, f"memory_{{}}_{number}", cross, pair, ("sources", "source_len"))
    return graph


def _decoder_graph(model: EncoderDecoder | DecoderLM, graph: Graph) -> Graph:
    """Map the next ids of every row, and earlier keys and values, to logits and all keys and values."""
    config = model.config
    ids = graph.input("token_ids", ["rows", "n"], integer=True)
    lengths = graph.input("lengths", ["rows"], integer=True)
    places, memory_bias = _step_places(graph, ids, lengths, "past_key_0", config.max_len), None
    if isinstance(model, EncoderDecoder):
        memory_lengths = graph.input("memory_lengths", ["rows"], integer=True)
        memory_bias = _length_bias(graph, memory_lengths, graph.size("memory_key_0", 2))
    tokens = model.target_embedding if isinstance(model, EncoderDecoder) else model.embedding
    x = _embedding(graph, tokens, ids, places.positions, config.max_len)
    for number, block in enumerate(model.decoder.blocks):
        x = _decoder_block(graph, block, number, x, places, memory_bias)
        x = _feed_forward_sublayer(graph, block, config.activation, x)
    logits = _linear(graph, model.output_proj, _norm(graph, model.decoder.norm, x))
    graph.output("logits", logits, ["rows", "n", config.vocab_size])
    return graph


def _decoder_block(
    graph: Graph, block: DecoderBlock, number: int, x: str, places: Places, memory_bias: str | None
) -> str:
    """Add a decoder block without its feed-forward network."""
    own, cross = block.self_attention, block.cross_attention
    past = _take(graph, f"past_{{}}_{number}", own, ("rows", "past_len"))

    def attend_to_past(h: str) -> str:
        new = _keys_values(graph, own, h, places)
        key, value = (graph.op("Concat", old, part, axis=2) for old, part in zip(past, new, strict=True))
        _give(graph, f"present_{{}}_{number}", own, (key, value), ("rows", "total_len"))
        return _attention(graph, own, h, key, value, places.bias, places)

    x = _residual(graph, block.self_attention_residual, x, attend_to_past)
    if cross is None or block.cross_attention_residual is None or memory_bias is None:
        return x
    memory = _take(graph, f"memory_{{}}_{number}", cross, ("rows", "source_len"))
    return _residual(
        graph, block.cross_attention_residual, x, lambda h: _attention(graph, cross, h, *memory, memory_bias)
    )


def _text_graph(model: EncoderClassifier | MaskedLM, graph: Graph) -> Graph:
    """Map ids to encoder states and to logits of each text or position."""
    config = model.config
    ids = graph.input("token_ids", ["rows", "len"], integer=True)
    lengths = graph.input("lengths", ["rows"], integer=True)
    states = _encoded(graph, config, model.embedding, model.encoder, ids, lengths)
    graph.output("states", states, ["rows", "len", config.d_model])
    if isinstance(model, EncoderClassifier):
        pooled = _pooled(graph, config.pooling, states, lengths)
        if isinstance(model.output_hidden, nn.Linear):
            kind = config.output_activation.capitalize()  # Tanh or Relu
            pooled = graph.op(kind, _linear(graph, model.output_hidden, pooled))
        classes = isinstance(model.output_proj, nn.Linear)
        logits = _linear(graph, model.output_proj, pooled) if classes else pooled
        graph.output("logits", logits, ["rows", config.n_classes or config.d_output or config.d_model])
        return graph
    hidden = _activation(graph, config.activation, _linear(graph, model.output_hidden, states))
    logits = _linear(graph, model.output_proj, _norm(graph, model.output_norm, hidden))
    graph.output("logits", logits, ["rows", "len", config.vocab_size])
    return graph


def _encoded(graph: Graph, config: ModelConfig, embed: InputEmbedding, encoder: Encoder, ids: str, lengths: str) -> str:
    """Return the encoder states of whole texts."""
    places = _text_places(graph, ids, lengths, config.max_len)
    x = _embedding(graph, embed, ids, places.positions, config.max_len)
    for block in encoder.blocks:

        def attend(h: str, own: Attention = block.self_attention) -> str:
            return _attention(graph, own, h, *_keys_values(graph, own, h, places), places.bias, places)

        x = _residual(graph, block.self_attention_residual, x, attend)
        x = _feed_forward_sublayer(graph, block, config.activation, x)
    return _norm(graph, encoder.norm, x)


def _pooled(graph: Graph, kind: Pooling, states: str, lengths: str) -> str:
    """Return one vector per text `[rows, d_model]`, pooled over the real tokens."""
    if kind == "first":
        return graph.op("Gather", states, graph.constant(0), axis=1)
    real = graph.op("Unsqueeze", _real_keys(graph, lengths, graph.size(states, 1)), graph.constant([2]))
    if kind == "max":
        states = graph.op("Where", real, states, graph.constant(2 * FLOOR))
        return graph.op("ReduceMax", states, graph.constant([1]), keepdims=0)
    total = graph.op("Where", real, states, graph.constant(0.0))
    total = graph.op("ReduceSum", total, graph.constant([1]), keepdims=0)
    n = graph.op("Cast", graph.op("Unsqueeze", lengths, graph.constant([1])), to=1)  # 1: float32
    return graph.op("Div", total, n)


def _take(graph: Graph, name: str, attention: Attention, axes: tuple[str, str]) -> tuple[str, str]:
    """Add keys and values as graph inputs. In `name`, `{}` is replaced by key or value. `axes` are rows and length."""
    key = graph.input(name.format("key"), _shape(attention, axes, attention.head_dim))
    return key, graph.input(name.format("value"), _shape(attention, axes, attention.value_dim))


def _give(graph: Graph, name: str, attention: Attention, values: tuple[str, str], axes: tuple[str, str]) -> None:
    """Add keys and values as graph outputs, with names as in `_take`."""
    graph.output(name.format("key"), values[0], _shape(attention, axes, attention.head_dim))
    graph.output(name.format("value"), values[1], _shape(attention, axes, attention.value_dim))


def _shape(attention: Attention, axes: tuple[str, str], dim: int) -> list[str | int]:
    return [axes[0], attention.n_kv_heads, axes[1], dim]
