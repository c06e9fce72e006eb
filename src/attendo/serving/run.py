"""The server as a process: it listens, loads, takes signals, and leaves when all that it admitted is answered."""

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

import uvicorn

from attendo.errors import port_refused
from attendo.serving.app import State, create_app
from attendo.serving.registry import Reloading
from attendo.serving.sockets import MOST, Connections

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""

LARGE = 1 << 20
"""Bytes from which on memory comes from the system and goes back to it, one by one."""


def steady() -> None:
    """Makes memory that is free go back to the system, and what is imported no matter of any collection.

    glibc raises its threshold for large blocks with each one that is freed, up to 32 MB: tensors would come to lie
    between small objects, and the gaps that they leave be kept; each thread would get an arena with gaps of its own.
    Python counts what was imported as what may become garbage: collections would take longer, and come only once a
    quarter as much has gathered.
    """
    if (library := _glibc()) is not None:
        library.mallopt(MMAP_THRESHOLD, LARGE)
        library.mallopt(TRIM_THRESHOLD, LARGE)
        library.mallopt(ARENA_MAX, 1)
    gc.collect()
    gc.freeze()
    gc.collect()


def give_back() -> None:
    """Gives the pages within the heap that are free back to the system, in a few milliseconds."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is the one whose memory can be told what to do."""
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
    """Whether only this machine reaches a host.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str) -> frozenset[str] | None:
    """The names that a server on this host answers to; None: any, for only on loopback are they known."""
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
    """Serves until SIGTERM or SIGINT, and gives the exit code: 0, or 1 where the drain cut requests off at its end.

    From the first signal on nothing new is admitted, and what was admitted is answered to its end, for
    `config.drain` seconds at most; a second one ends the process at once. SIGHUP, and with watch every so many
    seconds a look at the files, loads the models anew that have changed. told: gets the address as soon as it listens,
    ready: when the models are loaded, too, and requests are answered. Raises AttendoError for a port in use and for a
    folder that is no model.
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
    """uvicorn's, which leaves the signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


class _Running:
    """One server from start to end."""

    def __init__(self, state: State, reloading: Reloading, connections: Connections) -> None:
        self.state, self.reloading = state, reloading
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
        self.look, self.stop = asyncio.Event(), asyncio.Event()

    async def run(
        self, listening: socket.socket, watch: float | None, ready: Callable[[], None] = lambda: None
    ) -> int:
        """Until it is told to stop, or fails."""
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
        """From now on nothing new is admitted."""
        self.state.draining = True
        self.state.log.event("draining", {"working": self.state.working})
        self.stop.set()

    async def _drained(self) -> None:
        """Ends when it was told to stop and all that was admitted is answered, or the time for that is up."""
        await self.stop.wait()
        until = time.monotonic() + self.state.config.drain
        while self.state.working and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.cut = self.state.working

    async def _models(self, watch: float | None, ready: Callable[[], None]) -> None:
        """Loads the models, says so, and loads those that change; ends only by an error of the first loading."""
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
    """Gives memory back now and then; never ends."""
    while True:
        await asyncio.sleep(TIDY_EVERY)
        await _in_thread(give_back)


async def _in_thread(work: Callable[[], object]) -> None:
    """Runs it in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if over.done():
            return
        if error is None:
            over.set_result(None)
        else:
            over.set_exception(error)

    def run() -> None:
        error = None
        try:
            work()
        except BaseException as raised:  # noqa: BLE001  (it is raised again where it is waited for)
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    await over


@contextlib.contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, stop: Callable[[], None], look: Callable[[], None]
) -> Iterator[None]:
    """Within it SIGTERM and SIGINT call `stop`, once: a second one ends the process; and SIGHUP calls `look`."""
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
    """As many connections as may be open at a time, after asking for as many file descriptors."""
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
    """What uvicorn says, without the values and tracebacks in it: they may hold a text."""

    def __init__(self, state: State) -> None:
        super().__init__(logging.WARNING)
        self._log = state.log

    def emit(self, record: logging.LogRecord) -> None:
        """Write its line."""
        self._log.event("uvicorn", {"said": " ".join(str(record.msg).split())})


@contextlib.contextmanager
def _uvicorn_logs(state: State) -> Iterator[None]:
    """Within it uvicorn's log goes to ours."""
    logger, handler = logging.getLogger("uvicorn"), _Forwarded(state)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
