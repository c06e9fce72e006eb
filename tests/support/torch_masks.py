"""Masks from and to torch's modules, where True means "may not attend": the opposite of ours."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from attendo.errors import AttendoError
from attendo.nn.masks import Mask


def mask_from_torch(
    attn_mask: Shaped[Tensor, "*batch_heads q_len k_len"] | None = None,
    key_padding_mask: Shaped[Tensor, "batch k_len"] | None = None,
    *,
    n_heads: int | None = None,
) -> Mask | None:
    """The Mask that says what `attn_mask` and `key_padding_mask` of torch's modules say together; None if both are.

    Boolean masks hide where True, floating ones where -∞. n_heads: needed where attn_mask is
    `[batch·heads, q_len, k_len]`. A query that may attend to no key gets NaN from torch and zeros from attendo.
    Raises AttendoError for a floating mask with other numbers than 0 and -∞, which is a bias on the scores, and for
    a shape that torch would refuse.

    >>> mask = mask_from_torch(torch.tensor([[False, True], [False, False]]))
    >>> mask.dense(2, 2)[0, 0].int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """
    mask = None
    if attn_mask is not None:
        allowed = _allowed(attn_mask, "attn_mask")
        if allowed.dim() == 3:
            if n_heads is None or allowed.shape[0] % n_heads:
                raise AttendoError(
                    f"attn_mask has {allowed.shape[0]} rows of matrices with n_heads={n_heads}; give the n_heads"
                    " by which they divide into batch and heads"
                )
            allowed = allowed.unflatten(0, (-1, n_heads))
        elif allowed.dim() != 2:
            raise AttendoError(f"attn_mask has {allowed.dim()} axes; torch's have 2 or 3")
        mask = Mask(allowed=allowed)
    if key_padding_mask is not None:
        if key_padding_mask.dim() != 2:
            raise AttendoError(f"key_padding_mask has {key_padding_mask.dim()} axes; give it [batch, k_len]")
        real = Mask(allowed=_allowed(key_padding_mask, "key_padding_mask")[:, None, None, :])
        mask = real if mask is None else mask & real
    return mask


def mask_to_torch(
    mask: Mask, q_len: int, k_len: int, *, n_heads: int = 1, batch: int = 1
) -> Bool[Tensor, "*batch_heads q_len k_len"]:
    """The `attn_mask` of torch's modules that says what the Mask says: True where a query may not attend.

    `[q_len, k_len]` where one matrix serves every row and head, else `[batch·heads, q_len, k_len]`; n_heads and
    batch are those of the call and matter only there. Raises AttendoError where the mask is for others.

    >>> mask_to_torch(Mask(causal=True), 2, 2).int()
    tensor([[0, 1],
            [0, 0]], dtype=torch.int32)
    """
    hidden = ~mask.dense(q_len, k_len)
    if hidden.shape[:2] == (1, 1):
        return hidden[0, 0]
    rows, heads = hidden.shape[:2]
    if heads not in (1, n_heads) or (rows != batch and 1 not in (rows, batch)):
        raise AttendoError(
            f"the mask is for {rows} rows and {heads} heads, not for batch={batch}, n_heads={n_heads}"
        )
    return hidden.expand(max(rows, batch), n_heads, q_len, k_len).flatten(0, 1)


def _allowed(mask: Tensor, name: str) -> Tensor:
    if mask.dtype == torch.bool:
        return ~mask
    if not mask.is_floating_point():
        raise AttendoError(f"{name} has the type {mask.dtype}; torch's masks are boolean or floating")
    allowed = mask == 0
    if not torch.equal(allowed, mask != -torch.inf):
        raise AttendoError(
            f"{name} has other numbers than 0 and -inf: a bias on the scores, which no Mask holds"
        )
    return allowed
