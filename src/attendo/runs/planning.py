"""Plan of a run: size, memory, operations, speed and time on this machine, with estimates for many accelerators.

The speed of updates and of large matrix products is measured. All other values are calculated from the modules of the
model and the lengths of the data. Planning writes only the token store, which training later finds in the cache.
"""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attendo.data.batches import Batch
from attendo.display.formats import Say
from attendo.models import Model, ModelConfig, parameter_count
from attendo.nn.blocks import DecoderBlock, EncoderBlock
from attendo.runs.init_from import trained_on_paper
from attendo.runs.settings import UPDATING_SHARE, Tables, measured_pace
from attendo.runs.task_specs import TaskSpec
from attendo.runs.training_run import chosen
from attendo.training import costs
from attendo.training.acceleration import FORMATS, Precision, Products, onednn_product
from attendo.training.costs import MFU, Accelerator, Cells, Formats, Job, Load, Memory, Sharding, UpdateTime
from attendo.training.optimizer import LoraConfig, TrainingConfig
from attendo.training.run import Clock

PROBE_SECONDS = 5.0
LONGEST_UPDATE = 30.0
"""Largest number of seconds of an update that is measured. Slower updates are estimated to keep the plan quick."""
ASSUMED_SHARE = 0.5
"""Assumed share of the peak matrix speed if no update was measured."""
MOST_BATCHES = 100
"""Largest number of batches of an epoch whose lengths are read. The batches are spread evenly over the epoch."""


@dataclass(frozen=True)
class Pace:
    """Seconds per update on this machine, in CPU time (the sum over all threads) or wall time (`clock`).

    `peak` is the FLOP/s of a product of two large matrices (2048 x 2048), in the number format of training. If the
    speed was not measured, it is estimated with ASSUMED_SHARE of the peak, and `why` is the reason.
    """

    seconds: float
    clock: str
    peak: float
    measured: bool
    why: str = ""


@dataclass(frozen=True)
class Plan:
    """Plan of a run, with measured and calculated values.

    Attributes:
        parameters: Number of model parameters by part.
        trained: Number of trainable parameters, adapters included.
        load, flops: Mean work of a batch, and floating-point operations of an update.
        cells, memory: Positions and mask entries of the largest batch, and bytes that its update requires.
        machine_memory: Bytes of memory on this machine or its GPU.
        preparation: Seconds before training (data, tokenizer, settings), by the clock of the time budget.
    """

    task: str
    n_rows: int
    n_tokens: int
    tokenizer: str
    model: ModelConfig
    training: TrainingConfig
    lora: LoraConfig
    parameters: dict[str, int]
    trained: int
    batches_per_epoch: int
    load: Load
    cells: Cells
    flops: float
    memory: Memory
    machine_memory: float
    threads: int
    device: str
    preparation: float
    pace: Pace

    @property
    def n_parameters(self) -> int:
        """Number of all parameters of the model, without adapters."""
        return sum(self.parameters.values())

    @property
    def updates_per_epoch(self) -> float:
        """Number of optimizer updates in an epoch."""
        return self.batches_per_epoch / self.training.accumulation

    @property
    def updates(self) -> int:
        """Number of updates until the limit of the run. With a time budget, the number is estimated from the speed."""
        if self.training.steps is not None:
            return self.training.steps
        if self.training.seconds is not None:
            left = (self.training.seconds - self.preparation) * UPDATING_SHARE
            return max(1, int(left / self.pace.seconds))
        return max(1, math.ceil(math.ceil(self.updates_per_epoch) * (self.training.epochs or 1)))

    @property
    def epochs(self) -> float:
        """Number of passes over the training data until the limit of the run."""
        return self.updates / self.updates_per_epoch

    @property
    def seconds(self) -> float:
        """Seconds of all updates by the clock of `pace`, without reading, evaluations and saving."""
        return self.updates * self.pace.seconds

    @property
    def tokens_per_update(self) -> float:
        """Number of target tokens in an update, or of all tokens if there is no target side."""
        return self.training.accumulation * (self.load.target or self.load.source)

    @property
    def share_of_peak(self) -> float:
        """Speed of an update in FLOP/s, divided by the peak matrix speed."""
        return self.flops / self.pace.seconds / self.pace.peak


