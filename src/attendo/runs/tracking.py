"""The log of a run: the file metrics.jsonl, equal for resumed and uninterrupted runs, and TensorBoard files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.bundle import load_bundle, weights_hash
from attendo.config import build, to_table
from attendo.errors import AttendoError, install_command
from attendo.files import write_atomic
from attendo.training.optimizer import LoraConfig, TrainingConfig

if TYPE_CHECKING:
    from attendo.training.checkpoints import Progress
    from attendo.training.run import Report


LOG_EVERY = 20
"""Number of steps whose mean loss is one line of metrics.jsonl."""
LOG_NAME, EVENTS_NAME = "metrics.jsonl", "tensorboard"
"""Names of the log file and of the folder for TensorBoard files in a run folder."""
NOTE_NAME = "note.txt"
"""Name of the file in a run folder with the user's note."""
NOTE = "log"
"""Name of the log's state in the progress of a run, which is saved in checkpoints."""


_EMPTY: Mapping[str, Any] = {"lines": 0, "loss": 0.0, "steps": 0, "last_step": {}}


class MetricsLog:
    """Log of a run, which writes each report as one line of JSON to metrics.jsonl, and to TensorBoard if enabled.

    Each line has `kind`, `step` and `epoch`. A line of kind "step" describes LOG_EVERY steps: `loss` is their mean loss
    (nats per target), `rate` and `gradient_norm` are values of the last step, and `tokens` is the number of tokens so
    far. A line of kind "evaluation" has the measures, `best` and `note`. Lines of all other kinds have a `note`.
    Lines of kind "advice" also name the `rule` of the coach. Non-finite numbers are null. `add` returns after the
    line has been written to the file.

    The number of lines, and the sums of steps that have no line yet, are stored in the progress under `notes["log"]`.
    `resume` uses these values to restore the log of any checkpoint. Raises AttendoError if TensorBoard is enabled but
    not installed.
    """

    def __init__(self, folder: Path, tensorboard: bool = False) -> None:
        self.path = folder / LOG_NAME
        self._events_folder = folder / EVENTS_NAME if tensorboard else None
        self._events: Any = None  # torch's SummaryWriter
        self._whole = False  # whether the last line is known to be complete
        self._state = dict(_EMPTY)
        self._clock: tuple[int, float] | None = None  # tokens and seconds at the last line
        if tensorboard:
            _summary_writer()

    def clear(self) -> None:
        """Remove the log that an earlier run without checkpoints has left in the folder."""
        self.close()
        self._state = dict(_EMPTY)
        self.path.unlink(missing_ok=True)
        if self._events_folder is not None and self._events_folder.is_dir():
            for file in self._events_folder.glob("events.out.tfevents.*"):
                file.unlink()

    def resume(self, progress: Progress, checkpoint: str) -> None:
        """Continue the log from a checkpoint. Remove all later lines, and add the line of the checkpoint if missing."""
        self.close()
        state: Mapping[str, Any] = progress.notes.get(NOTE, {})
        kept = list(_lines_until(self.path, progress.step, state.get("lines")))
        write_atomic(self.path, b"".join(line for _, line in kept))
        n_lines = sum(entry["kind"] != "checkpoint" for entry, _ in kept)
        self._state = {**_EMPTY, **state, "lines": n_lines}
        self._clock = None
        if self._events_folder is not None:  # TensorBoard hides points of later steps
            self._events = _summary_writer()(str(self._events_folder), purge_step=progress.step + 1)
        if not any(entry["kind"] == "checkpoint" and entry["step"] == progress.step for entry, _ in kept):
            self._write(_checkpoint(progress, checkpoint))

    def add(self, report: Report, rule: str | None = None) -> None:
        """Write a report to the log. `rule` is the name of the coach's rule, for advice."""
        progress = report.progress
        line = _place(report.kind, progress)
        match report.kind:
            case "step":
                self._step(report, line)
            case "evaluation":
                assert report.evaluation is not None
                # an earlier state that is chosen at the end already has its own line
                best = report.is_best and not 0 < progress.best_step < progress.step
                found = report.evaluation.measures | {"best": best, "note": report.note}
                self._write(line | found | _clock(progress))
            case "checkpoint":
                self._write(_checkpoint(progress, report.note))
            case "end":
                self._end(report, line)
            case _:
                by = {} if rule is None else {"rule": rule}
                self._write(line | {"note": report.note} | _clock(progress) | by)
        progress.notes[NOTE] = dict(self._state)

    def close(self) -> None:
        """Close the TensorBoard file. The next log line opens a new TensorBoard file."""
        if self._events is not None:
            self._events.close()
        self._events = None

    def _step(self, report: Report, line: dict[str, Any]) -> None:
        progress = report.progress
        self._state["loss"] += report.loss
        self._state["steps"] += 1
        norm = report.gradient_norm
        self._state["last_step"] = {"rate": report.rate, "gradient_norm": norm, "tokens": progress.tokens}
        if progress.step % LOG_EVERY == 0:
            self._write_mean(line, progress)

    def _write_mean(self, line: dict[str, Any], progress: Progress) -> None:
        state = self._state
        mean = {"loss": state["loss"] / state["steps"]}
        self._write(line | mean | state["last_step"] | _clock(progress))
        state |= {"loss": 0.0, "steps": 0}

    def _end(self, report: Report, line: dict[str, Any]) -> None:
        """Write the mean of the last steps, and the end of the run, unless the log already contains the end."""
        if self._state["last_step"] and self._state["steps"]:
            self._write_mean(_place("step", report.progress), report.progress)
        if last_entry(self.path).get("kind") != "end":
            self._write(line | {"note": report.note} | _at_end(report.progress))

    def _write(self, line: dict[str, Any]) -> None:
        # JSON has no infinity
        lost = {key: None for key, value in line.items() if isinstance(value, float) and not math.isfinite(value)}
        entry = line | lost
        if not self._whole and self.path.exists():
            # a killed process may have written an incomplete line after the last line break
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
        self._whole = True
        with self.path.open("ab") as file:
            file.write((json.dumps(entry) + "\n").encode())
        self._state["lines"] += entry["kind"] != "checkpoint"
        if self._events_folder is not None:
            self._show(entry)

    def _show(self, entry: dict[str, Any]) -> None:
        """Add the numbers of a log line to TensorBoard's curves, and its note as text."""
        events = self._events = self._events or _summary_writer()(str(self._events_folder))
        kind, step = entry["kind"], entry["step"]
        values = {key: value for key, value in entry.items() if _is_number(value) and key not in _NOT_SHOWN}
        if kind == "step":
            now = entry["tokens"], entry["wall_seconds"]
            if self._clock is not None and now[1] > self._clock[1]:
                values["tokens_per_second"] = (now[0] - self._clock[0]) / (now[1] - self._clock[1])
            self._clock = now
        if kind in _GROUPS:
            for key, value in values.items():
                events.add_scalar(f"{_GROUPS[kind]}/{key}", value, step)
        elif kind != "checkpoint" and entry.get("note"):
            events.add_text(kind, entry["note"], step)
        events.flush()


