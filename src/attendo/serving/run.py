"""The server process, which loads models, handles signals, and exits when all admitted requests are finished."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import ipaddress
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import uvicorn

from attendo.errors import port_refused
from attendo.serving.app import State, create_app
from attendo.serving.registry import Reloading
from attendo.serving.sockets import MOST, Connections

TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
ARENA_MAX = -8
"""The parameter numbers of mallopt(3)."""
LARGE = 1 << 20
"""The block size in bytes above which glibc requests memory directly from the system and returns it directly."""


def steady() -> None:
    """Configure memory for a long-running server: return free memory to the system, and shorten garbage collections.

    By default, glibc raises its threshold for large blocks with each freed block, up to 32 MB, which fragments memory.
    In addition, glibc uses a separate memory arena per thread. By default, Python scans all imported objects in every
    full garbage collection.
    """
    if (library := _glibc()) is not None:
        library.mallopt(MMAP_THRESHOLD, LARGE)
        library.mallopt(TRIM_THRESHOLD, LARGE)
        library.mallopt(ARENA_MAX, 1)
    gc.collect()
    gc.freeze()
    gc.collect()


def give_back() -> None:
    """Return free pages of the heap to the system, in a few milliseconds."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Return glibc, or None if the C library is not glibc."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    try:
        library.mallopt.restype = library.malloc_trim.restype = ctypes.c_int
    except AttributeError:
        return None
    return library


LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
BACKLOG = 2048
KEEP_ALIVE = 75
"""The maximum idle seconds of a connection between requests, which is longer than the timeout of load balancers."""
TIDY_EVERY = 60.0
"""The interval in seconds at which free memory is returned to the system."""
SPARE_FILES = 128
"""The number of file descriptors that are reserved for other uses than connections."""


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, which only this machine can reach.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str) -> frozenset[str] | None:
    """Return the host names that a server on a loopback address accepts, or None (all names) for other addresses."""
    if not is_loopback(host):
        return None
    return LOOPBACK | {f"[{host}]" if ":" in host else host}


