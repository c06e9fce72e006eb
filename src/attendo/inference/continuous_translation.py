"""Continuous batching of translations. Requests can be added and canceled between any two steps."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from attendo.decoding.options import DecodingConfig
from attendo.decoding.protocols import Hypothesis
from attendo.decoding.searcher import ContinuousSearch
from attendo.errors import AttendoError
from attendo.inference.alignment import where_tokens_look
from attendo.inference.incremental_decode import TextAsFound
from attendo.inference.translations import Loop, Sources, Translation, is_looping, without_repetition
from attendo.inference.translator import Translator

COMPANY = 8
PATIENCE = 3
"""New parts start when they are an eighth of the running parts, or after three steps. Joint starts cost less."""


@dataclass(frozen=True)
class TranslationJob:
    """The texts and options of a translation request, as in `Translator.translate_sources`.

    With `stream`, the translation is returned in pieces during the search (only for greedy search of one text).
    """

    sources: Sources
    config: DecodingConfig
    guard: bool = True
    alignments: bool = False
    stream: bool = False


@dataclass(frozen=True)
class Translated:
    """An update of a request: a new piece of a streamed translation, or all translations of the request."""

    number: int
    piece: str = ""
    translations: tuple[Translation, ...] | None = None


@dataclass(eq=False)
class _Request:
    number: int
    wanted: TranslationJob
    found: list[tuple[list[Hypothesis], Loop] | None]
    text: TextAsFound | None
    begins: Callable[[], None] | None = None
    next: int = 0  # the first part whose search has not started
    n_told: list[int] = field(default_factory=list)  # number of streamed tokens of each part

    @property
    def going_on(self) -> bool:
        return any(part is None for part in self.found)


@dataclass(frozen=True)
class _Part:
    request: _Request
    place: int
    first: list[Hypothesis] | None = None  # the looping result, if the part is decoded again


class _SearchQueue:
    """The running and waiting parts of all requests with equal search settings."""

    def __init__(self, search: ContinuousSearch) -> None:
        self.search = search
        self.waiting: deque[_Request] = deque()
        self.again: deque[_Part] = deque()
        self.parts: dict[int, _Part] = {}
        self._waited = 0  # steps

    @property
    def busy(self) -> bool:
        return bool(self.parts or self.waiting or self.again)

    def take(self, n: int) -> None:
        """Start searches for at most n parts. Requests take turns, so short requests do not wait for long requests."""
        n_waiting = len(self.again) + sum(len(request.found) - request.next for request in self.waiting)
        # encoding new parts delays all running parts, so a few new parts wait briefly for more
        if 0 < COMPANY * n_waiting < len(self.parts) and self._waited < PATIENCE:
            self._waited += 1
            return
        self._waited = 0
        new: list[_Part] = []
        while len(new) < n and (self.again or self.waiting):
            # parts that are decoded again come first: the rest of their request is done
            if self.again:
                new.append(self.again.popleft())
                continue
            request = self.waiting.popleft()
            if request.begins is not None and not request.next:
                request.begins()
            new.append(_Part(request, request.next))
            request.next += 1
            if request.next < len(request.found):
                self.waiting.append(request)  # at the end: requests take turns
        if not new:
            return
        sources = [(part.request.wanted.sources, part.place) for part in new]
        starts = [[] if these.starts is None else these.starts[place] for these, place in sources]
        rows = [these.rows[place] for these, place in sources]
        numbers = self.search.add(rows, starts if any(starts) else None)
        self.parts |= zip(numbers, new, strict=True)

    def leave(self, request: _Request) -> None:
        """Cancel all running and waiting parts of a request."""
        gone = [number for number, part in self.parts.items() if part.request is request]
        self.search.leave(gone)
        for number in gone:
            del self.parts[number]
        self.waiting = deque(other for other in self.waiting if other is not request)
        self.again = deque(part for part in self.again if part.request is not request)


class Translating:
    """Running translation requests. Each result equals that of `Translator.translate`, independent of other requests.

    For equal search settings, at most `rows` hypotheses are decoded at a time, but always at least one text. Further
    texts wait in a queue. A coverage penalty is not supported.
    """

    def __init__(self, translator: Translator, rows: int = 128) -> None:
        self.translator = translator
        self.rows = rows
        self._queues: dict[DecodingConfig, _SearchQueue] = {}
        self._rested: DecodingConfig | None = None  # settings of the queue that became idle last
        self._requests: dict[int, _Request] = {}
        self._n_known = 0

    @property
    def going_on(self) -> int:
        """The number of unfinished requests."""
        return len(self._requests)

    def add(self, wanted: TranslationJob, begins: Callable[[], None] | None = None) -> int:
        """Add a request and return its number. `begins` is called once, when the search for the request starts.

        Raises AttendoError for a coverage penalty, and for a stream of several texts or with a beam size above 1.
        """
        sources = wanted.sources
        config = wanted.config
        if config.coverage_penalty:
            raise AttendoError(
                "a search with a coverage penalty cannot accept texts while it runs. Set the penalty to 0"
            )
        if wanted.stream and (config.beam > 1 or len(sources.texts) != 1):
            raise AttendoError("streaming supports only the greedy translation of one text. Use beam 1 and one text")
        text = TextAsFound(sources.texts[0], self.translator.tokenizer) if wanted.stream else None
        n_parts = len(sources.rows)
        request = _Request(self._n_known, wanted, [None] * n_parts, text, begins, n_told=[0] * n_parts)
        self._n_known += 1
        self._requests[request.number] = request
        if n_parts:
            self._queue(config).waiting.append(request)
        return request.number

    def advance(self) -> list[Translated]:
        """Run one step of all searches, and return the new pieces of streams and the finished requests."""
        news = []
        for config, queue in list(self._queues.items()):
            if queue.busy:
                news += self._advance(config, queue)
            if not queue.busy and config in self._queues:
                self._rest(config)
        whole = [request for request in self._requests.values() if not request.going_on]
        return news + [Translated(request.number, translations=self._whole(request)) for request in whole]

    def leave(self, numbers: Collection[int]) -> None:
        """Cancel the requests with the given numbers. The next steps compute nothing for these requests."""
        for number in numbers:
            if request := self._requests.pop(number, None):
                for queue in self._queues.values():
                    queue.leave(request)

    def _queue(self, config: DecodingConfig) -> _SearchQueue:
        if config not in self._queues:
            self._queues[config] = _SearchQueue(self.translator.continuous(config))
        return self._queues[config]

    def _advance(self, config: DecodingConfig, queue: _SearchQueue) -> list[Translated]:
        news = []
        # at least one text, even if its beam alone exceeds the rows
        queue.take(max(int(not queue.parts), self.rows // config.beam - len(queue.parts)))
        for number, hypotheses in queue.search.advance():
            news += self._found(queue.parts.pop(number), hypotheses)
        return news + self._told(queue) if config.beam == 1 else news

    def _rest(self, config: DecodingConfig) -> None:
        """Keep only the queue that became idle last, whose memory is reused for the next texts."""
        last = self._rested
        self._rested = config
        if last not in (None, config) and not self._queues[last].busy:
            del self._queues[last]

    def _found(self, part: _Part, hypotheses: list[Hypothesis]) -> list[Translated]:
        """Record the result of a part, or queue a looping part again. Return the new text of a stream."""
        request = part.request
        wanted = part.request.wanted
        runs = wanted.guard and is_looping(wanted.sources.rows[part.place], hypotheses[0])
        # a looping part is decoded again without repetition; if it loops again, the first result is used
        if part.first is not None:
            request.found[part.place] = (part.first, "left") if runs else (hypotheses, "mended")
        elif not runs:
            request.found[part.place] = hypotheses, "none"
        elif (strict := without_repetition(wanted.config, self.translator.tokenizer.kind)) is None:
            request.found[part.place] = hypotheses, "left"
        else:
            self._queue(strict).again.append(dataclasses.replace(part, first=hypotheses))
        if request.text is None:
            return []
        new = hypotheses[0].token_ids[request.n_told[part.place] :]
        piece = request.text.add(part.place, new, ends=True)
        return [Translated(request.number, piece)] if piece else []

    def _told(self, queue: _SearchQueue) -> list[Translated]:
        """Return the new pieces of unfinished streams."""
        news = []
        for number, token in queue.search.last_tokens():
            part = queue.parts[number]
            if part.request.text is not None:
                part.request.n_told[part.place] += 1
                piece = part.request.text.add(part.place, (token,), ends=False)
                news += [Translated(part.request.number, piece)] if piece else []
        return news

    def _whole(self, request: _Request) -> tuple[Translation, ...]:
        del self._requests[request.number]
        wanted = request.wanted
        tokenizer = self.translator.tokenizer
        looks = None
        found = [part for part in request.found if part is not None]
        if wanted.alignments:
            targets = [[hypothesis.token_ids for hypothesis in hypotheses] for hypotheses, _ in found]
            model = self.translator.model
            budget = wanted.config.batch_tokens
            looks = where_tokens_look([model], tokenizer, wanted.sources.rows, targets, budget)
        return tuple(wanted.sources.translations(found, tokenizer, wanted.config.n_best, looks))
