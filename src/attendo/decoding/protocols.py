"""What a search sees of a model, a step and a cache of rows; and what it finds, a hypothesis.

A batch of `n` sources is decoded on `n * rows_per_source` rows, the rows of one source side by side. Row
`i` belongs to source `i // rows_per_source`. Everything about time lives in the cache that `Start` makes;
`Step` advances it by one token per row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Cache(Protocol):
    """Rows in progress. A search moves rows; it never looks inside."""

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Make row `i` continue old row `rows[i]`; both belong to the same source."""
        ...

    def keep(self, rows: Int[Tensor, " kept_rows"]) -> None:
        """Make row `i` continue old row `rows[i]`, and drop the sources that have no row any more."""
        ...


class JoiningCache(Protocol):
    """A `Cache` that also takes in the rows of another of its kind, behind its own."""

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None: ...
    def keep(self, rows: Int[Tensor, " kept_rows"]) -> None: ...
    def join(self, other: Self, /) -> None: ...


@runtime_checkable
class ReusingCache(Protocol):
    """A cache that can take the memory of another of its kind, of which no row is needed any more."""

    def in_place_of(self, spent: Any, /) -> Any:
        """What to continue with: these rows, in the memory of `spent`."""
        ...


CacheT = TypeVar("CacheT", bound=Cache)
CacheIn = TypeVar("CacheIn", bound=Cache, contravariant=True)
CacheOut = TypeVar("CacheOut", bound=Cache, covariant=True)


@runtime_checkable
class Step(Protocol[CacheIn]):
    """Feed one more token to every row, advance the cache, return the logits of what follows."""

    def __call__(
        self, token_ids: Int[Tensor, "rows 1"], cache: CacheIn, /
    ) -> Float[Tensor, "rows vocab"]: ...


@runtime_checkable
class Start(Protocol[CacheOut]):
    """Read the sources and make a fresh cache of `len(sources) * rows_per_source` rows.

    `capacity` is the largest number of tokens that will be fed to any row.
    """

    def __call__(
        self, sources: Sequence[Sequence[int]], rows_per_source: int, capacity: int, /
    ) -> CacheOut: ...


@dataclass(frozen=True)
class Hypothesis:
    """One found text.

    `token_ids` leaves the end token out; `token_log_probs` has one entry per generated token, the end token
    included if there is one, and `log_prob` is their sum. `score` is `log_prob` normalized by length.
    `finished` is False where the text stopped at its length limit, or where no token could follow,
    before the end token.
    """

    token_ids: tuple[int, ...]
    log_prob: float
    score: float
    token_log_probs: tuple[float, ...]
    finished: bool


def reusing(cache: CacheT, spent: CacheT) -> CacheT:
    """The cache to continue with where no row of `spent` is needed: in its memory if its kind can, else as it is."""
    if not isinstance(cache, ReusingCache):
        return cache
    joined: CacheT = cache.in_place_of(spent)
    return joined


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
