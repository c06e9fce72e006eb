"""Decode many sources: longest first, in batches of a token budget, handed back in the order they came."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attendo.decoding.beam import AttendingStep, BeamSearch, beam_search
from attendo.decoding.candidates import BestTokens, best_tokens
from attendo.decoding.constraints import Constraints
from attendo.decoding.options import DecodingConfig
from attendo.decoding.step import CacheT, Hypothesis, SpecialIds, Start, Step
from attendo.errors import AttendoError

SIDE_BY_SIDE = 8
"""Sources searched together: 16 sentences take a third of the time that one by one takes, and the first hardly more."""

Found = tuple[int, tuple[int, ...], bool]
"""The number of a source, its next tokens, perhaps none, and whether its text ends with them."""


def greedy_as_found(
    sources: Sequence[Sequence[int]],
    start: Start[CacheT],
    step: Step[CacheT],
    config: DecodingConfig,
    special: SpecialIds,
    capacity: int,
    device: torch.device | str = "cpu",
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    best: BestTokens = best_tokens,
) -> Iterator[Found]:
    """What `decode` finds with a beam of 1, as it finds it: the next tokens of each source, the first sources first.

    The arguments are those of `decode`. A coverage penalty is left out: it ranks texts, and here is one. Raises
    AttendoError for a prefix that fills its text, at once.
    """
    config = replace(config, beam=1, n_best=1, beam_groups=1, coverage_penalty=0.0)
    limits = [config.max_length(len(source), capacity) for source in sources]
    starts = None if prefixes is None else list(prefixes)
    Constraints(limits, special, prefixes=starts)  # refuses what cannot begin a text

    def searched() -> Iterator[Found]:
        for first in range(0, len(sources), SIDE_BY_SIDE):
            part = slice(first, first + SIDE_BY_SIDE)
            with torch.inference_mode():
                search = BeamSearch(
                    step,
                    start(sources[part], 1, max(limits[part])),
                    limits[part],
                    config,
                    special,
                    torch.device(device),
                    prefixes=None if starts is None else starts[part],
                    best=best,
                )
            for number, tokens, ends in _tokens(search):
                yield first + number, tokens, ends

    return searched()


def _tokens(search: BeamSearch[CacheT]) -> Iterator[Found]:
    n_told = 0  # of every text that goes on: each has one token a step
    while len(search.sources):
        with torch.inference_mode():  # closed before the yield: it must not leak into the caller's code
            ended = search.advance()
        for number, (hypothesis,) in ended:
            yield number, hypothesis.token_ids[n_told:], True
        n_told += 1
        for number, token in last_tokens(search):
            yield number, (token,), False


def last_tokens(search: BeamSearch[Any]) -> list[tuple[int, int]]:
    """The sources that a greedy search is going on with, and the last token of each."""
    tokens = search.tokens[np.arange(len(search.sources)), 0, search.lengths]
    return list(zip(search.sources.tolist(), tokens.tolist(), strict=True))


def source_batches(lengths: Sequence[int], config: DecodingConfig) -> list[list[int]]:
    """Which sources are decoded together: their numbers, longest source first, every number once.

    The padded tokens of a batch times the beam are at most `config.batch_tokens`, except where one
    source alone has more. Similar lengths come together, so little is padded and rows end together.

    >>> source_batches([2, 5, 5, 1], DecodingConfig(beam=1, batch_tokens=10))
    [[1, 2], [0, 3]]
    """
    batches: list[list[int]] = []
    room = 0
    for number in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if room == 0:
            batches.append([])
            room = max(1, config.batch_tokens // (config.beam * max(1, lengths[number])))
        batches[-1].append(number)
        room -= 1
    return batches


def decode_as_found(
    sources: Sequence[Sequence[int]],
    start: Start[CacheT],
    step: Step[CacheT],
    config: DecodingConfig,
    special: SpecialIds,
    capacity: int,
    device: torch.device | str = "cpu",
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    attending: AttendingStep[CacheT] | None = None,
    best: BestTokens = best_tokens,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield (number of the source, its hypotheses) as batches are done, longest sources first.

    `sources` are rows of token ids as the model reads them; `capacity` is the most tokens the model can
    hold per text. `start` and `step` are called under `torch.inference_mode`; a model in training
    mode is the caller's to put in evaluation mode. prefixes: the token ids that each source's text begins with.
    attending: takes the place of `step` for the coverage penalty. Raises AttendoError, before anything is
    searched, for a prefix that fills its text, or a number of them that is not that of the sources.
    """
    if prefixes is not None:
        _check_prefixes(sources, prefixes, config, capacity)
    for numbers in source_batches([len(source) for source in sources], config):
        rows = [sources[number] for number in numbers]
        limits = [config.max_length(len(row), capacity) for row in rows]
        with torch.inference_mode():  # closed before the yield: it must not leak into the caller's code
            cache = start(rows, config.beam, max(limits))
            starts = None if prefixes is None else [prefixes[number] for number in numbers]
            found = beam_search(
                step, cache, limits, config, special, device, prefixes=starts, attending=attending, best=best
            )
        yield from zip(numbers, found, strict=True)


