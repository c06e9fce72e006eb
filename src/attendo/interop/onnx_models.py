"""The ONNX graphs of each model: an encoder and the step of a decoder, or one graph from ids to logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attendo.interop.onnx_graph import Graph, Weights
from attendo.interop.onnx_modules import activation, embedding, feed_forward, linear, norm, residual
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM, Model
from attendo.nn.attention import Attention
from attendo.nn.blocks import DecoderBlock, Encoder
from attendo.nn.layers import InputEmbedding, Pooling
from attendo.nn.positions import Alibi, RelativeBias, Rotary

FLOOR = torch.finfo(torch.float32).min / 2  # added to the score of a key that may not be looked at


@dataclass(frozen=True)
class Places:
    """Where the queries and the keys of self-attention stand; names of values in a graph.

    positions `[rows or 1, n]`: of each query in its text. distances `[n, keys]`: position of the key - of the query.
    bias `[rows, 1, n or 1, keys]`: 0, or the floor where a query may not look. max_len: positions that there are.
    """

    positions: str
    distances: str
    bias: str
    max_len: int


def keys_values(
    graph: Graph, module: Attention, memory: str, places: Places | None = None
) -> tuple[str, str]:
    """The projected keys and values `[rows, kv_heads, len, dim]` of what is attended to.

    >>> from attendo.interop.onnx_graph import tried
    >>> module, memory = Attention(4, 2, n_kv_heads=1, value_dim=3), torch.ones(1, 5, 4)
    >>> tried(module, lambda graph: keys_values(graph, module, "memory")[1], memory=memory).shape
    torch.Size([1, 1, 5, 3])
    """
    key = _heads(graph, linear(graph, module.k_proj, memory), module.n_kv_heads, module.head_dim)
    value = _heads(graph, linear(graph, module.v_proj, memory), module.n_kv_heads, module.value_dim)
    return _turned(graph, module, norm(graph, module.k_norm, key), places), value


def attention(
    graph: Graph, module: Attention, x: str, key: str, value: str, bias: str, places: Places | None = None
) -> str:
    """Attention of x to projected keys and values. places: of self-attention; bias: as in `Places`.

    >>> from attendo.interop.onnx_graph import tried
    >>> module, x = Attention(4, 2, n_kv_heads=1), torch.arange(12.0).sin().view(1, 3, 4)
    >>> made = lambda graph: attention(graph, module, "x", *keys_values(graph, module, "x"), graph.constant(0.0))
    >>> torch.allclose(tried(module, made, x=x), module(x, x), atol=1e-6)
    True
    """
    n_heads, n_kv_heads = module.n_heads, module.n_kv_heads
    query = _heads(graph, linear(graph, module.q_proj, x), n_heads, module.head_dim)
    query = _turned(graph, module, norm(graph, module.q_norm, query), places)
    scale = module.head_dim**-0.5 if module.attend.scale is None else module.attend.scale
    query = graph.op("Mul", query, graph.constant(scale * module.attend.inverse_temperature))
    if isinstance(module.positions, Alibi | RelativeBias):
        assert places is not None
        bias = graph.op("Add", _position_bias(graph, module.positions, places.distances), bias)
    # the query heads that share a key head stand side by side, as more queries of it
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
    return linear(graph, module.out_proj, graph.reshaped(together, [0, 0, n_heads * module.value_dim]))


def real_keys(graph: Graph, lengths: str, n_keys: str) -> str:
    """Which of `n_keys` places `[rows, keys]` stand within the lengths of their rows.

    >>> from attendo.interop.onnx_graph import tried
    >>> lengths = torch.tensor([2, 1])
    >>> made = lambda graph: graph.op("Cast", real_keys(graph, "lengths", graph.constant(3)), to=1)
    >>> tried(torch.nn.Identity(), made, lengths=lengths)
    tensor([[1., 1., 0.],
            [1., 0., 0.]])
    """
    return graph.op("Less", graph.numbers(n_keys), graph.op("Unsqueeze", lengths, graph.constant([1])))


def length_bias(graph: Graph, lengths: str, n_keys: str) -> str:
    """`[rows, 1, 1, keys]`: 0, or the floor at the padding behind `lengths` keys.

    >>> from attendo.interop.onnx_graph import tried
    >>> made = lambda graph: length_bias(graph, "lengths", graph.constant(3))
    >>> tried(torch.nn.Identity(), made, lengths=torch.tensor([2, 1]))[:, 0, 0] == 0
    tensor([[ True,  True, False],
            [ True, False, False]])
    """
    real = real_keys(graph, lengths, n_keys)
    bias = graph.op("Where", real, graph.constant(0.0), graph.constant(FLOOR))
    return graph.op("Unsqueeze", bias, graph.constant([1, 2]))


def text_places(graph: Graph, token_ids: str, lengths: str, max_len: int) -> Places:
    """Of texts that are read at once, padded behind their ends, every token looking at every other.

    >>> from attendo.interop.onnx_graph import tried
    >>> made = lambda graph: graph.op("Cast", text_places(graph, "ids", "lengths", 9).distances, to=1)
    >>> tried(torch.nn.Identity(), made, ids=torch.zeros(1, 3).long(), lengths=torch.tensor([3]))
    tensor([[ 0.,  1.,  2.],
            [-1.,  0.,  1.],
            [-2., -1.,  0.]])
    """
    size = graph.size(token_ids, 1)
    positions = graph.op("Unsqueeze", graph.numbers(size), graph.constant([0]))
    queries = graph.op("Unsqueeze", graph.numbers(size), graph.constant([1]))
    distances = graph.op("Sub", positions, queries)
    return Places(positions, distances, length_bias(graph, lengths, size), max_len)


def step_places(graph: Graph, token_ids: str, lengths: str, past_key: str, max_len: int) -> Places:
    """Of the next n tokens of texts whose last `lengths` keys, these n included, are real: padding stands before them.

    A query looks at what is real up to itself. With all ends in one line, key j is j - past - i before query i in
    every row, whatever the rows' lengths.

    >>> from attendo.interop.onnx_graph import tried
    >>> made = lambda graph: step_places(graph, "ids", "lengths", "past", 9).bias
    >>> lengths, past = torch.tensor([4, 2]), torch.zeros(2, 1, 2, 5)  # 2 new tokens behind 2, and behind none
    >>> tried(torch.nn.Identity(), made, ids=torch.zeros(2, 2).long(), lengths=lengths, past=past)[:, 0] == 0
    tensor([[[ True,  True,  True, False],
             [ True,  True,  True,  True]],
    <BLANKLINE>
            [[False, False,  True, False],
             [False, False,  True,  True]]])
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
    """The heads, each pair of neighbors (a, b) turned by its position: (a cos - b sin, b cos + a sin)."""
    if not isinstance(module.positions, Rotary):
        return heads
    assert places is not None
    half = module.head_dim // 2
    cos, sin = (
        graph.op("Gather", graph.table(f"positions.{name}", table), places.positions)
        for name, table in zip(
            ("cos", "sin"), _turns(module.positions, module.head_dim, places.max_len), strict=True
        )
    )
    cos, sin = (
        graph.op("Unsqueeze", one, graph.constant([1, -1])) for one in (cos, sin)
    )  # [rows, 1, n, half, 1]
    pairs = graph.reshaped(heads, [0, 0, 0, half, 2])
    swapped = graph.op("Gather", pairs, graph.constant([1, 0]), axis=-1)
    across = graph.op("Mul", swapped, graph.op("Mul", sin, graph.constant([-1.0, 1.0])))
    turned = graph.op("Add", graph.op("Mul", pairs, cos), across)
    return graph.reshaped(turned, [0, 0, 0, module.head_dim])


