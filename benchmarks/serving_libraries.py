"""Comparison of the server's protection against slow clients and of its routing shortcut with libraries.

    python benchmarks/serving_libraries.py --peer-python PYTHON [--clients N] [--seconds S]

PYTHON belongs to an environment with granian and hypercorn. Every server is a process with at most 1,024 file
descriptors that serves the same small application. If a server has such limits, a request head may take 10 seconds and
64 KiB. crowd: N clients send one byte of a head per second. Meanwhile, a normal client opens a connection every half
second and waits at most 5 seconds for the answer. flood: one connection sends headers without end for 3 seconds. The
result is the growth of the server's memory. routing: CPU microseconds of POST /translate and POST /tokenize for an
untrained model, with FastAPI's routing and with a table of fixed paths before it, alternately.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from serving_load import PAGE, free_port
from turns import ratios, shared_options, store

DESCRIPTORS = 1024
HERE = Path(__file__).resolve().parent
SUPPORT = HERE.parent / "tests" / "support"
PEERS = ("granian", "hypercorn")
SERVERS = ("attendo", "uvicorn", "uvicorn, limits", *PEERS)
WAIT = 5.0


async def application(scope, receive, send):
    """Answer each request with status 200."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def serve(name, port):
    """Run one of the servers until it is killed."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    if name == "granian":
        from granian import Granian
        from granian.http import HTTP1Settings

        http1 = HTTP1Settings(header_read_timeout=10_000)
        options = {"interface": "asgi", "http": "1", "http1_settings": http1, "log_enabled": False}
        Granian("serving_libraries:application", port=port, working_dir=HERE, **options).serve()
    elif name == "hypercorn":
        from hypercorn.asyncio import serve as hypercorn
        from hypercorn.config import Config

        config = Config()
        config.bind = [f"127.0.0.1:{port}"]
        config.keep_alive_timeout, config.read_timeout = 75, 10
        asyncio.run(hypercorn(application, config))
    else:
        import uvicorn

        options = {"http": "httptools", "timeout_keep_alive": 75}
        if name == "attendo":
            from attendo.serving.sockets import Connections

            options["http"] = Connections(DESCRIPTORS - 128)
        elif name == "uvicorn, limits":
            options = {"http": "h11", "h11_max_incomplete_event_size": 1 << 16, "timeout_keep_alive": 10}
            options["limit_concurrency"] = DESCRIPTORS - 128
        uvicorn.run(application, port=port, log_level="critical", **options)


@contextlib.contextmanager
def server(name, peer_python):
    """Run a server during the `with` block. Yield its port and process ids; its output is discarded."""
    port = free_port()
    python = peer_python if name in PEERS else sys.executable
    command = [python, __file__, "--work", name, "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        time.sleep(1.0)
        yield port, process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def megabytes(group):
    """Return the resident memory of a process group in MB."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                found += int((folder / "statm").read_text().split()[1]) * PAGE
    return found / 1e6


async def crowd(port, n, seconds):
    """Return the share of a normal client's requests with status 200, and its waits in ms, besides n slow clients."""
    stopping = asyncio.Event()
    slow = [asyncio.ensure_future(_dawdle(port, stopping)) for _ in range(n)]
    await asyncio.sleep(3.0)
    waits, asked, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        asked += 1
        began = time.perf_counter()
        if await _honest(port):
            waits.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(0.5)
    stopping.set()
    await asyncio.gather(*slow)
    median = round(statistics.median(waits), 1) if waits else None
    return {
        "answered": round(len(waits) / asked, 3),
        "median ms": median,
        "most ms": round(max(waits), 1) if waits else None,
    }


