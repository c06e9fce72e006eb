"""Ctrl-C and SIGTERM ask work to stop, so that it can save first; nothing ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


class Stopped:
    """Notes SIGINT and SIGTERM, so that a run can save before it leaves; `code` is then the exit code.

    before: the handlers that a second signal goes to; without one it ends the process at once, whatever it waits for.
    """

    def __init__(self, stop: Callable[[], None]):
        self.stop = stop
        self.code: int | None = None
        self.before: dict[signal.Signals, Any] = {}

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if self.code is not None:
            signal.signal(number, self.before.get(signal.Signals(number), signal.SIG_DFL))
            signal.raise_signal(number)
            return
        self.code = 128 + number
        self.stop()

    def leave(self) -> None:
        """Lets a signal that was noted go on: Ctrl-C as KeyboardInterrupt, SIGTERM as SystemExit(143)."""
        if self.code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        if self.code is not None:
            raise SystemExit(self.code)


@contextmanager
def stopping(stop: Callable[[], None], ends_process: bool = True) -> Iterator[Stopped]:
    """Within it, the two signals call `stop` instead of ending the process; handlers are then as they were.

    ends_process: what a second signal does; else it does what it did before, in a notebook KeyboardInterrupt.
    """
    stopped = Stopped(stop)
    if threading.current_thread() is not threading.main_thread():  # only the main one may handle signals
        yield stopped
        return
    before = {number: signal.signal(number, stopped.note) for number in (signal.SIGINT, signal.SIGTERM)}
    if not ends_process:
        stopped.before = before
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
