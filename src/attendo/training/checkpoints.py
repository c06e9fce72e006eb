"""Checkpoints: the state that a run requires to resume exactly, and the files of this state.

A checkpoint folder is either complete or absent. Its files are verified when they are read, and none is a pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from attendo.config import build, read_toml
from attendo.errors import AttendoError, diverged
from attendo.files import remove_folder, verify_manifest, write_manifest
from attendo.training import distributed
from attendo.training.distributed import ALONE, Ranks, Rows, Stored, shard_name
from attendo.training.lora import DOWN, merged_tensors
from attendo.training.optimizer import Horizon, LoraConfig

if TYPE_CHECKING:
    from attendo.training.run import Run


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Settings for saving checkpoints.

    Attributes:
        every_steps: Number of steps between two checkpoints. 0 saves a checkpoint at each evaluation.
        keep_last: Number of newest checkpoints that are kept. The best checkpoint is always kept.
        background: Whether a thread writes the checkpoint while the next step is computed. The step ends after the
            checkpoint is complete.
    """

    every_steps: int = 0
    keep_last: int = 3
    background: bool = True

    def __post_init__(self):
        if self.every_steps < 0:
            raise ValueError(f"every_steps={self.every_steps} must be at least 0 (0 saves at each evaluation)")
        if self.keep_last < 1:
            raise ValueError(f"keep_last={self.keep_last} must be at least 1 to resume the run")


@dataclass
class Progress:
    """State of a run without its tensors: position in the data, elapsed time, decisions and best evaluation.

    Attributes:
        step: Number of completed optimizer steps.
        epoch, batch: Number of the next epoch and number of the next batch in it, from 0.
        tokens: Number of tokens seen so far.
        cpu_seconds, wall_seconds: CPU seconds and wall-clock seconds used so far.
        horizon: Planned start of the learning rate decay, and planned end of the run.
        best, best_step: Best value so far of the measure that selects the best model, and the step of this value.
        evaluation_due: Whether the run was stopped before the evaluation of this step.
        ended: Reason why the run has ended, or None if it has not ended.
        threads, world: Numbers of threads and processes at the last checkpoint, which affect the last bits of sums.
        planned_end: Name and value of the setting that determined `horizon` and `ended`, for example "steps 4000".
        skipped, skipped_in_a_row: Numbers of updates skipped because of non-finite numbers, in total and in a row.
        too_large: Number of positions in a batch that did not fit into memory, or 0 if all batches fitted.
        order: Hash of the row numbers of all training data seen so far, in order.
        chain: Hash of all updates so far: step numbers, losses, gradient norms and row numbers.
        notes: JSON values that other components store, such as the log and the coach, by component name.
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
        """Return the progress as plain JSON values. `from_json` is the inverse function."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """Build the progress from the values that `as_json` returned."""
        return cls(**{**values, "horizon": Horizon(**values["horizon"])})

    def saw(self, rows: Iterable[Any]) -> None:
        """Add row numbers to the hash `order`. `rows` contains one array of row numbers per batch."""
        self.order = linked(self.order, *(np.ascontiguousarray(ids, "<i8").tobytes() for ids in rows))

    def link(self, loss: float, gradient_norm: float) -> None:
        """Add the last update to the hash `chain`: its step, loss, gradient norm and rows."""
        numbers = struct.pack("<qdd", self.step, loss, gradient_norm)
        self.chain = linked(self.chain, numbers, self.order.encode())


def linked(chain: str, *parts: bytes) -> str:
    """Return the next SHA-256 hash of a chain in hexadecimal digits, computed from the last hash and `parts`.

    >>> linked(linked("", b"a"), b"b") == linked(linked("", b"b"), b"a")
    False
    """
    digest = hashlib.sha256(chain.encode())
    for part in parts:
        digest.update(struct.pack("<q", len(part)))
        digest.update(part)
    return digest.hexdigest()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model by name, detached from the autograd graph."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state tensors of an optimizer, by names of the form "PARAMETER/KEY"."""
    names = _ordered_names(model, optimizer)
    state = optimizer.state_dict()["state"]
    return {f"{names[i]}/{key}": value for i, entry in state.items() for key, value in entry.items()}


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], where: str
) -> None:
    """Restore the optimizer state that `optimizer_tensors` returned.

    Raises AttendoError if the state belongs to another model.
    """
    names = _ordered_names(model, optimizer)
    found: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for path, tensor in tensors.items():
        name, _, key = path.rpartition("/")
        if name in found:
            found[name][key] = tensor
    if any(found.values()) and not all(found.values()):
        raise AttendoError(f"{where} has the optimizer of another model. Resume with this run's config.toml")
    state = {index: found[name] for index, name in enumerate(names) if found[name]}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def torch_states() -> dict[str, Tensor]:
    """Return the states of PyTorch's random number generators on the CPU and the GPU."""
    states = {"random/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random/cuda"] = torch.cuda.get_rng_state()
    return states


