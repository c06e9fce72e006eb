"""The command `attendo runs`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from attendo.cli.options import OneJson, argument, option
from attendo.cli.reporting import INDENT, say
from attendo.display.formats import duration
from attendo.display.tables import WIDTH, table_lines
from attendo.display.width import flowed, shown

HEADS = (f"{'started':<16}", "score", "steps", "time", "run")


def runs(
    folder: Path = argument("[FOLDER]", "Folder that contains run folders, at any depth.", Path("runs")),
    note: str | None = option("TEXT", "Store a note in the run FOLDER; an empty text removes it."),
    as_json: OneJson = False,
) -> int:
    """List all runs in a folder with their date, score, training time, data and note, oldest first.

    The score is the validation measure that selected the weights. A damaged run is listed with the reason.

    Example: attendo runs runs

    Example: attendo runs runs/mine --note "with the cleaned labels"
    """
    from attendo.runs.tracking import list_runs, write_note

    if note is not None:
        write_note(folder, note)
    found = list_runs(folder)
    if as_json:
        print(json.dumps({"runs": found}, ensure_ascii=False))
    elif found:
        print("\n".join(run_lines(found)))
    else:
        say(f"no runs in {folder}")
    return 0


def run_lines(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table. The folder of a run is the last column, which is never cut."""
    heads, rule, *rows = table_lines(HEADS, [_row(run) for run in found], width=10_000)
    yield from (heads, rule[:WIDTH])
    for run, row in zip(found, rows, strict=True):
        yield row
        yield from flowed(shown(INDENT + "; ".join(_details(run))), WIDTH, INDENT)


def _row(run: dict[str, Any]) -> tuple[str, str, str, str, str]:
    from attendo.training.run import measured

    started = datetime.fromisoformat(run["started"]).astimezone().strftime("%Y-%m-%d %H:%M")
    if "error" in run:
        return started, "damaged", "", "", run["run"]
    score = "none yet" if run["score"] is None else measured({run["deciding"]: run["score"]})[0]
    return started, score, f"{run['steps']:,}", duration(run["wall_seconds"]), run["run"]


def _details(run: dict[str, Any]) -> Iterator[str]:
    from attendo.training.run import measured

    if "error" in run:
        yield run["error"]
        return
    yield run["task"]
    if run["deciding"] == "loss":
        yield from measured(
            {key: run["validation"][key] for key in ("accuracy",) if key in run["validation"]}
        )
    if names := [Path(file).name for file in run["files"]]:
        rows = "" if run["rows"] is None else f" ({run['rows']:,} rows)"
        yield ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") + rows
    if state := run["origin"] if run["ended"] else "not finished":
        yield state
    if run["note"]:
        yield f"note: {run['note']}"
