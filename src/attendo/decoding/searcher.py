"""Decoding many sources on one model: whole batches, streaming, sampling, and sources that join later."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attendo.decoding.beam import BeamSearch, TopKFn, best_tokens, length_norm, log_probs_of
from attendo.decoding.constraints import Constraints
from attendo.decoding.options import DecodingConfig, SpecialIds
from attendo.decoding.protocols import AttendingStep, Hypothesis, Start, Step, TokenRows
from attendo.decoding.sampling import SampledToken, Sampling, SamplingConfig
from attendo.decoding.trace import SearchTrace, TraceRecorder
from attendo.errors import AttendoError

if TYPE_CHECKING:
    from attendo.decoding.native.compiled import Change

SIDE_BY_SIDE = 8
"""Sources streamed together: 16 sentences take a third of the time that one by one takes, and the first hardly more."""

Found = tuple[int, tuple[int, ...], bool]
"""The number of a source, its next tokens, perhaps none, and whether its text ends with them."""


CPU = torch.device("cpu")


def _no_forced(sources: TokenRows, tgt: Tensor) -> Tensor:
    raise AttendoError("this backend only searches; it cannot score given texts")


@dataclass(frozen=True)
class SearchBackend:
    """The functions of a model that a search calls.

    Attributes:
        start: Reads sources and returns the cache.
        step: Feeds one token per row and returns the logits of the next token.
        forced: Maps sources and target ids `[sources, n]`, the first the BOS id, to the logits `[sources, n, vocab]`
            after each id. If the model is compiled, the logits are bit-identical to those of a search.
        top_k_fn: `best_tokens`, or an equivalent for the logits of this backend.
        chosen: Returns the log-probability of given tokens from logits.
        attending: Replaces `step` in a search with a coverage penalty.
        device: The device of the tensors of `step`.
        why: The reason why the model is not compiled, in one line; None if it is.
        changed: Returns the same backend with other layers; None unless it is compiled and has no shortlist.
    """

    start: Start
    step: Step
    forced: Callable[[TokenRows, Tensor], Tensor] = _no_forced
    top_k_fn: TopKFn = best_tokens
    chosen: Callable[[Tensor, Tensor], Tensor] = log_probs_of
    attending: AttendingStep | None = None
    device: torch.device = CPU
    why: str | None = None
    changed: Callable[[Mapping[str, Change]], SearchBackend] | None = None

    def with_decoder_prefix(self, begin: Sequence[int]) -> SearchBackend:
        """Return the same backend for texts that begin with given ids, of which a search sees only the last.

        Args:
            begin: The token ids.
        """
        if len(begin) == 1:
            return self

        def start(sources: TokenRows, rows_per_source: int, capacity: int, /) -> Any:
            cache = self.start(sources, rows_per_source, capacity + len(begin) - 1)
            rows = len(sources) * rows_per_source
            for token in begin[:-1]:
                self.step(torch.full((rows, 1), token, device=self.device), cache)
            return cache

        return replace(self, start=start)


@dataclass(frozen=True)
class Searcher:
    """Beam search and sampling on one model, with `start` and `step` called under `torch.inference_mode`.

    Sources are rows of token ids as the model reads them. `prefixes` are the token ids that the text of each source
    begins with. Switch the model to evaluation mode first. Every method raises AttendoError before it searches if a
    prefix fills its text, or if the numbers of prefixes and sources differ.

    Attributes:
        backend: The model.
        special_ids: The first id, the end id, and the ids that are never generated.
        capacity: The maximum number of tokens per text that the model can hold.
    """

    backend: SearchBackend
    special_ids: SpecialIds
    capacity: int

    def search(
        self, sources: TokenRows, config: DecodingConfig, prefixes: TokenRows | None = None
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of every source, in the order of the sources.

        Args:
            sources: Token ids of each source.
            config: The search settings.
            prefixes: The tokens that each text begins with.
        """
        results: list[list[Hypothesis]] = [[] for _ in sources]
        for number, hypotheses in self.search_as_found(sources, config, prefixes):
            results[number] = hypotheses
        return results

    def search_as_found(
        self, sources: TokenRows, config: DecodingConfig, prefixes: TokenRows | None = None
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield the number and the hypotheses of each source as batches finish, longest sources first.

        Args:
            sources: Token ids of each source.
            config: The search settings.
            prefixes: The tokens that each text begins with.
        """
        self._check_prefixes(sources, prefixes, config)
        for numbers in source_batches([len(source) for source in sources], config):
            rows = [sources[number] for number in numbers]
            limits = self._limits(rows, config)
            starts = None if prefixes is None else [prefixes[number] for number in numbers]
            with torch.inference_mode():  # closed before the yield: it must not leak into the caller's code
                found = self._begun(rows, config, limits, starts, attending=self.backend.attending).to_end()
            yield from zip(numbers, found, strict=True)

    def traced(
        self,
        source: Sequence[int],
        config: DecodingConfig,
        prefix: Sequence[int] = (),
        n_passed_over: int = 0,
    ) -> tuple[list[Hypothesis], SearchTrace]:
        """Return the hypotheses of one source and all candidates that the search kept.

        Args:
            source: Token ids of the source.
            config: The search settings.
            prefix: The tokens that the text begins with.
            n_passed_over: The number of dropped candidates to record per step.
        """
        [limit] = self._limits([source], config)
        starts = [prefix[: limit - 1]] if prefix else None
        recorder = TraceRecorder(1, n_passed_over)
        attending = self.backend.attending
        with torch.inference_mode():
            search = self._begun([source], config, [limit], starts, attending=attending, recorder=recorder)
            [found] = search.to_end()
        [trace] = recorder.traces()
        return found, trace

    def stream(
        self, sources: TokenRows, config: DecodingConfig, prefixes: TokenRows | None = None
    ) -> Iterator[Found]:
        """Yield the next tokens of each source as a greedy search finds them, in the order of the sources.

        The coverage penalty is ignored, because it only ranks alternatives.

        Args:
            sources: Token ids of each source.
            config: The search settings, used with a beam of 1.
            prefixes: The tokens that each text begins with.
        """
        config = replace(config, beam=1, n_best=1, beam_groups=1, coverage_penalty=0.0)
        limits = self._limits(sources, config)
        if prefixes is not None:
            Constraints(
                limits, self.special_ids, prefixes=prefixes
            )  # rejects what cannot begin a text, at once
        return self._streamed(sources, config, limits, prefixes)

    def _streamed(
        self, sources: TokenRows, config: DecodingConfig, limits: list[int], prefixes: TokenRows | None
    ) -> Iterator[Found]:
        for first in range(0, len(sources), SIDE_BY_SIDE):
            part = slice(first, first + SIDE_BY_SIDE)
            with torch.inference_mode():
                starts = None if prefixes is None else prefixes[part]
                search = self._begun(sources[part], config, limits[part], starts)
            for number, tokens, ends in _tokens(search):
                yield first + number, tokens, ends

    def sample(
        self,
        sources: TokenRows,
        configs: Sequence[SamplingConfig],
        search: DecodingConfig,
        prefixes: TokenRows | None = None,
    ) -> list[Hypothesis]:
        """Draw one text per source; a result depends only on its own source, config and seed.

        Args:
            sources: Token ids of each source.
            configs: One config per source; `max_tokens` can lower the limit of `search`.
            search: The length limit, the length norm and the batch size.
            prefixes: The tokens that each text begins with. They count as drawn, so the continuation equals that of a
                text in which they were drawn.

        Returns:
            One hypothesis per source, in order.

        Raises:
            AttendoError: A prefix fills its text, or as `Sampler.draw`.
        """
        starts = [()] * len(sources) if prefixes is None else prefixes
        limits = self._limits(sources, search)
        Constraints(limits, self.special_ids, prefixes=starts)  # rejects what cannot begin a text
        limited = [
            replace(config, max_tokens=min(config.max_tokens, limit))
            for config, limit in zip(configs, limits, strict=True)
        ]
        alone = replace(search, beam=1, n_best=1, beam_groups=1)
        found: list[list[SampledToken]] = [[] for _ in sources]
        for length in sorted({len(prefix) for prefix in starts}):  # prefixes of one length are read in step
            alike = [number for number, prefix in enumerate(starts) if len(prefix) == length]
            for places in source_batches([len(sources[number]) for number in alike], alone):
                numbers = [alike[place] for place in places]
                batch = self._drawn(
                    [sources[number] for number in numbers],
                    [limited[number] for number in numbers],
                    [[self.special_ids.bos_id, *starts[number]] for number in numbers],
                )
                for number, tokens in zip(numbers, batch, strict=True):
                    found[number] = tokens
        return [_hypothesis(tokens, search, self.special_ids) for tokens in found]

    def _drawn(
        self, sources: TokenRows, configs: Sequence[SamplingConfig], prompts: TokenRows
    ) -> list[list[SampledToken]]:
        """The tokens of each text, those of its prefix included; all prompts have one length."""
        model = self.backend
        found: list[list[SampledToken]] = [[] for _ in sources]
        n_drawn = len(prompts[0]) - 1
        ids = torch.tensor(prompts, device=model.device)
        with torch.inference_mode():
            room = max(n_drawn, *(config.max_tokens for config in configs), 1)
            cache = model.start(sources, 1, room)
            for place in range(n_drawn):
                logits = model.step(ids[:, place : place + 1], cache)
                log_probs = log_probs_of(logits, ids[:, place + 1]).tolist()
                for text, prompt, log_prob in zip(found, prompts, log_probs, strict=True):
                    text.append(SampledToken(prompt[place + 1], log_prob))
        drawn_before = [n_drawn] * len(prompts)
        sampling = Sampling(model.step, cache, prompts, configs, self.special_ids, model.device, drawn_before)
        while sampling.going_on:
            for number, token in sampling.advance():
                found[number].append(token)
        return found

    def continuous(self, config: DecodingConfig) -> ContinuousSearch:
        """Return a search that accepts new sources while others are decoded, with the results of `search`.

        Args:
            config: The search settings.
        """
        return ContinuousSearch(self, config)

    def _begun(
        self,
        sources: TokenRows,
        config: DecodingConfig,
        limits: list[int],
        prefixes: TokenRows | None,
        *,
        attending: AttendingStep | None = None,
        recorder: TraceRecorder | None = None,
    ) -> BeamSearch:
        model = self.backend
        cache = model.start(sources, config.beam, max(limits))
        return BeamSearch(
            model.step,
            cache,
            limits,
            config,
            self.special_ids,
            model.device,
            prefixes=prefixes,
            attending=attending,
            recorder=recorder,
            top_k_fn=model.top_k_fn,
        )

    def _limits(self, sources: TokenRows, config: DecodingConfig) -> list[int]:
        return [config.max_length(len(source), self.capacity) for source in sources]

    def _check_prefixes(self, sources: TokenRows, prefixes: TokenRows | None, config: DecodingConfig) -> None:
        if prefixes is None:
            return
        if len(prefixes) != len(sources):
            raise AttendoError(
                f"{len(prefixes)} prefixes for {len(sources)} sources (expected one each; empty for none)"
            )
        for source, prefix, limit in zip(sources, prefixes, self._limits(sources, config), strict=True):
            if len(prefix) >= limit:
                remedy = "Shorten it" if limit == self.capacity else "Shorten it, or raise max_length_extra"
                raise AttendoError(
                    f"a prefix has {len(prefix)} tokens, but the translation of a source of {len(source)} "
                    f"tokens may have {limit}, end token included. {remedy}"
                )


class ContinuousSearch:
    """A search that accepts sources at any step; results do not depend on the other sources."""

    def __init__(self, searcher: Searcher, config: DecodingConfig) -> None:
        self.searcher = searcher
        self.config = config
        self._search: BeamSearch | None = None

    @property
    def going_on(self) -> int:
        """The number of sources in progress."""
        return 0 if self._search is None else len(self._search.sources)

    @torch.inference_mode()
    def add(self, sources: TokenRows, prefixes: TokenRows | None = None) -> list[int]:
        """Add sources; return the numbers by which `advance` identifies their hypotheses."""
        if not sources:
            return []
        searcher = self.searcher
        searcher._check_prefixes(sources, prefixes, self.config)
        limits = searcher._limits(sources, self.config)
        if self._search is not None:
            cache = searcher.backend.start(sources, self.config.beam, max(limits))
            return self._search.join(cache, limits, prefixes)
        self._search = searcher._begun(sources, self.config, limits, prefixes)
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
        """The unfinished sources of a greedy search, and the last token of each."""
        return [] if self._search is None else _last_tokens(self._search)


def source_batches(lengths: Sequence[int], config: DecodingConfig) -> list[list[int]]:
    """Group sources into batches of similar length, longest first.

    Padded tokens times the beam are at most `config.batch_tokens`, except for a single longer source.

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


def _tokens(search: BeamSearch) -> Iterator[Found]:
    n_told = 0  # of every text that is not finished: each has one token a step
    while len(search.sources):
        with torch.inference_mode():  # closed before the yield: it must not leak into the caller's code
            ended = search.advance()
        for number, (hypothesis,) in ended:
            yield number, hypothesis.token_ids[n_told:], True
        n_told += 1
        for number, token in _last_tokens(search):
            yield number, (token,), False


def _last_tokens(search: BeamSearch) -> list[tuple[int, int]]:
    tokens = search.tokens[np.arange(len(search.sources)), 0, search.lengths]
    return list(zip(search.sources.tolist(), tokens.tolist(), strict=True))


def _hypothesis(
    tokens: Sequence[SampledToken], search: DecodingConfig, special_ids: SpecialIds
) -> Hypothesis:
    ids = tuple(token.token_id for token in tokens)
    log_probs = tuple(token.log_prob for token in tokens)
    finished = ids[-1:] == (special_ids.eos_id,)
    norm = length_norm(max(1, len(ids)), search.length_penalty, search.length_norm)
    log_prob = math.fsum(log_probs)
    return Hypothesis(ids[:-1] if finished else ids, log_prob, log_prob / norm, log_probs, finished)
