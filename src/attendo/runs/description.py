"""What stands in a run folder, as plain values: its card, its settings, how far it got, its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attendo.bundle import load_bundle
from attendo.config import build, to_table
from attendo.runs.tracking import LOG_NAME, last_entry
from attendo.training.lora import LoraConfig
from attendo.training.optimizer import TrainingConfig


def describe_run(folder: Path) -> dict[str, Any]:
    """The card's facts with `config`, `progress` (the last line of the log, empty before one) and `files`.

    files: name and bytes of each file, and of each checkpoint as a whole. Raises AttendoError as `load` does.
    """
    bundle = load_bundle(folder)
    for name, kind in {"training": TrainingConfig, "lora": LoraConfig}.items():
        if name in bundle.tables:
            build(kind, bundle.tables[name], f"{folder / 'config.toml'} [{name}]")
    return bundle.card | {
        "config": bundle.tables | {"model": to_table(bundle.model_config) | bundle.tables["model"]},
        "progress": last_entry(folder / LOG_NAME),
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()},
        "checkpoints": {
            path.name: sum(file.stat().st_size for file in path.iterdir())
            for path in sorted((folder / "checkpoints").glob("step-*"), key=lambda path: path.stat().st_mtime)
        },
    }
