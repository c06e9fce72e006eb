"""Estimates of communication, bottleneck and memory for training on many accelerators.

All values are numbers in bytes, seconds and floating-point operations. docs/en/cost-model.md derives the formulas and
compares them with measurements.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from attendo.errors import AttendoError

Sharding = Literal["ddp", "fsdp2"]
BUCKET = 25 * 2**20
"""Bytes of gradients that DDP reduces at once, PyTorch's default (Li et al. 2020)."""
MFU = 0.40
"""Default of the model FLOPs utilization (MFU). Chowdhery et al. 2022 define MFU and reach 0.46 on 6,144 chips."""


@dataclass(frozen=True)
class Accelerator:
    """Data sheet of an accelerator.

    Attributes:
        flops: Dense bfloat16 operations per second.
        memory: Bytes of memory.
        bandwidth: Network bandwidth of one accelerator in each direction, in bytes per second.
        inner, per_node: Bytes per second between the accelerators of a machine, and number of accelerators per machine.
        latency: Seconds per message. This value is assumed, because no data sheet contains it.
    """

    name: str
    flops: float
    memory: float
    bandwidth: float
    inner: float = 0.0
    per_node: int = 1
    latency: float = 10e-6

    def link(self, world: int) -> float:
        """Return the bytes per second that each of `world` accelerators sends to its neighbor in a ring.

        Between machines, there is one ring per network adapter, so all adapters work at once. Each accelerator then
        performs as if it had all adapters of its machine.

        >>> Accelerator("", 1e12, 1e9, bandwidth=50.0, inner=450.0, per_node=8).link(16)
        400.0
        """
        if self.per_node == 1:
            return self.bandwidth
        return self.inner if world <= self.per_node else min(self.inner, self.per_node * self.bandwidth)


ACCELERATORS = {
    one.name: one
    for one in (
        Accelerator("a100", 312e12, 80e9, 25e9, 300e9, 8),
        Accelerator("h100", 989e12, 80e9, 50e9, 450e9, 8),
        Accelerator("h200", 989e12, 141e9, 50e9, 450e9, 8),
        Accelerator("b200", 2250e12, 180e9, 50e9, 900e9, 8),
    )
}
"""Accelerators by name. The values are from the data sheets of the SXM parts and of the vendor's machines with eight
accelerators. Such a machine has one network adapter of 200 or 400 Gbit/s per accelerator.
"""


def named_accelerator(name: str, given: Mapping[str, float | None] = MappingProxyType({})) -> Accelerator:
    """Return an entry of ACCELERATORS. Values of `given` that are not None replace the values of the entry.

    Raises AttendoError for an unknown name.

    >>> named_accelerator("a100", {"memory": 40e9, "flops": None}).memory
    40000000000.0
    """
    if name not in ACCELERATORS:
        raise AttendoError(f"unknown accelerator {name!r} (expected one of {', '.join(ACCELERATORS)})")
    return replace(ACCELERATORS[name], **{key: value for key, value in given.items() if value is not None})


# ---- traffic


def ring_bytes(n_bytes: float, world: int) -> float:
    """Return the bytes that each process sends in a ring all-reduce of a buffer of `n_bytes`.

    For W processes, each sends 2 (W-1)/W of the buffer, which is the minimum (Patarasuk & Yuan 2009). An all-gather or
    a reduce-scatter sends half of these bytes.

    >>> ring_bytes(100.0, 2), ring_bytes(100.0, 4)
    (100.0, 150.0)
    """
    return 2 * (world - 1) / world * n_bytes


def all_reduce_seconds(n_bytes: float, world: int, link: Accelerator, messages: int = 1) -> float:
    """Return the seconds of an all-reduce in a number of messages. The faster of ring and tree is assumed.

    A ring takes 2 (W-1) latencies per message and sends 2 (W-1)/W of the bytes. Two trees take 2 ⌈log₂ W⌉ latencies
    per message and send twice the bytes (Thakur et al. 2005; Sanders et al. 2009).

    >>> slow = Accelerator("", 1e12, 1e9, 1e9, latency=0.0)
    >>> all_reduce_seconds(1e9, 4, slow), all_reduce_seconds(1e9, 1, slow)
    (1.5, 0.0)
    """
    if world == 1:
        return 0.0
    ring = messages * 2 * (world - 1) * link.latency + ring_bytes(n_bytes, world) / link.link(world)
    tree = messages * 2 * math.ceil(math.log2(world)) * link.latency + 2 * n_bytes / link.link(world)
    return min(ring, tree)


