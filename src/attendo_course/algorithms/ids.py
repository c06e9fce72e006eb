"""Ids as the paper counts them, from 1 with the special ones last, and the way to the core's, from 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

Text = Sequence[int] | Int[Tensor, " ell"]
"""A text as the paper has it: ids of 1..N_V."""


class SpecialIds(NamedTuple):
    """The last three ids of the vocabulary.

    >>> SpecialIds(8, 9, 10).eos
    10
    """

    mask_token: int
    bos: int
    eos: int


def special_ids(N_V: int) -> SpecialIds:
    """mask_token = N_V - 2, bos = N_V - 1, eos = N_V. Phuong & Hutter 2022, section 4.

    Raises ValueError where the vocabulary is too small to hold them.

    >>> special_ids(10)
    SpecialIds(mask_token=8, bos=9, eos=10)
    """
    if N_V < 3:
        raise ValueError(f"N_V={N_V} leaves no room for mask_token, bos and eos; take at least 3")
    return SpecialIds(N_V - 2, N_V - 1, N_V)


def core_ids(text: Text, N_V: int, ell_max: int, name: str = "x") -> Int[Tensor, " ell"]:
    """The text with ids from 0, checked: the paper guards neither the ids nor the length.

    name: what the text is called in a message. Raises ValueError for an empty text, one of more than `ell_max`
    tokens, or an id outside 1..N_V.

    >>> core_ids([1, 5], N_V=5, ell_max=8)
    tensor([0, 4])
    """
    ids = torch.as_tensor(text)
    if ids.ndim != 1 or ids.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(ids.shape)}; give a row of at least one id")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"{name} holds {ids.dtype}; ids are whole numbers")
    if len(ids) > ell_max:
        raise ValueError(f"{name} has {len(ids)} tokens, but positions end at ell_max={ell_max}; shorten it")
    outside = ((ids < 1) | (ids > N_V)).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        raise ValueError(f"{name}[{first + 1}]={int(ids[first])} is no id of 1..{N_V}; ids count from 1 here")
    return ids.long() - 1
