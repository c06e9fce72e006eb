"""attendo report: the learning curves of runs as a page and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import typer

from attendo.cli.options import Spoken, argument, option
from attendo.cli.reporting import say, wrote

PAGE, PICTURE = "report.html", "curves.png"


def report(
    folders: list[Path] = argument("DIR...", "Folders of runs."),
    out: Path | None = option("FOLDER", "Where they go; else the first run's folder."),
    across: str = option("A", "The axis across: step, minutes or cpu-minutes.", "--by", default="step"),
    language: Spoken = "en",
) -> int:
    """Draw how runs have learned: report.html, which opens offline, and curves.png.

    Loss, the measures of each validation, learning rate, gradient norm and speed, with what happened when, and the
    facts of each run. Several runs are drawn on the same axes. A run may still be training.

    Example: attendo report runs/mine runs/other --out report
    """
    from attendo.errors import AttendoError
    from attendo.files import write_atomic
    from attendo.microscope.curves import report_page, write_picture
    from attendo.runs.learning_curves import Across, read_run

    by = next((known for known in get_args(Across) if known == across), None)
    if by is None:
        raise typer.BadParameter(f"--by {across} is not known; take step, minutes or cpu-minutes")
    runs = [read_run(folder) for folder in folders]
    for run in runs:
        if run.word:
            say(run.word)
    place = folders[0] if out is None else out
    if not place.is_dir() and (place.exists() or place.suffix in (".html", ".png")):
        raise AttendoError(f"--out {place} is no folder; give one, which {PAGE} and {PICTURE} go into")
    place.mkdir(parents=True, exist_ok=True)
    write_atomic(place / PAGE, report_page(runs, by, language))
    say(wrote(place / PAGE, language))
    if write_picture(runs, place / PICTURE, by, language) != language:
        say("no font installed here has all the Japanese characters; the picture's words are in English")
    say(wrote(place / PICTURE, language))
    return 0
