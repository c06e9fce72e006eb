"""The middleware: the response log, and the checks of API keys, origins and request bodies."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attendo.serving import errors
from attendo.serving.dependencies import ApiRequest, ApiRoute
from attendo.serving.errors import ApiError
from attendo.serving.monitoring import CONTEXT, RequestContext
from attendo.serving.schemas import form_fields

if TYPE_CHECKING:
    from attendo.serving.state import State

SENT_SECONDS = 60.0
"""The maximum seconds that a client may take to accept the next part of a response."""
ABORT = "attendo.abort"
"""The key of an ASGI scope under which `sockets` stores the function that closes the connection immediately."""
RECORD = "attendo.record"
"""The key of an ASGI scope under which its ResponseRecord is stored."""
ALWAYS = {"x-content-type-options": "nosniff", "x-frame-options": "DENY", "referrer-policy": "no-referrer"}
UNLESS_SET = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
"""The default headers, which a response can override."""
BODY_SECONDS = 30.0
"""The maximum seconds that a request body may take to arrive."""
THROWN_SECONDS = 2.0
THROWN_BYTES = 16 << 20
"""The maximum seconds and bytes for which the body of a rejected request is read and discarded."""
BODIES = 256 << 20
"""The maximum bytes of all incomplete request bodies in memory."""
KEY_IN_BODY = frozenset({"/translate", "/detect", "/languages", "/frontend/settings"})
"""The paths for which clients of LibreTranslate send their API key in the body."""
READS = frozenset({"GET", "HEAD"})
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class ResponseLog:
    """The middleware that completes the headers of responses, and records requests in the log and metrics."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application. A HEAD request uses the route of GET, and its response has no body."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self.app(scope, receive, send)
        else:
            method = scope["method"]
            # there are no HEAD routes; the server drops the body of GET
            scope = {**scope, "method": "GET" if method == "HEAD" else method}
            record = ResponseRecord(self.state, scope, send)
            try:
                await self.app(scope, receive, record.send)
            finally:
                record.finish(method)


class ResponseRecord:
    """The measurements of one response.

    `status` is 0 until the response starts. `unread` is True while a part of the request body has not been read.
    """

    def __init__(self, state: State, scope: Scope, send: Send) -> None:
        self.state = state
        self.scope = scope
        self._send = send
        self.began = time.perf_counter()
        self.first = 0.0
        self.status = 0
        self.complete = self.stalled = self.unread = False
        given = Headers(scope=scope).get("x-request-id", "")
        self.context = RequestContext(given if _ID.fullmatch(given) else f"{random.getrandbits(128):032x}")
        scope[CONTEXT] = self.context
        scope[RECORD] = self

    async def send(self, message: Message) -> None:
        """Send a part of the response. Raise TimeoutError if the client does not accept the part in time."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._complete(MutableHeaders(scope=message))
        elif message["type"] == "http.response.body":
            more = message.get("more_body", False)
            if more and not self.first and message.get("body"):
                self.first = time.perf_counter()
            self.complete = not more
        try:
            async with asyncio.timeout(SENT_SECONDS):
                await self._send(message)
        except TimeoutError:
            self.stalled = True
            self.complete = False
            if (abort := self.scope.get(ABORT)) is not None:
                abort()  # closing would wait until the client has read everything
            raise

    def finish(self, method: str) -> None:
        """Count the request and write its log line. An incomplete response counts as status 499."""
        seconds = time.perf_counter() - self.began
        status = self.status if self.complete else errors.GONE
        path = self.scope["path"]
        route = getattr(self.scope.get("route"), "path", path if path in self.state.paths else "other")
        first = self.first - self.began if self.first else None
        self.state.metrics.finished(self.context, method, route, status, seconds, first)
        self.state.log.request(self.context, method, route, status, seconds)

    def _complete(self, headers: MutableHeaders) -> None:
        headers.update({**ALWAYS, "x-request-id": self.context.request_id})
        for name, value in UNLESS_SET.items():
            headers.setdefault(name, value)
        if self.state.draining and self.scope.get("http_version", "") < "2":
            headers.setdefault("connection", "close")  # the client sends its next request to another server


class CrossOrigin(CORSMiddleware):
    """Starlette's CORS middleware, except that `Guard` refuses the preflights of other origins, as JSON."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a preflight request of an allowed origin, or pass the request to the application."""
        headers = Headers(raw=scope.get("headers", []))
        if scope.get("method") == "OPTIONS" and not self.is_allowed_origin(headers.get("origin", "")):
            await self.simple_response(scope, receive, send, headers)
        else:
            await super().__call__(scope, receive, send)


