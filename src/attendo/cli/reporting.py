"""How a command shows long work: a live line on a terminal, plain lines in a pipe; always on stderr."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attendo.tasks.runs import TranslationRun
    from attendo.training.loop import Report

PLAIN_EVERY = 10.0
"""Seconds between progress lines in a pipe."""


def say(line: str) -> None:
    """One line for a person, kept apart from results."""
    print(line, file=sys.stderr, flush=True)


class Stopped:
    """Notes SIGINT and SIGTERM, so that a run can save before it leaves; `code` is then the exit code."""

    def __init__(self):
        self.code: int | None = None

    def note(self, number: int, frame: object) -> None:
        """The handler; a second signal ends the process at once."""
        if self.code is not None:
            raise KeyboardInterrupt
        self.code = 128 + number


@contextmanager
def stopping() -> Iterator[Stopped]:
    """Within it, the two signals are noted instead of ending the process."""
    stopped = Stopped()
    before = {number: signal.signal(number, stopped.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(run: TranslationRun) -> int:
    """Trains to the end and shows it; on Ctrl-C or SIGTERM saves and gives 130 or 143."""
    from attendo.training.loop import save

    screen = Screen()
    with stopping() as stopped:
        for report in run.reports():
            screen.show(report)
            if stopped.code is not None and report.kind != "end":
                saved = save(run.run)
                screen.clear()
                say(
                    f"stopped at step {saved.progress.step:,}, saved; go on with: attendo resume {run.folder}"
                )
                return stopped.code
    screen.clear()
    return 0


class Screen:
    """Progress with rate and time left."""

    def __init__(self):
        self.live = sys.stderr.isatty()
        self.last_line = 0.0
        self.loss: float | None = None
        self.first: tuple[float, float] | None = None

    def show(self, report: Report) -> None:
        """Shows what the loop has done, if it is time to."""
        match report.kind:
            case "step":
                self.loss = report.loss if self.loss is None else 0.95 * self.loss + 0.05 * report.loss
                self._progress(report)
            case "evaluation":
                self.clear()
                say(evaluation_line(report))
                assert report.evaluation is not None
                for source, wanted, given in report.evaluation.samples[:1]:
                    say(f"    {source}\n    → {given}" + (f"\n    ≠ {wanted}" if given != wanted else ""))
            case "end":
                self.clear()
                spent = report.progress
                say(
                    f"done: {report.note}; {spent.step:,} steps, {spent.cpu_seconds:,.0f} CPU-seconds,"
                    f" {spent.wall_seconds:,.0f} seconds"
                )
            case "checkpoint":
                pass

    def clear(self) -> None:
        """Takes the live line away."""
        if self.live:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)

    def _progress(self, report: Report) -> None:
        progress = report.progress
        if self.first is None:
            self.first = (progress.wall_seconds, report.done)
        waited = progress.wall_seconds - self.last_line
        if waited < (0.2 if self.live else PLAIN_EVERY):
            return
        self.last_line = progress.wall_seconds
        elapsed, gained = progress.wall_seconds - self.first[0], report.done - self.first[1]
        left = duration(elapsed / gained * (1 - report.done)) if gained > 0 else "?"
        rate = progress.tokens / max(progress.wall_seconds, 1e-9)
        line = (
            f"{report.done:4.0%}  step {progress.step:,}  epoch {progress.epoch + 1}  loss {self.loss:.3f}"
            f"  {rate:,.0f} tokens/s  {left} left"
        )
        if self.live:
            print(f"\r\x1b[2K{line[:79]}", end="", file=sys.stderr, flush=True)
        else:
            say(line)


def evaluation_line(report: Report) -> str:
    """An evaluation in one line."""
    assert report.evaluation is not None
    m = report.evaluation.measures
    note = f"  ({report.note})" if report.note else ""
    return (
        f"step {report.progress.step:,}: BLEU {m['bleu']:.1f}  chrF {m['chrf']:.1f}  exact {m['exact']:.1f} %"
        f"  perplexity {m['perplexity']:.2f}{'  best so far' if report.is_best else ''}{note}"
    )


def duration(seconds: float) -> str:
    """A time span for people.

    >>> duration(42), duration(125), duration(7300)
    ('42 s', '2:05 min', '2:01 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return (
        f"{minutes}:{int(seconds % 60):02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
    )
