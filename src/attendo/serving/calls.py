"""Jobs as the event loop sees them: admitted, told about as they come, and given up when nobody waits any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager

from attendo.inference.continuous_translation import Wanted
from attendo.serving.engine import Done, Engine, Failed, Job, News, Pass, Piece, Writes

Gone = Callable[[], Awaitable[None]]
"""Returns when the client has gone."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


@asynccontextmanager
async def call(
    engine: Engine, entered: AbstractContextManager[None], work: Wanted | Writes | Pass, seconds: float
) -> AsyncIterator[AsyncIterator[News]]:
    """The news of a job while it is worked on, its pieces, too. On leaving it is over, or given up.

    entered: of the admission. Raises what it raises (Full, TooLarge) at once; within it the error that the job failed
    of, TimeIsUp after so many seconds.
    """
    loop, news = asyncio.get_running_loop(), asyncio.Queue[News]()
    over = False

    async def coming() -> AsyncIterator[News]:
        nonlocal over
        while not over:
            told = await news.get()
            over = not isinstance(told, Piece)
            if isinstance(told, Failed):
                raise told.error
            yield told

    with entered:
        job = Job(work, _from_thread(loop, news.put_nowait), time.monotonic() + seconds)
        engine.submit(job)
        try:
            yield coming()
        finally:
            if not over:
                engine.give_up(job)


async def results(
    engine: Engine,
    entered: AbstractContextManager[None],
    work: Wanted | Writes | Pass,
    seconds: float,
    gone: Gone,
) -> Done:
    """All that a job asked for. Raises as `call`, and ClientGone, at once, when the client has gone."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Done] = loop.create_future()
    over = False

    def ended(told: News) -> None:
        nonlocal over
        over = True
        if isinstance(told, Failed):
            fail(told.error)
        elif not answer.done():
            assert isinstance(told, Done)
            answer.set_result(told)

    def fail(error: Exception) -> None:
        if not answer.done():
            answer.set_exception(error)

    with entered:
        job = Job(work, _from_thread(loop, ended), time.monotonic() + seconds, stream=False)
        engine.submit(job)
        leaving = asyncio.ensure_future(gone())
        leaving.add_done_callback(lambda _: fail(ClientGone()))
        try:
            return await answer
        finally:
            leaving.cancel()
            if not over:
                engine.give_up(job)


def _from_thread(loop: asyncio.AbstractEventLoop, tell: Callable[[News], object]) -> Callable[[News], None]:
    """`tell`, for another thread to call."""

    def told(news: News) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, news)

    return told