def plan_run(
    family: TaskSpec,
    tables: Tables,
    say: Say = lambda line: None,
    device: str = "auto",
    probe_seconds: float = PROBE_SECONDS,
    init_from: Path | None = None,
) -> Plan:
    """Predict the size, memory, speed and time of a run. Prepare the run as training does, and time some updates.

    Args:
        family: The kind of task.
        tables: The settings, as in config.toml.
        say: A function that receives the printed lines.
        device: The device: "auto", "cpu" or "cuda".
        probe_seconds: The duration of the timed updates in seconds.
        init_from: The folder of a run to start from, as in `new_run`.

    Returns:
        The plan of the run. No run folder is written.

    Raises:
        AttendoError: Settings are invalid, or the data cannot be used.
    """
    clock = Clock()
    found = chosen(family, tables, say, lambda line: None, device, init_from)
    cpu, wall = clock.elapsed()
    config, where = found.config, found.device
    training = config.training
    model = trained_on_paper(config.model, training, config.lora)
    batches = found.material.batches(training.batch_tokens, training.seed, 0)
    load, cells = sampled(batches)
    flops = training.accumulation * costs.training_flops(costs.training_multiplications(model), load)
    memory = update_memory(model, cells, Formats(training.precision in FORMATS, where.type == "cuda"), training)
    there = machine_memory(where)
    return Plan(
        task=family.name,
        n_rows=found.material.n_rows,
        n_tokens=found.material.n_tokens,
        tokenizer=f"{found.tokenizer.kind}, {found.tokenizer.vocab_size:,} entries",
        model=config.model,
        training=training,
        lora=config.lora,
        parameters=costs.parameter_groups(costs.on_paper(config.model)),
        trained=parameter_count(model),
        batches_per_epoch=len(batches),
        load=load,
        cells=cells,
        flops=flops,
        memory=memory,
        machine_memory=there,
        threads=torch.get_num_threads(),
        device=where.type,
        preparation=cpu if training.minutes is None else wall,
        pace=tried_pace(config.tables(), batches, where, flops, memory.peak < there, probe_seconds),
    )


def update_memory(model: Model, cells: Cells, formats: Formats, training: TrainingConfig) -> Memory:
    """Estimate the memory of an update with the given settings of training."""
    return costs.training_memory(
        model,
        cells,
        formats,
        muon=training.optimizer == "muon",
        averaged=training.ema_decay > 0,
        checkpointing=training.activation_checkpointing,
    )


def sampled(batches: Sequence[Batch]) -> tuple[Load, Cells]:
    """Return the mean load of batches spread evenly over an epoch, and the cells of the largest of these batches."""
    places = np.unique(np.linspace(0, len(batches) - 1, MOST_BATCHES).astype(int))
    seen = [batches[int(place)] for place in places]
    largest = max(map(costs.cells_of, seen), key=lambda cells: cells.source + cells.target)
    return costs.mean_load(map(costs.load_of, seen)), largest


def tried_pace(
    tables: Tables,
    batches: Sequence[Batch],
    device: torch.device,
    flops: float,
    fits: bool,
    seconds: float = PROBE_SECONDS,
) -> Pace:
    """Measure the speed of updates, or estimate it from the peak if this is too slow or if the memory is too small."""
    model, training = dict(tables["model"]), dict(tables["training"])
    clock = "wall" if device.type == "cuda" or training.get("minutes") is not None else "CPU"
    peak = matrix_peak(training["precision"], training.get("products", "torch"), device, clock)
    expected = flops / peak / ASSUMED_SHARE
    if not fits or expected > LONGEST_UPDATE:
        why = f"it would take about {expected:,.0f} s" if fits else "the model does not fit into memory here"
        return Pace(expected, clock, peak, False, why)
    fewest = 4 if expected < seconds / 4 else 2
    pace = measured_pace(model, training, batches, device, seconds, fewest, tables.get("lora"))
    return Pace(pace, clock, peak, True)


