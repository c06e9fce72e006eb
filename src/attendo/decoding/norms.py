"""Scores of texts of different lengths: length norms, and the best that a text can still reach."""

from typing import overload

import numpy as np
from jaxtyping import Float, Int

from attendo.decoding.options import LengthNorm


@overload
def length_norm(length: int, alpha: float, kind: LengthNorm = "gnmt") -> float: ...
@overload
def length_norm(length: np.ndarray, alpha: float, kind: LengthNorm = "gnmt") -> np.ndarray: ...
def length_norm(length: int | np.ndarray, alpha: float, kind: LengthNorm = "gnmt") -> float | np.ndarray:
    """((5 + length) / 6) ** alpha, the length normalization of Wu et al. 2016 (GNMT), eq. 14; plain: length ** alpha.

    `length` counts target tokens with the end token. Plain with alpha 1 makes the score a mean over the tokens.

    >>> length_norm(1, 0.6), length_norm(7, 1.0), length_norm(7, 0.0), length_norm(7, 1.0, "plain")
    (1.0, 2.0, 1.0, 7.0)
    """
    if kind == "gnmt":
        return ((5 + length) / 6) ** alpha
    return length**alpha


def best_possible_score(
    log_prob: Float[np.ndarray, " sources"],
    lengths: Int[np.ndarray, " sources"],
    limits: Int[np.ndarray, " sources"],
    alpha: float,
    kind: LengthNorm = "gnmt",
) -> Float[np.ndarray, " sources"]:
    """The best score that any continuation of a text of this log-probability can still reach.

    Log-probabilities only fall and the norm is monotone in length, so the bound lies at the next length (alpha < 0) or
    at the limit (alpha > 0), with nothing more lost on the way. It holds under every option: a coverage penalty is at
    most 0, and constraints, prefixes and groups only take continuations away; none raises a score. It is raised by
    1e-12 of itself, more than the rounding of a sum of log-probabilities can make up.
    """
    at_once, at_the_limit = length_norm(lengths + 1, alpha, kind), length_norm(limits, alpha, kind)
    return np.maximum(log_prob / at_once, log_prob / at_the_limit) * (1 - 1e-12)
