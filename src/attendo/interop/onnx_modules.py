"""The modules of `nn` as nodes of an ONNX graph, one function each, that say what the modules' `forward` says."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from attendo.interop.onnx_graph import Graph
from attendo.nn.blocks import Residual
from attendo.nn.layers import Activation, FeedForward, InputEmbedding
from attendo.nn.positions import FixedPositions


def linear(graph: Graph, module: nn.Linear, x: str) -> str:
    """x Wᵀ + b.

    >>> from attendo.interop.onnx_graph import tried
    >>> module, x = nn.Linear(4, 3), torch.ones(2, 4)
    >>> torch.allclose(tried(module, lambda graph: linear(graph, module, "x"), x=x), module(x))
    True
    """
    product = graph.op("MatMul", x, graph.transposed(module.weight))
    return product if module.bias is None else graph.op("Add", product, graph.weight(module.bias))


def norm(graph: Graph, module: nn.Module, x: str) -> str:
    """LayerNorm, RMSNorm, or none.

    >>> from attendo.interop.onnx_graph import tried
    >>> module, x = nn.RMSNorm(2, eps=0.0), torch.tensor([[1.0, 7.0]])
    >>> tried(module, lambda graph: norm(graph, module, "x"), x=x)
    tensor([[0.2000, 1.4000]])
    """
    match module:
        case nn.Identity():
            return x
        case nn.LayerNorm():
            return graph.op(
                "LayerNormalization",
                x,
                graph.weight(module.weight),
                graph.weight(module.bias),
                epsilon=module.eps,
            )
        case nn.RMSNorm():
            assert module.eps is not None
            mean = graph.op("ReduceMean", graph.op("Mul", x, x), graph.constant([-1]))
            size = graph.op("Sqrt", graph.op("Add", mean, graph.constant(module.eps)))
            return graph.op("Mul", graph.op("Div", x, size), graph.weight(module.weight))
    raise AssertionError(f"no norm: {type(module).__name__}")


def activation(graph: Graph, kind: Activation, x: str) -> str:
    """ReLU, GELU, its approximation, or SiLU.

    >>> from attendo.interop.onnx_graph import tried
    >>> x = torch.tensor([-1.0, 2.0])
    >>> tried(nn.Identity(), lambda graph: activation(graph, "silu", "x"), x=x)
    tensor([-0.2689,  1.7616])
    """
    match kind:
        case "relu":
            return graph.op("Relu", x)
        case "gelu":
            return graph.op("Gelu", x)
        case "gelu_tanh":
            return graph.op("Gelu", x, approximate="tanh")
        case "silu":
            return graph.op("Mul", x, graph.op("Sigmoid", x))


def feed_forward(graph: Graph, module: FeedForward, kind: Activation, x: str) -> str:
    """W₂ · activation(W₁x + b₁) + b₂, or gated.

    >>> from attendo.interop.onnx_graph import tried
    >>> module, x = FeedForward(2, 3, activation="silu", gated=True), torch.ones(1, 2)
    >>> made = lambda graph: feed_forward(graph, module, "silu", "x")
    >>> torch.allclose(tried(module, made, x=x), module(x), atol=1e-6)
    True
    """
    inner = linear(graph, module.in_proj, x)
    if module.gate_proj is None:
        inner = activation(graph, kind, inner)
    else:
        inner = graph.op("Mul", activation(graph, kind, linear(graph, module.gate_proj, x)), inner)
    return linear(graph, module.out_proj, inner)


def residual(graph: Graph, module: Residual, x: str, sublayer: Callable[[str], str]) -> str:
    """norm(x + f(x)), or x + f(norm(x)).

    >>> from attendo.interop.onnx_graph import tried
    >>> module, x = Residual(nn.Identity(), norm_first=True), torch.tensor([[1.0, 2.0]])
    >>> tried(module, lambda graph: residual(graph, module, "x", lambda h: graph.op("Neg", h)), x=x)
    tensor([[0., 0.]])
    """
    if module.norm_first:
        return graph.op("Add", x, sublayer(norm(graph, module.norm, x)))
    return norm(graph, module.norm, graph.op("Add", x, sublayer(x)))


def embedding(graph: Graph, module: InputEmbedding, token_ids: str, positions: str, max_len: int) -> str:
    """Token embedding + positional encoding, and a norm if there is one.

    >>> from attendo.interop.onnx_graph import tried
    >>> from attendo.nn.layers import TokenEmbedding
    >>> from attendo.nn.positions import LearnedPositions
    >>> module, ids = InputEmbedding(TokenEmbedding(3, 2), LearnedPositions(2, max_len=4)), torch.tensor([[1, 2]])
    >>> module.positions.weight.data = torch.arange(8.0).view(4, 2)  # the embeddings are still 0
    >>> made = lambda graph: embedding(graph, module, "ids", graph.constant([1, 3]), max_len=4)
    >>> tried(module, made, ids=ids).tolist()
    [[[2.0, 3.0], [6.0, 7.0]]]
    """
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
    return norm(graph, module.norm, x)
