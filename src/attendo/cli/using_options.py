"""What the commands that use a trained model share: their options, where it computes, and files worked through."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from attendo.cli.options import use_threads
from attendo.cli.reporting import LIVE_EVERY, PLAIN_EVERY, Live, say
from attendo.display.formats import duration

if TYPE_CHECKING:
    from attendo.inference.batch_files import Progress, Work
    from attendo.inference.generator import Generator
    from attendo.inference.translator import Translator

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The run's folder.")]
Files = Annotated[
    list[Path],
    typer.Argument(metavar="F...", help="Rows: a file, a folder, 'a quoted/*.tsv'; or two parallel."),
]
Beam = Annotated[
    int | None, typer.Option(metavar="N", help="Beam width; 1 is greedy. Else the run's own, mostly 4.")
]
Penalty = Annotated[
    float | None, typer.Option(metavar="A", help="GNMT length penalty; 0 is none. Else the run's own.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="C", help="Source and target: source=en,target=ja or 1,2 (default: as in training)."
    ),
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether a .tsv file starts with one. Else as in training."),
]
JsonLines = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="DIR", help="A run to average with, of the same tokenizer; repeatable."),
]
Input = Annotated[
    Path | None,
    typer.Option("--input", metavar="F", help="Lines to work through, perhaps .gz, with --output."),
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="G", help="Where they go; the same command goes on.")
]


def make_ready(user: Translator | Generator, *, int8: bool = False) -> None:
    """Brings a model into the fastest form for its search, and says what takes long or cannot be."""
    from attendo.decoding.native.library import is_to_be_made

    on_cpu = user.device.type == "cpu"
    if on_cpu and is_to_be_made():
        say("compiling the search for this processor; once, and some seconds long")
    if int8 and not on_cpu:
        raise typer.BadParameter("--int8 is for processors; leave it out, or leave out --device")
    user.prepare(int8=int8)
    if on_cpu and (why := user.why_not_compiled) is not None:
        say(f"note: the search runs on torch alone, which is slower: {why}")


def chosen_device(device: str, threads: int | None) -> str:
    """The device of that name; as many threads from now on. Raises AttendoError for a device that isn't there."""
    from attendo.devices import pick_device

    use_threads(threads)
    return str(pick_device(device))


def require_files(names: list[Path]) -> None:
    """Raises AttendoError, before anything slow begins, for a file that isn't there or a pattern of none."""
    from attendo.data.lines import require_file
    from attendo.data.shards import expanded

    for name in names:
        if not name.is_dir():
            for file in expanded(name, None):
                require_file(file)


def both_files(source: Path | None, out: Path | None, others: bool) -> tuple[Path, Path] | None:
    """--input and --output, if given; BadParameter for one without the other, or with texts from elsewhere too."""
    if source is None and out is None:
        return None
    if source is None or out is None:
        raise typer.BadParameter("--input and --output belong together; give both, or lines on stdin")
    if others:
        raise typer.BadParameter("give texts, or --input and --output")
    return source, out


def file_done(
    source: Path,
    out: Path,
    work: Work,
    request: Mapping[str, Any],
    notes: Callable[[Mapping[str, int], int], list[str]],
) -> int:
    """Works through a file, shown on stderr, and gives the exit code; a signal stops it, and all that is done stays.

    notes: what to say at the end, from the counts of all lines and their number.
    """
    from attendo.inference.batch_files import through_file
    from attendo.training.stopping import stopping

    screen, counts, total = FileScreen(), {}, 0
    with stopping(_interrupt) as stopped:
        try:
            for progress in through_file(source, out, work, request):
                counts, total = progress.counts, progress.total
                screen.show(progress)
        except KeyboardInterrupt:
            screen.live.clear()
            say(f"stopped; {screen.done} lines are done, and the same command goes on from there")
            return stopped.code or 130
        finally:
            screen.live.clear()
    for line in notes(counts, total):
        say(line)
    say(f"done: {total:,} lines in {duration(time.monotonic() - screen.began)}")
    return 0


class FileScreen:
    """How far a file is, with rate and time left: a live line on a terminal, a plain one now and then in a pipe."""

    def __init__(self, what: str = "lines"):
        self.live = Live()
        self.what = what
        self.began = self.shown = time.monotonic()
        self.done = "no"

    def show(self, progress: Progress) -> None:
        """Shows it, if it is time to."""
        now = time.monotonic()
        self.done = f"{progress.done:,} of {progress.total:,}"
        if progress.done == progress.resumed:
            self.began = self.shown = now  # what came before was reading
            if progress.resumed:
                say(f"going on: {self.done} lines are done")
        elif now - self.shown >= (LIVE_EVERY if self.live.on else PLAIN_EVERY):
            self.shown = now
            rate = (progress.done - progress.resumed) / (now - self.began)
            left = duration((progress.total - progress.done) / rate)
            line = f"{progress.done / progress.total:4.0%}  {self.done} {self.what}  {rate:,.1f} a second  {left} left"
            (self.live.show if self.live.on else say)(line)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