def decode(
    sources: Sequence[Sequence[int]],
    start: Start[CacheT],
    step: Step[CacheT],
    config: DecodingConfig,
    special: SpecialIds,
    capacity: int,
    device: torch.device | str = "cpu",
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    attending: AttendingStep[CacheT] | None = None,
    best: BestTokens = best_tokens,
) -> list[list[Hypothesis]]:
    """The hypotheses of every source, in the order of the sources; see `decode_as_found`."""
    results: list[list[Hypothesis]] = [[] for _ in sources]
    arriving = decode_as_found(
        sources,
        start,
        step,
        config,
        special,
        capacity,
        device,
        prefixes=prefixes,
        attending=attending,
        best=best,
    )
    for number, hypotheses in arriving:
        results[number] = hypotheses
    return results


class ContinuousSearch:
    """A search that takes in sources at any step, while others are searched: what a server needs.

    start, step and the rest: as in `decode`; the cache is one that joins. What is found of a source does not depend on
    what else is searched, nor on when it came.
    """

    def __init__(
        self,
        start: Start[Any],
        step: Step[Any],
        config: DecodingConfig,
        special: SpecialIds,
        capacity: int,
        device: torch.device | str = "cpu",
        *,
        best: BestTokens = best_tokens,
    ) -> None:
        self.start, self.step, self.config, self.special = start, step, config, special
        self.capacity, self.device, self.best = capacity, torch.device(device), best
        self._search: BeamSearch[Any] | None = None

    @property
    def going_on(self) -> int:
        """How many sources are being searched."""
        return 0 if self._search is None else len(self._search.sources)

    @torch.inference_mode()
    def add(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None = None
    ) -> list[int]:
        """Take in sources; return the numbers by which `advance` gives their hypotheses back."""
        if not sources:
            return []
        if prefixes is not None:
            _check_prefixes(sources, prefixes, self.config, self.capacity)
        limits = [self.config.max_length(len(source), self.capacity) for source in sources]
        cache = self.start(sources, self.config.beam, max(limits))
        if self._search is not None:
            return self._search.join(cache, limits, prefixes)
        self._search = BeamSearch(
            self.step,
            cache,
            limits,
            self.config,
            self.special,
            self.device,
            prefixes=prefixes,
            best=self.best,
        )
        return list(range(len(sources)))

    @torch.inference_mode()
    def advance(self) -> list[tuple[int, list[Hypothesis]]]:
        """Take one step of all; return (number, hypotheses) of the sources that are done with it."""
        return self._search.advance() if self._search is not None and self.going_on else []

    @torch.inference_mode()
    def leave(self, numbers: Collection[int]) -> None:
        """Give up these sources: from the next step on nothing is computed for them."""
        if self._search is not None:
            self._search.leave(numbers)

    def last_tokens(self) -> list[tuple[int, int]]:
        """The sources that a greedy search is going on with, and the last token of each."""
        return [] if self._search is None else last_tokens(self._search)


def _check_prefixes(
    sources: Sequence[Sequence[int]],
    prefixes: Sequence[Sequence[int]],
    config: DecodingConfig,
    capacity: int,
) -> None:
    if len(prefixes) != len(sources):
        raise AttendoError(
            f"{len(prefixes)} prefixes for {len(sources)} sources; give one for each, an empty one for none"
        )
    for source, prefix in zip(sources, prefixes, strict=True):
        limit = config.max_length(len(source), capacity)
        if len(prefix) >= limit:
            remedy = "shorten it" if limit == capacity else "shorten it, or raise max_length_extra"
            raise AttendoError(
                f"a prefix has {len(prefix)} tokens; with a source of {len(source)} a text may have {limit}, its end"
                f" included: {remedy}"
            )
