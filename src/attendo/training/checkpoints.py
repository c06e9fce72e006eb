"""Checkpoints: the state that a run needs to continue exactly, and its files: whole or absent, verified, no pickle."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import re
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from attendo.errors import AttendoError
from attendo.files import (
    manifest_files,
    mend_folder,
    remove_folder,
    verify_manifest,
    write_manifest,
)
from attendo.training.distributed import (
    ALONE,
    Ranks,
    Rows,
    Stored,
    local,
    rows_of,
    save_rows,
    shard_name,
    write_together,
)
from attendo.training.optimizer import Horizon

if TYPE_CHECKING:
    from attendo.training.run import Run


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save all state, and how many to keep.

    every_steps: 0 = at each evaluation. keep_last: older ones are removed, but not the best one. background: written by
    a thread from a copy, while training goes on.
    """

    every_steps: int = 0
    keep_last: int = 3
    background: bool = True

    def __post_init__(self):
        if self.every_steps < 0:
            raise ValueError(
                f"every_steps={self.every_steps} must not be negative; 0 saves at each evaluation"
            )
        if self.keep_last < 1:
            raise ValueError(f"keep_last={self.keep_last} must be at least 1, or nothing could be resumed")


@dataclass
class Progress:
    """Where a run stands: the cursor into its data, its clock, its decisions and its best evaluation.

    step: updates done. epoch, batch: the next batch is number `batch` of epoch `epoch`. tokens: those seen.
    cpu_seconds, wall_seconds: spent so far, earlier sittings included. best: the value of the deciding metric.
    evaluation_due: the run stopped before the evaluation of this step. threads, world: of the processor, and
    processes, at the last checkpoint; sums are bit-equal only with as many. planned_end: what was to end the run when
    `horizon` and `ended` were decided. skipped, skipped_in_a_row: updates left out, since they were not finite.
    too_large: positions of a batch that did not fit into memory; 0 = all did. order: a hash over the numbers of all
    rows seen, in their order. chain: one over the steps, bits of losses and gradient norms, and rows. notes: what
    others remember of the run by name, JSON.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    horizon: Horizon = field(default_factory=Horizon)
    best: float | None = None
    best_step: int = 0
    evaluations_since_best: int = 0
    evaluation_due: bool = False
    ended: str | None = None
    threads: int = 0
    world: int = 1
    planned_end: str = ""
    skipped: int = 0
    skipped_in_a_row: int = 0
    too_large: int = 0
    order: str = ""
    chain: str = ""
    notes: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` is the way back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """The progress that `as_json` described."""
        return cls(**{**values, "horizon": Horizon(**values["horizon"])})

    def saw(self, rows: Iterable[Any]) -> None:
        """Takes the numbers of rows, an array for each batch, into `order`."""
        self.order = linked(self.order, *(np.ascontiguousarray(ids, "<i8").tobytes() for ids in rows))

    def link(self, loss: float, gradient_norm: float) -> None:
        """Takes the update that was just made, and the rows up to it, into `chain`."""
        numbers = struct.pack("<qdd", self.step, loss, gradient_norm)
        self.chain = linked(self.chain, numbers, self.order.encode())


def linked(chain: str, *parts: bytes) -> str:
    """The next SHA-256 of a chain, as hexadecimal digits: each vouches for all before it.

    >>> linked(linked("", b"a"), b"b") == linked(linked("", b"b"), b"a")
    False
    """
    digest = hashlib.sha256(chain.encode())
    for part in parts:
        digest.update(struct.pack("<q", len(part)))
        digest.update(part)
    return digest.hexdigest()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as "PARAMETER/KEY"."""
    names = _ordered_names(model, optimizer)
    state = optimizer.state_dict()["state"]
    return {f"{names[i]}/{key}": value for i, entry in state.items() for key, value in entry.items()}


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], where: str
) -> None:
    """Puts back what `optimizer_tensors` gave. Raises AttendoError where it belongs to another model."""
    names = _ordered_names(model, optimizer)
    found: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for path, tensor in tensors.items():
        name, _, key = path.rpartition("/")
        if name in found:
            found[name][key] = tensor
    if any(found.values()) and not all(found.values()):
        raise AttendoError(f"{where} holds another model's optimizer; resume with the run's own config.toml")
    state = {index: found[name] for index, name in enumerate(names) if found[name]}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def torch_states() -> dict[str, Tensor]:
    """The states of torch's random number generators, on the CPU and the GPU."""
    states = {"random/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random/cuda"] = torch.cuda.get_rng_state()
    return states


