"""Protection against slow clients: the time and size of a request's head, and the number of open connections."""

from __future__ import annotations

import asyncio
import json
from asyncio import TimerHandle
from http import HTTPStatus
from typing import Any, NoReturn

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from attendo.serving.middleware import ABORT

HEAD_SECONDS = 10.0
"""The longest that the head of a request may take to come."""

HEAD_BYTES = 64 << 10
HEAD_LINES = 100
"""The most bytes and headers of a request's head."""

QUEUED = 100
"""The most requests that may wait on a connection for the answer to an earlier request."""

LINGER_SECONDS = 30.0
"""The longest that a closed connection may take to take the rest of its answer."""

MOST = 4096
"""Connections that are open at a time."""

HEAD_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too large; send fewer headers"
TOO_MANY_WAIT = (
    HTTPStatus.TOO_MANY_REQUESTS,
    "too many requests are waiting on this connection; read the answers first",
)
NO_UPGRADE = HTTPStatus.BAD_REQUEST, "this server supports HTTP/1.1 only; send the request without Upgrade"
LENGTHS = (b"content-length", b"transfer-encoding")


class Connections:
    """Creates the protocol of each connection for `uvicorn.Config(http=...)`, and limits their number.

    Above `most` connections, the one that has waited longest for (the rest of) a request is closed, so slow clients
    cannot block others.
    """

    def __init__(self, most: int = MOST, head_seconds: float = HEAD_SECONDS) -> None:
        self.most = most
        self.head_seconds = head_seconds
        self.open = 0
        self.waiting: dict[Connection, None] = {}  # in the order in which they began to

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self, config, server_state, app_state, _loop)

    def make_room(self) -> bool:
        """Close the connection that has waited longest if there are too many; return whether there is room."""
        if self.open <= self.most:
            return True
        oldest = next(iter(self.waiting), None)
        if oldest is not None:
            del self.waiting[oldest]
            oldest.transport.abort()
        return oldest is not None


class Connection(HttpToolsProtocol):
    """A connection of uvicorn with limits on the time and size of a request's head."""

    def __init__(
        self,
        all_: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._all = all_
        self._size = 0
        self._timer: TimerHandle | None = None
        self._leaving: TimerHandle | None = None
        self._worked_on: RequestResponseCycle | None = None  # uvicorn's own `cycle` is the latest request

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start to wait for a request."""
        super().connection_made(transport)
        self._all.open += 1
        if not self._all.make_room():
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections; try again in a few seconds")
            return
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what belongs to the connection."""
        self._all.open -= 1
        self._have_request()
        if self._leaving is not None:
            self._leaving.cancel()
        if self._worked_on is not None:
            self._worked_on.disconnected = True
            self._worked_on.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_request()
        self._size += len(data)
        super().data_received(data)
        if self._size > HEAD_BYTES:
            self._refuse(*HEAD_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer after the body."""
        if len(self.headers) >= HEAD_LINES:
            self._fail(*HEAD_TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass the request on, its head being complete."""
        self._stop_timer()
        if len(self.pipeline) >= QUEUED:
            self._fail(*TOO_MANY_WAIT)
        if self.parser and self.parser.should_upgrade() and any(name in LENGTHS for name, _ in self.headers):
            self._fail(*NO_UPGRADE)  # httptools would drop the body
        self.scope[ABORT] = self.transport.abort  # pyright: ignore[reportGeneralTypeIssues]
        super().on_headers_complete()
        if not self.pipeline:
            self._worked_on = self.cycle

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, whose size is limited elsewhere."""
        self._size = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the wait for the request."""
        self._have_request()
        self._size = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request or, if the connection closes, for the client to take the answer."""
        if self.pipeline:
            self._worked_on = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():
            self._linger()
        elif self.cycle.response_complete:  # else a request that came meanwhile is worked on
            self._all.waiting[self] = None

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was silent for too long."""
        super().timeout_keep_alive_handler()
        self._linger()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, "not a valid HTTP request")

    def _await_request(self) -> None:
        self._size = 0
        self._timer = self.loop.call_later(self._all.head_seconds, self._too_late)
        self._all.waiting[self] = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _have_request(self) -> None:
        self._stop_timer()
        self._all.waiting.pop(self, None)

    def _too_late(self) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time; send it again")

    def _linger(self) -> None:
        if self._leaving is None:
            self._leaving = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer outside of a request, and close the connection."""
        self._have_request()
        if self.transport.is_closing():
            return
        if self.pipeline or (self.cycle and self.cycle.response_started and not self.cycle.response_complete):
            self.transport.abort()  # in the middle of another answer nothing can be said
            return
        body = json.dumps({"error": message}).encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n"
        head += "retry-after: 5\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
        self.transport.write(head.encode() + b"\r\n" + body)
        self.transport.close()
        self._linger()

    def _fail(self, status: HTTPStatus, message: str) -> NoReturn:
        """Refuse from within the parser, which stops."""
        self._refuse(status, message)
        raise ValueError(message)
