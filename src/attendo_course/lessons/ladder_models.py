"""The attention ladder's models: queries that attend to a set of vectors, from the parts in `nn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attendo.nn.attention import Attention
from attendo.nn.blocks import Encoder, EncoderBlock, Residual
from attendo.nn.layers import FeedForward, xavier
from attendo.nn.positions import LearnedPositions

Start = Literal["drawn", "zero", "none"]
D_MODEL = 64
N_ANSWERS = 4
"""Of task T06b: the counts of A, B and C, and a difference."""


class NormOnly(nn.Module):
    """norm(f(x)): what stands for a Residual where the queries are not added."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm = norm

    def forward(
        self, x: Float[Tensor, "*batch d_query"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch d_model"]:
        """As wide as what `sublayer` gives."""
        return self.norm(sublayer(x))


class SetEncoder(nn.Module):
    """Vectors, a position added to each if there are positions, through a stack of encoder blocks."""

    def __init__(self, embedding: nn.Linear, positions: LearnedPositions | None, encoder: Encoder):
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.encoder = encoder

    def forward(self, x: Float[Tensor, "batch len d_in"]) -> Float[Tensor, "batch len d_model"]:
        """The memory that queries attend to."""
        h, n = self.embedding(x), x.shape[1]
        if self.positions is not None:
            h = h + self.positions(torch.arange(n, device=x.device), n)
        return self.encoder(h)


class QueryModel(nn.Module):
    """An answer for each query, from a set of vectors: cross-attention, and self-attention among the answers if given.

    queries: `[n_queries, d_query]`, trained if a Parameter. encoder: what the vectors pass first, nothing unless given.
    """

    queries: Tensor

    def __init__(
        self,
        queries: Float[Tensor, "queries d_query"],
        cross_attention: Attention,
        cross_residual: Residual | NormOnly,
        output_proj: nn.Linear,
        *,
        encoder: SetEncoder | None = None,
        self_attention: Attention | None = None,
        self_residual: Residual | None = None,
    ):
        super().__init__()
        if isinstance(queries, nn.Parameter):
            self.queries = queries
        else:
            self.register_buffer("queries", queries)
        self.encoder = nn.Identity() if encoder is None else encoder
        self.cross_attention = cross_attention
        self.cross_residual = cross_residual
        self.self_attention = self_attention
        self.self_residual = self_residual
        self.output_proj = output_proj

    def hidden(self, x: Float[Tensor, "batch len d_in"]) -> Float[Tensor, "batch queries d_model"]:
        """The state from which each query's answer is read."""
        memory = self.encoder(x)
        queries = self.queries.expand(len(x), -1, -1)
        found = self.cross_residual(queries, lambda q: self.cross_attention(q, memory))
        if (attention := self.self_attention) is not None and self.self_residual is not None:
            found = self.self_residual(found, lambda h: attention(h, h))
        return found

    def forward(self, x: Float[Tensor, "batch len d_in"]) -> Float[Tensor, "batch queries classes"]:
        """Logits of each answer."""
        return self.output_proj(self.hidden(x))


def without_projection(linear: nn.Linear) -> None:
    """Makes a square projection the identity, for good: it is not trained.

    >>> linear = nn.Linear(2, 2)
    >>> without_projection(linear)
    >>> linear(torch.tensor([1.0, 2.0])), linear.weight.requires_grad
    (tensor([1., 2.]), False)
    """
    nn.init.eye_(linear.weight)
    nn.init.zeros_(linear.bias)
    linear.requires_grad_(False)


def bare_attention(d_model: int) -> Attention:
    """softmax(xxᵀ/√d)x: one head, no projections, as attention-primer has it."""
    attention = Attention(d_model, 1, out_proj=nn.Identity())
    for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
        without_projection(linear)
    return attention


def counter(n_symbols: int, n_queries: int, n_classes: int, *, projected: bool) -> QueryModel:
    """T06a as attention-primer has it: trained queries that start at 0 and attend to the letters, residual and norm.

    projected: the usual projections of query, key, value and output. Else, as there: one projection makes what is
    both key and value, and there are no others.
    """
    cross = Attention(D_MODEL, 1, d_memory=n_symbols, out_proj=None if projected else nn.Identity())
    if not projected:
        cross.v_proj = cross.k_proj
    model = QueryModel(
        nn.Parameter(torch.zeros(n_queries, D_MODEL)), cross, _residual(), nn.Linear(D_MODEL, n_classes)
    )
    xavier(model)
    if not projected:
        without_projection(cross.q_proj)
    return model


def one_hot_counter(n_symbols: int, letters: range, n_classes: int) -> QueryModel:
    """T06a as Shumi-Note has it: each query is its letter's one-hot vector; norm, but no residual."""
    cross = Attention(
        n_symbols, 1, head_dim=D_MODEL, d_memory=n_symbols, out_proj=nn.Linear(D_MODEL, D_MODEL)
    )
    queries = torch.eye(n_symbols)[list(letters)]
    model = QueryModel(queries, cross, NormOnly(nn.LayerNorm(D_MODEL)), nn.Linear(D_MODEL, n_classes))
    xavier(model)
    return model


def difference_counter(n_symbols: int, n_classes: int, *, self_attention: bool) -> QueryModel:
    """T06b: the counter with a fourth query, its answers attending to each other (without projections) or not."""
    model = counter(n_symbols, N_ANSWERS, n_classes, projected=False)
    if self_attention:
        model.self_attention, model.self_residual = bare_attention(D_MODEL), _residual()
    return model


def signal_counter(
    n_signals: int, length: int, n_classes: int, *, n_heads: int | None, positions: Start = "drawn"
) -> QueryModel:
    """T06c and T06d: one encoder block (FFN twice as wide) on letters and positions, a trained query for each signal.

    n_heads: None for attention without projections (see `bare_attention`), which has a single head. positions:
    trained vectors that start as N(0, 1/d) or, as in attention-primer, at 0; or none.
    """

    def attention() -> Attention:
        return bare_attention(D_MODEL) if n_heads is None else Attention(D_MODEL, n_heads)

    place = None if positions == "none" else LearnedPositions(D_MODEL, n_signals + length)
    block = EncoderBlock(attention(), FeedForward(D_MODEL, 2 * D_MODEL), _residual)
    model = QueryModel(
        nn.Parameter(torch.zeros(n_signals, D_MODEL)),
        attention(),
        _residual(),
        nn.Linear(D_MODEL, n_classes),
        encoder=SetEncoder(nn.Linear(3, D_MODEL), place, Encoder([block])),
    )
    frozen = [m for m in model.modules() if isinstance(m, nn.Linear) and not m.weight.requires_grad]
    xavier(model)
    for linear in frozen:
        without_projection(linear)
    if place is not None and positions == "zero":
        nn.init.zeros_(place.weight)
    return model


def _residual() -> Residual:
    return Residual(nn.LayerNorm(D_MODEL), norm_first=False)