def gather_seconds(n_bytes: float, world: int, link: Accelerator, messages: int = 1) -> float:
    """Return the seconds of an all-gather or a reduce-scatter of `n_bytes` in total, of which (W-1)/W are sent.

    A ring takes W-1 latencies per message. Recursive doubling takes ⌈log₂ W⌉ latencies. The smaller number is assumed
    (Thakur et al. 2005).
    """
    if world == 1:
        return 0.0
    steps = min(world - 1, math.ceil(math.log2(world)))
    return messages * steps * link.latency + ring_bytes(n_bytes, world) / 2 / link.link(world)


# ---- an update


@dataclass(frozen=True)
class Job:
    """Sizes of a training job that determine its time and memory on many accelerators.

    Attributes:
        parameters: Number of all parameters.
        units, largest_unit: Number of parts that FSDP2 gathers one by one, and number of parameters in the largest
            part.
        flops: Floating-point operations of an update over all processes.
        gathered, reduced: Bytes per parameter that are sent as weights and as gradients.
    """

    parameters: float
    units: int
    largest_unit: float
    flops: float
    gathered: float = 4
    reduced: float = 4


@dataclass(frozen=True)
class UpdateTime:
    """Seconds of an update: `compute` at the assumed utilization, `traffic` on the links, and `total` with overlap."""

    compute: float
    traffic: float
    total: float

    @property
    def binds(self) -> str:
        """Bottleneck: "traffic" if the update takes over 10% longer than its computation, otherwise "products"."""
        return "traffic" if self.total > 1.1 * self.compute else "products"


def update_time(
    job: Job, world: int, accelerator: Accelerator, sharding: Sharding = "ddp", mfu: float = MFU
) -> UpdateTime:
    """Estimate the time of an update whose rows are divided among `world` accelerators.

    Computation takes C = flops / (world · peak · mfu), of which a third is the forward pass. DDP reduces gradients
    during the backward pass in T seconds: C/3 + max(2C/3, T). FSDP2 gathers the weights of each block before both
    passes in G seconds and scatters its gradients in S seconds: max(C/3, G) + max(2C/3, G + S) (Zhao et al. 2023;
    Rajbhandari et al. 2020, stage 3).
    """
    compute = job.flops / (world * accelerator.flops * mfu)
    forward, backward = compute / 3, 2 * compute / 3
    if sharding == "ddp":
        n_bytes = job.reduced * job.parameters
        traffic = all_reduce_seconds(n_bytes, world, accelerator, math.ceil(n_bytes / BUCKET))
        return UpdateTime(compute, traffic, forward + max(backward, traffic))
    gather = gather_seconds(job.gathered * job.parameters, world, accelerator, job.units)
    scatter = gather_seconds(job.reduced * job.parameters, world, accelerator, job.units)
    total = max(forward, gather) + max(backward, gather + scatter)
    return UpdateTime(compute, 2 * gather + scatter, total)


def hidden_from(
    job: Job, world: int, accelerator: Accelerator, sharding: Sharding = "ddp", mfu: float = MFU
) -> float:
    """Return the factor by which an update must have more rows for its computation to hide the communication.

    If the factor is above 1, communication is the bottleneck of the update with the present number of rows.
    """
    time = update_time(job, world, accelerator, sharding, mfu)
    if sharding == "ddp":
        return time.traffic / (2 / 3 * time.compute)
    gather = gather_seconds(job.gathered * job.parameters, world, accelerator, job.units)
    return max(gather / (time.compute / 3), (time.traffic - gather) / (2 / 3 * time.compute))


def sharded_bytes(
    job: Job, world: int, states: float, activations: float, sharding: Sharding = "ddp"
) -> float:
    """Return the bytes on each accelerator, computed from the states and activations of a single process.

    With DDP, each accelerator has all states. With FSDP2, each accelerator has a share of the states, the weights of
    two units (the present and the next unit) and the gradient of one unit.
    """
    if sharding == "ddp":
        return states + activations
    return states / world + (2 * job.gathered + job.reduced) * job.largest_unit + activations
