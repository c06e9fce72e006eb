"""An HTTP server for the live page, which only this machine can use."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from attendo.display.i18n import Language
from attendo.display.local_server import NO_STORE, LocalServer, body_of
from attendo.errors import AttendoError
from attendo.files import json_of
from attendo.microscope.look_page import live_page
from attendo.microscope.session import Answer, Session


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