def set_torch_states(states: Mapping[str, Tensor]) -> None:
    """Restore the generator states that `torch_states` returned."""
    torch.set_rng_state(states["random/cpu"])
    if "random/cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["random/cuda"])


def seed_all(seed: int) -> None:
    """Seed the random number generators of PyTorch, NumPy and Python."""
    torch.manual_seed(seed)
    seed_others(seed)


def seed_others(seed: int) -> None:
    """Seed the random number generators of NumPy and Python. The import of some libraries draws from them."""
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Seed the random number generators of one of several processes. Each rank and step has a different seed."""
    seed_all(int(linked("", struct.pack("<qqq", seed, step, rank))[:12], 16))


def random_states() -> dict[str, Tensor]:
    """Return the states of the random number generators of PyTorch, NumPy and Python."""
    version, python, spare = random.getstate()
    _, keys, place, has_spare, second = np.random.get_state(legacy=True)  # pyright: ignore[reportAssignmentType]
    return torch_states() | {
        "random/python": torch.tensor([version, *python]),
        "random/python_spare": torch.tensor([] if spare is None else [spare], dtype=torch.float64),
        "random/numpy": torch.from_numpy(np.array([*keys, place, has_spare], np.int64)),
        "random/numpy_spare": torch.tensor([second], dtype=torch.float64),
    }


def set_random_states(states: Mapping[str, Tensor]) -> None:
    """Restore the generator states that `random_states` returned."""
    set_torch_states(states)
    version, *python = states["random/python"].tolist()
    spare = states["random/python_spare"].tolist()
    random.setstate((version, tuple(python), spare[0] if spare else None))
    *keys, place, has_spare = states["random/numpy"].tolist()
    second = states["random/numpy_spare"].item()
    np.random.set_state(("MT19937", np.array(keys, np.uint32), place, has_spare, second))


@contextmanager
def unchanged_random_states() -> Iterator[None]:
    """Restore all random states after the `with` block."""
    before = torch_states(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        set_torch_states(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def require_finite(model: nn.Module, step: int) -> None:
    """Raise AttendoError if a weight of the model is non-finite. Non-finite weights must not be saved."""
    for name, parameter in model.named_parameters():
        if not distributed.local(parameter.detach()).isfinite().all():
            raise diverged(
                f"{name} is non-finite at step {step}, so no checkpoint was saved. Resume from the last "
                "checkpoint with a lower training.learning_rate"
            )


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy tensors into the model parameters of the same names. Raises AttendoError if names or shapes differ."""
    parameters = dict(model.named_parameters())
    if missing := sorted(parameters.keys() ^ tensors.keys()):
        raise AttendoError(f"{where}: {missing[0]} is only in one of file and model. Restore this run's config.toml")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                shapes = f"{tuple(tensors[name].shape)}, but config.toml defines {tuple(parameter.shape)}"
                raise AttendoError(f"{where}: {name} has shape {shapes}. Restore this run's config.toml")
            parameter.copy_(tensors[name])


def kept_weights(folder: Path, checkpoint: Path) -> Mapping[str, Tensor]:
    """Return the weights in a checkpoint of a run by name, with LoRA adapters merged into the model weights."""
    weights = Stored(checkpoint, WEIGHTS)
    if not any(name.endswith(DOWN) for name in weights):
        return weights
    config = folder / "config.toml"
    tables = read_toml(config) if config.is_file() else {}  # a folder with only checkpoints has none
    return merged_tensors(weights, build(LoraConfig, tables.get("lora", {}), f"{config} [lora]").scale)


