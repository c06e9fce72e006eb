"""The engine: one thread per model that runs the jobs of all requests, and functions that wait for their results."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from attendo.decoding.sampling import SampledToken
from attendo.inference import Generator, Translator
from attendo.inference.continuous_translation import Translated, Translating, TranslationJob
from attendo.inference.generation import Written, WrittenText

PASS_CHARACTERS = 20_000
"""The maximum number of characters in a batch of a forward job. A single text may have more."""


@dataclass(frozen=True)
class Piece:
    """An event: a new piece of the text with number `text`, and the sampled token, if there is one."""

    text: int
    piece: str
    token: SampledToken | None = None


@dataclass(frozen=True)
class Done:
    """The last event of a job: one result per text, and the seconds (`queued`) before the first text was started."""

    results: Sequence[Any]
    queued: float = 0.0


@dataclass(frozen=True)
class Failed:
    """The last event of a failed job, with the error."""

    error: Exception


JobEvent = Piece | Done | Failed


@dataclass(frozen=True)
class GenerationJob:
    """A job that generates texts with a language model."""

    texts: Sequence[WrittenText]


@dataclass(frozen=True)
class ForwardJob:
    """A job that maps items to results with a function.

    Items with equal `kind` share batches. `size` returns the characters of an item and limits the batch.
    """

    kind: Hashable
    texts: Sequence[Any]
    run: Callable[[Sequence[Any]], Sequence[Any]]
    size: Callable[[Any], int] = len


Work = TranslationJob | GenerationJob | ForwardJob


class DeadlineExceeded(Exception):
    """The deadline of a job has passed."""


class ClientGone(Exception):
    """The client disconnected before the response."""


class EngineStopped(Exception):
    """The engine accepts no more jobs, because its model was reloaded or the server shuts down."""


@dataclass(eq=False)
class Job:
    """A job of an engine. `tell` receives its events in the engine's thread, with pieces of text if `stream` is true.

    `deadline`, `came` (the submission) and `began` (the start of the first text) are values of `time.monotonic`.
    """

    work: Work
    tell: Callable[[JobEvent], None]
    deadline: float = math.inf
    stream: bool = True
    cancelled: bool = False
    came: float = field(default_factory=time.monotonic)
    began: float | None = None
    _results: dict[int, Any] = field(default_factory=dict, repr=False)

    def begin(self) -> None:
        """Store the start time when the first text of the job is started."""
        self.began = time.monotonic() if self.began is None else self.began

    def done(self, results: Sequence[Any]) -> Done:
        """Return the last event of the job, with the results of its texts."""
        return Done(results, 0.0 if self.began is None else self.began - self.came)

    def add(self, number: int, result: Any, n_texts: int) -> list[tuple[Job, JobEvent]]:
        """Store the result of a text. Return the last event of the job if all texts have results."""
        self._results[number] = result
        if len(self._results) < n_texts:
            return []
        return [(self, self.done([self._results[place] for place in range(n_texts)]))]


@dataclass
class Counts:
    """The counters of an engine: the number of steps, the texts or beams in all steps, and the seconds of all steps."""

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0


class _Translations:
    """Runs translation jobs."""

    def __init__(self, translator: Translator, rows: int) -> None:
        self.translating = Translating(translator, rows)
        self.jobs: dict[int, Job] = {}

    @property
    def going_on(self) -> int:
        return len(self.jobs)

    def take(self, job: Job) -> None:
        assert isinstance(job.work, TranslationJob)
        self.jobs[self.translating.add(job.work, job.begin)] = job

    def advance(self) -> list[tuple[Job, JobEvent]]:
        return [self._event_of(step) for step in self.translating.advance()]

    def _event_of(self, step: Translated) -> tuple[Job, JobEvent]:
        if step.translations is None:
            return self.jobs[step.number], Piece(0, step.piece)
        job = self.jobs.pop(step.number)
        return job, job.done(step.translations)

    def leave(self, job: Job) -> None:
        for number in [number for number, other in self.jobs.items() if other is job]:
            del self.jobs[number]
            self.translating.leave([number])


class _Queue:
    """The texts of jobs that were not started yet, with their jobs and their numbers in the jobs."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Job, Any, int]] = []

    @property
    def going_on(self) -> int:
        return len(self.waiting)

    def take(self, job: Job) -> None:
        assert not isinstance(job.work, TranslationJob)
        self.waiting += [(job, job.work, number) for number in range(len(job.work.texts))]

    def leave(self, job: Job) -> None:
        self.waiting = [place for place in self.waiting if place[0] is not job]

    def begin(self, n: int) -> list[tuple[Job, Any, int]]:
        """Remove the first n texts, and return them."""
        begun, self.waiting = self.waiting[:n], self.waiting[n:]
        for job, _, _ in begun:
            job.begin()
        return begun


