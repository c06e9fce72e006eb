"""The page and its answers over HTTP, for this machine alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from attendo.display.i18n import Language
from attendo.errors import AttendoError, port_refused
from attendo.files import json_of
from attendo.microscope.look_page import live_page
from attendo.microscope.session import Answer, Session

LARGEST = 1 << 20
"""Bytes of a question."""
BODY_SECONDS = 60
"""The longest that a client may take to send a question."""
CLOSING_SECONDS = 10
"""The longest that the end of a server waits for an answer that is being computed."""
HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


def answered(answer: Answer, status: int = 200) -> Response:
    """The response with an answer: numbers as bytes, otherwise JSON. Raises AttendoError for a non-finite number."""
    if isinstance(answer, bytes):
        return Response(answer, status, media_type="application/octet-stream")
    return Response(json_of(answer), status, media_type="application/json")


class LookServer(uvicorn.Server):
    """A server on 127.0.0.1 for the page of one model.

    Only pages of this server on this machine can use it: other host names and form requests are rejected. One thread
    computes all answers, because each new thread of torch needs its own memory and helper threads.

    Args:
        session: The session that answers.
        port: The port; 0 selects a free one. A port in use raises AttendoError.
        language: The language of the page.
    """

    def __init__(self, session: Session, port: int = 0, language: Language = "en") -> None:
        self.session = session
        self.language: Language = language
        try:
            self._socket = socket.create_server(("127.0.0.1", port), backlog=64)
        except OSError as error:
            raise port_refused(error, port) from None
        self.port: int = self._socket.getsockname()[1]
        self._questions: SimpleQueue[tuple[Future[Answer], str, dict[str, Any]] | None] = SimpleQueue()
        # a daemon: Python waits without end for the threads of an executor
        self._worker = threading.Thread(target=self._work, name="look", daemon=True)
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http="h11",  # bounds the size of a head
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",  # the terminal is for what a person wants to know
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=CLOSING_SECONDS,
        )
        super().__init__(config)

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://127.0.0.1:{self.port}/"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop`, then wait for the running computation, at most CLOSING_SECONDS.

        Args:
            sockets: The sockets to use, as in uvicorn.
        """
        self._worker.start()
        with self._socket:
            super().run(sockets or [self._socket])
        self._questions.put(None)
        self._worker.join(1)  # uvicorn has waited for the computation; an idle thread ends at once

    @property
    def is_computing(self) -> bool:
        """Whether an answer is still being computed after `run`; torch aborts if Python exits then."""
        return self._worker.is_alive()

    def stop(self) -> None:
        """End `run`."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals: the program handles them."""
        yield

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with contextlib.suppress(ClientDisconnect):
            response = await self._response(request)
            response.headers.update(HEADERS)
            await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        if request.headers.get("host") not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}"):
            return answered({"error": f"open {self.address} instead"}, 403)  # DNS rebinding
        if request.method == "GET":
            if request.url.path != "/":
                return PlainTextResponse("there is nothing here but /", 404)
            return HTMLResponse(live_page(self.language, self.session.model_answer()))
        try:
            name, body = await _question(request)
            answer: Future[Answer] = Future()
            self._questions.put((answer, name, body))
            return answered(await asyncio.wrap_future(answer))
        except AttendoError as error:
            return answered({"error": str(error)}, 400)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001  (one question must not end the server)
            return answered({"error": f"a bug in attendo: {type(error).__name__}: {error}"}, 500)

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            answer, name, body = question
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self.session.answer(name, body))
                except BaseException as error:  # noqa: BLE001  (it is raised where the answer is awaited)
                    answer.set_exception(error)
            del question, answer  # they may hold much


async def _question(request: Request) -> tuple[str, dict[str, Any]]:
    """The name and the body of a request. Raises AttendoError for an invalid one."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or len(length) > 9 or int(length) > LARGEST:
        raise AttendoError(f"a question has a Content-Length of at most {LARGEST:,} bytes")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await request.body()
    except TimeoutError:
        raise AttendoError(f"a question must arrive within {BODY_SECONDS} seconds") from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # what no form of another page can send
        raise AttendoError("a question is JSON, sent as application/json")
    folder, _, name = request.url.path.lstrip("/").partition("/")
    if folder != "api":
        raise AttendoError("questions go to /api/NAME")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise AttendoError("the question is not valid JSON") from None
    if not isinstance(body, dict):
        raise AttendoError("the question is not a JSON object")
    return name, body
