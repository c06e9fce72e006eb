"""Progress output of long-running commands on stderr: a live line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, cast

import typer

from attendo.data.data_files import decode
from attendo.data.row_report import LINE_CAP, RowError, refusal
from attendo.display.formats import duration
from attendo.display.i18n import Language, sentence
from attendo.display.progress import WIDTH, ProgressLine
from attendo.display.width import ISOLATES, columns, flowed, shown
from attendo.errors import AttendoError

if TYPE_CHECKING:
    from attendo.runs.training_run import TrainingRun
    from attendo.training.run import Report


BLOCK = 1 << 18
MOST_LINES = 512
"""The maximum number of lines in a chunk, which are processed together."""


def stdin_bytes() -> BufferedReader:
    """Return the bytes of stdin. If stdin is a terminal, print a prompt first."""
    if sys.stdin is None:  # the calling program closed stdin
        raise typer.BadParameter("stdin is closed. Give TEXT, or lines on stdin")
    if sys.stdin.isatty():
        print("Type one text per line; Ctrl-D ends the input.", file=sys.stderr, flush=True)
    return cast(BufferedReader, sys.stdin.buffer)


def numbered_chunks(stream: BufferedReader) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of stdin, a stream, in chunks as they arrive, each with the number of its first line.

    Only LF ends a line. A CR before LF and a byte order mark are removed. A last line without LF is also a line. Raises
    AttendoError if a line is not UTF-8 or too long.
    """
    number = 1
    rest = b""
    while block := stream.read1(BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        for start in range(0, len(whole), MOST_LINES):
            part = whole[start : start + MOST_LINES]
            yield from _decoded(part, number)
            number += len(part)
        if len(rest) > LINE_CAP:
            raise refusal(f"stdin:{number}", RowError("too long"))
    if rest:
        yield from _decoded([rest], number)


def stdin_text() -> str:
    """Return the whole of stdin as one text without the last line break. Raise AttendoError for invalid lines."""
    return "\n".join(line for _, lines in numbered_chunks(stdin_bytes()) for line in lines)


def _decoded(lines: list[bytes], number: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines as one chunk. For an invalid line, yield the lines before it and then raise AttendoError."""
    texts: list[str] = []
    for position, line in enumerate(lines, number):
        line = line.removesuffix(b"\r")
        text = decode(line.removeprefix(b"\xef\xbb\xbf") if position == 1 else line)
        if isinstance(text, RowError):
            if texts:
                yield number, texts
            raise AttendoError(f"stdin:{position}: {text.reason} ({text.detail}). Send UTF-8")
        texts.append(text)
    yield number, texts


def arguments_as_lines(texts: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the texts of the command line in the same format as `numbered_chunks`.

    Raise AttendoError for a text that is not UTF-8. Python stores invalid bytes as lone surrogates.
    """
    for number, text in enumerate(texts, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise AttendoError(
                f"TEXT number {number} is not valid UTF-8. Type it in a UTF-8 terminal, or send it on stdin"
            ) from None
    yield 1, texts


def lines_given(texts: list[str] | None) -> Iterator[tuple[int, list[str]]]:
    """Return the texts of the command line, or otherwise the lines of stdin, in the format of `numbered_chunks`."""
    return arguments_as_lines(texts) if texts else numbered_chunks(stdin_bytes())


def refuse_file_name(texts: list[str] | None, remedy: str, argument: str = "TEXT") -> None:
    """Raise BadParameter, with a remedy and the name of the argument, if the only text is the name of a file."""
    if not texts or len(texts) != 1:
        return
    [text] = texts
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):  # the text is not a possible file name
        return
    if is_file:
        raise typer.BadParameter(f"{text!r} is a file, but {argument} must be a text. For its lines, {remedy}")


def one_line(text: str) -> str:
    """Return the text with each line break replaced by a space.

    >>> one_line("rain\\r\\nsnow")
    'rain snow'
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


STEADY_STEPS, STEADY_SECONDS, SURELY_STEADY_SECONDS = 20, 10.0, 60.0
"""The minimum steps and seconds before the remaining time is shown, and the minimum seconds if steps are slow."""

INDENT = "    "
COMMAND = re.compile(r"(?<![\w/.-])attendo [^`]+?(?=`|\. |; |$)")


@contextmanager
def escaping() -> Iterator[None]:
    """Escape control characters in output to a terminal (see `shown`). Output to a file or pipe is not changed."""
    streams = [s for s in (sys.stderr, sys.stdout) if s is not None and (s is sys.stderr or s.isatty())]
    for stream in streams:
        write = stream.write
        stream.write = lambda text, write=write: write(shown(text, ISOLATES))
    try:
        yield
    finally:
        for stream in streams:
            vars(stream).pop("write", None)


OPTIONS = (
    "against", "bits", "cache_bits", "columns", "column", "cpu_minutes", "drop", "header", "host", "init_from",
    "keep", "languages", "layer", "metric", "minutes", "more_steps", "out", "pooling", "port", "quantization",
    "reverse", "seeds", "strict", "threads", "train", "train_source", "train_target", "valid", "valid_source",
    "valid_target",
)  # fmt: skip
"""The names of library arguments in messages that are also names of options."""

FLAGS = {name: "--" + name.replace("_", "-") for name in OPTIONS}
FLAGS |= {"source_language": "--from", "target_language": "--to", "target": "--to"}


def with_flags(message: str) -> str:
    """Return a library message for users of the command line: with options instead of arguments, and with --set.

    The library names arguments and settings in backticks, as in Python.

    >>> with_flags("give `init_from` DIR, or `training.patience=3`; `attendo doctor` checks the data")
    'give --init-from DIR, or --set training.patience=3; `attendo doctor` checks the data'
    """
    message = re.sub(r"`([a-z_]+\.[a-z_]+=[^`\s]*)`", r"--set \1", message)
    return re.sub(r"`([a-z_]+)`", lambda name: FLAGS.get(name[1], name[0]), message)


def say(line: str) -> None:
    """Print a line on stderr. On a terminal, long lines are wrapped, but a command to copy stays on one line."""
    line = with_flags(line)
    if sys.stderr.isatty() and columns(line) > WIDTH:
        whole = COMMAND.sub(lambda found: found[0].replace(" ", "\xa0"), line)
        parts = wrap(whole, WIDTH, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)
        # Japanese text is wrapped between characters
        is_wide = columns(line) > len(line) and not COMMAND.search(line)
        line = "\n".join(flowed(line, WIDTH, INDENT) if is_wide else parts).replace("\xa0", " ")
    print(line, file=sys.stderr, flush=True)


def wrote(path: Path, language: Language = "en") -> str:
    """Return the message that a file was written.

    >>> wrote(Path("map.svg"), "ja")
    '保存：map.svg'
    """
    return sentence("cli.wrote", path=path).text(language)


def silent(line: str) -> None:
    """Print nothing: the replacement of `say` in all processes except the first."""


@contextmanager
def preparing(kept: str = "nothing was saved") -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM before the first step: print what is kept, and exit with code 130 or 143."""
    own, code = os.getpid(), 130

    def end(number: int, frame: object) -> None:
        nonlocal code
        code = 128 + number
        if os.getpid() != own:  # a worker process, which must end silently
            os._exit(code)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()  # signals require it
    before = signal.signal(signal.SIGTERM, end) if is_main else None
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped before the first step; {kept}")
        raise typer.Exit(code) from None
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)


def follow(run: TrainingRun, label: str = "") -> int:
    """Train to the end of the run and print the progress. Return the exit code: 0, or 130 or 143 after a signal.

    With a label, the run belongs to a longer command, and only the live line is printed, after the label.
    """
    from attendo.training.run import stopping

    screen = Screen(label)
    speaks = run.run.ranks.is_first
    ended = False
    with stopping(run.stop) as stopped:
        try:
            for report in run.reports():
                if speaks:
                    screen.show(report)
                ended = report.kind == "end"
        finally:
            screen.clear()
    if run.run.stopping and not ended:
        tell = say if speaks else silent
        tell(f"{run.saved.partition('. ')[0]}. Run the same command again to resume" if label else run.saved)
        return 143 if stopped.code is None else stopped.code  # another process received the signal
    return 0


class Screen:
    """The output of a training run: progress with speed and remaining time, evaluations and samples.

    With a label, the output is only the progress, after the label.
    """

    def __init__(self, label: str = ""):
        self.label = label
        self.line = ProgressLine()
        self.shown = 0.0
        self.loss: float | None = None
        self.first: tuple[float, float, int, int] | None = None

    def show(self, report: Report) -> None:
        """Print a report of the training loop. Print progress only if enough time has passed since the last output."""
        from attendo.training.run import report_lines

        if report.kind == "step":
            self.loss = report.loss if self.loss is None else 0.95 * self.loss + 0.05 * report.loss
        # options are longer than the names of arguments, so they are inserted before lines are wrapped
        if not self.label and (lines := report_lines(replace(report, note=with_flags(report.note)))):
            self.clear()
            for line in lines:
                say(line)
        if report.kind == "step":
            self._progress(report)

    def clear(self) -> None:
        """Remove the live line from the terminal."""
        self.line.clear()

    def _progress(self, report: Report) -> None:
        progress = report.progress
        if self.first is None:  # speed and remaining time are measured from the start of this process
            self.first = (progress.wall_seconds, report.done, progress.tokens, progress.step)
        if progress.wall_seconds - self.shown < self.line.every:
            return
        self.shown = progress.wall_seconds
        elapsed, gained = progress.wall_seconds - self.first[0], report.done - self.first[1]
        is_steady = elapsed >= STEADY_SECONDS and progress.step - self.first[3] >= STEADY_STEPS
        left = ""
        if gained > 0 and (is_steady or elapsed >= SURELY_STEADY_SECONDS):
            left = f"  {duration(elapsed / gained * (1 - report.done))} left"
        rate = f"  {(progress.tokens - self.first[2]) / elapsed:,.0f} tokens/s" if elapsed > 0 else ""
        self.line.show(
            f"{self.label}{report.done:4.0%}  step {progress.step:,}  epoch {progress.epoch + 1}  loss {self.loss:.3f}"
            f"{rate}{left}"
        )


class Counter:
    """A display of the number of processed lines and the speed, on stderr while the results go to a file or pipe."""

    def __init__(self, what: str):
        self.line = ProgressLine()
        # results on the same terminal already show the progress
        self.is_shown = self.line.is_live and not sys.stdout.isatty()
        self.what = what
        self.began = self.shown = time.monotonic()

    def show(self, done: int) -> None:
        """Print the number of processed lines if enough time has passed since the last output."""
        now = time.monotonic()
        if self.is_shown and now - self.shown > self.line.every:
            self.shown = now
            self.line.show(f"{done:,} {self.what}, {done / (now - self.began):,.0f} per second")

    def clear(self) -> None:
        """Remove the live line from the terminal."""
        self.line.clear()
