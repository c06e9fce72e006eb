"""Attention: softmax(QKᵀ/√d)V as pure functions, the module that runs it fused, and its projections."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attendo.nn.masks import Mask
from attendo.nn.positions import DistanceBias, Rotary


def attention_scores(
    query: Float[Tensor, "*batch q_len head_dim"],
    key: Float[Tensor, "*batch k_len head_dim"],
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #q_len #k_len"] | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Return QKᵀ · scale + bias (Vaswani et al. 2017, eq. 1).

    Args:
        query: Queries.
        key: Keys.
        scale: The factor (default: 1/√head_dim).
        bias: A term added to the scores.

    >>> attention_scores(torch.eye(2), torch.eye(2), scale=3.0)
    tensor([[3., 0.],
            [0., 3.]])
    """
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return scores if bias is None else scores + bias


def masked_softmax(
    scores: Float[Tensor, "*batch q_len k_len"],
    mask: Bool[Tensor, "*#batch #q_len #k_len"] | None = None,
    inverse_temperature: float = 1.0,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Softmax over the allowed keys of β · scores; masked keys get exactly 0 (NYU Deep Learning 2020, week 12-3).

    Args:
        scores: Attention scores.
        mask: The allowed keys; True means allowed. A query with no allowed key returns a row of zeros.
        inverse_temperature: β ≥ 0. At 0 all allowed keys have equal weight. At `math.inf` (hard attention) the key with
            the highest score has weight 1; the first one wins a tie.

    Returns:
        Weights of the same shape, whose rows sum to 1.

    Raises:
        ValueError: β is negative.

    >>> masked_softmax(torch.zeros(2, 2), torch.tensor([[True, False], [False, False]]))
    tensor([[1., 0.],
            [0., 0.]])
    >>> masked_softmax(torch.tensor([[1.0, 0.5, 0.2]]), inverse_temperature=math.inf)
    tensor([[1., 0., 0.]])
    """
    _require_temperature(inverse_temperature)
    hard = math.isinf(inverse_temperature) and scores.shape[-1] > 0  # of no keys there is no first
    scaled = scores if hard or inverse_temperature == 1.0 else scores * inverse_temperature
    if mask is not None:
        scaled = scaled.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = F.one_hot(scaled.argmax(-1), scores.shape[-1]).to(scores.dtype) if hard else scaled.softmax(-1)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def _require_temperature(inverse_temperature: float) -> None:
    if not inverse_temperature >= 0.0:
        raise ValueError(f"inverse_temperature={inverse_temperature} must be at least 0 (inf: hard)")


def attention_weights(
    query: Float[Tensor, "*batch q_len head_dim"],
    key: Float[Tensor, "*batch k_len head_dim"],
    mask: Bool[Tensor, "*#batch #q_len #k_len"] | None = None,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #q_len #k_len"] | None = None,
    inverse_temperature: float = 1.0,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Return softmax(QKᵀ · scale + bias) (Vaswani et al. 2017, eq. 1).

    Args:
        query: Queries.
        key: Keys.
        mask: The allowed keys; True means allowed. A query with no allowed key returns a row of zeros.
        scale: The factor (default: 1/√head_dim).
        bias: A term added to the scores.
        inverse_temperature: β as in `masked_softmax`.

    >>> attention_weights(torch.zeros(1, 4), torch.zeros(2, 4))
    tensor([[0.5000, 0.5000]])
    """
    return masked_softmax(attention_scores(query, key, scale, bias), mask, inverse_temperature)


def attention(
    query: Float[Tensor, "*batch q_len head_dim"],
    key: Float[Tensor, "*batch k_len head_dim"],
    value: Float[Tensor, "*batch k_len value_dim"],
    mask: Bool[Tensor, "*#batch #q_len #k_len"] | None = None,
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #q_len #k_len"] | None = None,
    inverse_temperature: float = 1.0,
) -> Float[Tensor, "*batch q_len value_dim"]:
    """softmax(QKᵀ · scale)V: each query's weighted mean of the values (Vaswani et al. 2017, eq. 1).

    This is the readable equivalent of the fused kernel in `Attend`; tests compare the two.

    >>> attention(torch.zeros(1, 4), torch.zeros(2, 4), torch.tensor([[1.0], [3.0]]))
    tensor([[2.]])
    """
    return attention_weights(query, key, mask, scale, bias, inverse_temperature) @ value


def share_heads(
    x: Float[Tensor, "batch kv_heads len dim"], n_heads: int
) -> Float[Tensor, "batch heads len dim"]:
    """Repeats each key or value head for the query heads of its group (grouped queries, Ainslie et al. 2023).

    >>> share_heads(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1), 4).flatten()
    tensor([1., 1., 2., 2.])
    """
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


class Attend(nn.Module):
    """Scaled dot-product attention without parameters: each query's weighted mean of the values.

    This is the only place where attention is computed, so recording and editing replace this module. It calls PyTorch's
    fused kernel; `attention` is the readable equivalent.

    Args:
        scale: The factor on the scores (default: 1/√head_dim).
        dropout: The dropout probability of the weights, in training only.
        inverse_temperature: β as in `masked_softmax`; `math.inf` is hard attention.

    >>> apart = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])  # [batch, heads, len, head_dim]
    >>> Attend(scale=10.0)(apart, apart, apart, Mask(causal=True)).shape
    torch.Size([1, 1, 2, 2])
    >>> Attend(inverse_temperature=math.inf)(apart, apart, apart)[0, 0]  # hard: each query takes its own value
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __init__(self, scale: float | None = None, dropout: float = 0.0, inverse_temperature: float = 1.0):
        super().__init__()
        _require_temperature(inverse_temperature)
        self.scale = scale
        self.dropout = dropout
        self.inverse_temperature = inverse_temperature

    def forward(
        self,
        query: Float[Tensor, "batch heads q_len head_dim"],
        key: Float[Tensor, "batch kv_heads k_len head_dim"],
        value: Float[Tensor, "batch kv_heads k_len value_dim"],
        mask: Mask | None = None,
        bias: Float[Tensor, "*#batch_heads #q_len #k_len"] | None = None,
    ) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Return the attention output of every head.

        Args:
            query: Projected queries.
            key: Projected keys. Fewer key heads than query heads are shared (grouped queries).
            value: Projected values.
            mask: The allowed keys; it broadcasts to `[batch, heads, q_len, k_len]`.
            bias: A term added to the scores; it broadcasts in the same way.
        """
        if query.dtype == torch.bfloat16 and query.device.type == "cpu":
            # the fused kernel's backward pass is some ten times slower in bfloat16 than in float32 on a CPU
            with torch.autocast("cpu", enabled=False):
                return self.fused(query.float(), key.float(), value.float(), mask, bias).to(query.dtype)
        return self.fused(query, key, value, mask, bias)

    def fused(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Tensor | None
    ) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Call the fused kernel, with its fast path if the mask allows one, otherwise with an additive matrix.

        Args:
            query: Projected queries.
            key: Projected keys.
            value: Projected values.
            mask: The allowed keys.
            bias: A term added to the scores.

        Returns:
            The attention output of every head.
        """
        q_len, k_len = query.shape[-2], key.shape[-2]
        key, value = share_heads(key, query.shape[1]), share_heads(value, query.shape[1])
        if math.isinf(self.inverse_temperature):  # the kernel only knows the softmax
            allowed = None if mask is None else mask.dense(q_len, k_len, query.device)
            return attention(query, key, value, allowed, self.scale, bias, self.inverse_temperature)
        if self.inverse_temperature != 1.0:  # not in `scale`: masked scores are -inf there, times 0 NaN
            query = query * self.inverse_temperature
            bias = None if bias is None else bias * self.inverse_temperature
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
    """The kernel's additive mask; its floor is finite, because -inf makes a row without keys NaN."""
    if mask is None:
        return None if bias is None else bias.to(dtype)
    floor = torch.finfo(dtype).min / 2
    base = torch.zeros((), dtype=dtype, device=mask.device) if bias is None else bias.to(dtype)
    return torch.where(mask, base, floor)


class Attention(nn.Module):
    """Multi-head attention: project, attend in each head, project back (Vaswani et al. 2017, section 3.2.2).

    `q_norm` and `k_norm` are optional norms on each head of queries and keys, set after construction (Dehghani et al.
    2023, section 2).

    Args:
        d_model: The width of the input of the queries and of the output.
        n_heads: The number of query heads.
        n_kv_heads: The number of key and value heads; fewer than `n_heads` gives grouped queries.
        head_dim: The width of a query or key head (default: d_model / n_heads).
        value_dim: The width of a value head (default: head_dim).
        d_memory: The width of the attended input, or a pair for keys and values (default: d_model).
        bias: Whether the projections have a bias, including the default `out_proj`.
        out_proj: The output projection.
        attend: The attention module, with its scale, temperature and dropout.
        positions: Rotary positions or a bias by distance, for self-attention.

    Raises:
        ValueError: The numbers of heads or the widths do not match.

    >>> attention = Attention(512, 8)
    >>> sum(p.numel() for p in attention.parameters()) == 4 * (512 * 512 + 512)
    True
    >>> x, memory = torch.ones(2, 3, 512), torch.ones(2, 5, 512)
    >>> attention(x, memory).shape, attention.keys_values(memory)[0].shape
    (torch.Size([2, 3, 512]), torch.Size([2, 8, 5, 64]))
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        d_memory: int | tuple[int, int] | None = None,
        bias: bool = True,
        out_proj: nn.Module | None = None,
        attend: Attend | None = None,
        positions: Rotary | DistanceBias | None = None,
    ):
        super().__init__()
        if head_dim is None and d_model % n_heads:
            raise ValueError(
                f"d_model={d_model} is not divisible by n_heads={n_heads}. Change one of them, or give head_dim"
            )
        self.n_heads = n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if self.n_kv_heads < 1 or n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads={n_heads} must be a multiple of n_kv_heads={n_kv_heads}. Change one of them"
            )
        self.head_dim = d_model // n_heads if head_dim is None else head_dim
        self.value_dim = self.head_dim if value_dim is None else value_dim
        d_memory = d_model if d_memory is None else d_memory
        d_key, d_value = d_memory if isinstance(d_memory, tuple) else (d_memory, d_memory)
        self.q_proj = nn.Linear(d_model, n_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(d_key, self.n_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(d_value, self.n_kv_heads * self.value_dim, bias=bias)
        self.out_proj = out_proj or nn.Linear(n_heads * self.value_dim, d_model, bias=bias)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        self.attend = attend or Attend()
        self.positions = positions

    def keys_values(
        self,
        memory: Float[Tensor, "batch k_len d_memory"],
        values: Float[Tensor, "batch k_len d_values"] | None = None,
        start: Int[Tensor, " batch"] | None = None,
    ) -> tuple[
        Float[Tensor, "batch kv_heads k_len head_dim"], Float[Tensor, "batch kv_heads k_len value_dim"]
    ]:
        """Return the projected keys and values of the attended input, which a cache stores.

        Args:
            memory: The input of the keys.
            values: The input of the values (default: `memory`).
            start: The first position of each row (default: 0).
        """
        key = self.k_proj(memory).unflatten(-1, (self.n_kv_heads, self.head_dim)).transpose(1, 2)
        value = self.v_proj(memory if values is None else values)
        value = value.unflatten(-1, (self.n_kv_heads, self.value_dim)).transpose(1, 2)
        return self._turned(self.k_norm(key), start), value

    def attend_to(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        key: Float[Tensor, "batch kv_heads k_len head_dim"],
        value: Float[Tensor, "batch kv_heads k_len value_dim"],
        mask: Mask | None = None,
        start: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch q_len d_out"]:
        """Return the attention of `x` to keys and values that are already projected.

        Args:
            x: The input of the queries.
            key: Projected keys.
            value: Projected values.
            mask: The allowed keys.
            start: The first position of each row of `x` (default: 0).
        """
        query = self.q_proj(x).unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)
        query = self._turned(self.q_norm(query), start)
        bias = None
        if isinstance(self.positions, DistanceBias):
            keys = torch.arange(key.shape[2], device=x.device)
            bias = self.positions(_places(x.shape[1], start, x.device), keys)
        mixed = self.attend(query, key, value, mask, bias)  # [batch, heads, q_len, value_dim]
        return self.out_proj(mixed.transpose(1, 2).flatten(2))

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        memory: Float[Tensor, "batch k_len d_memory"],
        mask: Mask | None = None,
        values: Float[Tensor, "batch k_len d_values"] | None = None,
    ) -> Float[Tensor, "batch q_len d_out"]:
        """Return self-attention if `memory` is `x`, and cross-attention if it is the encoder's output.

        Args:
            x: The input of the queries.
            memory: The attended input.
            mask: The allowed keys.
            values: The input of the values (default: `memory`).
        """
        return self.attend_to(x, *self.keys_values(memory, values), mask)

    def _turned(self, heads: Tensor, start: Tensor | None) -> Tensor:
        if not isinstance(self.positions, Rotary):
            return heads
        return self.positions(heads, _places(heads.shape[2], start, heads.device))


def _places(n: int, start: Tensor | None, device: torch.device) -> Int[Tensor, "batch_or_1 n"]:
    """The positions of `n` tokens after `start` others."""
    places = torch.arange(n, device=device)[None]
    return places if start is None else start[:, None] + places
