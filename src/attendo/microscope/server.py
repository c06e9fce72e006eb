"""The HTTP servers for pages that only this machine can use: their base, the live page, and the page for labels."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, get_args
from urllib.parse import parse_qs

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from attendo.display.i18n import Language
from attendo.display.web import FORM_POLICY, page_of, served_asset
from attendo.errors import AttendoError, port_refused
from attendo.files import json_of
from attendo.inference.labeling import Labeling
from attendo.microscope.look_page import live_page
from attendo.microscope.session import Answer, Session

LARGEST = 1 << 20
"""The maximum size of a request, in bytes."""
BODY_SECONDS = 60
"""The maximum seconds that a client may take to send a request."""
CLOSING_SECONDS = 10
"""The maximum seconds that a stopping server waits for a running computation."""
HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
NO_STORE = {"Cache-Control": "no-store"}


class LocalServer(uvicorn.Server, ABC):
    """A server on 127.0.0.1 for its own page. Requests with another host name are rejected.

    Port 0 selects a free port. A port in use raises AttendoError.
    """

    def __init__(self, port: int = 0) -> None:
        try:
            self._socket = socket.create_server(("127.0.0.1", port), backlog=64)
        except OSError as error:
            raise port_refused(error, port) from None
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http="h11",  # limits the size of request heads
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",  # no server log on the terminal
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
        """Serve until `stop` is called."""
        with self._socket:
            super().run(sockets or [self._socket])

    def stop(self) -> None:
        """Stop the server, so `run` returns."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, because the calling program handles signals."""
        yield

    def _refused(self, message: str, status: int) -> Response:
        """Return the response to an invalid request."""
        return PlainTextResponse(message, status, NO_STORE)

    @abstractmethod
    def _page(self, request: Request) -> Response:
        """Return the page. Its path is "/"."""

    @abstractmethod
    async def _posted(self, request: Request) -> Response:
        """Return the response to a request other than GET."""

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with contextlib.suppress(ClientDisconnect):
            response = await self._response(request)
            response.headers.update(HEADERS)
            if request.method != "GET" or {"content-length", "transfer-encoding"} & {*request.headers}:
                response.headers["Connection"] = "close"  # the rest of a body must not be read as a request
            await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        if request.headers.get("host") not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}"):
            return self._refused(f"open {self.address} instead", 403)  # DNS rebinding
        path = request.url.path
        if request.method == "GET" and path == "/":
            return self._page(request)
        if request.method == "GET":
            served = served_asset(path.removeprefix("/assets/")) if path.startswith("/assets/") else None
            if served is None:
                return PlainTextResponse("there is nothing here but /", 404, NO_STORE)
            return Response(*served.response(request.headers))
        try:
            return await self._posted(request)
        except AttendoError as error:
            return self._refused(str(error), 400)
        except ClientDisconnect:
            raise
        except OSError as error:
            return self._refused(f"{error.filename or 'a file'}: {error.strerror}", 500)
        except Exception as error:  # noqa: BLE001  (one question must not end the server)
            return self._refused(f"a bug in attendo: {type(error).__name__}: {error}", 500)


async def body_of(request: Request) -> bytes:
    """Return the body of a request. Raise AttendoError if it is too large, too slow or without a length."""
    length = request.headers.get("content-length", "")
    is_known = "transfer-encoding" not in request.headers and length.isdecimal() and len(length) <= 9
    if not is_known or int(length) > LARGEST:
        raise AttendoError(f"a question has a Content-Length of at most {LARGEST:,} bytes")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise AttendoError(f"a question must arrive within {BODY_SECONDS} seconds") from None


def answered(answer: Answer, status: int = 200) -> Response:
    """Return the HTTP response with an answer, which is bytes or JSON. Raise AttendoError for a non-finite number."""
    if isinstance(answer, bytes):
        return Response(answer, status, NO_STORE, "application/octet-stream")
    return Response(json_of(answer), status, NO_STORE, "application/json")


