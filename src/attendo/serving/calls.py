"""Jobs as the event loop sees them: admitted, told about as they come, and given up when nobody waits any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager

from attendo.serving.engine import Done, Engine, Failed, Job, News, Pass, Piece, Writes
from attendo.tasks.translating import Wanted

Gone = Callable[[], Awaitable[None]]
"""Returns when the client has gone."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


@asynccontextmanager
async def call(
    engine: Engine,
    entered: AbstractContextManager[None],
    work: Wanted | Writes | Pass,
    seconds: float,
    *,
    stream: bool,
) -> AsyncIterator[AsyncIterator[News]]:
    """The news of a job while it is worked on; with `stream` its pieces, too. On leaving it is over, or given up.

    entered: of the admission. Raises what it raises (Full, TooLarge) at once; within it the error that the job failed
    of, TimeIsUp after so many seconds.
    """
    loop, news = asyncio.get_running_loop(), asyncio.Queue[News]()
    over = False

    def tell(told: News) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(news.put_nowait, told)

    async def coming() -> AsyncIterator[News]:
        nonlocal over
        while not over:
            told = await news.get()
            over = not isinstance(told, Piece)
            if isinstance(told, Failed):
                raise told.error
            yield told

    with entered:
        job = Job(work, tell, time.monotonic() + seconds, stream=stream)
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
    async with call(engine, entered, work, seconds, stream=False) as news:
        answer, leaving = asyncio.ensure_future(anext(news)), asyncio.ensure_future(gone())
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientGone
            told = answer.result()
            assert isinstance(told, Done)
            return told
        finally:
            for task in (answer, leaving):
                if not task.done():
                    task.cancel()
