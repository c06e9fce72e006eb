"""Decoding of many sources with one model: batched search, streaming, sampling and continuous batching."""

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
"""Number of sources that are streamed together.

For 16 sentences, this takes a third of the time of streaming one by one, and the first sentence is hardly later."""

Found = tuple[int, tuple[int, ...], bool]
"""The number of a source, its next token ids (possibly none), and whether its text ends with these tokens."""


CPU = torch.device("cpu")


def _no_forced(sources: TokenRows, tgt: Tensor) -> Tensor:
    raise AttendoError("this backend only searches; it cannot score given texts")


@dataclass(frozen=True)
class SearchBackend:
    """The functions by which a search runs a model.

    Attributes:
        start: Function that reads the sources and returns a cache for their rows (`Start` in `protocols.py`).
        step: Function that feeds one token per row and returns the next logits (`Step` in `protocols.py`).
        forced: Function from sources and target ids `[sources, n]` to logits `[sources, n, vocab]`. The first target id
            is the BOS id. If the model is compiled, the logits are bit-identical to those of a search.
        top_k_fn: Function that returns the most probable next tokens: `best_tokens` or an equivalent function.
        chosen: Function that computes the log-probabilities of given tokens from the logits.
        attending: Step function that also returns attention weights, for the coverage penalty (default: None).
        device: Device of the token ids that are passed to `step`.
        why: The reason why the model is not compiled, in one line (default: None).
        changed: Function that returns a copy with changed layers (None: the model is not compiled, or has a shortlist).
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
        """Return a backend whose rows have already read all given token ids except the last.

        A search on this backend feeds the last of these token ids in its first step.

        Args:
            begin: Token ids that the decoder reads before it generates a text.
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
    """Beam search and sampling with one model, under `torch.inference_mode`.

    A source consists of the token ids that the encoder reads. The optional `prefixes` contain the first token ids of
    each output. Switch the model to evaluation mode before a search. Methods with `prefixes` raise AttendoError before
    the search if a prefix reaches its length limit, or if the number of prefixes is wrong.

    Attributes:
        backend: The functions that run the model.
        special_ids: The token ids that begin and end a text, and the token ids that are never generated.
        capacity: Largest number of tokens per text that the model supports.
    """

    backend: SearchBackend
    special_ids: SpecialIds
    capacity: int

    def search(
        self, sources: TokenRows, config: DecodingConfig, prefixes: TokenRows | None = None
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source, in the order of the sources.

        Args:
            sources: Token ids of each source.
            config: Settings of the beam search.
            prefixes: Token ids that each output begins with (default: none).
        """
        results: list[list[Hypothesis]] = [[] for _ in sources]
        for number, hypotheses in self.search_as_found(sources, config, prefixes):
            results[number] = hypotheses
        return results

    def search_as_found(
        self, sources: TokenRows, config: DecodingConfig, prefixes: TokenRows | None = None
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield the number and the hypotheses of each source as soon as its batch is finished.

        The batches with the longest sources are decoded first.

        Args:
            sources: Token ids of each source.
            config: Settings of the beam search.
            prefixes: Token ids that each output begins with (default: none).
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
        """Return the hypotheses of one source, and all candidates that the search kept.

        Args:
            source: Token ids of the source.
            config: Settings of the beam search.
            prefix: Token ids that the output begins with (default: none). A prefix that is too long is truncated.
            n_passed_over: Largest number of dropped candidates to record per step and group (default: 0).
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

    def stream(self, sources: TokenRows, config: DecodingConfig, prefixes: TokenRows | None = None) -> Iterator[Found]:
        """Yield the next output tokens of each source as soon as a greedy search finds them.

        The coverage penalty is ignored, because it only changes the ranking of hypotheses.

        Args:
            sources: Token ids of each source.
            config: Settings of the search. The beam size is always 1.
            prefixes: Token ids that each output begins with (default: none).
        """
        config = replace(config, beam=1, n_best=1, beam_groups=1, coverage_penalty=0.0)
        limits = self._limits(sources, config)
        if prefixes is not None:
            Constraints(
                limits, self.special_ids, prefixes=prefixes
            )  # raises for an invalid prefix, before the first `next`
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
        """Draw one text per source. A text does not depend on the other sources.

        Args:
            sources: Token ids of each source.
            configs: Sampling settings of each source. `max_tokens` can only lower the length limit of `search`.
            search: Search settings, of which the length limit, length normalization and batch size are used.
            prefixes: Token ids that each output begins with, as if they had been drawn (default: none).

        Returns:
            One hypothesis per source, in the order of the sources.

        Raises:
            AttendoError: A prefix reaches its length limit, or the logits leave no token to draw.
        """
        starts = [()] * len(sources) if prefixes is None else prefixes
        limits = self._limits(sources, search)
        Constraints(limits, self.special_ids, prefixes=starts)  # raises for an invalid prefix
        limited = [
            replace(config, max_tokens=min(config.max_tokens, limit))
            for config, limit in zip(configs, limits, strict=True)
        ]
        alone = replace(search, beam=1, n_best=1, beam_groups=1)
        found: list[list[SampledToken]] = [[] for _ in sources]
        for length in sorted({len(prefix) for prefix in starts}):  # prefixes of equal length are fed together
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
        """Return the tokens of each text, including its prefix. All prompts have the same length."""
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
        """Return a search that accepts new sources while earlier sources are decoded.

        The hypotheses of each source equal those of `search`.

        Args:
            config: Settings of the beam search, which apply to all sources.
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
    """A beam search that accepts new sources at any step. The result of a source does not depend on other sources."""

    def __init__(self, searcher: Searcher, config: DecodingConfig) -> None:
        self.searcher = searcher
        self.config = config
        self._search: BeamSearch | None = None

    @property
    def going_on(self) -> int:
        """The number of unfinished sources."""
        return 0 if self._search is None else len(self._search.sources)

    @torch.inference_mode()
    def add(self, sources: TokenRows, prefixes: TokenRows | None = None) -> list[int]:
        """Add sources, and return the numbers by which `advance` identifies these sources."""
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
        """Decode one token of every source, and return the number and the hypotheses of each finished source."""
        return self._search.advance() if self._search is not None and self.going_on else []

    @torch.inference_mode()
    def leave(self, numbers: Collection[int]) -> None:
        """Cancel the sources with the given numbers. The next steps compute nothing for these sources."""
        if self._search is not None:
            self._search.leave(numbers)

    def last_tokens(self) -> list[tuple[int, int]]:
        """Return the number and the last token id of each unfinished source of a greedy search."""
        return [] if self._search is None else _last_tokens(self._search)


def source_batches(lengths: Sequence[int], config: DecodingConfig) -> list[list[int]]:
    """Group sources of similar length into batches, longest first, and return the source numbers of each batch.

    The padded tokens of a batch times the beam size are at most `config.batch_tokens`, except for a single long source.

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
    n_told = 0  # tokens of every unfinished text that were yielded: one token per step
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


def _hypothesis(tokens: Sequence[SampledToken], search: DecodingConfig, special_ids: SpecialIds) -> Hypothesis:
    ids = tuple(token.token_id for token in tokens)
    log_probs = tuple(token.log_prob for token in tokens)
    finished = ids[-1:] == (special_ids.eos_id,)
    norm = length_norm(max(1, len(ids)), search.length_penalty, search.length_norm)
    log_prob = math.fsum(log_probs)
    return Hypothesis(ids[:-1] if finished else ids, log_prob, log_prob / norm, log_probs, finished)