def matrix_peak(
    precision: Precision, products: Products, device: torch.device, clock: str = "CPU", size: int = 2048
) -> float:
    """Return the FLOP/s of the fastest of three products of `size` x `size` matrices, in the format of training."""
    now = time.process_time if clock == "CPU" else time.perf_counter
    a = torch.ones(size, size, device=device, dtype=FORMATS.get(precision, torch.float32))
    product = onednn_product if products == "onednn" and precision == "float32" else torch.mm
    taken = []
    for _ in range(3):
        start = now()
        product(a, a)
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(now() - start)
    return 2 * size**3 / min(taken)


def machine_memory(device: torch.device) -> float:
    """Return the bytes of memory for a process: on the GPU, or on the machine up to the limit of the control group."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text().strip() if limit.exists() else "max"
    return float(min(total, int(allowed)) if allowed.isdigit() else total)


# ---- estimates for many accelerators


@dataclass(frozen=True)
class Outcome:
    """Estimate of a run on many accelerators: bytes and whether they fit, time per update, and seconds of all updates.

    `hidden_from` is the factor by which an update must have more rows for its computation to hide the communication.
    """

    sharding: Sharding
    memory: float
    fits: bool
    time: UpdateTime
    hidden_from: float
    seconds: float


@dataclass(frozen=True)
class PaperPlan:
    """Plan of a run on `world` accelerators, with updates of `tokens` tokens over all accelerators."""

    accelerator: Accelerator
    world: int
    mfu: float
    tokens: float
    updates: int
    outcomes: tuple[Outcome, ...]


def carried(
    plan: Plan, world: int, accelerator: Accelerator, tokens: float | None = None, mfu: float = MFU
) -> PaperPlan:
    """Estimate a run on `world` accelerators in bfloat16. Each accelerator has an equal share of the rows of an update.

    Another number of `tokens` per update changes the number of updates, but not the total number of tokens.
    """
    factor = 1.0 if tokens is None else tokens / plan.tokens_per_update
    model = trained_on_paper(plan.model, plan.training, plan.lora)
    job = job_of(model, factor * plan.flops)
    updates = max(1, math.ceil(plan.updates / factor))
    share = costs.times(plan.cells, factor * plan.training.accumulation / world)
    memory = update_memory(model, share, Formats(half=True, on_gpu=True), plan.training)
    states = memory.weights + memory.gradients + memory.states
    outcomes = []
    for sharding in ("ddp", "fsdp2"):
        n_bytes = costs.sharded_bytes(job, world, states, memory.activations + memory.loss, sharding)
        taken = costs.update_time(job, world, accelerator, sharding, mfu)
        needed = costs.hidden_from(job, world, accelerator, sharding, mfu)
        fits = n_bytes < accelerator.memory
        outcomes.append(Outcome(sharding, n_bytes, fits, taken, needed, updates * taken.total))
    return PaperPlan(accelerator, world, mfu, factor * plan.tokens_per_update, updates, tuple(outcomes))


def job_of(model: Model, flops: float) -> Job:
    """Return the training job of a model. FSDP2 gathers each block as one unit, and all other parameters together."""
    parameters, trained = sum(p.numel() for p in model.parameters()), parameter_count(model)
    blocks = [
        sum(p.numel() for p in module.parameters())
        for module in model.modules()
        if isinstance(module, EncoderBlock | DecoderBlock)
    ]
    largest = max(*blocks, parameters - sum(blocks))
    return Job(parameters, len(blocks) + 1, largest, flops, reduced=costs.FLOAT * trained / parameters)


def plain(plan: Plan, paper: PaperPlan | None = None) -> dict[str, Any]:
    """Return the plan as a dict that can be converted to JSON."""
    names = ("n_parameters", "updates", "seconds", "tokens_per_update", "share_of_peak")
    own = asdict(plan) | {name: getattr(plan, name) for name in names} | {"peak_memory": plan.memory.peak}
    return own if paper is None else own | {"on_paper": asdict(paper)}