_GROUPS = {"step": "training", "evaluation": "validation"}
_NOT_SHOWN = {"step", "epoch", "tokens", "cpu_seconds", "wall_seconds"}


def read_log(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the entries of metrics.jsonl, and a message if the last line is incomplete, otherwise "".

    Raises AttendoError if there is no log, and for the first line that is not a valid entry.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise AttendoError(f"{path}: no such file. Give a run folder, the --out of `attendo train`") from None
    *lines, rest = data.split(b"\n")
    entries = []
    for number, line in enumerate(lines, 1):
        entry = _entry(line)
        if entry is None:
            raise AttendoError(f"{path}:{number}: damaged (expected a JSON object with kind and step). Delete the line")
        entries.append(entry)
    return entries, f"{path}:{len(lines) + 1}: incomplete last line, skipped" if rest else ""


def last_entry(path: Path) -> dict[str, Any]:
    """Return the last complete entry of metrics.jsonl, or {} if there is none."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return next((entry for line in reversed(lines) if (entry := _entry(line)) is not None), {})


def _lines_until(path: Path, step: int, n_lines: int | None) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the first `n_lines` lines (None: the lines up to `step`), and the lines of checkpoints up to `step`."""
    count = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        entry = _entry(line) if line.endswith(b"\n") else None
        if entry is None or entry["step"] > step:
            continue
        if entry["kind"] != "checkpoint":
            count += 1
            if entry["kind"] == "end" if n_lines is None else count > n_lines:
                continue
        yield entry, line


def _entry(line: bytes) -> dict[str, Any] | None:
    """Return a line as an object with `kind` and `step`, or None if it is not a valid entry."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        return None
    return entry if type(entry.get("step")) is int else None


def _place(kind: str, progress: Progress) -> dict[str, Any]:
    return {"kind": kind, "step": progress.step, "epoch": progress.epoch}


def _clock(progress: Progress) -> dict[str, float]:
    return {"cpu_seconds": round(progress.cpu_seconds, 2), "wall_seconds": round(progress.wall_seconds, 2)}


def _checkpoint(progress: Progress, note: str) -> dict[str, Any]:
    chain = {"chain": progress.chain} if progress.chain else {}
    return {**_place("checkpoint", progress), "note": note, **chain, **_at_end(progress)}


def _at_end(progress: Progress) -> dict[str, Any]:
    """Return the times, and the decisions about the end of the run."""
    return _clock(progress) | {"decay_start": progress.horizon.decay_start, "end": progress.horizon.end}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _summary_writer() -> Any:
    """Return PyTorch's class for writing TensorBoard files."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise AttendoError(f"TensorBoard is not installed. Run: {install_command('tensorboard')}") from None
    return SummaryWriter


def describe_run(folder: Path) -> dict[str, Any]:
    """Return a run's card, settings, last log entry and note, and the sizes of its files in bytes.

    Raises the same errors as `load`.
    """
    bundle = load_bundle(folder)
    for name, kind in {"training": TrainingConfig, "lora": LoraConfig}.items():
        if name in bundle.tables:
            build(kind, bundle.tables[name], f"{folder / 'config.toml'} [{name}]")
    note = folder / NOTE_NAME
    return bundle.card | {
        "note": note.read_text(encoding="utf-8", errors="replace").strip() if note.is_file() else "",
        "config": bundle.tables | {"model": to_table(bundle.model_config) | bundle.tables["model"]},
        "progress": last_entry(folder / LOG_NAME),
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()},
        "checkpoints": {
            path.name: sum(file.stat().st_size for file in path.iterdir())
            for path in sorted((folder / "checkpoints").glob("step-*"), key=lambda path: path.stat().st_mtime)
        },
    }


