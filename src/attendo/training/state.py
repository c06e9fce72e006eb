"""All that a run needs to go on as if nothing had happened, and its checkpoints on disk: no pickle, verified."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attendo.errors import AttendoError
from attendo.files import DamagedFile, atomic_folder, verify_manifest, write_manifest
from attendo.training.schedules import Horizon


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save all state, and how many to keep.

    every_steps: 0 = at each evaluation. keep_last: older ones are removed.
    """

    every_steps: int = 0
    keep_last: int = 3

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
    threads: of the processor, at the last checkpoint; sums are bit-equal only with as many. planned_end: what was to
    end the run when `horizon` and `ended` were decided.
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
    ended: str | None = None
    threads: int = 0
    planned_end: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` is the way back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        """The progress that `as_json` described."""
        return cls(**{**values, "horizon": Horizon(**values["horizon"])})


def save_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> Path:
    """Writes `folder/step-N/` whole or not at all: weights, optimizer, random states and progress, with a manifest."""
    path = folder / f"step-{progress.step}"
    if path.exists():  # the same step once more, after an end was prolonged: newer facts, same weights
        shutil.rmtree(path)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_folder(path) as temporary:
        _save_tensors(_weights(model), temporary / "model.safetensors")
        state = _optimizer_tensors(model, optimizer) | _random_states()
        _save_tensors(state, temporary / "optimizer.safetensors")
        (temporary / "progress.json").write_text(json.dumps(progress.as_json(), indent=1))
        write_manifest(temporary, {"format": 1, "step": progress.step})
    return path


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # a full disk, most often; its words name the system's own error
        raise OSError(errno.EIO, str(error), str(path)) from error


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Puts model, optimizer and random states back in place, and gives the progress."""
    load_weights(model, load_file(path / "model.safetensors"), str(path))
    tensors = load_file(path / "optimizer.safetensors")
    names = [name for name, _ in model.named_parameters()]
    state = {
        index: {key.rpartition("/")[2]: tensors[key] for key in tensors if key.startswith(f"{name}/")}
        for index, name in enumerate(_ordered_names(model, optimizer))
    }
    if any(not entry for entry in state.values()) and len(names) > 0 and len(tensors) > 2:
        raise AttendoError(f"{path} holds another model's optimizer; resume with the run's own config.toml")
    filled = {index: entry for index, entry in state.items() if entry}
    optimizer.load_state_dict({"state": filled, "param_groups": optimizer.state_dict()["param_groups"]})
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random/cuda"])
    return Progress.from_json(json.loads((path / "progress.json").read_text()))


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


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Removes all but the `keep` newest."""
    for path in checkpoints(folder)[:-keep]:
        shutil.rmtree(path)


def load_weights(model: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
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


def average_weights(folders: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (Vaswani et al. 2017, section 6.1), summed in float64."""
    total: dict[str, Tensor] = {}
    for folder in folders:
        for name, tensor in load_file(folder / "model.safetensors").items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}


def _ordered_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = _ordered_names(model, optimizer)
    state = optimizer.state_dict()["state"]
    return {f"{names[i]}/{key}": value for i, entry in state.items() for key, value in entry.items()}


def _random_states() -> dict[str, Tensor]:
    states = {"random/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random/cuda"] = torch.cuda.get_rng_state()
    return states
