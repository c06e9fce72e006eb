"""The page and its answers over HTTP, for this machine alone."""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import Future
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

from attendo.display.i18n import Language
from attendo.errors import AttendoError, port_refused
from attendo.files import json_of
from attendo.microscope.look_page import live_page
from attendo.microscope.session import Answer, Session

LARGEST = 1 << 20
"""Bytes of a question."""
CLOSING_SECONDS = 10.0
"""The longest that the end of a server waits for an answer that is being computed."""


class LookServer(ThreadingHTTPServer):
    """A server on 127.0.0.1 that answers about the session's model; port 0 takes a free one.

    `serve_forever` runs it, `shutdown` ends it. Only this machine reaches it, and only pages that it gave itself: other
    names for the host and questions that a form could send are refused. Raises AttendoError for a port in use.
    One thread computes all answers: a new one for each would begin with memory and helpers of its own.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, session: Session, port: int = 0, language: Language = "en") -> None:
        self.session = session
        self.language: Language = language
        self._closing, self._closed = threading.Lock(), False
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._questions: SimpleQueue[tuple[Future[Answer], str, dict[str, Any]] | None] = SimpleQueue()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise port_refused(error, port) from None
        self._worker.start()

    def get_request(self) -> Any:
        """The next connection; where no descriptor is left, a pause, since asking again at once takes a whole core."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.1)
            raise

    def answer(self, name: str, body: dict[str, Any]) -> Answer:
        """The session's. Raises AttendoError once the server is closed."""
        answer: Future[Answer] = Future()
        with self._closing:
            if self._closed:
                raise AttendoError(
                    "the program behind this page has ended; start it again and reload the page"
                )
            self._questions.put((answer, name, body))
        return answer.result()

    def server_close(self) -> None:
        """Ends it, and the thread behind it."""
        super().server_close()
        with self._closing:
            self._closed = True
            self._questions.put(None)
        if self._worker.is_alive():
            self._worker.join(
                CLOSING_SECONDS
            )  # at the end of Python, torch aborts where a thread still computes

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing where a client has left."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            self._settle(*question)
            del question  # it may hold much

    def _settle(self, answer: Future[Answer], name: str, body: dict[str, Any]) -> None:
        try:
            answer.set_result(self.session.answer(name, body))
        except BaseException as error:  # noqa: BLE001  (it is raised where the answer is waited for)
            answer.set_exception(error)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: LookServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "attendo"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """The page, and nothing else."""
        if not self._is_ours():
            return
        if self.path.partition("?")[0] != "/":
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"there is nothing here but /")
            return
        page = live_page(self.server.language, self.server.session.model_answer())
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())

    def do_POST(self) -> None:
        """An answer."""
        if not self._is_ours():
            return
        try:
            name, body = self._question()
            answer = self.server.answer(name, body)
            data = answer if isinstance(answer, bytes) else json_of(answer).encode()
        except AttendoError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:  # noqa: BLE001  (one question must not end the server)
            self._refuse(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"a fault in attendo: {type(error).__name__}: {error}"
            )
        else:
            kind = "application/octet-stream" if isinstance(answer, bytes) else "application/json"
            self._send(HTTPStatus.OK, kind, data)

    def _is_ours(self) -> bool:
        """Whether the request names this machine as a page of ours does; else it is refused (DNS rebinding)."""
        port = self.server.server_address[1]
        if self.headers.get("Host") in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return True
        self.close_connection = True
        self._refuse(HTTPStatus.FORBIDDEN, f"open {self.server.address} instead")
        return False

    def _question(self) -> tuple[str, dict[str, Any]]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > LARGEST:
            self.close_connection = True
            raise AttendoError(f"a question has a Content-Length of at most {LARGEST:,} bytes")
        data = self.rfile.read(int(length))
        if self.headers.get_content_type() != "application/json":  # what no form of another page can send
            raise AttendoError("a question is JSON, sent as application/json")
        folder, _, name = self.path.lstrip("/").partition("/")
        if folder != "api":
            raise AttendoError("questions go to /api/NAME")
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            raise AttendoError("the question is not valid JSON") from None
        if not isinstance(body, dict):
            raise AttendoError("the question is not a JSON object")
        return name, body

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "application/json", json_of({"error": text}).encode())

    def _send(self, status: HTTPStatus, kind: str, data: bytes) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is for what a person wants to know."""
