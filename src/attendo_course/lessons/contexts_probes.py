"""What vectors tell: what a linear probe reads from them, and how alike a word's are in two contexts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

RIDGE = 1.0


def read_by_probe(
    x: Float[ndarray, "n d"], labels: Sequence[str], new: Float[ndarray, "m d"], strength: float = RIDGE
) -> list[str]:
    """The labels that a linear probe, fitted to vectors x and their labels, reads from new vectors.

    Ridge regression to +1 for a vector's label and -1 for each other: W = (XᵀX + λI)⁻¹ XᵀY of centered X and Y; the
    largest score wins, of equal ones the label that comes first. Hoerl & Kennard 1970.

    >>> read_by_probe(np.array([[0.0], [1.0]]), ["no", "yes"], np.array([[0.9], [0.2]]))
    ['yes', 'no']
    """
    names = sorted(set(labels))
    y = np.where(np.array(labels)[:, None] == np.array(names), 1.0, -1.0)
    center, middle = x.mean(axis=0), y.mean(axis=0)
    centered = x - center
    weights = np.linalg.solve(
        centered.T @ centered + strength * np.eye(x.shape[1]), centered.T @ (y - middle)
    )
    scores = (new - center) @ weights + middle
    return [names[i] for i in scores.round(9).argmax(axis=1)]  # equal but for rounding is equal


def share_right(read: Sequence[str], true: Sequence[str]) -> float:
    """The share of labels read right.

    >>> share_right(["a", "b"], ["a", "a"])
    0.5
    """
    return float(np.mean([one == other for one, other in zip(read, true, strict=True)]))


def mean_cosine(x: Float[ndarray, "n d"], y: Float[ndarray, "m d"]) -> float:
    """The mean cosine over all pairs of a row of x and a row of y that is not the same array's same row.

    >>> mean_cosine(np.eye(2), np.array([[1.0, 0.0]])), mean_cosine(x := np.eye(2), x)
    (0.5, 0.0)
    """
    cosines = _unit(x) @ _unit(y).T
    if x is y:
        return float(cosines[~np.eye(len(x), dtype=bool)].mean())
    return float(cosines.mean())


def _unit(x: Float[ndarray, "n d"]) -> Float[ndarray, "n d"]:
    return x / np.linalg.norm(x, axis=1, keepdims=True)