class _Generations(_Queue):
    """Runs generation jobs."""

    def __init__(self, generator: Generator, rows: int) -> None:
        super().__init__()
        self.writing = generator.writing()
        self.rows = rows
        self.places: dict[int, tuple[Job, GenerationJob, int]] = {}

    @property
    def going_on(self) -> int:
        return len(self.places) + len(self.waiting)

    def advance(self) -> list[tuple[Job, JobEvent]]:
        if new := self.begin(self.rows - self.writing.going_on):
            texts = [work.texts[number] for _, work, number in new]
            self.places |= zip(self.writing.add(texts), new, strict=True)
        return [event for step in self.writing.advance() for event in self._events_of(step)]

    def _events_of(self, step: Written) -> list[tuple[Job, JobEvent]]:
        job, work, number = self.places[step.number]
        events: list[tuple[Job, JobEvent]] = []
        if step.piece or step.token is not None:
            events.append((job, Piece(number, step.piece, step.token)))
        if step.generation is not None:
            del self.places[step.number]
            events += job.add(number, step.generation, len(work.texts))
        return events

    def leave(self, job: Job) -> None:
        super().leave(job)
        gone = [number for number, place in self.places.items() if place[0] is job]
        self.writing.leave(gone)
        for number in gone:
            del self.places[number]


class _Forwards(_Queue):
    """Runs forward jobs."""

    def advance(self) -> list[tuple[Job, JobEvent]]:
        if not self.waiting:
            return []
        first: ForwardJob = self.waiting[0][1]
        room, n = PASS_CHARACTERS, 0
        for _, work, number in self.waiting:
            length = work.size(work.texts[number])
            if work.kind != first.kind or (n and length > room):
                break
            room -= length
            n += 1
        now = self.begin(n)
        try:
            found = first.run([work.texts[number] for _, work, number in now])
        except Exception as error:  # noqa: BLE001  (other waiting jobs continue)
            struck = {id(job): job for job, _, _ in now}
            for job in struck.values():
                self.leave(job)
            return [(job, Failed(error)) for job in struck.values()]
        return [
            event
            for (job, work, number), result in zip(now, found, strict=True)
            for event in job.add(number, result, len(work.texts))
        ]


_Worker = _Translations | _Generations | _Forwards


