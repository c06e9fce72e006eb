"""Attention masks: frozen dataclasses that are converted to a matrix only if a kernel requires a matrix."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def causal(q_len: int, k_len: int, device: torch.device | None = None) -> Bool[Tensor, "q_len k_len"]:
    """Return the causal mask, which is True for the keys up to each query (Vaswani et al. 2017, section 3.2.3).

    The queries are the last `q_len` of the `k_len` positions.

    >>> causal(2, 4).int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril(k_len - q_len)


def within_lengths(lengths: Int[Tensor, " batch"], k_len: int) -> Bool[Tensor, "batch k_len"]:
    """Return the padding mask, which is True for the first `lengths[i]` keys of row i.

    >>> within_lengths(torch.tensor([1, 3]), 3).int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.arange(k_len, device=lengths.device) < lengths[:, None]


def banded(q_len: int, k_len: int, window: int, device: torch.device | None = None) -> Bool[Tensor, "q_len k_len"]:
    """Return a local attention mask, True for keys less than `window` positions away (Vaswani et al. 2017, section 4).

    >>> banded(3, 3, 2).int()
    tensor([[1, 1, 0],
            [1, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    """
    query_positions = torch.arange(k_len - q_len, k_len, device=device)[:, None]
    return (query_positions - torch.arange(k_len, device=device)).abs() < window


@dataclass(frozen=True, kw_only=True, eq=False)
class Mask:
    """The conditions under which a query can attend to a key. A key is hidden if any condition is false.

    The value None or False disables a condition. If no key is allowed for a query, the attention output is zero.

    Attributes:
        causal: Whether the keys after the query are hidden. The last query is aligned with the last key.
        key_lengths: Number of keys in each row without padding, `[batch]`. Keys of padding are hidden.
        segments: Segment number of each position, `[batch, len]`, for self-attention. A query can only attend to keys
            with the same segment number.
        window: Smallest distance between query and key at which the key is hidden.
        allowed: Boolean matrix that broadcasts to `[batch, heads, q_len, k_len]`. True means that a key is allowed.

    >>> Mask(causal=True, key_lengths=torch.tensor([3, 1])).dense(3, 3).int()[:, 0]
    tensor([[[1, 0, 0],
             [1, 1, 0],
             [1, 1, 1]],
    <BLANKLINE>
            [[1, 0, 0],
             [1, 0, 0],
             [1, 0, 0]]], dtype=torch.int32)
    """

    causal: bool = False
    key_lengths: Int[Tensor, " batch"] | None = None
    segments: Int[Tensor, "batch len"] | None = None
    window: int | None = None
    allowed: Bool[Tensor, "*batch_heads q_or_1 k_or_1"] | None = None

    def __and__(self, other: Mask) -> Mask:
        """Return a mask with the conditions of both masks.

        >>> (Mask(causal=True) & Mask(window=2)).dense(3, 3)[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
        """
        return Mask(
            causal=self.causal or other.causal,
            key_lengths=_both(self.key_lengths, other.key_lengths, torch.minimum),
            segments=_both(self.segments, other.segments, _pair_numbers),
            window=_both(self.window, other.window, min),
            allowed=_both(self.allowed, other.allowed, torch.logical_and),
        )

    @property
    def only_causal(self) -> bool:
        """Whether `causal` is the only condition. Kernels have a fast path for this case."""
        return self.causal and all(getattr(self, f.name) is None for f in fields(self) if f.name != "causal")

    def dense(
        self, q_len: int, k_len: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch_or_1 heads_or_1 q_len k_len"]:
        """Return the boolean matrix of all conditions (True: allowed), which broadcasts over batch and heads.

        Args:
            q_len: Number of queries.
            k_len: Number of keys.
            device: Device of the matrix, used only if no condition is a tensor (default: the CPU).

        Raises:
            ValueError: The shape of a condition does not match the numbers of queries and keys.
        """
        device = next((t.device for t in (self.key_lengths, self.segments, self.allowed) if t is not None), device)
        dense = (
            causal(q_len, k_len, device) if self.causal else torch.ones(q_len, k_len, dtype=torch.bool, device=device)
        )
        if self.window is not None:
            dense = dense & banded(q_len, k_len, self.window, device)
        dense = dense[None, None]
        if self.key_lengths is not None:
            dense = dense & within_lengths(self.key_lengths, k_len)[:, None, None, :]
        if self.segments is not None:
            if self.segments.shape[1] != k_len or q_len > k_len:
                raise ValueError(
                    f"segments have {self.segments.shape[1]} positions (expected {q_len} queries and {k_len} keys)"
                )
            dense = dense & (self.segments[:, None, k_len - q_len :, None] == self.segments[:, None, None, :])
        if self.allowed is not None:
            if self.allowed.shape[-2] not in (1, q_len) or self.allowed.shape[-1] not in (1, k_len):
                raise ValueError(
                    f"allowed has shape {tuple(self.allowed.shape)} (expected {q_len} queries and {k_len} keys)"
                )
            dense = dense & self.allowed
        return dense


def _both(first, second, combine):
    if first is None or second is None:
        return second if first is None else first
    return combine(first, second)


def _pair_numbers(first: Tensor, second: Tensor) -> Tensor:
    """Return one number per pair. The numbers of two pairs are equal only if both parts are equal."""
    least, most = second.aminmax()
    return first * (most - least + 1) + second
