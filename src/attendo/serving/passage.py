"""One request's way out: its headers are completed, and when it has ended it is counted and written down."""

from __future__ import annotations

import asyncio
import random
import re
import time
from typing import TYPE_CHECKING

from starlette.types import Message, Scope, Send

from attendo.serving.faults import GONE
from attendo.serving.logs import Noted, put_notes

if TYPE_CHECKING:
    from attendo.serving.state import State

SENT_SECONDS = 60.0
"""The longest that a client may take to make room for more of its answer."""

ABORT = "attendo.abort"
"""Where the scope has what ends its connection at once; of our own server only."""

ELSEWHERE = "other"
"""The route of requests for what is not there."""

ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
UNLESS_SAID = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""A page says these two for itself."""

PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST"),
    (
        b"access-control-allow-headers",
        b"authorization, content-type, x-api-key, x-request-id, x-request-timeout",
    ),
    (b"access-control-max-age", b"600"),
)
_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")


class Passage:
    """From the head of a request to the end of its answer. status: 0 until there is one; unread: its body is."""

    def __init__(self, state: State, scope: Scope, send: Send) -> None:
        self.state, self.scope, self._send = state, scope, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.began, self.first = time.perf_counter(), 0.0
        self.status, self.complete, self.stalled, self.unread = 0, False, False, False
        given = self.headers.get(b"x-request-id", b"")
        request_id = given.decode() if _ID.fullmatch(given) else f"{random.getrandbits(128):032x}"
        self.notes = Noted(request_id)
        put_notes(scope, self.notes)
        self.origin = self._allowed_origin() if state.cors else None

    @property
    def is_preflight(self) -> bool:
        """Whether a browser asks if a page elsewhere, which may, may ask."""
        return (
            self.origin is not None
            and self.scope["method"] == "OPTIONS"
            and b"access-control-request-method" in self.headers
        )

    async def allow(self) -> None:
        """Answers so."""
        await self.send({"type": "http.response.start", "status": 204, "headers": list(PREFLIGHT)})
        await self.send({"type": "http.response.body", "body": b""})

    async def send(self, message: Message) -> None:
        """Passes on a part of the answer. Raises TimeoutError for a client that does not take it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._completed(message.get("headers", ()))}
        elif message["type"] == "http.response.body":
            more = message.get("more_body", False)
            if more and not self.first and message.get("body"):
                self.first = time.perf_counter()
            self.complete = not more
        try:
            async with asyncio.timeout(SENT_SECONDS):
                await self._send(message)
        except TimeoutError:
            self.stalled, self.complete = True, False
            if (abort := self.scope.get(ABORT)) is not None:
                abort()  # closing it would wait for what the client does not take
            raise

    def finish(self) -> None:
        """Counts the request and writes its line; one that was not answered to its end counts as 499."""
        seconds = time.perf_counter() - self.began
        status = self.status if self.complete else GONE
        path = self.scope["path"]
        route = getattr(self.scope.get("route"), "path", path if path in self.state.paths else ELSEWHERE)
        first = self.first - self.began if self.first else None
        method = self.scope["method"]
        self.state.metrics.finished(self.notes, method, route, status, seconds, first)
        self.state.log.request(self.notes, method, route, status, seconds)

    def _allowed_origin(self) -> bytes | None:
        origin = self.headers.get(b"origin")
        if origin is None or "*" in self.state.cors:
            return None if origin is None else b"*"
        return origin if origin in [known.encode() for known in self.state.cors] else None

    def _completed(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        named = {name.lower() for name, _ in headers}
        completed = [*headers, *ALWAYS, (b"x-request-id", self.notes.request_id.encode())]
        completed += [header for header in UNLESS_SAID if header[0] not in named]
        if self.state.draining and b"connection" not in named and self.scope.get("http_version", "") < "2":
            completed.append((b"connection", b"close"))  # its next request goes to another server
        if self.origin is not None:
            completed.append((b"access-control-allow-origin", self.origin))
            completed.append((b"access-control-expose-headers", b"x-request-id, retry-after"))
        if self.state.cors:
            completed.append((b"vary", b"origin"))
        return completed
