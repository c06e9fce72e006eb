"""A server for load tests, and clients that use little CPU: HTTP/1.1 written by hand on asyncio."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

PAGE, TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


class Server:
    """A process of `attendo serve`. `core` is its only core (None for all), and `program` replaces attendo."""

    def __init__(self, runs, *options, core=None, threads=1, log=subprocess.DEVNULL, program=()):
        self.port = free_port()
        program = program or [Path(sys.executable).with_name("attendo")]
        command = [*program, "serve", *map(str, runs), "--from", "en", "--to", "de", "--port", str(self.port)]
        command += ["--threads", str(threads), *options]
        pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, preexec_fn=pin)

    async def ready(self, seconds=120):
        """Wait until the server answers /readyz with status 200."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with status {self.process.returncode}")
            try:
                async with Client(self.port) as client:
                    if (await client.ask("GET", "/readyz"))[0] == 200:
                        return
            except OSError:
                pass
            await asyncio.sleep(0.05)
        raise SystemExit("the server is not ready in time")

    @property
    def cpu_seconds(self):
        """Return the user and system time of all threads so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    @property
    def megabytes(self):
        """Return the resident memory in MB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE / 1e6

    @property
    def children(self):
        """Return the processes that the server has started."""
        folder = Path(f"/proc/{self.process.pid}/task")
        return [child for task in folder.glob("*/children") for child in task.read_text().split()]

    def stop(self, seconds=40):
        """Send SIGTERM, and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


@contextmanager
def serving(runs, *options, **more):
    """Run a server during the `with` block, and end it in any case."""
    server = Server(runs, *options, **more)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


class Client:
    """A kept connection, which is opened again after the server has closed it."""

    def __init__(self, port, headers=None):
        self.port, self.reader, self.writer = port, None, None
        self.headers = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.close()

    def close(self):
        """Close the connection at once."""
        if self.writer is not None:
            self.writer.close()
            self.reader = self.writer = None

    async def send(self, method, path, body=None):
        """Send a request. `body` is bytes, or a value that is converted to JSON."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{self.headers}"
        kind = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        self.writer.write(f"{head}{kind}\r\n".encode() + data)

    async def answer(self):
        """Return the status, the headers and the body of the answer."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self._chunks()])
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, headers, body

    async def _chunks(self):
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()

    async def ask(self, method, path, body=None):
        """Send a request and return the answer. If a kept connection had been closed, send the request again."""
        for kept in (self.writer is not None, False):
            try:
                await self.send(method, path, body)
                return await self.answer()
            except (asyncio.IncompleteReadError, ConnectionError):
                self.close()
                if not kept:
                    raise
        raise AssertionError


def request_of(port, path, body):
    """Return a POST request with JSON as bytes."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


class Shot(asyncio.Protocol):
    """A connection of an open loop, which sends one request at a time and records the important parts of the answer."""

    def __init__(self, loop):
        self.loop, self.due, self.data = loop, None, b""

    def connection_made(self, transport):
        """Mark the connection as ready."""
        self.transport = transport

    def fire(self, request, due):
        """Send a request that was scheduled for the time `due`."""
        self.due, self.data = due, b""
        self.transport.write(request)

    def data_received(self, data):
        """Process a part of the answer."""
        self.data += data
        head, there, body = self.data.partition(b"\r\n\r\n")
        if not there:
            return
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        if len(body) < int(length[1]):
            return
        hint = re.search(rb"\r\nretry-after: (\d+)", head)
        self.loop.answered(self, int(head[9:12]), hint and int(hint[1]))

    def connection_lost(self, exc):
        """Handle a connection that the server has closed."""
        self.loop.lost(self, exc)


class OpenLoop:
    """Requests at a steady rate, independent of the answers, over as few kept connections as possible.

    statuses: number of answers by status, and of errors by name. waits: seconds of each answer with status 200, from
    the time when the request was due. hints: number of each Retry-After value with status 429. late: delay of the
    latest request in seconds.
    """

    def __init__(self, port, requests, rate):
        self.port, self.requests, self.rate = port, requests, rate
        self.statuses, self.hints, self.waits = Counter(), Counter(), []
        self.idle, self.sent, self.under_way, self.open, self.most_open, self.late = [], 0, 0, 0, 0, 0.0
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.opening = set()
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def answered(self, shot, status, hint):
        """Record the end of a request."""
        self.under_way -= 1
        self.statuses[status] += 1
        if status == 200:
            self.waits.append(time.perf_counter() - shot.due)
        elif status == 429:
            self.hints[hint] += 1
        shot.due = None
        self.idle.append(shot)

    def lost(self, shot, error):
        """Record a closed connection, if it was waiting for an answer."""
        self.open -= 1
        if shot.due is None:
            self.idle.remove(shot)
        else:
            self.under_way -= 1
            self.statuses[type(error).__name__ if error else "closed"] += 1

    async def run(self, seconds, watch=lambda: None):
        """Send requests for `seconds` seconds, then wait for all answers. `watch` is called repeatedly meanwhile."""
        began = time.perf_counter()
        while (now := time.perf_counter() - began) < seconds:
            while (due := self.sent / self.rate) < now:
                self.late = max(self.late, now - due)
                self.sent += 1
                self.under_way += 1
                request = self.requests[self.sent % len(self.requests)]
                if self.idle:
                    self.idle.pop().fire(request, began + due)
                else:
                    task = asyncio.ensure_future(self._open(request, began + due))
                    self.opening.add(task)
                    task.add_done_callback(self.opening.discard)
            watch()
            await asyncio.sleep(0.002)
        while self.under_way:
            await asyncio.sleep(0.01)
        for shot in self.idle:
            shot.transport.close()

    async def _open(self, request, due):
        loop = asyncio.get_running_loop()
        try:
            _, shot = await loop.create_connection(lambda: Shot(self), "127.0.0.1", self.port)
        except OSError as error:
            self.under_way -= 1
            self.statuses[type(error).__name__] += 1
            return
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        shot.fire(request, due)


def free_port():
    """Return a port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def metric(text, name):
    """Return the sum of a metric of /metrics over all labels.

    >>> metric('steps_total{model="a"} 2.0\\nsteps_total{model="b"} 3.0', "steps_total")
    5.0
    """
    return sum(float(v) for v in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M))


def quantile(values, share):
    """Return the value below which the share `share` of all values lie.

    >>> quantile([3, 1, 2, 4], 0.5), quantile([1], 0.99)
    (3, 1)
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
