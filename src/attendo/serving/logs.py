"""The log: a line for each request and each event, as JSON or as text; never a text, a key or a query."""

from __future__ import annotations

import json
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from starlette.requests import Request
from starlette.types import Scope

LogFormat = Literal["json", "text"]
NOTED = "attendo.noted"
OURS = "/attendo/"
"""What is in the names of our own files."""


@dataclass(eq=False, slots=True)
class Noted:
    """What a route notes of its request for the log and the metrics: the model's name, counts and seconds, no text."""

    request_id: str
    model: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    queued: float | None = None


def noted(request: Request) -> Noted:
    """The notes of a request, for its route to fill in."""
    return request.scope[NOTED]


def put_notes(scope: Scope, notes: Noted) -> None:
    """Gives a request its notes."""
    scope[NOTED] = notes


class Log:
    """Lines on a stream, stderr unless told.

    >>> Log("text", sys.stdout, clock=lambda: 0.0).event("ready", {"models": 2})
    1970-01-01T00:00:00.000Z ready models=2
    >>> Log("json", sys.stdout, clock=lambda: 0.0).event("ready", {"models": 2})
    {"time": "1970-01-01T00:00:00.000Z", "event": "ready", "models": 2}
    """

    def __init__(
        self, form: LogFormat = "text", stream: TextIO | None = None, clock: Any = time.time
    ) -> None:
        self.form, self.stream, self._clock = form, stream, clock
        self._second, self._stamp = -1, ""

    def event(self, name: str, facts: dict[str, Any] | None = None) -> None:
        """A line that begins with the time and the event's name."""
        given = {name: value for name, value in (facts or {}).items() if value is not None}
        if self.form == "json":
            line = json.dumps({"time": self._now(), "event": name} | given)
        else:
            line = " ".join([self._now(), name, *(f"{key}={_plain(value)}" for key, value in given.items())])
        stream = self.stream or sys.stderr
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):
            pass  # who reads the log has left; that is no reason to end a request

    def request(self, notes: Noted, method: str, route: str, status: int, seconds: float) -> None:
        """The line of a request."""
        facts: dict[str, Any] = {"id": notes.request_id, "method": method, "route": route, "status": status}
        facts["ms"] = round(1000 * seconds, 2)
        if notes.model is not None:
            facts |= {"model": notes.model, "tokens_in": notes.tokens_in, "tokens_out": notes.tokens_out}
        if notes.queued is not None:
            facts["queue_ms"] = round(1000 * notes.queued, 2)
        self.event("request", facts)

    def fault(self, notes: Noted, error: BaseException) -> None:
        """An error that nobody expected: its kind, and where it came from; no message, for that may hold a text."""
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames[:-1] if OURS in frame.filename] + frames[-1:]
        where = [f"{frame.filename.rpartition(OURS)[2]}:{frame.lineno} {frame.name}" for frame in ours]
        self.event("fault", {"id": notes.request_id, "error": type(error).__name__, "trace": where})

    def _now(self) -> str:
        now = self._clock()
        if int(now) != self._second:
            self._second = int(now)
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        return f"{self._stamp}.{int(now % 1 * 1000):03d}Z"


def _plain(value: Any) -> str:
    text = " < ".join(reversed(value)) if isinstance(value, list) else str(value)
    return json.dumps(text) if " " in text or not text.isprintable() else text