def write_note(folder: Path, text: str) -> None:
    """Store a note in a run folder, or remove the note if the text is empty. Raises AttendoError for other folders."""
    if not any((folder / name).is_file() for name in RUN_MARKS):
        raise AttendoError(f"{folder} is not a run folder. Give the folder of one run for its note")
    if text:
        write_atomic(folder / NOTE_NAME, f"{text}\n")
    else:
        (folder / NOTE_NAME).unlink(missing_ok=True)


RUN_MARKS = ("config.toml", "card.json", "model.safetensors")
"""Files of which at least one marks a folder as a run, which may be damaged."""


def list_runs(folder: str | Path) -> list[dict[str, Any]]:
    """Return the facts of all runs in a folder and below it, sorted by the start of training.

    Each run is a dict with the keys "run" (the folder), "started" (date and time in ISO format), "task", "files" and
    "rows" (training data), "deciding" and "score" (the measure that selected the weights, and its value),
    "validation" (all measures), "steps", "wall_seconds", "cpu_seconds", "ended" (whether the run is complete), "origin"
    ("" for a trained run, otherwise for example "imported") and "note". A damaged run has only "run", "started" and
    "error".

    Args:
        folder: The folder. It can also be a run folder.

    Raises:
        AttendoError: The folder does not exist.
    """
    found: list[dict[str, Any]] = []
    if not Path(folder).is_dir():
        raise AttendoError(f"{folder}: no such folder. Give a folder that contains runs")
    for place, folders, files in os.walk(folder):
        path = Path(place)
        if marks := [path / name for name in RUN_MARKS if name in files]:
            folders.clear()
            changed = datetime.fromtimestamp(min(mark.stat().st_mtime for mark in marks), UTC)
            run = {"run": str(path), "started": changed.isoformat(timespec="seconds")}
            try:
                found.append(run | _facts(path))
            except (AttendoError, OSError) as error:
                found.append(run | {"error": str(error)})
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found, key=lambda run: (datetime.fromisoformat(run["started"]), run["run"]))


def _facts(folder: Path) -> dict[str, Any]:
    """Return the facts of a run in the format of `list_runs`. Raises AttendoError if the run is damaged."""
    facts = describe_run(folder)
    progress, measures, data = facts["progress"], dict(facts.get("validation", {})), facts.get("data", {})
    if measures and "model.safetensors" not in facts["files"]:
        raise AttendoError("model.safetensors is missing. Restore the file, or resume the run")
    weights_hash(folder)  # raises an error if the file is truncated
    step = measures.pop("step", 0)
    deciding = facts.get("deciding") or next((n for n in ("chrf", "loss") if n in measures), "")
    files = facts["config"].get("data", {}).get("train", [])
    origin = ["imported"] if facts.get("imported") else []
    origin += [f"quantized to {facts['bits']} bits"] if facts.get("bits") else []
    return {
        **({"started": facts["started"]} if facts.get("started") else {}),
        "task": facts.get("task", ""),
        "files": [str(file) for file in files] if isinstance(files, list) else [str(files)],
        "rows": next((data[name] for name in ("pairs", "texts", "documents") if name in data), None),
        "deciding": deciding,
        "score": measures.get(deciding),
        "validation": measures,
        "steps": progress.get("step", int(step)),
        "wall_seconds": progress.get("wall_seconds", 0.0),
        "cpu_seconds": progress.get("cpu_seconds", 0.0),
        "ended": progress.get("kind") == "end" or bool(origin),
        "origin": ", ".join(origin),
        "note": facts["note"],
    }
