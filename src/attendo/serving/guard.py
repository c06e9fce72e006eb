"""What every request passes before it reaches a route. Plain ASGI."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attendo.serving.admission import Full
from attendo.serving.bodies import fields_of, parts_of
from attendo.serving.faults import KNOWN, LOADING, NO_KEY, STOPPING, WRONG_KEY, answer, answer_to
from attendo.serving.passage import Passage

if TYPE_CHECKING:
    from attendo.serving.state import State

BODY_SECONDS, THROWN_SECONDS = 30.0, 2.0
"""The longest that a body may take to come, and that a refused one is thrown away while it comes."""

BODIES, THROWN = 256 << 20, 16 << 20
"""Bytes of all bodies that are held while they come, and of a refused one that are thrown away."""

KEY_IN_BODY = frozenset({"/translate", "/detect", "/languages", "/frontend/settings"})
"""Where clients of LibreTranslate send their key in the body."""

READS = frozenset({"GET", "HEAD"})


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class _Left(Exception):
    """The client went while its request was still coming."""


class Guard:
    """Lets in who has a key, and no more than fits; every request leaves by its passage.

    is_public: whether a path is given without a key. early: what is answered while models load and while the server
    drains. Both are asked by `scope["path"]`, so that a path where there is nothing is refused, too.
    """

    def __init__(
        self, app: ASGIApp, state: State, is_public: Callable[[str], bool], early: frozenset[str]
    ) -> None:
        self.app, self.state, self.is_public, self.early = app, state, is_public, early
        self.held = 0  # bytes of bodies that are not whole
        self.most_held = max(BODIES, 4 * state.config.max_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self.app(scope, receive, send)
            return
        passage = Passage(self.state, scope, send)
        try:
            await self._pass(passage, scope, receive)
        except _Left:
            pass
        except asyncio.CancelledError:  # the drain is over
            if not passage.status:
                await answer(scope, 503, STOPPING)(scope, receive, passage.send)
            raise
        except Exception as error:
            if passage.stalled:
                return
            if passage.status or not isinstance(error, KNOWN):
                self.state.log.fault(passage.notes, error)
            if passage.status:  # the answer is cut off, and the server has to close the connection
                passage.status, passage.complete = 500, True
                raise
            await answer_to(scope, error)(scope, receive, passage.send)
        finally:
            passage.finish()

    async def _pass(self, passage: Passage, scope: Scope, receive: Receive) -> None:
        state, path, headers = self.state, scope["path"], passage.headers
        has_body = b"content-length" in headers or b"transfer-encoding" in headers
        passage.unread = has_body and headers.get(b"content-length") != b"0"
        early = path in self.early
        try:
            _check_sender(state, headers, scope["method"], passage.origin)
            if passage.is_preflight:
                await passage.allow()
                return
            known = self._is_known(path, scope["method"], headers)
            if not known and path not in KEY_IN_BODY:
                raise _Refusal(401, WRONG_KEY if _keys_of(headers) else NO_KEY)
            if not early:
                _check_ready(state)
            body = b""
            if has_body:
                body = await self._body(passage, receive)
                receive = _replayed(body, receive)
            if not known and not state.keys.admit(within := await _key_within(headers, body)):
                raise _Refusal(401, WRONG_KEY if within or _keys_of(headers) else NO_KEY)
            if not early:
                _check_ready(state)  # it may have been told to stop while the body came
                if scope["method"] not in READS:
                    state.admission.check()  # before its body is taken apart: refusing many must cost little
        except _Refusal as refusal:
            await _refuse(passage, scope, receive, refusal)
            return
        except Full as full:
            await answer_to(scope, full)(scope, receive, passage.send)
            return
        state.working += not early
        try:
            await self.app(scope, receive, passage.send)
        finally:
            state.working -= not early

    def _is_known(self, path: str, method: str, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request may be answered, by its head."""
        keys = self.state.keys
        if not keys or (method in READS and self.is_public(path)):
            return True
        return any(keys.admit(key) for key in _keys_of(headers))

    async def _body(self, passage: Passage, receive: Receive) -> bytes:
        """The whole of a body; a refusal as soon as it is too large, comes too slowly, or too much comes at a time."""
        most = self.state.config.max_body
        length = passage.headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > most:
            raise _Refusal(413, f"a request has at most {most:,} bytes; send it in parts")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Left
                    part, more = message.get("body", b""), message.get("more_body", False)
                    passage.unread = more
                    parts.append(part)
                    size += len(part)
                    self.held += len(part)
                    if size > most:
                        raise _Refusal(413, f"a request has at most {most:,} bytes; send it in parts")
                    if self.held > self.most_held:
                        raise _Refusal(
                            503, "too many requests are coming at a time; try again in a few seconds"
                        )
        except TimeoutError:
            raise _Refusal(408, f"the body did not come within {BODY_SECONDS:g} s; send it again") from None
        finally:
            self.held -= size
        return b"".join(parts)


