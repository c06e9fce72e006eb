"""Takes a function out of somebody's Python file."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from attendo.display.i18n import Localized
from attendo_course.grader.time_limit import TimeUpError, time_limit, too_late
from attendo_course.grader.unfit import UnfitError

WRITE = Localized(
    "write FILE.py:FUNCTION, the function's name behind a colon",
    "FILE.py:FUNCTION の形で、コロンの後に関数名を書くこと",
)
ASKS = Localized(
    "it asks for input and gets none; take it out", "入力を求めているが、何も渡されない。取り除くこと"
)


def load_function(place: str) -> Callable[..., Any]:
    """The function that "FILE.py:FUNCTION" names; the file is run, but not as a script.

    Raises UnfitError in one line for a missing or unreadable file, a syntax error, whatever running it raises, and
    a name that is no function there; also for a file that does not come to its end in time (`time_limit`).

    >>> load_function("mine.py")
    Traceback (most recent call last):
    ...
    attendo_course.grader.unfit.UnfitError: mine.py: write FILE.py:FUNCTION, the function's name behind a colon
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
        said = Localized(f"syntax error: {error.msg}", f"構文エラー：{error.msg}")
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
        said = Localized(
            f"{late.en}; running the file must come to an end",
            f"{late.ja}。ファイルの実行が終わるようにすること",
        )
        raise UnfitError(said, file, _line_in(error, str(path))) from None
    except EOFError as error:
        raise UnfitError(ASKS, file, _line_in(error, str(path))) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the file raises is said)
        raised = f"{type(error).__name__}: {error}"
        said = Localized(f"{raised}; the file must run", f"{raised}。エラーなしで実行できるようにすること")
        raise UnfitError(said, file, _line_in(error, str(path))) from None
    finally:
        sys.path.pop(0)
    found = vars(module).get(name)
    if callable(found):
        return found
    known = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
    there = ", ".join(known)
    said = Localized(
        f"{name} is no function there; there are: {there or 'no functions'}",
        f"{name} という関数がない。ある関数：{there or 'なし'}",
    )
    raise UnfitError(said, file)


def _no_python(why: str) -> Localized:
    return Localized(f"{why}; give a Python file", f"{why}。Python ファイルを指定すること")


def _line_in(error: BaseException, file: str) -> int:
    """The last line of a file that an exception passed through."""
    lines, trace = [1], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return lines[-1]
