"""What stands in a run folder, as plain values: its card, its settings, how far it got, its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attendo.bundle import load_bundle


def describe_run(folder: Path) -> dict[str, Any]:
    """The card's facts with `config`, `progress` (the last line of the log, empty before one) and `files`.

    files: name and bytes of each file, and of each checkpoint as a whole. Raises AttendoError as `load` does.
    """
    bundle = load_bundle(folder)
    return bundle.card | {
        "config": bundle.tables,
        "progress": last_entry(folder / "metrics.jsonl"),
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()},
        "checkpoints": {
            path.name: sum(file.stat().st_size for file in path.iterdir())
            for path in sorted((folder / "checkpoints").glob("step-*"), key=lambda path: path.stat().st_mtime)
        },
    }


def last_entry(log: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl; a line cut short by a crash is passed over."""
    if not log.is_file():
        return {}
    for line in reversed(log.read_text(encoding="utf-8").splitlines()):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return {}
