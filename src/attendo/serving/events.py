"""Server-sent events: an answer in pieces, ended when the client goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from attendo.errors import AttendoError
from attendo.serving.calls import ClientGone
from attendo.serving.engine import Done, News, TimeIsUp
from attendo.serving.faults import TOO_LATE

PING_SECONDS = 10.0
"""Of silence after which a comment is sent, so that nobody on the way takes the connection for a dead one."""
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}


def event(value: Any) -> bytes:
    r"""One event.

    >>> event({"a": "雨"})
    b'data: {"a":"\xe9\x9b\xa8"}\n\n'
    """
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + data.encode("utf-8", "replace") + b"\n\n"


class Events(Response):
    """The news of a job as events, and `[DONE]` behind them.

    stack: is left when the answer is over, or the client gone; the job is given up then. told: the events of each news.
    Nothing is sent before the first news or ping, so that a job which fails at once is answered as any error is.
    """

    def __init__(
        self, stack: AsyncExitStack, news: AsyncIterator[News], told: Callable[[News], list[Any]]
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._stack, self._news, self._told = stack, news, told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends them."""
        async with self._stack:
            gone = asyncio.ensure_future(_gone(receive))
            try:
                await self._send(gone, send)
            finally:
                gone.cancel()

    async def _send(self, gone: asyncio.Future[None], send: Send) -> None:
        started = False

        async def out(data: bytes, *, more: bool = True) -> None:
            nonlocal started
            if not started:
                started = True
                await send(
                    {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                )
            await send({"type": "http.response.body", "body": data, "more_body": more})

        coming: asyncio.Future[News] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(self._news))
                await asyncio.wait({coming, gone}, timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    if started:
                        return
                    raise ClientGone
                if not coming.done():
                    await out(b": ping\n\n")
                    continue
                try:
                    news, coming = coming.result(), None
                except (AttendoError, TimeIsUp) as error:
                    if not started:
                        raise
                    await out(event({"error": _problem(error)}))
                    break
                if data := b"".join(map(event, self._told(news))):
                    await out(data)
                if isinstance(news, Done):
                    break
            await out(b"data: [DONE]\n\n", more=False)
        finally:
            if coming is not None and not coming.done():
                coming.cancel()


def _problem(error: Exception) -> dict[str, Any]:
    late = isinstance(error, TimeIsUp)
    said, kind = (TOO_LATE, "server_error") if late else (str(error), "invalid_request_error")
    return {"message": said, "type": kind, "param": None, "code": "timeout" if late else None}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
