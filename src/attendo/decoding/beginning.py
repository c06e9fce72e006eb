"""Texts that begin with several ids that are not searched for: a language's id behind the start, and the like."""

from collections.abc import Sequence

import torch

from attendo.decoding.step import CacheT, Start, Step


def begun(
    start: Start[CacheT], step: Step[CacheT], begin: Sequence[int], device: torch.device | str = "cpu"
) -> Start[CacheT]:
    """A start whose rows have read all of these ids but the last, with which a search begins as ever; itself for one.

    The capacity is still what is fed to a row by the search.
    """
    if len(begin) == 1:
        return start

    def started(sources: Sequence[Sequence[int]], rows_per_source: int, capacity: int, /) -> CacheT:
        cache = start(sources, rows_per_source, capacity + len(begin) - 1)
        rows = len(sources) * rows_per_source
        for token in begin[:-1]:
            step(torch.full((rows, 1), token, device=device), cache)
        return cache

    return started
