"""Checkpoints on disk: whole or absent, verified, no pickle; written while training goes on."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from attendo.files import (
    manifest_files,
    mend_folder,
    remove_folder,
    verify_manifest,
    write_manifest,
)
from attendo.training.distributed import ALONE, Ranks
from attendo.training.finite import require_finite
from attendo.training.run import Run
from attendo.training.sharding import Rows, Stored, rows_of, save_rows, shard_name, write_together
from attendo.training.state import (
    Progress,
    load_optimizer,
    load_weights,
    optimizer_tensors,
    random_states,
    seed_rank,
    set_random_states,
    weights_of,
)

WEIGHTS, OPTIMIZER, AVERAGE, RANDOM = "model", "optimizer", "average", "random"
"""Stems of the files of tensors: one file each, or one of each rank."""
SCALER = "scaler"
"""The note in the progress that holds what scales the loss."""
PROGRESS, CLOCK = "progress.json", "clock.json"
TIMES = ("cpu_seconds", "wall_seconds")
"""Kept in a file of their own: they differ between runs that are otherwise the same to the bit."""


@dataclass(frozen=True)
class Snapshot:
    """A copy of all state of a run that this rank is to write, which the run itself no longer touches.

    tensors: by stem, then by name. is_sharded: of weights and optimizer each rank has its own rows.
    """

    tensors: Mapping[str, Mapping[str, Rows]]
    progress: Mapping[str, Any]
    is_sharded: bool = False

    @property
    def step(self) -> int:
        """Updates done."""
        return self.progress["step"]


def snapshot(run: Run) -> Snapshot:
    """Copies of weights, optimizer, random states and progress, in main memory; of shards, this rank's.

    Raises AttendoError if a weight is not a finite number: nothing good could be resumed from that.
    """
    model, ranks = run.engine.model, run.ranks
    require_finite(model, run.progress.step)
    tensors = {RANDOM: random_states()}
    if ranks.is_first or run.engine.is_sharded:
        tensors |= {WEIGHTS: weights_of(model), OPTIMIZER: optimizer_tensors(model, run.optimizer)}
        if run.average is not None:
            tensors[AVERAGE] = run.average.tensors
    copies = {stem: {name: _copy(t) for name, t in named.items()} for stem, named in tensors.items()}
    scale = {} if run.scaler is None else {SCALER: run.scaler.state_dict()}
    progress = run.progress.as_json()
    return Snapshot(copies, progress | {"notes": progress["notes"] | scale}, run.engine.is_sharded)


def _copy(tensor: Tensor) -> Rows:
    rows = rows_of(tensor.detach())
    return replace(rows, tensor=rows.tensor.to("cpu", copy=True).contiguous())


def write_checkpoint(folder: Path, taken: Snapshot, ranks: Ranks = ALONE) -> Path:
    """Writes `folder/step-N/` whole or not at all: weights, optimizer, random states and progress, with a manifest.

    ranks: those of the snapshot, on a channel of their own where training goes on meanwhile.
    """
    path = folder / f"step-{taken.step}"
    folder.mkdir(parents=True, exist_ok=True)

    def write(temporary: Path) -> None:
        for stem, tensors in taken.tensors.items():
            of_each = taken.is_sharded or stem == RANDOM
            save_rows(tensors, temporary / shard_name(stem, ranks if of_each else ALONE))

    def finish(temporary: Path) -> None:
        progress = dict(taken.progress)
        clock = {name: progress.pop(name) for name in TIMES}
        (temporary / PROGRESS).write_text(json.dumps(progress, indent=1))
        (temporary / CLOCK).write_text(json.dumps(clock))
        write_manifest(temporary, {"format": 1, "step": taken.step})

    # it replaces one of that step: the same again, after an end was prolonged
    write_together(path, write, finish, ranks)
    return path


def load_checkpoint(path: Path, run: Run) -> str:
    """Puts model, optimizer, random states and progress back in place; gives a word where that is not exact, else "".

    Any number of ranks reads what any number has written; random numbers go on where they were at the same number.
    """
    model = run.engine.model
    load_state(path, run)
    load_optimizer(model, run.optimizer, Stored(path, OPTIMIZER, weights_of(model)), str(path))
    run.progress = read_progress(path)
    if run.scaler is not None:
        run.scaler.load_state_dict(run.progress.notes[SCALER])
    before, ranks = run.progress.world, run.ranks
    run.progress.world = ranks.world
    if ranks.world == before:
        set_random_states(load_file(path / shard_name(RANDOM, ranks)))
        return ""
    seed_rank(run.training.seed, run.progress.step, ranks.rank)
    return f"{ranks.world} processes instead of {before}: rows come in the same order, but dropout draws other numbers"


def load_state(path: Path, run: Run) -> None:
    """Puts the weights of a checkpoint, and their average, in place; nothing else."""
    like = weights_of(run.engine.model)
    load_weights(run.engine.model, Stored(path, WEIGHTS, like), str(path))
    if run.average is not None:
        run.average.load(Stored(path, AVERAGE, like))


def read_progress(path: Path) -> Progress:
    """The progress that a checkpoint holds."""
    return Progress.from_json(
        json.loads((path / PROGRESS).read_text()) | json.loads((path / CLOCK).read_text())
    )


def file_hashes(path: Path) -> dict[str, str]:
    """The SHA-256 of each file of a checkpoint, as its manifest has it."""
    return {name: entry["sha256"] for name, entry in manifest_files(path).items()}


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The latest checkpoint that verifies, and a line for each damaged one that was passed over."""
    sound, damaged = sound_checkpoints(folder, 1)
    return (sound[0] if sound else None), damaged


