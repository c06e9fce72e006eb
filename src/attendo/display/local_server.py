"""The base of the HTTP servers for pages that only this machine can use."""

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from attendo.display.web import served_asset
from attendo.errors import AttendoError, port_refused

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
    if (
        "transfer-encoding" in request.headers
        or not length.isdecimal()
        or len(length) > 9
        or int(length) > LARGEST
    ):
        raise AttendoError(f"a question has a Content-Length of at most {LARGEST:,} bytes")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise AttendoError(f"a question must arrive within {BODY_SECONDS} seconds") from None
