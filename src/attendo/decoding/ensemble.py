"""Several models as one: the mean of their probabilities at every step. A search sees one cache and one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.decoding.coverage import AttendingStep
from attendo.decoding.step import CacheT, JoiningCache, Start, Step

JoiningT = TypeVar("JoiningT", bound=JoiningCache)


def mean_log_probs(logits: Sequence[Float[Tensor, "*batch vocab"]]) -> Float[Tensor, "*batch vocab"]:
    """log (1/n) Σ softmax(logits_i): the logarithm of the mean of the models' probabilities, in double precision.

    Not the mean of the logarithms: a token that one model rules out stays possible. A row whose logits are all -inf
    allows nothing, and adds nothing. Raises ValueError for models of different vocabularies.

    >>> sure, unsure = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    >>> mean_log_probs([sure, unsure]).exp()
    tensor([0.7000, 0.3000], dtype=torch.float64)
    """
    if len({row.shape[-1] for row in logits}) != 1:
        sizes = ", ".join(str(row.shape[-1]) for row in logits)
        raise ValueError(f"vocabularies of {sizes} entries; models that are averaged share one")
    # in double precision, so that n equal models give what one gives, to the rounding of that one
    rows = torch.stack([_log_probs(row.double()) for row in logits])
    return rows.logsumexp(0) - torch.tensor(float(len(logits)), dtype=rows.dtype).log().item()


def _log_probs(logits: Tensor) -> Tensor:
    nothing = (logits == -torch.inf).all(-1, keepdim=True)
    return logits.log_softmax(-1).masked_fill(nothing, -torch.inf)


@dataclass
class EnsembleCache(Generic[CacheT]):
    """The members' caches, moved together: row i of each is row i of the ensemble."""

    members: list[CacheT]

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """New row i continues old row `rows[i]`, in every member."""
        for member in self.members:
            member.reorder(rows)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Drops all rows but these, in every member."""
        for member in self.members:
            member.keep(rows)

    def join(self: EnsembleCache[JoiningT], other: EnsembleCache[JoiningT]) -> None:
        """Takes in the rows of another cache of the same models, in every member behind its own."""
        for mine, theirs in zip(self.members, other.members, strict=True):
            mine.join(theirs)

    def in_place_of(self: EnsembleCache[JoiningT], spent: EnsembleCache[JoiningT]) -> EnsembleCache[JoiningT]:
        """This one, each member in the memory of the spent one's where its kind can."""
        both = zip(self.members, spent.members, strict=True)
        return EnsembleCache([mine.in_place_of(theirs) for mine, theirs in both])


@dataclass(frozen=True)
class Ensemble(Generic[CacheT]):
    """Models of one vocabulary as one: `start` and `step` are what a search asks of a model.

    members: the start and the step of each.
    """

    members: Sequence[tuple[Start[CacheT], Step[CacheT]]]

    def start(
        self, sources: Sequence[Sequence[int]], rows_per_source: int, capacity: int, /
    ) -> EnsembleCache[CacheT]:
        """Every member reads the sources."""
        return EnsembleCache([start(sources, rows_per_source, capacity) for start, _ in self.members])

    def step(
        self, token_ids: Int[Tensor, "rows 1"], cache: EnsembleCache[CacheT], /
    ) -> Float[Tensor, "rows vocab"]:
        """The logarithm of the members' mean probability of each next token."""
        found = zip(self.members, cache.members, strict=True)
        return mean_log_probs([step(token_ids, member) for (_, step), member in found])


def mean_attending(steps: Sequence[AttendingStep[CacheT]]) -> AttendingStep[EnsembleCache[CacheT]]:
    """`Ensemble.step` with the mean of where the members look, for the coverage penalty; one step for each member."""

    def step(
        token_ids: Int[Tensor, "rows 1"], cache: EnsembleCache[CacheT], /
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows src_len"]]:
        found = [step(token_ids, member) for step, member in zip(steps, cache.members, strict=True)]
        weights = torch.stack([weights.double() for _, weights in found]).mean(0)
        return mean_log_probs([logits for logits, _ in found]), weights

    return step
