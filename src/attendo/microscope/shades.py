"""On which scale pictures shade attention weights."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

MANY = 48
"""Keys beyond which weights are drawn on a scale of their own."""


def darkest(weights: Float[np.ndarray, "queries keys"], *, causal: bool = False) -> float:
    """The weight that a picture draws darkest, and those above it too.

    It is 1, or in rows of more than `MANY` keys, where weights are small, the largest; of these at least four times an
    even share, so that even attention stays pale. causal: the first rows see few keys and don't count.

    >>> darkest(np.eye(3) / 2), darkest(np.full((1, 100), 0.01))
    (1.0, 0.04)
    >>> even = np.tril(np.ones((100, 100))) / np.arange(1, 101)[:, None]
    >>> darkest(even), darkest(even, causal=True)
    (1.0, 0.04)
    """
    n = weights.shape[-1]
    counted = weights[max(0, MANY - n + len(weights)) :] if causal else weights
    return 1.0 if n <= MANY else min(1.0, max(float(counted.max()), 4 / n))