class LookServer(LocalServer):
    """A server on 127.0.0.1 for the live page of one model.

    Only the page of this server can send requests: other host names and form requests are rejected. One thread computes
    all answers, because each new thread of torch requires its own memory and helper threads.

    Args:
        session: The session that computes the answers.
        port: The port to listen on. 0 selects a free port. A port in use raises AttendoError.
        language: The language of the page, "en" or "ja".
    """

    def __init__(self, session: Session, port: int = 0, language: Language = "en") -> None:
        self.session = session
        self.language: Language = language
        self._questions: SimpleQueue[tuple[Future[Answer], str, dict[str, Any]] | None] = SimpleQueue()
        # a daemon thread, because Python waits forever for the threads of an executor
        self._worker = threading.Thread(target=self._work, name="look", daemon=True)
        super().__init__(port)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop` is called. Then wait for the running computation, for at most CLOSING_SECONDS.

        Args:
            sockets: The sockets to listen on, as in uvicorn (default: the socket of `port`).
        """
        self._worker.start()
        super().run(sockets)
        self._questions.put(None)
        self._worker.join(1)  # uvicorn has waited for the computation; an idle thread ends at once

    @property
    def is_computing(self) -> bool:
        """Whether an answer is still being computed after `run` returned. Torch would abort if Python exited now."""
        return self._worker.is_alive()

    def _refused(self, message: str, status: int) -> Response:
        """Return the response to an invalid request, as JSON."""
        return answered({"error": message}, status)

    def _page(self, request: Request) -> Response:
        """Return the microscope page."""
        return Response(*live_page(self.language, self.session.model_answer()).response(request.headers))

    async def _posted(self, request: Request) -> Response:
        """Return the answer to a question of the page."""
        name, body = await _question(request)
        answer: Future[Answer] = Future()
        self._questions.put((answer, name, body))
        return answered(await asyncio.wrap_future(answer))

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            answer, name, body = question
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self.session.answer(name, body))
                except BaseException as error:  # noqa: BLE001  (it is raised where the answer is awaited)
                    answer.set_exception(error)
            del question, answer  # they may contain large arrays


async def _question(request: Request) -> tuple[str, dict[str, Any]]:
    """Return the name and the body of a request. Raise AttendoError for an invalid request."""
    data = await body_of(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # forms of other pages cannot send this type
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


KEYS = 9
"""The number of labels that have a key."""


class LabelServer(LocalServer):
    """A server on 127.0.0.1 for the page that asks for labels, whose buttons are in the order of `labels`.

    The page consists of HTML forms, which also work without JavaScript. A form contains a secret, so that pages of
    other sites cannot send labels. Port 0 selects a free port, and a port in use raises AttendoError. The address of
    the page can name another language than `language`.
    """

    def __init__(
        self, labeling: Labeling, labels: Sequence[str], name: str, port: int = 0, language: Language = "en"
    ) -> None:
        self.labeling = labeling
        self.labels = labels
        self.name = name
        self.language: Language = language
        self._secret = secrets.token_urlsafe()
        super().__init__(port)

    def _page(self, request: Request) -> Response:
        """Return the form for the current text."""
        found = self.labeling.current
        # the most probable label, even below its threshold
        best, share = ("", 0.0) if found is None else next(iter(found.probabilities.items()))
        page = page_of(
            "label.html", self._chosen(request), name=self.name, labels=self.labels, n_keys=KEYS, secret=self._secret,
            labeling=self.labeling, found=found, best=best, share=share,
        )  # fmt: skip
        return Response(str(page), 200, NO_STORE | {"Content-Security-Policy": FORM_POLICY}, "text/html")

    async def _posted(self, request: Request) -> Response:
        """Carry out a button of the form, and return to the page. A form that was sent twice counts once."""
        try:
            fields = parse_qs((await body_of(request)).decode(), strict_parsing=True, max_num_fields=9)
            (secret,), (place,), (action,) = (fields[name] for name in ("secret", "place", "action"))
        except (ValueError, KeyError):
            raise AttendoError("the form is incomplete. Reload the page") from None
        if not secrets.compare_digest(secret.encode(), self._secret.encode()):
            raise AttendoError("the form is from an earlier start of the command. Reload the page")
        name = action.removeprefix("label-")
        if place == str(self.labeling.place):
            if action == "undo":
                self.labeling.undo()
            elif self.labeling.current is not None and action == "skip":
                self.labeling.skip()
            elif self.labeling.current is not None and name in map(str, range(len(self.labels))):
                self.labeling.label(self.labels[int(name)])
        return RedirectResponse(f"/?language={self._chosen(request)}", 303, NO_STORE)

    def _chosen(self, request: Request) -> Language:
        """Return the language in the address of the page."""
        languages = {language: language for language in get_args(Language)}
        return languages.get(request.query_params.get("language"), self.language)