class Engine:
    """The thread that runs all computations of a model. Other threads call `submit` and `cancel`.

    A step processes at most `rows` texts or beams. Further texts wait in order. The results of a job do not depend on
    other jobs. An error ends only the affected jobs.
    """

    def __init__(self, user: Any, rows: int = 128, name: str = "") -> None:
        self.user = user
        self.rows = rows
        self.counts = Counts()
        self._wake = threading.Condition()
        self._new: list[Job] = []
        self._jobs: dict[int, Job] = {}
        self._stopping = False
        self._workers: dict[type, _Worker] = {}
        self._thread = threading.Thread(target=self._run, name=f"engine {name}", daemon=True)
        self._thread.start()

    @property
    def going_on(self) -> int:
        """The number of unfinished jobs."""
        return len(self._jobs) + len(self._new)

    def submit(self, job: Job) -> None:
        """Add a job with at least one text. The last event of the job is Done or Failed.

        Raise EngineStopped if the engine was stopped.
        """
        with self._wake:
            if self._stopping:
                raise EngineStopped
            self._new.append(job)
            self._wake.notify()

    def cancel(self, job: Job) -> None:
        """Cancel a job before the next step. The job receives no further events."""
        with self._wake:
            job.cancelled = True
            self._wake.notify()

    def stop(self) -> None:
        """Stop the engine: its thread ends when all jobs are finished."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread of the engine has ended, for at most `timeout` seconds."""
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
                if not job.cancelled:
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
            if kind is ForwardJob:
                self._workers[kind] = _Forwards()
            else:
                worker = _Translations if kind is TranslationJob else _Generations
                self._workers[kind] = worker(self.user, self.rows)
        return self._workers[kind]

    def _advance(self, kind: type) -> None:
        worker = self._workers[kind]
        if not worker.going_on:
            return
        rows = worker.going_on
        began = time.perf_counter()
        try:
            news = worker.advance()
        except Exception as error:  # noqa: BLE001  (the next job creates a new worker)
            del self._workers[kind]
            news = [(job, Failed(error)) for job in self._jobs.values() if type(job.work) is kind]
        self.counts.steps += 1
        self.counts.rows += rows
        self.counts.seconds += time.perf_counter() - began
        for job, event in news:
            if not isinstance(event, Piece):
                self._end(job, event)
            elif job.stream:
                job.tell(event)

    def _let_go(self) -> None:
        """End the jobs that were canceled or whose deadline has passed."""
        now = time.monotonic()
        for job in list(self._jobs.values()):
            if job.cancelled or job.deadline < now:
                if type(job.work) in self._workers:
                    self._workers[type(job.work)].leave(job)
                self._end(job, None if job.cancelled else Failed(DeadlineExceeded()))

    def _end(self, job: Job, news: JobEvent | None) -> None:
        self._jobs.pop(id(job), None)
        if news is not None:
            job.tell(news)


@asynccontextmanager
async def call(
    engine: Engine, entered: AbstractContextManager[None], work: Work, seconds: float, *, stream: bool = True
) -> AsyncIterator[AsyncIterator[JobEvent]]:
    """Submit a job and yield an iterator over its events. An unfinished job is canceled when the context ends.

    `entered` is the context of `Admission.entered`, whose errors are raised. After `seconds` seconds, DeadlineExceeded
    is raised. If the job fails, its error is raised.
    """
    loop = asyncio.get_running_loop()
    events = asyncio.Queue[JobEvent]()
    over = False

    def tell(event: JobEvent) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(events.put_nowait, event)

    async def coming() -> AsyncIterator[JobEvent]:
        nonlocal over
        while not over:
            event = await events.get()
            over = not isinstance(event, Piece)
            if isinstance(event, Failed):
                raise event.error
            yield event

    with entered:
        job = Job(work, tell, time.monotonic() + seconds, stream)
        engine.submit(job)
        try:
            yield coming()
        finally:
            if not over:
                engine.cancel(job)


async def results(
    engine: Engine,
    entered: AbstractContextManager[None],
    work: Work,
    seconds: float,
    gone: Callable[[], Awaitable[None]],
) -> Done:
    """Run a job and return all its results. Raise the same errors as `call`, and ClientGone when `gone` returns."""
    async with call(engine, entered, work, seconds, stream=False) as events:
        event = asyncio.ensure_future(anext(events))
        try:
            await event_or_gone(event, gone)
            done = event.result()
            assert isinstance(done, Done)
            return done
        finally:
            event.cancel()


async def event_or_gone(
    event: asyncio.Future[JobEvent], gone: Callable[[], Awaitable[None]], seconds: float | None = None
) -> None:
    """Wait for an event, for at most `seconds` seconds. Raise ClientGone if `gone` returns first."""
    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({event, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            raise ClientGone
    finally:
        leaving.cancel()