def serve(
    state: State,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    watch: float | None = None,
    on_listening: Callable[[str], None] = lambda address: None,
    on_ready: Callable[[str], None] = lambda address: None,
) -> int:
    """Run the server until SIGTERM or SIGINT.

    After the first signal, the server rejects new requests and finishes running requests for at most `config.drain`
    seconds. A second signal stops the process immediately. SIGHUP reloads the models whose files have changed.

    Args:
        state: The state of the server.
        host: The IP address or host name to listen on.
        port: The port to listen on. 0 selects a free port.
        watch: The interval in seconds of the checks for changed models, or None for no checks.
        on_listening: The function that is called with the address when the server listens.
        on_ready: The function that is called with the address when the models are loaded.

    Returns:
        The exit code: 0, or 1 if requests were cut off during shutdown.

    Raises:
        AttendoError: The server cannot listen on the port, or a folder is not a run folder.
    """
    listening = _listening(host, port)
    at = listening.getsockname()[1]
    address = f"http://{f'[{host}]' if ':' in host else host}:{at}/"
    steady()
    running = _Running(state, Reloading(state), Connections(_raised_limit()))
    loop_factory = running.server.config.get_loop_factory()
    with asyncio.Runner(loop_factory=loop_factory) as runner, _uvicorn_logs(state):
        on_listening(address)
        state.log.event("listening", {"address": address, "loading": ",".join(state.models.folders)})
        return runner.run(running.run(listening, watch, lambda: on_ready(address)))


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing, because `_signals` handles all signals."""
        yield


class _Running:
    """A running server."""

    def __init__(self, state: State, reloading: Reloading, connections: Connections) -> None:
        self.state = state
        self.reloading = reloading
        config = uvicorn.Config(
            create_app(state),
            http=connections,  # pyright: ignore[reportArgumentType]  (anything that makes a protocol)
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=1,
        )
        self.server = _Server(config)
        self.cut = 0  # requests that were unfinished at the end of the drain time
        self.look = asyncio.Event()
        self.stop = asyncio.Event()

    async def run(self, listening: socket.socket, watch: float | None, ready: Callable[[], None] = lambda: None) -> int:
        """Serve until a signal or an error, and return the exit code."""
        loop = asyncio.get_running_loop()
        with _signals(loop, self.start_draining, self.look.set):
            work = (self._models(watch, ready), self._drained(), _tidied())
            tasks = [asyncio.ensure_future(one) for one in work]
            serving = asyncio.ensure_future(self.server.serve(sockets=[listening]))
            await asyncio.wait([*tasks, serving], return_when=asyncio.FIRST_COMPLETED)
            self.server.should_exit = True
            await serving
            for task in tasks:
                if not task.done():
                    task.cancel()
            failed = next((task.exception() for task in tasks if task.done() and not task.cancelled()), None)
            self.state.models.stop()
            if failed is not None:
                raise failed
        self.state.log.event("stopped", {"cut_off": self.cut or None})
        return int(self.cut > 0)

    def start_draining(self) -> None:
        """Reject new requests from now on."""
        self.state.draining = True
        self.state.log.event("draining", {"working": self.state.working})
        self.stop.set()

    async def _drained(self) -> None:
        """Wait for a stop signal, and then until all admitted requests are finished or the drain time is over."""
        await self.stop.wait()
        until = time.monotonic() + self.state.config.drain
        while self.state.working and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.cut = self.state.working

    async def _models(self, watch: float | None, ready: Callable[[], None]) -> None:
        """Load the models, and then reload changed models forever. An error of the first loading is raised."""
        await _in_thread(self.reloading.load)
        ready()
        while True:
            asked = True
            try:
                async with asyncio.timeout(watch):
                    await self.look.wait()
            except TimeoutError:
                asked = False
            self.look.clear()
            await _in_thread(lambda asked=asked: self.reloading.look_again(watching=not asked))


async def _tidied() -> None:
    """Return free memory to the system at regular intervals, forever."""
    while True:
        await asyncio.sleep(TIDY_EVERY)
        await _in_thread(give_back)


async def _in_thread(work: Callable[[], object]) -> None:
    """Run `work` in a daemon thread, which does not prevent the exit of the process."""
    over: Future[None] = Future()
    over.set_running_or_notify_cancel()

    def run() -> None:
        try:
            work()
            over.set_result(None)
        except BaseException as error:  # noqa: BLE001  (the waiting code raises it again)
            over.set_exception(error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    await asyncio.wrap_future(over)


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None], look: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or SIGINT, and `look` at SIGHUP. A second signal ends the process."""
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return
    both = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in (*both, signal.SIGHUP)}

    def first() -> None:
        for number in both:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in both:
        loop.add_signal_handler(number, first)
    loop.add_signal_handler(signal.SIGHUP, look)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise port_refused(error, port, host) from None


def _raised_limit() -> int:
    """Raise the limit of file descriptors, and return the maximum number of open connections."""
    try:
        import resource
    except ImportError:  # not available on Windows
        return MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST if soft == resource.RLIM_INFINITY else max(16, min(MOST, soft - SPARE_FILES))


class _Forwarded(logging.Handler):
    """A log handler that forwards uvicorn's messages without values and tracebacks, which may contain a text."""

    def __init__(self, state: State) -> None:
        super().__init__(logging.WARNING)
        self._log = state.log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message of uvicorn to the server's log."""
        self._log.event("uvicorn", {"said": " ".join(str(record.msg).split())})


@contextlib.contextmanager
def _uvicorn_logs(state: State) -> Iterator[None]:
    """Redirect uvicorn's log messages to the server's log."""
    logger = logging.getLogger("uvicorn")
    handler = _Forwarded(state)
    propagated = logger.propagate
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
