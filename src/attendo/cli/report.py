"""The command `attendo report`: the learning curves of runs as a page and an image."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import typer

from attendo.cli.options import Spoken, argument, option
from attendo.cli.reporting import say, wrote
from attendo.errors import AttendoError

PAGE, PICTURE = "report.html", "curves.png"


def report(
    folders: list[Path] = argument("DIR...", "Run folders."),
    out: Path | None = option("FOLDER", "Output folder for the two files (default: the first run folder)."),
    across: str = option(
        "A", "Unit of the horizontal axis: step, minutes or cpu-minutes.", "--by", default="step"
    ),
    language: Spoken = "en",
) -> int:
    """Draw the learning curves of runs in two files: report.html, which opens offline, and curves.png.

    The page shows the loss, validation metrics, learning rate, gradient norm and speed, the events of the training, and
    a summary of each run. The curves of several runs share their axes. A run that is still training can also be drawn.

    Example: attendo report runs/mine runs/other --out report
    """
    from attendo.files import write_atomic
    from attendo.microscope.curves import report_page, write_picture
    from attendo.runs.learning_curves import Across, read_run

    by = next((known for known in get_args(Across) if known == across), None)
    if by is None:
        raise typer.BadParameter(f"--by {across} is unknown (expected step, minutes or cpu-minutes)")
    runs = [read_run(folder) for folder in folders]
    for run in runs:
        if run.word:
            say(run.word)
    place = folders[0] if out is None else out
    if not place.is_dir() and (place.exists() or place.suffix in (".html", ".png")):
        raise AttendoError(f"--out {place} is not a folder (expected a folder for {PAGE} and {PICTURE})")
    place.mkdir(parents=True, exist_ok=True)
    write_atomic(place / PAGE, report_page(runs, by, language))
    say(wrote(place / PAGE, language))
    try:
        if write_picture(runs, place / PICTURE, by, language) != language:
            say("日本語の文字がそろったフォントがないため、図の文字は英語です")
        say(wrote(place / PICTURE, language))
    except AttendoError as error:  # matplotlib is an extra; the page is complete without it
        say(f"warning: {place / PICTURE} was not written: {error}")
    return 0
