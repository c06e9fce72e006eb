"""The most probable next tokens of each row, without sorting the vocabulary."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.errors import NOT_NUMBERS, AttendoError


class TopKFn(Protocol):
    """`best_tokens`, or another way to the same."""

    def __call__(
        self,
        logits: Float[Tensor, "rows vocab"],
        k: int,
        banned_ids: tuple[int, ...] = (),
        constrain: Callable[[Tensor], None] | None = None,
        out: Float[Tensor, "rows vocab"] | None = None,
    ) -> tuple[Int[np.ndarray, "rows k"], Float[np.ndarray, "rows k"]]: ...


def log_prob_type(logits: Tensor) -> torch.dtype:
    """Log-probabilities have at least single precision.

    >>> log_prob_type(torch.zeros(1, dtype=torch.bfloat16))
    torch.float32
    """
    return torch.promote_types(logits.dtype, torch.float32)


def log_probs_of(
    logits: Float[Tensor, "*batch vocab"], wanted: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """log softmax(logits) of the wanted token of each row, in `log_prob_type`.

    >>> log_probs_of(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([0.2500])
    """
    log_probs = logits.log_softmax(-1, dtype=log_prob_type(logits))
    return log_probs.gather(-1, wanted[..., None]).squeeze(-1)


def best_tokens(
    logits: Float[Tensor, "rows vocab"],
    k: int,
    banned_ids: tuple[int, ...] = (),
    constrain: Callable[[Tensor], None] | None = None,
    out: Float[Tensor, "rows vocab"] | None = None,
) -> tuple[Int[np.ndarray, "rows k"], Float[np.ndarray, "rows k"]]:
    """The `k` most probable next tokens of each row, in order, and their log-probabilities.

    Equal values are ordered by token id, also where the cut between the k-th and the next falls among
    them. `banned_ids` lists ids that get log-probability -inf after normalization: a hypothesis has the
    probability the model gives it, whether or not some ids are banned. `constrain` may set further
    log-probabilities to -inf, in place. `out`, of `log_prob_type`, takes all log-probabilities, so that a
    search need not allocate them at every step. Fewer columns if the vocabulary is smaller than `k`.
    Raises AttendoError on NaN.

    >>> best_tokens(torch.zeros(1, 4), 2, banned_ids=(0,))[0]
    array([[1, 2]])
    """
    # On CPU one vectorized log_softmax is faster than logsumexp, and topk as fast as argmax.
    log_probs = torch.log_softmax(logits, -1, dtype=log_prob_type(logits), out=out)
    if banned_ids:
        log_probs[:, list(banned_ids)] = -torch.inf
    if constrain is not None:
        constrain(log_probs)
    vocab = log_probs.shape[1]
    k = min(k, vocab)
    values, ids = log_probs.topk(min(k + 1, vocab), dim=1)
    found = values.double().cpu().numpy()
    tokens = ids.cpu().numpy()
    if np.isnan(found[:, 0]).any():
        found = _without_impossible_rows(found, logits)
    found, tokens = reordered(np.lexsort((tokens, -found)), found, tokens)
    if k < vocab:
        # topk picks any of equals; where the first value left out equals the last one taken, choose by id
        tied = np.flatnonzero((found[:, k - 1] == found[:, k]) & (found[:, k] > -np.inf))
        if len(tied):
            edge = values[tied, -1:]
            countdown = torch.arange(vocab, 0, -1, device=values.device)
            lowest = torch.where(log_probs[tied] == edge, countdown, 0).topk(k, dim=1).values.cpu().numpy()
            above = (found[tied, :k] > found[tied, k:]).sum(1)
            for row, n_above, ranks in zip(tied, above, lowest, strict=True):
                tokens[row, n_above:k] = vocab - ranks[: k - n_above]
    return tokens[:, :k], found[:, :k]


def _without_impossible_rows(
    found: Float[np.ndarray, "rows k"], logits: Tensor
) -> Float[np.ndarray, "rows k"]:
    """A row whose logits are all -inf allows nothing; any other NaN is an error."""
    impossible = (logits == -torch.inf).all(1).cpu().numpy()
    if (np.isnan(found[:, 0]) & ~impossible).any():
        raise AttendoError(NOT_NUMBERS)
    return np.where(impossible[:, None], -np.inf, found)


def reordered(order: Int[np.ndarray, "sources chosen"], *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Each array `[sources, candidates]` in this order, source by source.

    >>> reordered(np.array([[1, 0]]), np.array([[5, 6, 7]]))[0]
    array([[6, 5]])
    """
    rows = np.arange(len(order))[:, None]  # as np.take_along_axis, which makes this index for each array
    return tuple(array[rows, order] for array in arrays)
