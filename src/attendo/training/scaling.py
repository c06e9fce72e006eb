"""The communication, the bottleneck and the failures of training on many accelerators, estimated without running it.

All values are numbers in bytes, seconds and floating-point operations. docs/en/cost-model.md derives the formulas and
compares them with measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from attendo.errors import AttendoError

Sharding = Literal["ddp", "fsdp2"]
BUCKET = 25 * 2**20
"""Bytes of gradients that DDP reduces at once: torch's default (Li et al. 2020)."""
MFU = 0.40
"""Model FLOPs utilization, assumed unless told; Chowdhery et al. 2022 define it and reach 0.46 on 6,144 chips."""


@dataclass(frozen=True)
class Accelerator:
    """The data sheet of an accelerator.

    flops: dense FLOP/s in bfloat16. memory: bytes. bandwidth: network bytes/s of each, each way. per_node: the number
    in a machine, and inner: bytes/s between them. latency: seconds of a message, which is on no data sheet.
    """

    name: str
    flops: float
    memory: float
    bandwidth: float
    inner: float = 0.0
    per_node: int = 1
    latency: float = 10e-6

    def link(self, world: int) -> float:
        """Bytes/s that each of `world` sends to its neighbor in a ring.

        With a ring over each network adapter all of them work at once, so between machines each accelerator performs as
        if it had all adapters.

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
"""By name: the data sheets of the SXM parts and of the maker's machines of eight, which have a network adapter of 200
or 400 Gbit/s for each."""


def named_accelerator(name: str, given: Mapping[str, float | None] = MappingProxyType({})) -> Accelerator:
    """One of ACCELERATORS, with what is given in place of its own figures. Raises AttendoError for another name.

    >>> named_accelerator("a100", {"memory": 40e9, "flops": None}).memory
    40000000000.0
    """
    if name not in ACCELERATORS:
        raise AttendoError(f"unknown accelerator {name!r} (expected one of {', '.join(ACCELERATORS)})")
    return replace(ACCELERATORS[name], **{key: value for key, value in given.items() if value is not None})


# ---- traffic


def ring_bytes(n_bytes: float, world: int) -> float:
    """Bytes that each process sends in a ring all-reduce: 2 (W-1)/W of the buffer, the minimum (Patarasuk & Yuan 2009).

    An all-gather or reduce-scatter sends half.

    >>> ring_bytes(100.0, 2), ring_bytes(100.0, 4)
    (100.0, 150.0)
    """
    return 2 * (world - 1) / world * n_bytes


def all_reduce_seconds(n_bytes: float, world: int, link: Accelerator, messages: int = 1) -> float:
    """Seconds of an all-reduce in this number of messages: the better of ring and tree.

    A ring takes 2 (W-1) latencies per message and 2 (W-1)/W of the bytes, two trees 2 ⌈log₂ W⌉ latencies and twice the
    bytes (Thakur et al. 2005; Sanders et al. 2009).

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
    """Seconds of an all-gather or reduce-scatter of `n_bytes` in total: (W-1)/W of it is sent.

    Latencies per message: W-1 for a ring, or log₂ W by recursive doubling if that is less (Thakur et al. 2005).
    """
    if world == 1:
        return 0.0
    steps = min(world - 1, math.ceil(math.log2(world)))
    return messages * steps * link.latency + ring_bytes(n_bytes, world) / 2 / link.link(world)


# ---- an update


@dataclass(frozen=True)
class Job:
    """A training job.

    parameters: all. units: the parts that FSDP2 gathers one by one; largest_unit: parameters of the largest. flops: per
    update over all processes. gathered, reduced: bytes per parameter sent as weight and as gradient (float32).
    """

    parameters: float
    units: int
    largest_unit: float
    flops: float
    gathered: float = 4
    reduced: float = 4


@dataclass(frozen=True)
class UpdateTime:
    """Seconds of an update: compute at the assumed utilization, traffic on the links, and total with their overlap."""

    compute: float
    traffic: float
    total: float

    @property
    def binds(self) -> str:
        """What an update waits for: "traffic" where that makes it a tenth longer than the products alone, or more."""
        return "traffic" if self.total > 1.1 * self.compute else "products"


def update_time(
    job: Job, world: int, accelerator: Accelerator, sharding: Sharding = "ddp", mfu: float = MFU
) -> UpdateTime:
    """The time of an update whose rows `world` accelerators share.

    Products take C = flops / (world · peak · mfu), a third of it forward. DDP reduces gradients during the backward
    pass: C/3 + max(2C/3, T). FSDP2 gathers each block's weights before both passes and scatters its gradients (Zhao et
    al. 2023; Rajbhandari et al. 2020, stage 3): max(C/3, G) + max(2C/3, G + S).
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
    """The factor on an update's rows from which the products hide the traffic; above 1, traffic is the bottleneck."""
    time = update_time(job, world, accelerator, sharding, mfu)
    if sharding == "ddp":
        return time.traffic / (2 / 3 * time.compute)
    gather = gather_seconds(job.gathered * job.parameters, world, accelerator, job.units)
    return max(gather / (time.compute / 3), (time.traffic - gather) / (2 / 3 * time.compute))


def sharded_bytes(
    job: Job, world: int, states: float, activations: float, sharding: Sharding = "ddp"
) -> float:
    """Bytes on each accelerator, from the states and activations of a single process.

    DDP holds everything; FSDP2 a share, plus two units' weights and one's gradient (the present and the next unit).
    """
    if sharding == "ddp":
        return states + activations
    return states / world + (2 * job.gathered + job.reduced) * job.largest_unit + activations
