"""The linear map from one sinusoidal position to another."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.nn.positions import PhaseOrder, frequencies


def shift_matrix(
    k: int,
    d_model: int,
    base: float = 10000.0,
    *,
    first_index: int = 0,
    order: PhaseOrder = "sincos",
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "d_model d_model"]:
    """M_k with M_k PE[p] = PE[p+k] for every p: a rotation by kω_i in the plane of each sine and its cosine.

    The linear function of which Vaswani et al. 2017 speak in section 3.5.

    Block-diagonal for "sincos". Raises ValueError where a sine or a cosine lacks its partner: an odd width, or
    "cossin".

    >>> from attendo.nn.positions import sinusoidal_encoding
    >>> shift_matrix(1, 2) @ sinusoidal_encoding(torch.tensor(4), 2)
    tensor([-0.9589,  0.2837])
    >>> sinusoidal_encoding(torch.tensor(5), 2)
    tensor([-0.9589,  0.2837])
    """
    if d_model % 2 or order == "cossin":
        raise ValueError(
            f"d_model={d_model} in the order {order!r} leaves a phase without its partner, so no matrix shifts it;"
            ' take an even width and "sincos" or "halves"'
        )
    n_pairs = d_model // 2
    angles = k * frequencies(n_pairs, d_model, base, first_index)
    sines = torch.arange(n_pairs) * (1 if order == "halves" else 2)
    cosines = sines + (n_pairs if order == "halves" else 1)
    matrix = torch.zeros(d_model, d_model, dtype=torch.float64)
    matrix[sines, sines] = matrix[cosines, cosines] = angles.cos()
    matrix[sines, cosines] = angles.sin()
    matrix[cosines, sines] = -angles.sin()
    return matrix.to(dtype or torch.get_default_dtype())
