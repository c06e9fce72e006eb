"""Attention: softmax(QKᵀ/√d)V as pure functions, the leaf that runs it fused, the projections around it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attendo.nn.masks import Mask


def attention_scores(
    query: Float[Tensor, "*batch q_len head_dim"],
    key: Float[Tensor, "*batch k_len head_dim"],
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #q_len #k_len"] | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """QKᵀ · scale + bias; scale is 1/√head_dim unless given. Vaswani et al. 2017, eq. 1.

    >>> attention_scores(torch.eye(2), torch.eye(2), scale=3.0)
    tensor([[3., 0.],
            [0., 3.]])
    """
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return scores if bias is None else scores + bias


def masked_softmax(
    scores: Float[Tensor, "*batch q_len k_len"], mask: Bool[Tensor, "*#batch #q_len #k_len"] | None = None
) -> Float[Tensor, "*batch q_len k_len"]:
    """softmax over the keys that the mask allows, exactly 0 elsewhere.

    A query allowed no key gets a row of zeros.

    >>> masked_softmax(torch.zeros(2, 2), torch.tensor([[True, False], [False, False]]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    if mask is None:
        return scores.softmax(-1)
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~mask, 0.0)


def attention_weights(
    query: Float[Tensor, "*batch q_len head_dim"],
    key: Float[Tensor, "*batch k_len head_dim"],
    mask: Bool[Tensor, "*#batch #q_len #k_len"] | None = None,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #q_len #k_len"] | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """softmax(QKᵀ · scale), Vaswani et al. 2017, eq. 1. A query allowed no key gets a row of zeros.

    >>> attention_weights(torch.zeros(1, 4), torch.zeros(2, 4))
    tensor([[0.5000, 0.5000]])
    """
    return masked_softmax(attention_scores(query, key, scale, bias), mask)


def attention(
    query: Float[Tensor, "*batch q_len head_dim"],
    key: Float[Tensor, "*batch k_len head_dim"],
    value: Float[Tensor, "*batch k_len value_dim"],
    mask: Bool[Tensor, "*#batch #q_len #k_len"] | None = None,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #q_len #k_len"] | None = None,
) -> Float[Tensor, "*batch q_len value_dim"]:
    """softmax(QKᵀ · scale)V: each query's mean of the values, by its weights. Vaswani et al. 2017, eq. 1.

    The readable twin of the fused kernel in `Attend`; the tests hold the two equal.

    >>> attention(torch.zeros(1, 4), torch.zeros(2, 4), torch.tensor([[1.0], [3.0]]))
    tensor([[2.]])
    """
    return attention_weights(query, key, mask, scale, bias) @ value


def share_heads(
    x: Float[Tensor, "batch kv_heads len dim"], n_heads: int
) -> Float[Tensor, "batch heads len dim"]:
    """Repeats each key or value head for the query heads of its group (grouped queries, Ainslie et al. 2023).

    >>> share_heads(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1), 4).flatten()
    tensor([1., 1., 2., 2.])
    """
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


class Attend(nn.Module):
    """The one seam of attention: no parameters, from projected heads to each query's mean of the values.

    Calls the fused kernel; `attention` is its readable twin. Recording and editing replace this leaf.
    scale: on the scores, 1/√head_dim if None. dropout: on the weights, in training only.
    """

    def __init__(self, scale: float | None = None, dropout: float = 0.0):
        super().__init__()
        self.scale = scale
        self.dropout = dropout

    def forward(
        self,
        query: Float[Tensor, "batch heads q_len head_dim"],
        key: Float[Tensor, "batch kv_heads k_len head_dim"],
        value: Float[Tensor, "batch kv_heads k_len value_dim"],
        mask: Mask | None = None,
        bias: Float[Tensor, "*#batch_heads #q_len #k_len"] | None = None,
    ) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Shapes as annotated; mask and bias broadcast to `[batch, heads, q_len, k_len]`."""
        if query.dtype == torch.bfloat16 and query.device.type == "cpu":
            # the fused kernel's backward pass is some ten times slower in bfloat16 than in float32 on a CPU
            with torch.autocast("cpu", enabled=False):
                return self.fused(query.float(), key.float(), value.float(), mask, bias).to(query.dtype)
        return self.fused(query, key, value, mask, bias)

    def fused(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Tensor | None
    ) -> Float[Tensor, "batch heads q_len value_dim"]:
        """The kernel's call: the fast path where the mask allows one, else a matrix added to the scores."""
        q_len, k_len = query.shape[-2], key.shape[-2]
        key, value = share_heads(key, query.shape[1]), share_heads(value, query.shape[1])
        dropout = self.dropout if self.training else 0.0
        # torch aligns is_causal top-left, Mask bottom-right: they agree only where q_len == k_len
        if bias is None and (mask is None or (mask.only_causal and q_len == k_len)):
            return F.scaled_dot_product_attention(
                query, key, value, dropout_p=dropout, is_causal=mask is not None, scale=self.scale
            )
        dense = None if mask is None else mask.dense(q_len, k_len, query.device)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=_additive(dense, bias, query.dtype),
            dropout_p=dropout,
            scale=self.scale,
        )
        # the finite floor of `_additive` turns a row without keys into a mean over all of them: make it zero
        return mixed if dense is None else mixed * dense.any(-1, keepdim=True)


