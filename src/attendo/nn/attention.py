"""Attention softmax(QKᵀ/√d)V: pure functions, a module with the fused kernel, and multi-head attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attendo.nn.layers import soft_cap
from attendo.nn.masks import Mask
from attendo.nn.positions import DistanceBias, Rotary


def attention_scores(
    query: Float[Tensor, "*batch q_len head_dim"],
    key: Float[Tensor, "*batch k_len head_dim"],
    scale: float | None = None,
    bias: Float[Tensor, "*#batch #q_len #k_len"] | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Return the attention scores QKᵀ · scale + bias (Vaswani et al. 2017, eq. 1).

    Args:
        query: Queries, one vector per position.
        key: Keys, one vector per position.
        scale: Factor of QKᵀ (default: 1/√head_dim).
        bias: Term that is added to the scores (default: none).
        softcap: Limit of QKᵀ · scale, as in `soft_cap` (default: none).

    >>> attention_scores(torch.eye(2), torch.eye(2), scale=3.0)
    tensor([[3., 0.],
            [0., 3.]])
    """
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if softcap is None else soft_cap(scores, softcap)
    return scores if bias is None else scores + bias


def masked_softmax(
    scores: Float[Tensor, "*batch q_len k_len"],
    mask: Bool[Tensor, "*#batch #q_len #k_len"] | None = None,
    inverse_temperature: float = 1.0,
) -> Float[Tensor, "*batch q_len k_len"]:
    """Compute softmax(β · scores) over the allowed keys of each query (NYU Deep Learning 2020, week 12-3).

    The weight of each masked key is exactly 0.

    Args:
        scores: Attention scores.
        mask: Allowed keys, where True means allowed. If no key is allowed for a query, all weights of the query are 0.
        inverse_temperature: Inverse temperature β ≥ 0. At 0, all allowed keys have equal weight. At `math.inf` (hard
            attention), the key with the highest score has weight 1. In a tie, the first key has weight 1.

    Returns:
        Attention weights in the shape of `scores`. The weights of a query with an allowed key sum to 1.

    Raises:
        ValueError: The inverse temperature is negative.

    >>> masked_softmax(torch.zeros(2, 2), torch.tensor([[True, False], [False, False]]))
    tensor([[1., 0.],
            [0., 0.]])
    >>> masked_softmax(torch.tensor([[1.0, 0.5, 0.2]]), inverse_temperature=math.inf)
    tensor([[1., 0., 0.]])
    """
    _require_temperature(inverse_temperature)
    hard = math.isinf(inverse_temperature) and scores.shape[-1] > 0  # argmax requires at least one key
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
    """Return the attention weights softmax(QKᵀ · scale + bias) of each query (Vaswani et al. 2017, eq. 1).

    Args:
        query: Queries, one vector per position.
        key: Keys, one vector per position.
        mask: Allowed keys, where True means allowed. If no key is allowed for a query, all weights of the query are 0.
        scale: Factor of QKᵀ (default: 1/√head_dim).
        bias: Term that is added to the scores (default: none).
        inverse_temperature: Inverse temperature β, as in `masked_softmax`.

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
    """Compute softmax(QKᵀ · scale + bias)V, each query's weighted mean of the values (Vaswani et al. 2017, eq. 1).

    This function is the readable equivalent of the fused kernel in `Attend`. Tests compare both results.

    >>> attention(torch.zeros(1, 4), torch.zeros(2, 4), torch.tensor([[1.0], [3.0]]))
    tensor([[2.]])
    """
    return attention_weights(query, key, mask, scale, bias, inverse_temperature) @ value


def share_heads(x: Float[Tensor, "batch kv_heads len dim"], n_heads: int) -> Float[Tensor, "batch heads len dim"]:
    """Repeat each key or value head for the query heads of its group (Ainslie et al. 2023).

    >>> share_heads(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1), 4).flatten()
    tensor([1., 1., 2., 2.])
    """
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


class Attend(nn.Module):
    """Scaled dot-product attention without parameters, with PyTorch's fused kernel.

    All attention is computed in this module. To record or edit attention, attendo therefore replaces only this module.

    Args:
        scale: Factor of the scores (default: 1/√head_dim).
        dropout: Dropout probability of the attention weights, in training only.
        inverse_temperature: Inverse temperature β, as in `masked_softmax`. `math.inf` is hard attention.
        softcap: Limit of QKᵀ · scale, as in `soft_cap` (default: none).

    >>> apart = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])  # [batch, heads, len, head_dim]
    >>> Attend(scale=10.0)(apart, apart, apart, Mask(causal=True)).shape
    torch.Size([1, 1, 2, 2])
    >>> Attend(inverse_temperature=math.inf)(apart, apart, apart)[0, 0]  # hard: each query takes its own value
    tensor([[1., 0.],
            [0., 1.]])
    """

    def __init__(
        self,
        scale: float | None = None,
        dropout: float = 0.0,
        inverse_temperature: float = 1.0,
        softcap: float | None = None,
    ):
        super().__init__()
        _require_temperature(inverse_temperature)
        self.scale = scale
        self.dropout = dropout
        self.inverse_temperature = inverse_temperature
        self.softcap = softcap

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
            query: Projected queries of all heads.
            key: Projected keys. In grouped-query attention, several query heads share a key head.
            value: Projected values, with as many heads as the keys.
            mask: Allowed keys, broadcast to `[batch, heads, q_len, k_len]` (default: all keys).
            bias: Term that is added to the scores, broadcast to `[batch, heads, q_len, k_len]` (default: none).
        """
        if query.dtype == torch.bfloat16 and query.device.type == "cpu":
            # on a CPU, the fused kernel's backward pass is about ten times slower in bfloat16 than in float32
            with torch.autocast("cpu", enabled=False):
                return self.fused(query.float(), key.float(), value.float(), mask, bias).to(query.dtype)
        return self.fused(query, key, value, mask, bias)

    def fused(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Tensor | None
    ) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Compute attention with PyTorch's fused kernel, on its fast path for causal masks if possible.

        Args:
            query: Projected queries of all heads.
            key: Projected keys.
            value: Projected values.
            mask: Allowed keys (None: all keys).
            bias: Term that is added to the scores (None: no term).

        Returns:
            The attention output of every head.
        """
        q_len, k_len = query.shape[-2], key.shape[-2]
        key, value = share_heads(key, query.shape[1]), share_heads(value, query.shape[1])
        dropout = self.dropout if self.training else 0.0
        if math.isinf(self.inverse_temperature) or self.softcap is not None:  # the kernel has only the softmax
            allowed = None if mask is None else mask.dense(q_len, k_len, query.device)
            scores = attention_scores(query, key, self.scale, bias, self.softcap)
            return F.dropout(masked_softmax(scores, allowed, self.inverse_temperature), dropout) @ value
        if self.inverse_temperature != 1.0:  # not by `scale`: masked scores would be -inf · 0 = NaN
            query = query * self.inverse_temperature
            bias = None if bias is None else bias * self.inverse_temperature
        # torch aligns is_causal at the top left, Mask at the bottom right: equal only if q_len == k_len
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
        # without allowed keys, the finite minimum of `_additive` produces a mean over all keys: set it to zero
        return mixed if dense is None else mixed * dense.any(-1, keepdim=True)


def _additive(mask: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the additive mask of the kernel. Its minimum is finite, because -inf makes a row without keys NaN."""
    if mask is None:
        return None if bias is None else bias.to(dtype)
    floor = torch.finfo(dtype).min / 2
    base = torch.zeros((), dtype=dtype, device=mask.device) if bias is None else bias.to(dtype)
    return torch.where(mask, base, floor)