def _turns(rotary: Rotary, head_dim: int, max_len: int) -> tuple[Tensor, Tensor]:
    """cos and sin `[max_len, head_dim / 2]` of every position's angles: where it turns the vector (1, 0)."""
    upright = torch.tensor([1.0, 0.0]).repeat(head_dim // 2).expand(1, 1, max_len, head_dim)
    turned = rotary(upright, torch.arange(max_len)[None])[0, 0]
    return turned[:, 0::2], turned[:, 1::2]


def _position_bias(graph: Graph, module: Alibi | RelativeBias, distances: str) -> str:
    """The module's bias `[heads, n, keys]`, at any distance."""
    if isinstance(module, Alibi):
        far = graph.op("Cast", graph.op("Abs", distances), to=1)  # 1: float32
        return graph.op("Mul", far, graph.constant(-module.slopes[:, None, None].numpy()))
    end = 2 * module.reach  # by there, all that is farther away shares a bucket
    with torch.no_grad():
        by_distance = module(torch.tensor([[end]]), torch.arange(2 * end + 1))[0, :, 0].T
    table = graph.table(f"{graph.weights.names[id(module.weight)]}.by_distance", by_distance)
    at = graph.op("Add", distances, graph.constant(end))
    at = graph.op("Min", graph.op("Max", at, graph.constant(0)), graph.constant(2 * end))
    return graph.op("Transpose", graph.op("Gather", table, at), perm=[2, 0, 1])


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
