"""The coverage penalty, and the step that gives the attention weights it needs."""

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from attendo.decoding.step import CacheIn

_LEAST = float(np.finfo(np.float64).tiny)


@runtime_checkable
class AttendingStep(Protocol[CacheIn]):
    """A `Step` that also tells where every row looks in its source while it predicts the next token.

    The weights of a row are a distribution over the positions of its source, for instance the mean over the heads
    of one cross-attention. Positions of padding hold 1: there is nothing to cover. All steps of one batch give the
    same src_len.
    """

    def __call__(
        self, token_ids: Int[Tensor, "rows 1"], cache: CacheIn, /
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows src_len"]]: ...


def coverage_penalty(
    attended: Float[np.ndarray, "*texts src_len"], beta: float
) -> Float[np.ndarray, "*texts"]:
    """cp(X; Y) = β Σᵢ log(min(Σⱼ pᵢⱼ, 1)), Wu et al. 2016 (GNMT), eq. 14; added to the score of a text.

    `attended` is Σⱼ pᵢⱼ, the attention that source position i got over all target tokens j, the end token included.
    The penalty is never above 0. A position that got nothing at all counts as the smallest normal number, not as
    log 0: texts that leave out a word can still be compared.

    >>> coverage_penalty(np.array([[1.0, 2.0], [0.5, 2.5]]), beta=2.0).round(4).tolist()
    [0.0, -1.3863]
    """
    return beta * np.log(np.clip(attended, _LEAST, 1.0)).sum(-1)
