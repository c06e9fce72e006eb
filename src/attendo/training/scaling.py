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
    """What a data sheet says of one.

    flops: dense FLOP/s in bfloat16. memory: bytes. bandwidth: bytes/s that each sends over the network, each way.
    per_node: how many stand in one machine, and inner: bytes/s that each sends to the others there. latency: seconds
    before a message comes; of all these figures the one that no data sheet has.
    """

    name: str
    flops: float
    memory: float
    bandwidth: float
    inner: float = 0.0
    per_node: int = 1
    latency: float = 10e-6

    def link(self, world: int) -> float:
        """Bytes/s that each of `world` sends to its neighbor in a ring, or in as many rings as a machine has adapters.

        Of the neighbors in a ring one in `per_node` stands in another machine; with a ring over each adapter all of
        them work at once, so between machines each accelerator gets on as if it had all adapters for itself.

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
        raise AttendoError(f"no accelerator is called {name!r}; there are {', '.join(ACCELERATORS)}")
    return replace(ACCELERATORS[name], **{key: value for key, value in given.items() if value is not None})


# ---- traffic


def ring_bytes(n_bytes: float, world: int) -> float:
    """Bytes that each process sends in a ring all-reduce of a buffer: 2 (W-1)/W of it.

    Patarasuk & Yuan 2009: no all-reduce can send less. One way of it (all-gather, or reduce-scatter) sends half.

    >>> ring_bytes(100.0, 2), ring_bytes(100.0, 4)
    (100.0, 150.0)
    """
    return 2 * (world - 1) / world * n_bytes


def all_reduce_seconds(n_bytes: float, world: int, link: Accelerator, messages: int = 1) -> float:
    """Seconds of an all-reduce in so many messages: the better of ring and tree.

    A ring takes 2 (W-1) latencies a message and 2 (W-1)/W of the bytes, two trees 2 ⌈log₂ W⌉ latencies and
    twice the bytes (Thakur et al. 2005; Sanders et al. 2009).

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
    """Seconds of an all-gather, or a reduce-scatter, of a buffer whose whole is `n_bytes`: (W-1)/W of it is sent.

    Latency: the ring's W-1 a message, or log₂ W by recursive doubling where that is less (Thakur et al. 2005).
    """
    if world == 1:
        return 0.0
    steps = min(world - 1, math.ceil(math.log2(world)))
    return messages * steps * link.latency + ring_bytes(n_bytes, world) / 2 / link.link(world)


# ---- an update


@dataclass(frozen=True)
class Job:
    """What is trained. parameters: all; units: what FSDP2 gathers one by one, each block and the rest; largest_unit:
    parameters of the largest. flops: of an update over all processes. gathered, reduced: bytes of a parameter on its
    way as a weight and as a gradient, both in float32 as attendo sends them.
    """

    parameters: float
    units: int
    largest_unit: float
    flops: float
    gathered: float = 4
    reduced: float = 4


@dataclass(frozen=True)
class UpdateTime:
    """Seconds of an update. compute: of the products at the assumed utilization. traffic: on the links.
    total: with what of the traffic runs beside the products.
    """

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
    """An update of `world` accelerators that share its rows.

    Products take C = flops / (world · peak · mfu), a third of it forward. DDP reduces the gradients bucket by bucket
    while the backward pass goes on: C/3 + max(2C/3, T). FSDP2 gathers each block's weights before both passes and
    scatters its gradients (Zhao et al. 2023; Rajbhandari et al. 2020, stage 3): max(C/3, G) + max(2C/3, G + S).
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
    """How many times as many rows an update must have, for the traffic to be hidden behind the products.

    Above 1 traffic binds. The traffic is the same however many rows there are; that is why larger updates help.
    """
    time = update_time(job, world, accelerator, sharding, mfu)
    if sharding == "ddp":
        return time.traffic / (2 / 3 * time.compute)
    gather = gather_seconds(job.gathered * job.parameters, world, accelerator, job.units)
    return max(gather / (time.compute / 3), (time.traffic - gather) / (2 / 3 * time.compute))


def sharded_bytes(
    job: Job, world: int, states: float, activations: float, sharding: Sharding = "ddp"
) -> float:
    """Bytes on each accelerator. states: weights, gradients and the optimizer's, of one process alone.

    DDP holds all of them; FSDP2 a share, and two units' weights and one's gradient whole: the one at work, and the next
    one on its way.
    """
    if sharding == "ddp":
        return states + activations
    return states / world + (2 * job.gathered + job.reduced) * job.largest_unit + activations