class Guard:
    """The middleware that checks API keys and limits, and converts every error to a response.

    Args:
        app: The next ASGI application.
        state: The state of the server.
        is_public: The function that returns whether a path requires no API key. Unknown paths require a key.
        is_early: The function that returns whether a path is served while the models load and while the server
            shuts down.
        direct: The routes, by method and path, that run without FastAPI's route search. FastAPI's route search takes
            more CPU time than everything else in this class.
    """

    def __init__(
        self,
        app: ASGIApp,
        state: State,
        is_public: Callable[[str], bool],
        is_early: Callable[[str], bool],
        direct: Mapping[tuple[str, str], ApiRoute],
    ) -> None:
        self.app = app
        self.state = state
        self.is_public = is_public
        self.is_early = is_early
        self.direct = direct
        self.held = 0  # bytes of incomplete bodies
        self.most_held = max(BODIES, 4 * state.config.max_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request, or reject it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record: ResponseRecord = scope[RECORD]
        try:
            await self._answer(record, scope, receive, send)
        except asyncio.CancelledError:  # the time to finish requests is over
            if not record.status:
                await errors.error_response(scope, ApiError(503, errors.STOPPING))(scope, receive, send)
            raise
        except Exception as error:
            if record.stalled:
                return
            if record.status or not isinstance(error, errors.KNOWN):
                self.state.log.fault(record.context, error)
            if record.status:  # the response is incomplete: raising makes the server close the connection
                record.status = 500
                record.complete = True
                raise
            await errors.response_to(scope, error)(scope, receive, send)

    async def _answer(self, record: ResponseRecord, scope: Scope, receive: Receive, send: Send) -> None:
        early = self.is_early(scope["path"])
        try:
            body = await self._let_in(record, scope, receive, early)
        except ApiError as error:
            await _refuse(record, scope, receive, send, error)
            return
        if body is None:  # the client disconnected before its request was complete
            return
        self.state.working += not early
        try:
            receive = _replayed(body, receive)
            if route := self.direct.get((scope["method"], scope["path"])):
                scope["route"] = route
                response = await route.endpoint(ApiRequest(scope, receive))
                await response(scope, receive, send)
            else:
                await self.app(scope, receive, send)
        finally:
            self.state.working -= not early

    async def _let_in(self, record: ResponseRecord, scope: Scope, receive: Receive, early: bool) -> bytes | None:
        """Return the body of an admitted request, or None if the client disconnected. Otherwise raise ApiError."""
        state = self.state
        headers = Headers(scope=scope)
        has_body = "content-length" in headers or "transfer-encoding" in headers
        record.unread = has_body and headers.get("content-length") != "0"
        # cheap checks first: the body is read only if the sender is allowed
        _check_sender(state, headers, scope["method"])
        # a browser also sends basic credentials with requests of other sites
        sent = _keys_of(headers, basic=scope["method"] in READS or not _is_elsewhere(headers))
        known = not state.keys or (scope["method"] in READS and self.is_public(scope["path"]))
        known = known or any(state.keys.admit(key) for key in sent)
        # LibreTranslate's clients send the key in the body, so for their paths the decision waits for it
        if not known and scope["path"] not in KEY_IN_BODY:
            raise ApiError(401, errors.WRONG_KEY if sent else errors.NO_KEY)
        if not early:
            _check_ready(state)
        body = await self._body(record, headers, receive) if has_body else b""
        if body is None:
            return None
        if not known and not state.keys.admit(within := await _key_within(headers, body)):
            raise ApiError(401, errors.WRONG_KEY if within or sent else errors.NO_KEY)
        if not early:
            _check_ready(state)  # the shutdown may have begun while the body arrived
            if scope["method"] not in READS:
                state.admission.check()  # before the body is parsed: rejecting many requests must cost little
        return body

    async def _body(self, record: ResponseRecord, headers: Headers, receive: Receive) -> bytes | None:
        """Return the whole body. Raise ApiError if it is too large or too slow, or if there are too many bodies."""
        most = self.state.config.max_body
        too_large = ApiError(413, f"the request is too large (at most {most:,} bytes); send it in parts")
        length = headers.get("content-length", "0")
        # int() accepts other digits, signs and spaces, and takes quadratic time for long numbers
        if not (length.isascii() and length.isdigit()) or len(length) > 18 or int(length) > most:
            raise too_large
        # a chunked body has no length in advance, so its size, and that of all bodies, is checked as parts arrive
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    more = record.unread = message.get("more_body", False)
                    parts.append(part)
                    size += len(part)
                    self.held += len(part)
                    if size > most:
                        raise too_large
                    if self.held > self.most_held:
                        raise ApiError(503, "too many requests at a time; try again in a few seconds")
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:g} s; send it again") from None
        finally:
            self.held -= size
        return b"".join(parts)


