"""One thread that owns a model: it takes jobs in between any two steps, and tells their news as they come."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from attendo.decoding.sampling import SampledToken
from attendo.inference import Generator, Translator
from attendo.inference.continuous_translation import Translated, Translating, Wanted
from attendo.inference.generation import Generation, Written, WrittenText

PASS_CHARACTERS = 20_000
"""Of texts that go through a model at once between two steps of a search; one text may have more."""


@dataclass(frozen=True)
class Piece:
    """A piece of a text that may be shown: of text number `text`; token: what was drawn, if anything was."""

    text: int
    piece: str
    token: SampledToken | None = None


@dataclass(frozen=True)
class Done:
    """All that a job asked for, one result for each of its texts. queued: seconds until the first was begun."""

    results: Sequence[Any]
    queued: float = 0.0


@dataclass(frozen=True)
class Failed:
    """Why a job comes to nothing."""

    error: Exception


News = Piece | Done | Failed


@dataclass(frozen=True)
class Writes:
    """Texts that a language model is to write."""

    texts: Sequence[WrittenText]


@dataclass(frozen=True)
class Pass:
    """Items that go through a function once, from items to one result each; those of the same `kind` go together.

    size: the size of an item in characters, which bounds what goes together.
    """

    kind: Hashable
    texts: Sequence[Any]
    run: Callable[[Sequence[Any]], Sequence[Any]]
    size: Callable[[Any], int] = len


class TimeIsUp(Exception):
    """The deadline of a job has passed."""


class Stopped(Exception):
    """The engine takes no more jobs: its model was swapped, or the server ends."""


@dataclass(eq=False)
class Job:
    """Work for an engine.

    tell: takes the news, in the engine's thread. deadline: of `time.monotonic`. stream: pieces are news, too. came,
    began: when it was made, and when the first of its texts was taken up, of the same clock.
    """

    work: Wanted | Writes | Pass
    tell: Callable[[News], None]
    deadline: float = math.inf
    stream: bool = True
    given_up: bool = False
    came: float = field(default_factory=time.monotonic)
    began: float | None = None

    def done(self, results: Sequence[Any]) -> Done:
        """The last news."""
        return Done(results, 0.0 if self.began is None else self.began - self.came)


@dataclass
class Counts:
    """What an engine has done: steps and passes, the rows that took part in them, and the seconds that they took."""

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0


class _Worker(Protocol):
    """What turns jobs of one kind into news."""

    @property
    def going_on(self) -> int: ...
    def take(self, job: Job) -> None: ...
    def advance(self) -> list[tuple[Job, News]]: ...
    def leave(self, job: Job) -> None: ...


@dataclass
class _Translations:
    """Searches for translations."""

    translating: Translating
    jobs: dict[int, Job] = field(default_factory=dict)

    @property
    def going_on(self) -> int:
        return len(self.jobs)

    def take(self, job: Job) -> None:
        assert isinstance(job.work, Wanted)

        def begins() -> None:
            job.began = time.monotonic()

        self.jobs[self.translating.add(job.work, begins)] = job

    def advance(self) -> list[tuple[Job, News]]:
        return [self._told(news) for news in self.translating.advance()]

    def _told(self, news: Translated) -> tuple[Job, News]:
        if news.translations is None:
            return self.jobs[news.number], Piece(0, news.piece)
        job = self.jobs.pop(news.number)
        return job, job.done(news.translations)

    def leave(self, job: Job) -> None:
        for number in [number for number, other in self.jobs.items() if other is job]:
            del self.jobs[number]
            self.translating.leave([number])


@dataclass
class _Texts:
    """Texts of a language model."""

    generator: Generator
    rows: int

    def __post_init__(self) -> None:
        self.writing = self.generator.writing()
        self.waiting: list[tuple[Job, int]] = []
        self.places: dict[int, tuple[Job, int]] = {}
        self.found: dict[int, dict[int, Generation]] = {}  # by job

    @property
    def going_on(self) -> int:
        return len(self.places) + len(self.waiting)

    def take(self, job: Job) -> None:
        assert isinstance(job.work, Writes)
        self.found[id(job)] = {}
        self.waiting += [(job, number) for number in range(len(job.work.texts))]

    def advance(self) -> list[tuple[Job, News]]:
        n = self.rows - self.writing.going_on
        new, self.waiting = self.waiting[:n], self.waiting[n:]
        if new:
            texts = [job.work.texts[number] for job, number in new if isinstance(job.work, Writes)]
            _begin(job for job, _ in new)
            self.places |= zip(self.writing.add(texts), new, strict=True)
        return [news for step in self.writing.advance() for news in self._told(step)]

    def _told(self, step: Written) -> list[tuple[Job, News]]:
        job, number = self.places[step.number]
        told: list[tuple[Job, News]] = []
        if step.piece or step.token is not None:
            told.append((job, Piece(number, step.piece, step.token)))
        if step.generation is not None:
            del self.places[step.number]
            found = self.found[id(job)]
            found[number] = step.generation
            assert isinstance(job.work, Writes)
            if len(found) == len(job.work.texts):
                del self.found[id(job)]
                told.append((job, job.done([found[place] for place in range(len(found))])))
        return told

    def leave(self, job: Job) -> None:
        self.found.pop(id(job), None)
        self.waiting = [place for place in self.waiting if place[0] is not job]
        gone = [number for number, (other, _) in self.places.items() if other is job]
        self.writing.leave(gone)
        for number in gone:
            del self.places[number]


class _Passes:
    """Texts that go through once."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Job, Pass, int]] = []
        self.results: dict[int, list[Any]] = {}

    @property
    def going_on(self) -> int:
        return len(self.waiting)

    def take(self, job: Job) -> None:
        assert isinstance(job.work, Pass)
        self.results[id(job)] = []
        self.waiting += [(job, job.work, number) for number in range(len(job.work.texts))]

    def advance(self) -> list[tuple[Job, News]]:
        if not self.waiting:
            return []
        (_, first, _), room = self.waiting[0], PASS_CHARACTERS
        now: list[tuple[Job, Pass, int]] = []
        for job, work, number in self.waiting:
            length = work.size(work.texts[number])
            if work.kind != first.kind or (now and length > room):
                break
            now.append((job, work, number))
            room -= length
        self.waiting = self.waiting[len(now) :]
        _begin(job for job, _, _ in now)
        try:
            found = first.run([work.texts[number] for _, work, number in now])
        except Exception as error:  # noqa: BLE001  (the others that wait have no part in it)
            struck = {id(job): job for job, _, _ in now}
            for job in struck.values():
                self.leave(job)
            return [(job, Failed(error)) for job in struck.values()]
        told: list[tuple[Job, News]] = []
        for (job, work, _), result in zip(now, found, strict=True):
            results = self.results[id(job)]
            results.append(result)
            if len(results) == len(work.texts):
                told.append((job, job.done(self.results.pop(id(job)))))
        return told

    def leave(self, job: Job) -> None:
        self.results.pop(id(job), None)
        self.waiting = [place for place in self.waiting if place[0] is not job]