def set_torch_states(states: Mapping[str, Tensor]) -> None:
    """Puts back what `torch_states` gave."""
    torch.set_rng_state(states["random/cpu"])
    if "random/cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["random/cuda"])


def seed_all(seed: int) -> None:
    """Starts all random number generators of the process: torch's, numpy's and Python's."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_rank(seed: int, step: int, rank: int) -> None:
    """The same for one of several processes: each draws its own numbers, from each step on others."""
    seed_all(int(linked("", struct.pack("<qqq", seed, step, rank))[:12], 16))


def random_states() -> dict[str, Tensor]:
    """The states of all random number generators: torch's, numpy's and Python's."""
    version, python, spare = random.getstate()
    _, keys, place, has_spare, second = np.random.get_state(legacy=True)  # pyright: ignore[reportAssignmentType]
    return torch_states() | {
        "random/python": torch.tensor([version, *python]),
        "random/python_spare": torch.tensor([] if spare is None else [spare], dtype=torch.float64),
        "random/numpy": torch.from_numpy(np.array([*keys, place, has_spare], np.int64)),
        "random/numpy_spare": torch.tensor([second], dtype=torch.float64),
    }


def set_random_states(states: Mapping[str, Tensor]) -> None:
    """Puts back what `random_states` gave."""
    set_torch_states(states)
    version, *python = states["random/python"].tolist()
    spare = states["random/python_spare"].tolist()
    random.setstate((version, tuple(python), spare[0] if spare else None))
    *keys, place, has_spare = states["random/numpy"].tolist()
    second = states["random/numpy_spare"].item()
    np.random.set_state(("MT19937", np.array(keys, np.uint32), place, has_spare, second))


def require_finite(model: nn.Module, step: int) -> None:
    """Raises AttendoError if a weight is not a finite number: it must reach no file."""
    for name, parameter in model.named_parameters():
        if not local(parameter.detach()).isfinite().all():
            raise AttendoError(
                f"{name} is not finite at step {step}, so nothing is saved; resume from the last checkpoint with a"
                " lower training.learning_rate"
            )


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copies tensors into the parameters of the same names. Raises AttendoError where names or shapes differ."""
    parameters = dict(model.named_parameters())
    if missing := sorted(parameters.keys() ^ tensors.keys()):
        raise AttendoError(
            f"{where}: {missing[0]} is on one side only; the weights belong to another config.toml"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                shapes = f"{tuple(tensors[name].shape)}, the config says {tuple(parameter.shape)}"
                raise AttendoError(f"{where}: {name} is {shapes}; the weights belong to another config.toml")
            parameter.copy_(tensors[name])


def _ordered_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


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
    model, ranks = run.executor.trained_model, run.ranks
    require_finite(model, run.progress.step)
    tensors = {RANDOM: random_states()}
    if ranks.is_first or run.executor.is_sharded:
        tensors |= {WEIGHTS: weights_of(model), OPTIMIZER: optimizer_tensors(model, run.optimizer)}
        if run.average is not None:
            tensors[AVERAGE] = run.average.tensors
    copies = {stem: {name: _copy(t) for name, t in named.items()} for stem, named in tensors.items()}
    scale = {} if run.scaler is None else {SCALER: run.scaler.state_dict()}
    progress = run.progress.as_json()
    return Snapshot(copies, progress | {"notes": progress["notes"] | scale}, run.executor.is_sharded)


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
    model = run.executor.trained_model
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
    like = weights_of(run.executor.trained_model)
    load_weights(run.executor.trained_model, Stored(path, WEIGHTS, like), str(path))
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

    What goes wrong in the background is raised by the next call, so that no run goes on without being saved. folder:
    None for a run that keeps no checkpoints. last: the place in the run of what was handed over last.
    """

    def __init__(self, run: Run):
        self.folder = run.folder
        self.background = run.checkpoint.background
        self.keep = max(run.checkpoint.keep_last, run.training.average_last)
        self.every = run.save_every
        self.ranks = run.ranks if run.folder is None else run.ranks.beside()
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
        assert self.folder is not None
        write_checkpoint(self.folder, taken, self.ranks)
        if self.ranks.is_first:
            prune_checkpoints(self.folder, self.keep, taken.progress["best_step"], self.every)

    def _write_noting(self, taken: Snapshot) -> None:
        try:
            self._write(taken)
        except BaseException as error:  # noqa: BLE001 - raised in the training's own thread
            self._error = error
