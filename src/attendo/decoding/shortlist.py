"""Shortlists: the few tokens that a translation of a source may have, by what its tokens were translated to before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.decoding.step import CacheT, Start, Step, reusing
from attendo.errors import AttendoError

MOST_LINKS = 30_000_000  # of source and target tokens of a pair; each takes some 40 bytes while it is counted
ROUNDS = 5


@dataclass(frozen=True)
class Shortlist:
    """For each source token its likely target tokens, and those that any text may have, the end among them.

    Rows of `likely` with fewer tokens than columns repeat one that any text may have.

    >>> shortlist = Shortlist(likely=np.array([[0, 0], [2, 4], [0, 0], [4, 0], [0, 0]]), frequent=np.array([0]))
    >>> shortlist.of([3, 1]).tolist()
    [0, 1, 2, 3, 4]
    """

    likely: Int[np.ndarray, "vocab k"]
    frequent: Int[np.ndarray, " n"]

    def of(self, source: Sequence[int]) -> Int[np.ndarray, " tokens"]:
        """The ids of a source's list, rising: of its tokens, themselves included, and of any text.

        It depends on the source alone.
        """
        own = np.asarray(source, dtype=np.int64)
        listed = np.zeros(len(self.likely), dtype=bool)
        for tokens in (self.frequent, own, self.likely[own]):
            listed[tokens] = True
        return np.flatnonzero(listed)


def learned_shortlist(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    vocab_size: int,
    eos_id: int,
    *,
    per_token: int = 50,
    frequent: int = 100,
) -> Shortlist:
    """The `per_token` most probable target tokens of each source token, and the `frequent` most frequent.

    The probabilities t(target | source) are those of IBM model 1 (Brown et al. 1993) after ROUNDS of expectation
    and maximization; the end of the source stands for what has no counterpart. Ties go to the lower id. Pairs beyond
    `MOST_LINKS` links (token pairs) are left out. Raises AttendoError where there are no pairs.

    >>> pairs = [([4, 5], [8, 9]), ([4], [8]), ([6, 5], [7, 9])]
    >>> learned_shortlist(pairs, 10, 2, per_token=1, frequent=0).likely[[4, 5, 6]].tolist()
    [[8], [9], [7]]
    """
    kept = [(source, target) for source, target in pairs if source and target]
    links = np.cumsum([(len(source) + 1) * len(target) for source, target in kept])
    kept = kept[: max(1, int(np.searchsorted(links, MOST_LINKS, "right")))]
    if not kept:
        raise AttendoError("a shortlist is learned from pairs, and there are none; give a file of pairs")
    counts = np.bincount(np.concatenate([np.asarray(target) for _, target in kept]), minlength=vocab_size)
    anywhere = np.argsort(-counts, kind="stable")[:frequent]
    anywhere = np.union1d(anywhere[counts[anywhere] > 0], [eos_id]).astype(np.int64)
    sources, targets, probabilities = _word_table(kept, vocab_size, eos_id)
    order = np.lexsort((targets, -probabilities, sources))
    sources, targets = sources[order], targets[order]
    ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
    best = ranks < per_token
    likely = np.full((vocab_size, per_token), eos_id, dtype=np.int64)
    likely[sources[best], ranks[best]] = targets[best]
    return Shortlist(likely, anywhere)


def _word_table(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]], vocab_size: int, eos_id: int
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Source tokens, target tokens and t(target | source) of all that stand in a pair together."""
    keys, places, n_places = [], [], 0  # of each link: its two tokens as one number, and its target's place
    for source, target in pairs:
        ends = np.asarray([*source, eos_id], dtype=np.int64)
        keys.append((ends[:, None] * vocab_size + np.asarray(target)).reshape(-1))
        places.append(np.tile(np.arange(n_places, n_places + len(target), dtype=np.int32), len(ends)))
        n_places += len(target)
    known, link = np.unique(np.concatenate(keys), return_inverse=True)
    place, sources = np.concatenate(places), known // vocab_size
    table = np.ones(len(known))
    for _ in range(ROUNDS):
        of_link = table[link]
        share = of_link / np.bincount(place, of_link, n_places)[place]
        expected = np.bincount(link, share, len(known))
        table = expected / np.bincount(sources, expected)[sources]
    return sources, known % vocab_size, table


class ListedCache(Generic[CacheT]):
    """A model's cache, and the list of each row. lists: one for each source, `rows_per_source` rows."""

    def __init__(self, inner: CacheT, lists: Sequence[Int[np.ndarray, " tokens"]], rows_per_source: int):
        self.inner = inner
        self.lists = [tokens for tokens in lists for _ in range(rows_per_source)]
        self.made: Any = None  # what a step makes of the lists
        self.settled = False  # whether it is of these lists; None is of none

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """New row i continues old row `rows[i]`, of the same source and so of the same list."""
        self.inner.reorder(rows)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Drops all rows but these."""
        self.inner.keep(rows)
        self.lists = [self.lists[row] for row in rows.tolist()]
        self.settled = False

    def join(self, other: ListedCache[CacheT]) -> None:
        """Takes in the rows of another cache, with their lists."""
        mine: Any = self.inner
        mine.join(other.inner)
        self.lists = self.lists + other.lists
        self.made, self.settled = None, False

    def in_place_of(self, spent: ListedCache[CacheT]) -> ListedCache[CacheT]:
        """This one, in the memory of the spent one where its kind can."""
        self.inner = reusing(self.inner, spent.inner)
        return self


def masked(
    start: Start[CacheT], step: Step[CacheT], shortlist: Shortlist
) -> tuple[Start[ListedCache[CacheT]], Step[ListedCache[CacheT]]]:
    """The start and step of a model with logits of -inf for what is not in a row's list. No product is spared."""

    def listed_start(
        sources: Sequence[Sequence[int]], rows_per_source: int, capacity: int, /
    ) -> ListedCache[CacheT]:
        lists = [shortlist.of(source) for source in sources]
        return ListedCache(start(sources, rows_per_source, capacity), lists, rows_per_source)

    def listed_step(token_ids: Int[Tensor, "rows 1"], cache: ListedCache[CacheT], /) -> Tensor:
        logits = step(token_ids, cache.inner)
        if not cache.settled:
            banned = np.ones(logits.shape, dtype=bool)
            for row, tokens in zip(banned, cache.lists, strict=True):
                row[tokens] = False
            cache.made = torch.from_numpy(banned).to(logits.device)
            cache.settled = True
        return logits.masked_fill(cache.made, -torch.inf)

    return listed_start, listed_step
