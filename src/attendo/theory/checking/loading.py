"""Takes a function out of somebody's Python file."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from attendo.errors import AttendoError
from attendo.theory.checking.time_limit import TimeUpError, time_limit, too_late


def load_function(place: str) -> Callable[..., Any]:
    """The function that "FILE.py:FUNCTION" names; the file is run, but not as a script.

    Raises AttendoError in one line for a missing or unreadable file, a syntax error, whatever running it raises, and
    a name that is no function there; also for a file that does not come to its end in time (`time_limit`).

    >>> load_function("mine.py")
    Traceback (most recent call last):
    ...
    attendo.errors.AttendoError: mine.py: write FILE.py:FUNCTION, the function's name behind a colon
    """
    file, colon, name = place.rpartition(":")
    if not (file and colon and name):
        raise AttendoError(f"{place}: write FILE.py:FUNCTION, the function's name behind a colon")
    path = Path(file)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise AttendoError(f"{file}: {error.strerror or error}; give a Python file") from None
    module = ModuleType(f"checked_{path.stem}")
    module.__file__ = str(path)
    try:
        code = compile(source, str(path), "exec")
    except SyntaxError as error:
        raise AttendoError(f"{file}:{error.lineno}: syntax error: {error.msg}") from None
    except ValueError as error:  # a NUL byte
        raise AttendoError(f"{file}: {error}; give a Python file") from None
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    sys.path.insert(0, str(path.absolute().parent))  # what the file imports may lie beside it
    try:
        with time_limit():
            exec(code, vars(module))
    except TimeUpError as error:
        line = _line_in(error, str(path))
        raise AttendoError(f"{file}:{line}: {too_late().en}; running the file must come to an end") from None
    except EOFError as error:
        line = _line_in(error, str(path))
        raise AttendoError(f"{file}:{line}: it asks for input and gets none; take it out") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the file raises is said)
        line = _line_in(error, str(path))
        raise AttendoError(f"{file}:{line}: {type(error).__name__}: {error}; the file must run") from None
    finally:
        sys.path.pop(0)
    found = vars(module).get(name)
    if callable(found):
        return found
    known = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
    there = ", ".join(known) or "no functions"
    raise AttendoError(f"{file}: {name} is no function there; there are: {there}")


def _line_in(error: BaseException, file: str) -> int:
    """The last line of a file that an exception passed through."""
    lines, trace = [1], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return lines[-1]
