"""Checkpoints on disk: whole or absent, verified, no pickle; written while training goes on."""

from __future__ import annotations

import errno
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attendo.files import (
    DamagedFile,
    atomic_folder,
    manifest_hash,
    mend_folder,
    remove_folder,
    verify_manifest,
    write_manifest,
)
from attendo.training.finite import require_finite
from attendo.training.state import (
    CheckpointConfig,
    Progress,
    load_optimizer,
    load_weights,
    optimizer_tensors,
    random_states,
    set_random_states,
    weights_of,
)

WEIGHTS, OPTIMIZER, PROGRESS, CLOCK = (
    "model.safetensors",
    "optimizer.safetensors",
    "progress.json",
    "clock.json",
)
TIMES = ("cpu_seconds", "wall_seconds")
"""Kept in a file of their own: they differ between runs that are otherwise the same to the bit."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of all state of a run, which the run itself no longer touches."""

    weights: Mapping[str, Tensor]
    rest: Mapping[str, Tensor]
    progress: Mapping[str, Any]

    @property
    def step(self) -> int:
        """Updates done."""
        return self.progress["step"]


def snapshot(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    more: Mapping[str, Tensor] | None = None,
) -> Snapshot:
    """Copies of weights, optimizer, random states and progress, in main memory. more: tensors by name, kept as well.

    Raises AttendoError if a weight is not a finite number: nothing good could be resumed from that.
    """
    require_finite(model, progress.step)
    weights = {name: _copy(tensor) for name, tensor in weights_of(model).items()}
    rest = optimizer_tensors(model, optimizer) | random_states() | dict(more or {})
    return Snapshot(weights, {name: _copy(tensor) for name, tensor in rest.items()}, progress.as_json())


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def write_checkpoint(folder: Path, taken: Snapshot) -> Path:
    """Writes `folder/step-N/` whole or not at all: weights, optimizer, random states and progress, with a manifest."""
    path = folder / f"step-{taken.step}"
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_folder(
        path, replace=True
    ) as temporary:  # the same step once more, after an end was prolonged
        _save_tensors(taken.weights, temporary / WEIGHTS)
        _save_tensors(taken.rest, temporary / OPTIMIZER)
        progress = dict(taken.progress)
        clock = {name: progress.pop(name) for name in TIMES}
        (temporary / PROGRESS).write_text(json.dumps(progress, indent=1))
        (temporary / CLOCK).write_text(json.dumps(clock))
        write_manifest(temporary, {"format": 1, "step": taken.step})
    return path


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:  # a full disk, most often; its words name the system's own error
        raise OSError(errno.EIO, str(error), str(path)) from error


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Progress, dict[str, Tensor]]:
    """Puts model, optimizer and random states back in place; gives the progress, and what was kept as well."""
    load_weights(model, load_file(path / WEIGHTS), str(path))
    tensors = load_file(path / OPTIMIZER)
    load_optimizer(model, optimizer, tensors, str(path))
    set_random_states(tensors)
    return read_progress(path), tensors


def read_progress(path: Path) -> Progress:
    """The progress that a checkpoint holds."""
    return Progress.from_json(
        json.loads((path / PROGRESS).read_text()) | json.loads((path / CLOCK).read_text())
    )


def state_hash(path: Path) -> str:
    """A SHA-256 over all state in a checkpoint, the clock left out: equal for runs that are equal to the bit."""
    return manifest_hash(path, without=[CLOCK])


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The latest checkpoint that verifies, and a line for each damaged one that was passed over."""
    damaged = []
    for path in reversed(checkpoints(folder)):
        try:
            verify_manifest(path)
            return path, damaged
        except DamagedFile as error:
            damaged.append(f"passed over {path.name}: {error}")
    return None, damaged


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoint folders, oldest step first."""
    found = [(int(m[1]), p) for p in folder.glob("step-*") if (m := re.fullmatch(r"step-(\d+)", p.name))]
    return [path for _, path in sorted(found)]


def prune_checkpoints(folder: Path, keep: int, best_step: int = 0) -> None:
    """Removes all but the `keep` newest and that of the best evaluation."""
    for path in checkpoints(folder)[:-keep]:
        if path.name != f"step-{best_step}":
            remove_folder(path)


def average_weights(folders: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (Vaswani et al. 2017, section 6.1), summed in float64."""
    total: dict[str, Tensor] = {}
    for folder in folders:
        for name, tensor in load_file(folder / WEIGHTS).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}


def sweep(folder: Path) -> None:
    """Removes what killed processes left half written, and puts back a checkpoint that one was about to replace."""
    if folder.is_dir():
        mend_folder(folder)


class Saver:
    """Writes checkpoints into a folder and removes old ones, beside the training or before it goes on.

    What goes wrong in the background is raised by the next call, so that no run goes on without being saved.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, keep: int):
        self.folder, self.config, self.keep = folder, config, max(keep, config.keep_last)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, taken: Snapshot) -> None:
        """Writes one; in the background it is there after the next `wait`."""
        self.wait()
        if not self.config.background:
            self._write(taken)
            return
        self._thread = threading.Thread(target=self._write_noting, args=[taken], name="checkpoint")
        self._thread.start()

    def check(self) -> None:
        """Raises the error of a save that has failed; does not wait."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Returns when nothing is being written any more. Raises the error of a save that has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, taken: Snapshot) -> None:
        write_checkpoint(self.folder, taken)
        prune_checkpoints(self.folder, self.keep, taken.progress["best_step"])

    def _write_noting(self, taken: Snapshot) -> None:
        try:
            self._write(taken)
        except BaseException as error:  # noqa: BLE001 - raised in the training's own thread
            self._error = error
