"""Loading a function from a user's Python file."""

from __future__ import annotations

import inspect
import io
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from attendo.display.i18n import Localized
from attendo.errors import install_command
from attendo_course.book import translated

PRINTS = translated("it prints, which is left out; what it returns is checked")
ASKS = translated("it asks for input and gets none; the arrays come as arguments")


@dataclass
class Heard:
    """The observed use of input and output: whether the code printed text, and whether it asked for input."""

    printed: bool = False
    asked: bool = False

    @property
    def remarks(self) -> tuple[Localized, ...]:
        """Remarks if the code printed text or asked for input. The prompt of an input does not count as printing."""
        return (ASKS,) if self.asked else (PRINTS,) if self.printed else ()


class _Nowhere(io.RawIOBase):
    """A text stream that discards what is written to it."""

    def __init__(self, heard: Heard):
        self.heard = heard

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.heard.printed = True
        return memoryview(data).nbytes  # pyright: ignore[reportArgumentType]


class _Closed(io.RawIOBase):
    """An empty text stream."""

    def __init__(self, heard: Heard):
        self.heard = heard

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        self.heard.asked = True
        return 0


@contextmanager
def quiet() -> Iterator[Heard]:
    """Discard standard output and provide an empty standard input within a `with` block.

    >>> with quiet() as heard:
    ...     print("unseen")
    >>> heard.printed, heard.asked
    (True, False)
    """
    heard, former = Heard(), sys.stdin
    out = io.TextIOWrapper(io.BufferedWriter(_Nowhere(heard)), encoding="utf-8", write_through=True)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed(heard)), encoding="utf-8")
    try:
        with redirect_stdout(out):
            yield heard
            out.flush()
    finally:
        sys.stdin = former


SECONDS = 10.0
"""The time limit in seconds for running a file, and for each call of a function. A normal call takes milliseconds."""
AGAIN = 1.0
"""Seconds until the next alarm, which is required if the code caught the first exception."""


class TimeUpError(BaseException):
    """The exception raised at the time limit, which `except Exception` in the tested code does not catch."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise TimeUpError in the `with` block after `SECONDS`.

    The limit uses the alarm signal of the system (SIGALRM). There is no limit on Windows or outside the main thread.
    A timer that is already running continues after the block.

    >>> with time_limit():
    ...     1 + 1
    2
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_running, start = True, time.monotonic()

    def ring(number: int, frame: FrameType | None) -> None:
        if is_running:
            raise TimeUpError

    former = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, SECONDS, AGAIN)
    try:
        try:
            yield
        finally:
            is_running = False  # an alarm between here and the next line is none of the caller's
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if former is None else former)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - start), 1e-3), interval)


def too_late() -> Localized:
    """Return the message for code that was stopped at the time limit.

    >>> too_late().en
    'no result after 10 s'
    """
    return translated("no result after {SECONDS:g} s", SECONDS=SECONDS)


class UnfitError(Exception):
    """The error for a file that cannot be run, or an object that is not a function of three arrays.

    The message is in English and begins with the file and the line. `said` contains the message in both languages,
    without file and line. `check` and `check_file` raise this error as an AttendoError.

    >>> str(UnfitError(Localized("it must run", "実行できること"), "ben.py", 3))
    'ben.py:3: it must run'
    """

    def __init__(self, said: Localized, file: str | None = None, line: int | None = None):
        where = [str(part) for part in (file, line) if part is not None]
        super().__init__(":".join(where) + ": " + said.en if where else said.en)
        self.said, self.line = said, line

    @property
    def within(self) -> Localized:
        """The message in both languages, with the line but without the file.

        >>> UnfitError(Localized("it must run", "実行できること"), "ben.py", 3).within.ja
        '3 行目：実行できること'
        """
        if self.line is None:
            return self.said
        return translated("line {self.line}: {self.said.en}", self=self)


WRITE = translated("write FILE.py:FUNCTION, the function's name behind a colon")
ASKS_AT_LOADING = translated("it asks for input and gets none; take it out")


def load_function(place: str) -> Callable[..., Any]:
    """Run a Python file, and return the function with the name in "FILE.py:FUNCTION". The file is not run as a script.

    Raises UnfitError if the file is missing or unreadable, contains a syntax error, raises an exception or exceeds
    the time limit. It also raises UnfitError if the name is not a function in the file. The message has one line.

    >>> load_function("mine.py")
    Traceback (most recent call last):
    ...
    attendo_course.grader.loading.UnfitError: mine.py: write FILE.py:FUNCTION, the function's name behind a colon
    """
    file, colon, name = place.rpartition(":")
    if not (file and colon and name):
        raise UnfitError(WRITE, place)
    path = Path(file)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UnfitError(_no_python(str(error.strerror or error)), file) from None
    module = ModuleType(f"checked_{path.stem}")
    module.__file__ = str(path)
    try:
        code = compile(source, str(path), "exec")
    except SyntaxError as error:
        said = translated("syntax error: {error.msg}", error=error)
        raise UnfitError(said, file, error.lineno) from None
    except ValueError as error:  # a NUL byte
        raise UnfitError(_no_python(str(error)), file) from None
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    sys.path.insert(0, str(path.absolute().parent))  # what the file imports may lie beside it
    try:
        with time_limit():
            exec(code, vars(module))
    except TimeUpError as error:
        late = too_late()
        said = translated("{late.en}; running the file must come to an end", late=late)
        raise UnfitError(said, file, _line_in(error, str(path))) from None
    except EOFError as error:
        raise UnfitError(ASKS_AT_LOADING, file, _line_in(error, str(path))) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the file raises is said)
        raised = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name in ("jax", "equinox"):
            raised += f". Run: {install_command('jax')}"
        said = translated("{raised}; the file must run", raised=raised)
        raise UnfitError(said, file, _line_in(error, str(path))) from None
    finally:
        sys.path.pop(0)
    found = vars(module).get(name)
    if callable(found):
        return found
    known = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
    there = ", ".join(known)
    said = Localized(
        f"{name} is not a function in this file; it has: {there or 'no functions'}",
        f"{name} という関数がない。ある関数：{there or 'なし'}",
    )
    raise UnfitError(said, file)


def _no_python(why: str) -> Localized:
    return translated("{why}; give a Python file", why=why)


def _line_in(error: BaseException, file: str) -> int:
    """Return the last line of a file in the traceback of an exception."""
    lines, trace = [1], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return lines[-1]
