"""Progress output of long-running commands on stderr: a live line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, cast

import typer

from attendo.display.formats import duration
from attendo.display.i18n import Language, Localized
from attendo.display.progress import WIDTH, ProgressLine
from attendo.display.width import ISOLATES, shown

if TYPE_CHECKING:
    from attendo.runs.training_run import TrainingRun
    from attendo.training.run import Report


BLOCK = 1 << 18
MOST_LINES = 512
"""Lines translated together: sorted by length within, put back in order."""


def stdin_bytes() -> BufferedReader:
    """The bytes of stdin; says on a terminal that it waits for them."""
    if sys.stdin is None:  # closed by who started us
        raise typer.BadParameter("stdin is closed. Give TEXT, or lines on stdin")
    if sys.stdin.isatty():
        print("Type one text per line; Ctrl-D ends the input.", file=sys.stderr, flush=True)
    return cast(BufferedReader, sys.stdin.buffer)


def numbered_chunks(stream: BufferedReader, name: str = "stdin") -> Iterator[tuple[int, list[str]]]:
    """The lines of a stream as (number of the first, texts), as they come: no line waits for one not yet sent.

    Only LF ends a line; a CR before it goes with it, and so does a byte order mark. A last line without LF is a
    line. Raises AttendoError naming the line that is not UTF-8 or longer than a line may be.
    """
    from attendo.data.row_report import LINE_CAP, REMEDIES
    from attendo.errors import AttendoError

    number = 1
    rest = b""
    while block := stream.read1(BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        for start in range(0, len(whole), MOST_LINES):
            part = whole[start : start + MOST_LINES]
            yield from _decoded(part, number, name)
            number += len(part)
        if len(rest) > LINE_CAP:
            raise AttendoError(f"{name}:{number}: too long; {REMEDIES['too long']}")
    if rest:
        yield from _decoded([rest], number, name)


def stdin_text() -> str:
    """All of stdin as one text, its lines joined by LF; the line break at its end is left out.

    Raises AttendoError as `numbered_chunks` does.
    """
    return "\n".join(line for _, lines in numbered_chunks(stdin_bytes()) for line in lines)


def _decoded(lines: list[bytes], number: int, name: str) -> Iterator[tuple[int, list[str]]]:
    """The lines as one chunk; those before a bad one are still given, and then the error is raised."""
    from attendo.data.data_files import decode
    from attendo.data.row_report import RowError
    from attendo.errors import AttendoError

    texts: list[str] = []
    for position, line in enumerate(lines, number):
        line = line.removesuffix(b"\r")
        text = decode(line.removeprefix(b"\xef\xbb\xbf") if position == 1 else line)
        if isinstance(text, RowError):
            if texts:
                yield number, texts
            raise AttendoError(f"{name}:{position}: {text.reason} ({text.detail}). Send UTF-8")
        texts.append(text)
    yield number, texts


def arguments_as_lines(texts: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Texts of the command line in the form of `numbered_chunks`.

    Raises AttendoError for one that is not UTF-8, which Python holds as lone surrogates.
    """
    from attendo.errors import AttendoError

    for number, text in enumerate(texts, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise AttendoError(
                f"TEXT number {number} is not valid UTF-8. Type it in a UTF-8 terminal, or send it on stdin"
            ) from None
    yield 1, texts


def lines_given(texts: list[str] | None) -> Iterator[tuple[int, list[str]]]:
    """The texts of the command line, otherwise the lines of stdin as they come, in the form of `numbered_chunks`."""
    return arguments_as_lines(texts) if texts else numbered_chunks(stdin_bytes())


def refuse_file_name(texts: list[str] | None, remedy: str, argument: str = "TEXT") -> None:
    """BadParameter where the only text is the name of a file: it would be read as the text. argument: of the texts."""
    if not texts or len(texts) != 1:
        return
    [text] = texts
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):  # a text that no file can be called by
        return
    if is_file:
        raise typer.BadParameter(
            f"{text!r} is a file, but {argument} must be a text. For its lines, {remedy}"
        )