def _additive(mask: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What the kernel adds to the scores.

    The floor is finite: with -inf, a row without keys would be NaN, in value or gradient.
    """
    if mask is None:
        return None if bias is None else bias.to(dtype)
    floor = torch.finfo(dtype).min / 2
    base = torch.zeros((), dtype=dtype, device=mask.device) if bias is None else bias.to(dtype)
    return torch.where(mask, base, floor)


class Attention(nn.Module):
    """Multi-head attention, Vaswani et al. 2017, section 3.2.2: project, attend in each head, project back.

    d_model: width of the input and the output. head_dim: width of a head, d_model / n_heads unless given.
    n_kv_heads: fewer key and value heads than query heads (grouped queries). d_memory: width of what is
    attended to, if another. bias: of all four projections.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        d_memory: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        if head_dim is None and d_model % n_heads:
            raise ValueError(
                f"d_model={d_model} is not divisible by n_heads={n_heads}; change one, or give head_dim"
            )
        self.n_heads = n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if self.n_kv_heads < 1 or n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads={n_heads} is not a multiple of n_kv_heads={n_kv_heads}; change one of them"
            )
        self.head_dim = d_model // n_heads if head_dim is None else head_dim
        d_memory = d_model if d_memory is None else d_memory
        self.q_proj = nn.Linear(d_model, n_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(d_memory, self.n_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(d_memory, self.n_kv_heads * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(n_heads * self.head_dim, d_model, bias=bias)
        self.attend = Attend(dropout=dropout)

    def keys_values(
        self, memory: Float[Tensor, "batch k_len d_memory"]
    ) -> tuple[
        Float[Tensor, "batch kv_heads k_len head_dim"], Float[Tensor, "batch kv_heads k_len head_dim"]
    ]:
        """The projected keys and values of what is attended to; a cache keeps these."""
        shape = (self.n_kv_heads, self.head_dim)
        key = self.k_proj(memory).unflatten(-1, shape).transpose(1, 2)
        return key, self.v_proj(memory).unflatten(-1, shape).transpose(1, 2)

    def attend_to(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        key: Float[Tensor, "batch kv_heads k_len head_dim"],
        value: Float[Tensor, "batch kv_heads k_len head_dim"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Attention of `x` to keys and values that are projected already."""
        query = self.q_proj(x).unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)
        mixed = self.attend(query, key, value, mask)  # [batch, heads, q_len, head_dim]
        return self.out_proj(mixed.transpose(1, 2).flatten(2))

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        memory: Float[Tensor, "batch k_len d_memory"],
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Self-attention where `memory` is `x`, cross-attention where it is the encoder's output."""
        return self.attend_to(x, *self.keys_values(memory), mask)
