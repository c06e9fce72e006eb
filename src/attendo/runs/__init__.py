"""Training runs: automatic choice of settings, fine-tuning, resuming, tracking, plans and learning curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.bundle import TaskName
from attendo.custom_modules import CustomModules
from attendo.errors import AttendoError
from attendo.inference import load
from attendo.lazy_imports import names_from

if TYPE_CHECKING:
    from attendo.runs.init_from import with_adapter
    from attendo.runs.planning import plan_run
    from attendo.runs.resume import resumed_run, verify_resume
    from attendo.runs.task_specs import TaskSpec
    from attendo.runs.tracking import list_runs
    from attendo.runs.training_run import TrainingRun, new_run
    from attendo.runs.trials import trial

__all__ = [
    "TaskSpec",
    "TrainingRun",
    "list_runs",
    "new_run",
    "plan_run",
    "resumed_run",
    "train",
    "trial",
    "verify_resume",
    "with_adapter",
]

__getattr__ = names_from(
    __name__,
    init_from=["with_adapter"],
    planning=["plan_run"],
    resume=["resumed_run", "verify_resume"],
    task_specs=["TaskSpec"],
    tracking=["list_runs"],
    training_run=["TrainingRun", "new_run"],
    trials=["trial"],
)


def train(
    train: str | Path | tuple[str | Path, str | Path],
    out: str | Path,
    *,
    task: TaskName = "translation",
    valid: str | Path | tuple[str | Path, str | Path] | None = None,
    columns: str | Mapping[str, str] | None = None,
    minutes: float | None = None,
    cpu_minutes: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    preset: str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    init_from: str | Path | None = None,
    own_parts: CustomModules | None = None,
    device: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> Any:
    """Train a model as `attendo train TASK` does. Return an inference object with the best weights.

    In the main thread, Ctrl-C and SIGTERM save the run and then raise KeyboardInterrupt or SystemExit. To receive a
    report of each step, use `attendo.runs.training_run`.

    Args:
        train: A file of sentence pairs, labeled texts or texts, or a tuple of two parallel files.
        out: The run folder to create.
        task: The task: "translation", "classification", "tagging", "language-model" or
            "masked-language-model".
        valid: Validation files, in the same format as `train` (default: part of the training rows is held out).
        columns: The columns of the files by role, in the format of `--columns`: "label=stars,text=review" or {"label":
            "stars", "text": "review"}. For language models, `columns` is the name of the text column.
        minutes: The time limit in minutes, preparation included. Give at most one of `minutes`, `cpu_minutes`,
            `epochs` and `steps`.
        cpu_minutes: The limit of CPU time in minutes.
        epochs: The number of passes over the training data.
        steps: The number of updates.
        preset: The name of a preset, for example "small".
        settings: Tables as in config.toml that override the preset, for example `{"model": {"positions": "alibi"},
            "data": {"reverse": True}}`.
        init_from: The folder of a run whose weights initialize the model.
        own_parts: A function that adds custom modules to the new model. `load` requires the same function.
        device: The device: "auto", "cpu" or "cuda".
        say: A function that receives the printed lines about preparation, evaluations and the end.

    Raises:
        AttendoError: Settings are invalid, the data cannot be used, or `out` already contains a run.
    """
    from attendo.runs.settings import joined, preset_tables
    from attendo.runs.task_specs import family_of
    from attendo.runs.training_run import new_run

    files = {"train": train} if valid is None else {"train": train, "valid": valid}
    data: dict[str, Any] = {name: list(map(str, f if isinstance(f, tuple) else (f,))) for name, f in files.items()}
    if columns is not None:
        name = "column" if task.endswith("language-model") else "columns"
        data[name] = columns if isinstance(columns, str) else ",".join(map("=".join, columns.items()))
    ends = {"minutes": minutes, "cpu_minutes": cpu_minutes, "epochs": epochs, "steps": steps}
    ends = {name: value for name, value in ends.items() if value is not None}
    if len(ends) > 1:
        raise AttendoError(f"give only one of {', '.join(ends)}")
    from_preset = preset_tables(preset) if preset else {}
    tables = joined(from_preset, settings or {}, {"data": data, "training": ends})
    start = None if init_from is None else Path(init_from)
    run = new_run(family_of(task), tables, Path(out), say, device=device, init_from=start, own_parts=own_parts)
    run.to_end(say)
    return load(out, "cpu" if device == "auto" else device, own_parts)
