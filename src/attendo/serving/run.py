"""The server process: it listens, loads models, handles signals, and exits after all admitted requests."""

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
"""Parameters of mallopt(3)."""

LARGE = 1 << 20
"""Bytes from which on memory comes from the system and goes back to it, one by one."""


def steady() -> None:
    """Let free memory return to the system, and exclude imported objects from garbage collections.

    glibc raises its threshold for large blocks with each freed block up to 32 MB, which fragments memory, and gives
    each thread an arena of its own. Python would scan imported objects in every collection.
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
    """Return glibc, whose memory can be tuned; None with another C library."""
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
"""Seconds that a connection may be silent between requests: longer than balancers keep theirs."""

TIDY_EVERY = 60.0
"""Seconds between two times that free memory goes back to the system."""

SPARE_FILES = 128
"""File descriptors that are not for connections."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str) -> frozenset[str] | None:
    """Return the names that a server on this host answers to; None, any name, if the host is not loopback."""
    if not is_loopback(host):
        return None
    return LOOPBACK | {f"[{host}]" if ":" in host else host}


def serve(
    state: State,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    watch: float | None = None,
    told: Callable[[str], None] = lambda address: None,
    ready: Callable[[str], None] = lambda address: None,
) -> int:
    """Serve until SIGTERM or SIGINT.

    The first signal rejects new requests and finishes running ones within `config.drain` seconds; a second one exits at
    once. SIGHUP loads the models that have changed.

    Args:
        state: The state of the server.
        host: The address to listen on.
        port: The port.
        watch: The number of seconds between checks for changed models; None disables them.
        told: Receives the address when the server listens.
        ready: Receives the address when the models are loaded.

    Returns:
        The exit code: 0, or 1 if requests were cut off during shutdown.

    Raises:
        AttendoError: The port is in use, or a folder is not a run folder.
    """
    listening = _listening(host, port)
    at = listening.getsockname()[1]
    address = f"http://{f'[{host}]' if ':' in host else host}:{at}/"
    steady()
    running = _Running(state, Reloading(state), Connections(_raised_limit()))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner, _uvicorn_logs(state):
        told(address)
        state.log.event("listening", {"address": address, "loading": ",".join(state.models.folders)})
        return runner.run(running.run(listening, watch, lambda: ready(address)))


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `_signals`."""
        yield


class _Running:
    """One server from start to end."""

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
        self.cut = 0  # requests that the end of the drain cut off
        self.look = asyncio.Event()
        self.stop = asyncio.Event()

    async def run(
        self, listening: socket.socket, watch: float | None, ready: Callable[[], None] = lambda: None
    ) -> int:
        """Serve until a signal or an error. Returns the exit code."""
        loop = asyncio.get_running_loop()
        with _signals(loop, self.told_to_stop, self.look.set):
            tasks = [
                asyncio.ensure_future(task)
                for task in (self._models(watch, ready), self._drained(), _tidied())
            ]
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

    def told_to_stop(self) -> None:
        """Admit nothing new from now on."""
        self.state.draining = True
        self.state.log.event("draining", {"working": self.state.working})
        self.stop.set()

    async def _drained(self) -> None:
        """Return after a signal to stop, when every admitted request is answered or the time to drain is over."""
        await self.stop.wait()
        until = time.monotonic() + self.state.config.drain
        while self.state.working and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.cut = self.state.working

    async def _models(self, watch: float | None, ready: Callable[[], None]) -> None:
        """Load the models, then load changed ones again; return only by an error of the first loading."""
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
    """Return memory to the system at intervals, forever."""
    while True:
        await asyncio.sleep(TIDY_EVERY)
        await _in_thread(give_back)


async def _in_thread(work: Callable[[], object]) -> None:
    """Run `work` in a thread that does not keep the process from ending."""
    over: Future[None] = Future()
    over.set_running_or_notify_cancel()

    def run() -> None:
        try:
            work()
            over.set_result(None)
        except BaseException as error:  # noqa: BLE001  (it is raised again where it is waited for)
            over.set_exception(error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    await asyncio.wrap_future(over)


@contextlib.contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, stop: Callable[[], None], look: Callable[[], None]
) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or SIGINT (a second one ends the process), and `look` at SIGHUP."""
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
    """Raise the limit of file descriptors. Returns how many connections may be open at a time."""
    try:
        import resource
    except ImportError:  # not there on Windows
        return MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST if soft == resource.RLIM_INFINITY else max(16, min(MOST, soft - SPARE_FILES))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not there on Windows
        return None
    return uvloop.new_event_loop


class _Forwarded(logging.Handler):
    """Forwards uvicorn's messages without values and tracebacks, which may contain a text."""

    def __init__(self, state: State) -> None:
        super().__init__(logging.WARNING)
        self._log = state.log

    def emit(self, record: logging.LogRecord) -> None:
        """Write its line."""
        self._log.event("uvicorn", {"said": " ".join(str(record.msg).split())})


@contextlib.contextmanager
def _uvicorn_logs(state: State) -> Iterator[None]:
    """Send uvicorn's log to the server's own."""
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