async def _honest(port):
    try:
        async with asyncio.timeout(WAIT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return (await reader.readline()).startswith(b"HTTP/1.1 200")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


async def _dawdle(port, stopping):
    """Send one byte of a request head per second. Start again when the server closes the connection."""
    while not stopping.is_set():
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            left = asyncio.ensure_future(reader.read(1))
            for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1000:
                writer.write(bytes([byte]))
                await asyncio.wait({left}, timeout=1.0)
                if left.done() or stopping.is_set():
                    break
            left.cancel()
            writer.close()
        except OSError:
            await asyncio.sleep(0.2)


def flood(port, group):
    """Return the growth in MB after 3 seconds in which one connection sends headers and requests without end."""
    found = {}
    get = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    for kind, first, endless in (
        ("headers", get, b"a: b\r\n" * 10_000),
        ("one header", get + b"a: ", b"b" * 60_000),
    ):
        before = largest = megabytes(group)
        end = time.monotonic() + 3.0
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 3) as sender:
            sender.sendall(first)
            while time.monotonic() < end:
                sender.sendall(endless)
                largest = max(largest, megabytes(group))
        found[kind] = round(largest - before, 1)
    return found


class Shortcut:
    """Router that calls the endpoint of a path without parameters directly, before FastAPI searches for it."""

    def __init__(self, app, routes):
        self.app = app
        self.routes = {(method, route.path): route for route in routes for method in route.methods or ()}

    async def __call__(self, scope, receive, send):
        """Answer a request."""
        route = self.routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None:
            await self.app(scope, receive, send)
            return
        from starlette.requests import Request

        scope["route"] = route
        response = await route.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


def routing(rounds):
    """Return the CPU microseconds of a request with FastAPI's routing and with the shortcut, and the ratios."""
    sys.path.insert(0, str(SUPPORT))
    import torch
    from asgi_client import asked
    from fastapi.routing import APIRoute
    from served_models import serving
    from starlette.middleware import Middleware

    from attendo.serving import completions, texts, translations

    torch.set_num_threads(1)
    _, plain = serving()
    _, short = serving()
    routers = (completions.router, translations.router, texts.router)
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    fixed = [route for route in routes if "{" not in route.path]
    short.user_middleware.append(Middleware(Shortcut, routes=fixed))  # the innermost middleware
    bodies = {
        "/translate": {"q": "It will rain.", "source": "en", "target": "ja"},
        "/tokenize": {"text": "rain", "model": "enja"},
    }
    found = {}

    async def cpu(app, path, n):
        began = time.process_time()
        for _ in range(n):
            assert (await asked(app, "POST", path, {}, bodies[path])).status == 200
        return 1e6 * (time.process_time() - began) / n

    async def measure():
        for path, n in (("/translate", 30), ("/tokenize", 300)):
            times = {"FastAPI": [], "shortcut": []}
            for number in range(rounds + 1):
                for name, app in (("FastAPI", plain), ("shortcut", short)):
                    took = await cpu(app, path, n)
                    if number:
                        times[name].append(took)
            found[path] = {name: round(statistics.median(own)) for name, own in times.items()}
            found[path]["shortcut / FastAPI"] = ratios(times["shortcut"], times["FastAPI"])

    asyncio.run(measure())
    return found


def main():
    """Measure all servers, or run one server."""
    made = shared_options(__doc__, rounds=15)
    made.add_argument("--peer-python", help="an environment with granian and hypercorn")
    made.add_argument("--clients", type=int, default=1500)
    made.add_argument("--seconds", type=float, default=25)
    made.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.work:
        return serve(options.work, options.port)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = {}
    for name in SERVERS:
        with server(name, options.peer_python) as (port, group):
            alone = asyncio.run(crowd(port, 0, 3.0))
            beside = asyncio.run(crowd(port, options.clients, options.seconds))
        with server(name, options.peer_python) as (port, group):
            memory = flood(port, group)
        found[name] = {"alone": alone, "beside slow clients": beside, "MB more by one connection": memory}
        print(name, found[name], flush=True)
    result = {
        "clients": options.clients,
        "seconds": options.seconds,
        "servers": found,
        "routing": routing(options.rounds),
    }
    store("serving-libraries", result, options.out)
    return None


if __name__ == "__main__":
    main()
