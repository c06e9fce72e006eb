"""Protection against slow clients: limits on the time and size of request heads, and on open connections."""

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
"""The maximum seconds that the head of a request may take to arrive."""
HEAD_BYTES = 64 << 10
HEAD_LINES = 100
"""The maximum bytes and the maximum number of headers in the head of a request."""
QUEUED = 100
"""The maximum number of requests on a connection that wait for the response to an earlier request."""
LINGER_SECONDS = 30.0
"""The maximum seconds that a client may take to read the rest of a response after the connection is closed."""
MOST = 4096
"""The maximum number of open connections."""
HEAD_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too large; send fewer headers"
TOO_MANY_WAIT = (
    HTTPStatus.TOO_MANY_REQUESTS,
    "too many requests are waiting on this connection; read the answers first",
)
NO_UPGRADE = HTTPStatus.BAD_REQUEST, "this server supports HTTP/1.1 only; send the request without Upgrade"
LENGTHS = (b"content-length", b"transfer-encoding")


class Connections:
    """The factory of connection protocols for `uvicorn.Config(http=...)`, which limits the number of connections.

    If there are more than `most` connections, the connection that has waited longest for the rest of a request is
    closed.
    """

    def __init__(self, most: int = MOST, head_seconds: float = HEAD_SECONDS) -> None:
        self.most = most
        self.head_seconds = head_seconds
        self.open = 0
        self.waiting: dict[Connection, None] = {}  # in the order in which they began to wait

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> Connection:
        """Return the protocol object of a new connection."""
        return Connection(self, config, server_state, app_state, _loop)

    def make_room(self) -> bool:
        """If there are too many connections, close the longest waiting one. Return whether the new connection fits."""
        if self.open <= self.most:
            return True
        oldest = next(iter(self.waiting), None)
        if oldest is not None:
            del self.waiting[oldest]
            oldest.transport.abort()
        return oldest is not None


class Connection(HttpToolsProtocol):
    """A uvicorn connection with limits on the time and size of the head of a request."""

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
        self._worked_on: RequestResponseCycle | None = None  # uvicorn's `cycle` is the latest request

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start waiting for a request, or reject the connection if there are too many connections."""
        super().connection_made(transport)
        self._all.open += 1
        if not self._all.make_room():
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections; try again in a few seconds")
            return
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the resources of the connection."""
        self._all.open -= 1
        self._have_request()
        if self._leaving is not None:
            self._leaving.cancel()
        if self._worked_on is not None:
            self._worked_on.disconnected = True
            self._worked_on.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process a part of a request."""
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_request()
        self._size += len(data)
        super().data_received(data)
        if self._size > HEAD_BYTES:
            self._refuse(*HEAD_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Process a header, or a trailer after the body."""
        if len(self.headers) >= HEAD_LINES:
            self._fail(*HEAD_TOO_LARGE)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass a request with a complete head to the application."""
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
        """Process a part of the body. `Guard` limits the size of the body."""
        self._size = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop waiting for the request, because it is complete."""
        self._have_request()
        self._size = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request. If the connection is closing, wait until the client has read the response."""
        if self.pipeline:
            self._worked_on = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():
            self._linger()
        elif self.cycle.response_complete:  # no later request is in progress
            self._all.waiting[self] = None

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for too long."""
        super().timeout_keep_alive_handler()
        self._linger()

    def send_400_response(self, msg: str) -> None:
        """Respond with status 400 to bytes that are not HTTP."""
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
        """Send an error response without the application, and close the connection."""
        self._have_request()
        if self.transport.is_closing():
            return
        if self.pipeline or (self.cycle and self.cycle.response_started and not self.cycle.response_complete):
            self.transport.abort()  # another response is in progress, so no message can be sent
            return
        body = json.dumps({"error": message}).encode()
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n"
        head += "retry-after: 5\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
        self.transport.write(head.encode() + b"\r\n" + body)
        self.transport.close()
        self._linger()

    def _fail(self, status: HTTPStatus, message: str) -> NoReturn:
        """Reject the request from a callback of the parser, and stop the parser."""
        self._refuse(status, message)
        raise ValueError(message)