def _check_sender(state: State, headers: Headers, method: str) -> None:
    """Reject unknown host names (DNS rebinding), and requests of other origins that are not allowed."""
    if state.hosts is not None and _name_of(headers.get("host", "")) not in state.hosts:
        raise ApiError(403, "this server answers only to the names 127.0.0.1 and localhost")
    origin = headers.get("origin")
    allowed = origin is not None and ("*" in state.cors or origin in state.cors)
    if method not in READS and not allowed and _is_elsewhere(headers):
        raise ApiError(403, "pages of other origins are not allowed; allow them with: attendo serve --cors ORIGIN")


def _is_elsewhere(headers: Headers) -> bool:
    """Return whether a page of another site or port sends the request. Plain HTTP may lack Sec-Fetch-Site."""
    if (site := headers.get("sec-fetch-site")) is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and _name_of(origin.partition("://")[2]) != _name_of(headers.get("host", ""))


def _name_of(host: str) -> str:
    """Return a Host header without its port.

    >>> _name_of("localhost:8000"), _name_of("[::1]:8000"), _name_of("127.0.0.1")
    ('localhost', '[::1]', '127.0.0.1')
    """
    text = host.lower()
    return text.rpartition(":")[0] if re.search(r":\d*$", text) and not text.endswith("]") else text


def _check_ready(state: State) -> None:
    if state.draining:
        raise ApiError(503, errors.STOPPING)
    if not state.models.ready:
        raise ApiError(503, errors.LOADING)


def _keys_of(headers: Mapping[str, str], *, basic: bool) -> list[bytes]:
    """Return the API keys in the headers, without checking them. With `basic`, a password is also a key.

    >>> _keys_of({"authorization": "Bearer one", "x-api-key": "two"}, basic=True)
    [b'one', b'two']
    >>> [_keys_of({"authorization": "Basic YTprZXk="}, basic=basic) for basic in (True, False)]
    [[b'key'], []]
    """
    scheme, _, sent = headers.get("authorization", "").partition(" ")
    key = b""
    if scheme.lower() == "bearer":
        key = sent.strip().encode("latin-1")
    elif scheme.lower() == "basic" and basic:
        key = _password(sent)
    return [one for one in (key, headers.get("x-api-key", "").encode("latin-1")) if one]


def _password(credentials: str) -> bytes:
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except ValueError:
        return b""


async def _key_within(headers: Headers, body: bytes) -> bytes:
    """Return the field api_key of a JSON or form body, or an empty value."""
    kind = headers.get("content-type", "")
    try:
        found = json.loads(body) if "json" in kind.lower() else await form_fields(kind, body)
    except (ValueError, RecursionError):
        return b""
    key = found.get("api_key") if isinstance(found, dict) else None
    return key.encode(errors="replace") if isinstance(key, str) else b""


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` function that returns the body first, and then waits for the disconnection of the client."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(record: ResponseRecord, scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
    """Respond to a rejected request.

    Many clients send the whole body before they read the response, and would otherwise see a broken pipe. The rest of
    the body is therefore read and discarded for a limited time.
    """
    response = errors.response_to(scope, error)
    if not record.unread:
        await response(scope, receive, send)
        return
    if scope.get("http_version", "1.1") < "2":
        response.headers["connection"] = "close"
    await send({"type": "http.response.start", "status": error.status, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    record.first = 0.0
    thrown = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(THROWN_SECONDS):
            more = True
            while more and thrown < THROWN_BYTES:
                message = await receive()
                thrown += len(message.get("body", b""))
                more = message.get("more_body", False)
    await send({"type": "http.response.body", "body": b""})