def _ordered_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


WEIGHTS, OPTIMIZER, AVERAGE, RANDOM = "model", "optimizer", "average", "random"
"""Stems of the names of tensor files. There is one file per stem, or one file per stem and rank."""
SCALER = "scaler"
"""Name of the note in the progress that contains the state of the gradient scaler."""
PROGRESS, CLOCK = "progress.json", "clock.json"
TIMES = ("cpu_seconds", "wall_seconds")
"""Times in the progress. These times have their own file, because they differ between otherwise bit-identical runs."""


@dataclass(frozen=True)
class Snapshot:
    """Copy of the state that this rank writes to a checkpoint: tensors by the stem of their file, then by name.

    `progress` is the result of `Progress.as_json`. If `is_sharded` is true, each rank has only some rows of each
    tensor.
    """

    tensors: Mapping[str, Mapping[str, Rows]]
    progress: Mapping[str, Any]
    is_sharded: bool = False

    @property
    def step(self) -> int:
        """Number of completed optimizer steps."""
        return self.progress["step"]


def snapshot(run: Run) -> Snapshot:
    """Copy weights, optimizer state, random states and progress of a run to main memory.

    If the model is sharded, each rank copies its own rows. Otherwise, only the first rank copies weights and optimizer
    state. Raises AttendoError if a weight is non-finite.
    """
    model = run.executor.trained_model
    ranks = run.ranks
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
    rows = distributed.rows_of(tensor.detach())
    return replace(rows, tensor=rows.tensor.to("cpu", copy=True).contiguous())


def write_checkpoint(folder: Path, taken: Snapshot, ranks: Ranks = ALONE) -> Path:
    """Write the checkpoint folder `folder/step-N/` atomically, and return its path.

    The folder contains weights, optimizer state, random states, progress and a manifest.
    """
    path = folder / f"step-{taken.step}"
    folder.mkdir(parents=True, exist_ok=True)

    def write(temporary: Path) -> None:
        for stem, tensors in taken.tensors.items():
            of_each = taken.is_sharded or stem == RANDOM
            distributed.save_rows(tensors, temporary / shard_name(stem, ranks if of_each else ALONE))

    def finish(temporary: Path) -> None:
        progress = dict(taken.progress)
        clock = {name: progress.pop(name) for name in TIMES}
        (temporary / PROGRESS).write_text(json.dumps(progress, indent=1))
        (temporary / CLOCK).write_text(json.dumps(clock))
        write_manifest(temporary, {"format": 1, "step": taken.step})

    # after a run was prolonged, a checkpoint of the same step is replaced
    distributed.write_together(path, write, finish, ranks)
    return path


def load_checkpoint(path: Path, run: Run) -> str:
    """Restore model, optimizer, random states and progress from a checkpoint.

    Returns a message if the resumed run will not be bit-identical to an uninterrupted run, otherwise "". The random
    states are restored only if the number of ranks is unchanged.
    """
    model = run.executor.trained_model
    load_state(path, run)
    load_optimizer(model, run.optimizer, Stored(path, OPTIMIZER, weights_of(model)), str(path))
    run.progress = read_progress(path)
    if run.scaler is not None:
        run.scaler.load_state_dict(run.progress.notes[SCALER])
    before = run.progress.world
    ranks = run.ranks
    run.progress.world = ranks.world
    if ranks.world == before:
        set_random_states(load_file(path / shard_name(RANDOM, ranks)))
        return ""
    seed_rank(run.training.seed, run.progress.step, ranks.rank)
    return f"{ranks.world} processes instead of {before}: the order of rows is the same, but dropout masks differ"


def load_state(path: Path, run: Run) -> None:
    """Restore only the weights and their moving average from a checkpoint."""
    like = weights_of(run.executor.trained_model)
    load_weights(run.executor.trained_model, Stored(path, WEIGHTS, like), str(path))
    if run.average is not None:
        run.average.load(Stored(path, AVERAGE, like))


