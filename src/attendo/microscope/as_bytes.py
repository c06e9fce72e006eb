"""Numbers as the page reads them: float32, little-endian, row by row."""

from __future__ import annotations

import base64

import numpy as np
from jaxtyping import Float
from torch import Tensor


def float_bytes(numbers: Float[Tensor, "..."]) -> bytes:
    """A tensor's numbers as bytes.

    >>> import torch
    >>> float_bytes(torch.tensor([1.0, 0.5])).hex(" ", 4)
    '0000803f 0000003f'
    """
    return np.ascontiguousarray(numbers.detach().float().cpu().numpy(), "<f4").tobytes()


def encoded(numbers: Float[Tensor, "..."]) -> str:
    """The same in base64, for JSON.

    >>> import torch
    >>> encoded(torch.tensor([1.0]))
    'AACAPw=='
    """
    return base64.b64encode(float_bytes(numbers)).decode()