def _check_sender(state: State, headers: Mapping[bytes, bytes], method: str, origin: bytes | None) -> None:
    """Refuses a name that is not this machine's (DNS rebinding), and what a page elsewhere sends without being let."""
    if state.hosts is not None and _name_of(headers.get(b"host", b"")) not in state.hosts:
        raise _Refusal(403, "this server answers only as 127.0.0.1 and localhost; open it by one of them")
    if method not in READS and origin is None and _is_elsewhere(headers):
        raise _Refusal(403, "a page elsewhere may not ask; allow it by: attendo serve --cors ORIGIN")


def _is_elsewhere(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a page of another site or port sends it. Plain HTTP to a name elsewhere has no Sec-Fetch-Site."""
    if (site := headers.get(b"sec-fetch-site")) is not None:
        return site not in (b"same-origin", b"none")
    origin, host = headers.get(b"origin"), headers.get(b"host", b"")
    return origin is not None and _name_of(origin.partition(b"://")[2]) != _name_of(host)


def _name_of(host: bytes) -> str:
    """A Host header without its port.

    >>> _name_of(b"localhost:8000"), _name_of(b"[::1]:8000"), _name_of(b"127.0.0.1")
    ('localhost', '[::1]', '127.0.0.1')
    """
    text = host.decode("latin-1").lower()
    return text.rpartition(":")[0] if re.search(r":\d*$", text) and not text.endswith("]") else text


def _check_ready(state: State) -> None:
    if state.draining:
        raise _Refusal(503, STOPPING)
    if not state.models.ready:
        raise _Refusal(503, LOADING)


def _keys_of(headers: Mapping[bytes, bytes]) -> list[bytes]:
    """The keys that a head has, right or wrong.

    >>> _keys_of({b"authorization": b"Bearer one", b"x-api-key": b"two"}), _keys_of({b"authorization": b"Basic a"})
    ([b'one', b'two'], [])
    """
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    sent = bearer.strip() if scheme.lower() == b"bearer" else b"", headers.get(b"x-api-key", b"")
    return [key for key in sent if key]


async def _key_within(headers: Mapping[bytes, bytes], body: bytes) -> bytes:
    """The field api_key of a body, JSON or a form; empty where there is none."""
    kind = headers.get(b"content-type", b"").lower()
    if b"json" in kind:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            return b""
        key = found.get("api_key") if isinstance(found, dict) else None
    else:
        try:
            if kind.startswith(b"multipart/form-data"):
                key = parts_of(headers[b"content-type"].decode("latin-1"), body).get("api_key")
            else:
                key = (await fields_of(body)).get("api_key")
        except ValueError:
            return b""
    return key.encode(errors="replace") if isinstance(key, str) else b""


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body at once, and then what still comes: that the client has gone."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(passage: Passage, scope: Scope, receive: Receive, refusal: _Refusal) -> None:
    """Answers a request that is let no further.

    A body that has not been read is thrown away for a while after the answer is out, and before the connection is
    closed: many clients send to the end before they look, and would find a broken pipe in place of the answer.
    """
    response = answer(scope, refusal.status, refusal.message)
    if not passage.unread:
        await response(scope, receive, passage.send)
        return
    close = [(b"connection", b"close")] if scope.get("http_version", "1.1") < "2" else []
    start = {"type": "http.response.start", "status": refusal.status, "headers": response.raw_headers + close}
    await passage.send(start)
    await passage.send({"type": "http.response.body", "body": response.body, "more_body": True})
    passage.first, thrown = 0.0, 0
    try:
        async with asyncio.timeout(THROWN_SECONDS):
            while thrown < THROWN:
                message = await receive()
                thrown += len(message.get("body", b""))
                if not message.get("more_body"):
                    break
    except TimeoutError:
        pass
    await passage.send({"type": "http.response.body", "body": b""})