def read_progress(path: Path) -> Progress:
    """Return the progress that is stored in a checkpoint."""
    return Progress.from_json(json.loads((path / PROGRESS).read_text()) | json.loads((path / CLOCK).read_text()))


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest valid checkpoint or None, and a message for each damaged checkpoint that was skipped."""
    sound, damaged = sound_checkpoints(folder, 1)
    return (sound[0] if sound else None), damaged


def sound_checkpoints(folder: Path, most: int) -> tuple[list[Path], list[str]]:
    """Return up to `most` valid checkpoints, newest first, and a message for each damaged checkpoint."""
    sound: list[Path] = []
    damaged: list[str] = []
    for path in reversed(checkpoints(folder)):
        if len(sound) == most:
            break
        try:
            verify_manifest(path)
            sound.append(path)
        except OSError as error:  # a DamagedFile, or a file that the system cannot read
            damaged.append(f"skipped damaged checkpoint {path.name}: {error}")
    return sound, damaged


def checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoint folders, ordered by step."""
    found = [(int(m[1]), p) for p in folder.glob("step-*") if (m := re.fullmatch(r"step-(\d+)", p.name))]
    return [path for _, path in sorted(found)]


def regular_checkpoints(folder: Path, every: int) -> list[Path]:
    """Return the newest checkpoint and all checkpoints whose step is a multiple of `every`, ordered by step.

    The result does not depend on whether the run was stopped and resumed.
    """
    found = checkpoints(folder)
    return [path for path in found[:-1] if int(path.name.removeprefix("step-")) % every == 0] + found[-1:]


def prune_checkpoints(folder: Path, keep: int, best_step: int = 0, every: int = 1) -> None:
    """Remove old checkpoints. The checkpoint of the best evaluation and `keep` other checkpoints remain.

    The newest regular checkpoints are kept first (`regular_checkpoints`), then the newest other checkpoints.
    """
    kept = regular_checkpoints(folder, every)[-keep:]
    others = [path for path in checkpoints(folder) if path not in kept]
    for path in others[: len(others) - (keep - len(kept))]:
        if path.name != f"step-{best_step}":
            remove_folder(path)


def average_weights(folders: list[Path], like: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the mean weights of several checkpoints by name (Vaswani et al. 2017, section 6.1).

    The sum is computed in float64. The tensors are sharded like the tensors in `like`.
    """
    total: dict[str, Tensor] = {}
    for folder in folders:
        for name, tensor in Stored(folder, WEIGHTS, like).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}


class Saver:
    """Writer of checkpoints, in a background thread or synchronously, which also removes old checkpoints.

    If the run has no folder, no checkpoint is written. If the thread fails, the next `save` or `wait` raises its error,
    so no run continues without checkpoints.
    """

    def __init__(self, run: Run):
        self.folder = run.folder
        self.background = run.checkpoint.background
        self.keep = max(run.checkpoint.keep_last, run.training.average_last)
        self.every = run.save_every
        self.ranks = run.ranks.beside()
        self._writing: Future[None] | None = None
        self._last: tuple[int, int, bool] | None = None

    def save(self, run: Run) -> bool:
        """Start saving the complete state of a run. Return False if checkpoints are disabled, otherwise True."""
        if self.folder is None:
            return False
        taken = snapshot(run)
        self.wait()
        self._last = _place(run.progress)
        if self.background:
            thread = ThreadPoolExecutor(1, "checkpoint")
            self._writing = thread.submit(self._write, self.folder, taken)
            thread.shutdown(wait=False)  # the thread ends after this checkpoint
        else:
            self._write(self.folder, taken)
        return True

    def is_saved(self, progress: Progress) -> bool:
        """Return whether the current position of the run is saved, or checkpoints are disabled."""
        return self.folder is None or self._last == _place(progress)

    def wait(self) -> None:
        """Wait until no checkpoint is being written. Raise the error of a failed save."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, folder: Path, taken: Snapshot) -> None:
        write_checkpoint(folder, taken, self.ranks)
        if self.ranks.is_first:
            prune_checkpoints(folder, self.keep, taken.progress["best_step"], self.every)


def _place(progress: Progress) -> tuple[int, int, bool]:
    """Return the next epoch and batch of a run, and whether an evaluation comes first."""
    return progress.epoch, progress.batch, progress.evaluation_due
