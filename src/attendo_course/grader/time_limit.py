"""A limit on the time that somebody else's code may take."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from attendo.display.i18n import Localized

SECONDS = 10.0
"""For one call of a function, and for running its file; the inputs are tiny, and a call takes milliseconds."""
AGAIN = 1.0
"""Seconds to the next alarm, in case the code has swallowed the first."""


class TimeUpError(BaseException):
    """The time is up. No Exception, so that an `except Exception` in the code that runs does not catch it."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Raises TimeUpError within it after `SECONDS`.

    It is an alarm of the system (SIGALRM): without one, on Windows and outside the main thread, there is no limit. A
    timer that already runs goes on afterwards.

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
    """What is said of code that was stopped.

    >>> too_late().en
    'no result after 10 s'
    """
    return Localized(f"no result after {SECONDS:g} s", f"{SECONDS:g} 秒たっても結果が返らない")