def sound_checkpoints(folder: Path, most: int) -> tuple[list[Path], list[str]]:
    """The latest `most` checkpoints that verify, the newest first; the others are not read. Lines as above."""
    sound: list[Path] = []
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        if len(sound) == most:
            break
        try:
            verify_manifest(path)
            sound.append(path)
        except OSError as error:  # a DamagedFile, or what the system itself cannot read
            damaged.append(f"passed over {path.name}: {error}")
    return sound, damaged


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoint folders, oldest step first."""
    found = [(int(m[1]), p) for p in folder.glob("step-*") if (m := re.fullmatch(r"step-(\d+)", p.name))]
    return [path for _, path in sorted(found)]


def regular_checkpoints(folder: Path, every: int) -> list[Path]:
    """Those where one was due, every so many steps, and the newest: the same whether a run was stopped or not."""
    found = checkpoints(folder)
    return [path for path in found[:-1] if int(path.name.removeprefix("step-")) % every == 0] + found[-1:]


def prune_checkpoints(folder: Path, keep: int, best_step: int = 0, every: int = 1) -> None:
    """Removes all but that of the best evaluation and `keep` others: the newest regular ones first, see above."""
    kept = regular_checkpoints(folder, every)[-keep:]
    others = [path for path in checkpoints(folder) if path not in kept]
    for path in others[: len(others) - (keep - len(kept))]:
        if path.name != f"step-{best_step}":
            remove_folder(path)


def average_weights(folders: list[Path], like: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (Vaswani et al. 2017, section 6.1), summed in float64.

    like: weights that it is for; of those that are sharded it has this rank's rows.
    """
    total: dict[str, Tensor] = {}
    for folder in folders:
        for name, tensor in Stored(folder, WEIGHTS, like).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}


def sweep(folder: Path) -> None:
    """Removes what killed processes left half written, and puts back a checkpoint that one was about to replace."""
    if folder.is_dir():
        mend_folder(folder)


def place_of(progress: Progress) -> tuple[int, int, bool]:
    """What is to be done next: its epoch, its batch, and whether an evaluation comes before."""
    return progress.epoch, progress.batch, progress.evaluation_due


class Saver:
    """Writes a run's checkpoints and removes old ones, beside the training or before it goes on.

    What goes wrong in the background is raised by the next call, so that no run goes on without being saved. last: the
    place in the run of what was handed over last.
    """

    def __init__(self, folder: Path, run: Run):
        self.folder, self.background = folder, run.checkpoint.background
        self.keep = max(run.checkpoint.keep_last, run.training.average_last)
        self.every = run.save_every
        self.ranks = run.ranks.beside()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.last: tuple[int, int, bool] | None = None

    def save(self, taken: Snapshot) -> None:
        """Writes one; in the background it is there after the next `wait`."""
        self.wait()
        self.last = place_of(Progress.from_json(taken.progress))
        if not self.background:
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
        write_checkpoint(self.folder, taken, self.ranks)
        if self.ranks.is_first:
            prune_checkpoints(self.folder, self.keep, taken.progress["best_step"], self.every)

    def _write_noting(self, taken: Snapshot) -> None:
        try:
            self._write(taken)
        except BaseException as error:  # noqa: BLE001 - raised in the training's own thread
            self._error = error