class Attention(nn.Module):
    """Multi-head attention with its input and output projections (Vaswani et al. 2017, section 3.2.2).

    The attributes `q_norm` and `k_norm` are optional normalization layers for each head of queries and keys. These
    layers can be set after construction (Dehghani et al. 2023, section 2). The attribute `window` limits self-attention
    to keys less than `window` positions away (Beltagy et al. 2020, section 3.1; None: no limit).

    Args:
        d_model: Width of the output, and of the input that is projected to queries.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads, smaller for grouped-query attention (default: `n_heads`).
        head_dim: Width of a query or key head (default: `d_model / n_heads`).
        value_dim: Width of a value head (default: `head_dim`).
        d_memory: Width of the attended input, or a pair of widths for keys and values (default: `d_model`).
        bias: Whether the projections have a bias, including the default `out_proj`.
        out_proj: Output projection (default: a linear layer).
        attend: Attention module, which defines scale, temperature and dropout (default: `Attend()`).
        positions: Rotary position embeddings or a distance bias, for self-attention (default: none).

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
            raise ValueError(f"n_heads={n_heads} must be a multiple of n_kv_heads={n_kv_heads}. Change one of them")
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
        self.window: int | None = None

    def keys_values(
        self,
        memory: Float[Tensor, "batch k_len d_memory"],
        values: Float[Tensor, "batch k_len d_values"] | None = None,
        start: Int[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch kv_heads k_len head_dim"], Float[Tensor, "batch kv_heads k_len value_dim"]]:
        """Return the projected keys and values of the attended input, for example for a cache.

        Args:
            memory: Input that is projected to keys.
            values: Input that is projected to values (default: `memory`).
            start: Position of the first key in each row (default: 0).
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
        """Return the attention output of `x` for keys and values that are already projected.

        Args:
            x: Input that is projected to queries.
            key: Projected keys.
            value: Projected values.
            mask: Allowed keys (default: all keys).
            start: Position of the first query in each row (default: 0).
        """
        query = self.q_proj(x).unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)
        query = self._turned(self.q_norm(query), start)
        places = _places(x.shape[1], start, x.device)
        keys = torch.arange(key.shape[2], device=x.device)
        bias = self.positions(places, keys) if isinstance(self.positions, DistanceBias) else None
        if self.window is not None and len(keys) > self.window:
            near = (places[..., None] - keys).abs() < self.window  # [batch_or_1, q_len, k_len]
            mask = (mask or Mask()) & Mask(allowed=near[:, None])
        mixed = self.attend(query, key, value, mask, bias)  # [batch, heads, q_len, value_dim]
        return self.out_proj(mixed.transpose(1, 2).flatten(2))

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        memory: Float[Tensor, "batch k_len d_memory"],
        mask: Mask | None = None,
        values: Float[Tensor, "batch k_len d_values"] | None = None,
    ) -> Float[Tensor, "batch q_len d_out"]:
        """Return the output of self-attention (`memory` is `x`) or cross-attention (`memory` is the encoder output).

        Args:
            x: Input that is projected to queries.
            memory: Attended input, from which the keys are computed.
            mask: Allowed keys (default: all keys).
            values: Input that is projected to values (default: `memory`).
        """
        return self.attend_to(x, *self.keys_values(memory, values), mask)

    def _turned(self, heads: Tensor, start: Tensor | None) -> Tensor:
        if not isinstance(self.positions, Rotary):
            return heads
        return self.positions(heads, _places(heads.shape[2], start, heads.device))


def _places(n: int, start: Tensor | None, device: torch.device) -> Int[Tensor, "batch_or_1 n"]:
    """Return the positions of `n` tokens, the first of which has position `start`."""
    places = torch.arange(n, device=device)[None]
    return places if start is None else start[:, None] + places