def one_line(text: str) -> str:
    """The text with each line break written as a space.

    >>> one_line("rain\\r\\nsnow")
    'rain snow'
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


STEADY_STEPS, STEADY_SECONDS, SURELY_STEADY_SECONDS = 20, 10.0, 60.0
"""What a guess of the time left rests on: so many steps and seconds, or more seconds where steps are slow."""

INDENT = "    "


@contextmanager
def escaping() -> Iterator[None]:
    """Within it, nothing from a file commands the terminal: see `shown`. Output to a file or pipe stays as it is."""
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
    "against", "columns", "column", "cpu_minutes", "drop", "header", "host", "init_from", "keep", "languages", "layer",
    "minutes", "more_steps", "out", "pooling", "port", "quantization", "reverse", "strict", "threads", "train",
    "train_source", "train_target", "valid", "valid_source", "valid_target",
)  # fmt: skip
"""The arguments that messages of the library name and that are options of the same name."""

FLAGS = {name: "--" + name.replace("_", "-") for name in OPTIONS}
FLAGS |= {"source_language": "--from", "target_language": "--to", "target": "--to"}


def with_flags(message: str) -> str:
    """A message of the library in terms of the command line: its arguments as options, its settings after --set.

    The library names arguments and settings in backticks, as Python spells them.

    >>> with_flags("give `init_from` DIR, or `training.patience=3`; `attendo doctor` checks the data")
    'give --init-from DIR, or --set training.patience=3; `attendo doctor` checks the data'
    """
    message = re.sub(r"`([a-z_]+\.[a-z_]+=[^`\s]*)`", r"--set \1", message)
    return re.sub(r"`([a-z_]+)`", lambda name: FLAGS.get(name[1], name[0]), message)


def say(line: str) -> None:
    """One line for a person, kept apart from results; a terminal has it in its width, a log as it is.

    What is to be typed stays whole, so that it can be copied.
    """
    line = with_flags(line)
    whole = len(line) <= WIDTH or "attendo " in line or not sys.stderr.isatty()
    parts = (
        [line]
        if whole
        else wrap(line, WIDTH, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)
    )
    print("\n".join(parts), file=sys.stderr, flush=True)


def wrote(path: Path, language: Language = "en") -> str:
    """What is said of a file that has been written.

    >>> wrote(Path("map.svg"), "ja")
    '保存：map.svg'
    """
    return Localized(f"wrote {path}", f"保存：{path}").text(language)


def silent(line: str) -> None:
    """For a process among several that is not the one to speak."""


@contextmanager
def preparing() -> Iterator[None]:
    """Within it Ctrl-C says that nothing was kept, and ends the command with 130."""
    try:
        yield
    except KeyboardInterrupt:
        say("stopped before the first step; nothing was saved")
        raise typer.Exit(130) from None


def follow(run: TrainingRun) -> int:
    """Trains to the end and shows it; on Ctrl-C or SIGTERM saves and gives 130 or 143."""
    from attendo.training.run import stopping

    screen = Screen()
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
        tell(run.saved)
        return 143 if stopped.code is None else stopped.code  # another of several processes was told
    return 0


class Screen:
    """A training run: progress with rate and time left, evaluations, samples."""

    def __init__(self):
        self.line = ProgressLine()
        self.shown = 0.0
        self.loss: float | None = None
        self.first: tuple[float, float, int, int] | None = None

    def show(self, report: Report) -> None:
        """Shows what the loop has done, if it is time to."""
        from attendo.training.run import report_lines

        if report.kind == "step":
            self.loss = report.loss if self.loss is None else 0.95 * self.loss + 0.05 * report.loss
        # options are longer than the names of arguments: they are put in before lines are cut to a width
        if lines := report_lines(replace(report, note=with_flags(report.note))):
            self.clear()
            for line in lines:
                say(line)
        if report.kind == "step":
            self._progress(report)

    def clear(self) -> None:
        """Removes the line from a terminal."""
        self.line.clear()

    def _progress(self, report: Report) -> None:
        progress = report.progress
        if self.first is None:  # rate and time left are of this sitting
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
            f"{report.done:4.0%}  step {progress.step:,}  epoch {progress.epoch + 1}  loss {self.loss:.3f}"
            f"{rate}{left}"
        )


class Counter:
    """How many lines a command has done, with the rate, while its results go elsewhere."""

    def __init__(self, what: str):
        self.line = ProgressLine()
        # results on the same screen are progress enough
        self.is_shown = self.line.is_live and not sys.stdout.isatty()
        self.what = what
        self.began = self.shown = time.monotonic()

    def show(self, done: int) -> None:
        """Shows it, a few times a second."""
        now = time.monotonic()
        if self.is_shown and now - self.shown > self.line.every:
            self.shown = now
            self.line.show(f"{done:,} {self.what}, {done / (now - self.began):,.0f} per second")

    def clear(self) -> None:
        """Removes the line."""
        self.line.clear()
