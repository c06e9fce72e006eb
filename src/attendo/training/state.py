"""All that a run needs to go on as if nothing had happened: where it stands, and its tensors by name."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attendo.errors import AttendoError
from attendo.training.optimizer import Horizon


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