def _begin(jobs: Iterable[Job]) -> None:
    now = time.monotonic()
    for job in jobs:
        job.began = now if job.began is None else job.began


class Engine:
    """The only thread that computes with a model. `submit` and `give_up` are for any thread.

    rows: so many texts, or rows of beams, take part in a step at most; others wait in the order they came. What is
    found of a text does not depend on what else is worked on. An error ends the jobs that it struck, and no other
    engine; the thread goes on.
    """

    def __init__(self, user: Any, rows: int = 128, name: str = "") -> None:
        self.user, self.rows, self.counts = user, rows, Counts()
        self._wake = threading.Condition()
        self._new: list[Job] = []
        self._jobs: dict[int, Job] = {}
        self._stopping = False
        self._workers: dict[type, _Worker] = {}
        self._thread = threading.Thread(target=self._run, name=f"engine {name}", daemon=True)
        self._thread.start()

    @property
    def going_on(self) -> int:
        """Jobs that have not come to their end."""
        return len(self._jobs) + len(self._new)

    def submit(self, job: Job) -> None:
        """Takes in a job of one text at least, which gets its news until Done or Failed. Raises Stopped."""
        with self._wake:
            if self._stopping:
                raise Stopped
            self._new.append(job)
            self._wake.notify()

    def give_up(self, job: Job) -> None:
        """From the next step on nothing is computed for the job, and it gets no news."""
        with self._wake:
            job.given_up = True
            self._wake.notify()

    def stop(self) -> None:
        """Ends the thread, once all jobs have come to their end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self, timeout: float | None = None) -> None:
        """Waits for the thread's end."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._new or self._jobs or self._stopping):
                    self._wake.wait()
                if self._stopping and not (self._new or self._jobs):
                    return
                new, self._new = self._new, []
                self._jobs |= {id(job): job for job in new}
            for job in new:
                if not job.given_up:
                    self._take(job)
            self._let_go()
            for kind in list(self._workers):
                self._advance(kind)

    def _take(self, job: Job) -> None:
        try:
            self._worker(job).take(job)
        except Exception as error:  # noqa: BLE001  (one request must not end the engine)
            self._end(job, Failed(error))

    def _worker(self, job: Job) -> _Worker:
        kind = type(job.work)
        if kind not in self._workers:
            if isinstance(job.work, Wanted):
                assert isinstance(self.user, Translator)
                self._workers[kind] = _Translations(Translating(self.user, self.rows))
            elif isinstance(job.work, Writes):
                assert isinstance(self.user, Generator)
                self._workers[kind] = _Texts(self.user, self.rows)
            else:
                self._workers[kind] = _Passes()
        return self._workers[kind]

    def _advance(self, kind: type) -> None:
        worker = self._workers[kind]
        if not worker.going_on:
            return
        rows, began = worker.going_on, time.perf_counter()
        try:
            news = worker.advance()
        except Exception as error:  # noqa: BLE001  (it begins anew with the next job)
            del self._workers[kind]
            news = [(job, Failed(error)) for job in self._jobs.values() if type(job.work) is kind]
        self.counts.steps += 1
        self.counts.rows += rows
        self.counts.seconds += time.perf_counter() - began
        for job, told in news:
            if not isinstance(told, Piece):
                self._end(job, told)
            elif job.stream:
                job.tell(told)

    def _let_go(self) -> None:
        """Ends the jobs that were given up, or whose time is up."""
        now = time.monotonic()
        for job in list(self._jobs.values()):
            if job.given_up or job.deadline < now:
                if type(job.work) in self._workers:
                    self._workers[type(job.work)].leave(job)
                self._end(job, None if job.given_up else Failed(TimeIsUp()))

    def _end(self, job: Job, news: News | None) -> None:
        self._jobs.pop(id(job), None)
        if news is not None:
            job.tell(news)
