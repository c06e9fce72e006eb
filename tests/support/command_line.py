"""Commands run in this process: what they print, what they leave, how they end."""

import io
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from attendo.cli import main
from attendo.cli.reporting import Screen


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of a refusal; nothing stands after it."""
        lines = self.err.splitlines()
        assert [line.startswith("error: ") for line in lines].count(True) == 1
        assert lines[-1].startswith("error: ")
        assert "Traceback" not in self.err
        return lines[-1].removeprefix("error: ")


def attendo(*arguments, stdin: bytes = b"") -> Outcome:
    """Runs one command with these bytes on stdin."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(stdin)), out, err
    try:
        code = main([str(argument) for argument in arguments])
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    for stream in (out, err):
        stream.flush()
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Outcome(code, *texts)


def refused(*arguments, stdin: bytes = b"", code: int = 2) -> str:
    """The error line of a command that must be refused with nothing on stdout."""
    outcome = attendo(*arguments, stdin=stdin)
    assert (outcome.code, outcome.out) == (code, ""), outcome
    return outcome.error


def settings(tables: dict) -> list[str]:
    """Tables as --set options."""
    return [
        part
        for name, table in tables.items()
        for key, value in table.items()
        for part in ("--set", f"{name}.{key}={value}")
    ]


@contextmanager
def stopped_at(step: int, number: signal.Signals):
    """Within it, runs get this signal while they make this step."""
    show = Screen.show

    def show_and_stop(screen, report):
        show(screen, report)
        if report.kind == "step" and report.progress.step == step:
            signal.raise_signal(number)

    with patch.object(Screen, "show", show_and_stop):
        yield
