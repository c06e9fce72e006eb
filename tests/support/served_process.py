"""A server in a process of its own, with routes that take their time."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import time

from asgi_client import NoModels
from forked import begun_child
from starlette.responses import Response, StreamingResponse

from attendo.errors import AttendoError
from attendo.serving import run
from attendo.serving.app import State, create_app
from attendo.serving.monitoring import Log
from attendo.serving.state import ServingConfig


class Server:
    """A server in a process of its own."""

    def __init__(self, tmp_path, models=None, *, watch=None, prepare=None, **config):
        reading, writing = os.pipe()
        self.log_file = tmp_path / "log"
        hosts = run.names_of("127.0.0.1")

        def act():
            if prepare:
                prepare()
            run.create_app = with_slow_routes
            log = Log("json", self.log_file.open("w", encoding="utf-8"))
            state = State(models or NoModels(), ServingConfig(**config), hosts=hosts, page=False, log=log)
            on_listening = lambda address: os.write(writing, address.encode())  # noqa: E731
            on_ready = lambda address: log.event("told ready", {"address": address})  # noqa: E731
            try:
                return run.serve(state, port=0, watch=watch, on_listening=on_listening, on_ready=on_ready)
            except AttendoError:
                return 2

        self.pid = begun_child(act)
        os.close(writing)
        self.address = os.read(reading, 100).decode()
        os.close(reading)
        self.port = int(self.address.rpartition(":")[2].strip("/"))
        self.status: int | None = None
        self.opened: list = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for connection in self.opened:
            connection.close()
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def connection(self) -> http.client.HTTPConnection:
        self.opened.append(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20))
        return self.opened[-1]

    def get(self, path):
        """(status, body)"""
        connection = self.connection()
        connection.request("GET", path)
        response = connection.getresponse()
        status, body = response.status, response.read()
        connection.close()
        return status, body

    def raw(self, data=b"") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        self.opened.append(made)
        made.sendall(data)
        return made

    def until_ready(self):
        until(lambda: self.get("/readyz")[0] == 200)

    def until_working(self, n):
        until(lambda: f"attendo_working_requests {n}.0" in self.get("/metrics")[1].decode())

    def signal(self, number):
        os.kill(self.pid, number)

    def ended(self) -> int:
        """Its exit code; of a signal, minus its number."""
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def events(self, name):
        text = self.log_file.read_text(encoding="utf-8").rpartition("\n")[0]  # a last line may not be whole
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if line["event"] == name]

    def until_event(self, name, n=1):
        until(lambda: len(self.events(name)) >= n)


def with_slow_routes(state):
    app = create_app(state)

    @app.get("/test/slow")
    async def slow(seconds: float):
        await asyncio.sleep(seconds)
        return Response(b"done")

    @app.get("/test/stream")
    async def stream(seconds: float):
        async def pieces():
            for number in range(10):
                await asyncio.sleep(seconds / 10)
                yield f"{number} ".encode()

        return StreamingResponse(pieces())

    @app.get("/test/flood")
    async def flood():
        async def pieces():
            for _ in range(1000):
                yield b"x" * 100_000

        return StreamingResponse(pieces())

    return app


def until(condition):
    """Waits for it; not for ever."""
    late = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < late
        time.sleep(0.01)


def until_closed(connection) -> bytes:
    """What came until it was closed."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(10_000):
            got += data
    return got
