"""The processes of a training job, and what they tell each other: numbers and JSON, never pickled objects."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from attendo.errors import AttendoError

Row = TypeVar("Row")
PREPARING = timedelta(days=7)
"""For how long the ranks of a machine wait for the one that prepares their data; if it dies, torchrun ends them."""
LOST = ("gloo", "nccl", "connection", "timed out")
"""Words in the errors of a rank whose peers are gone."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """One process among those that train one model together. Each method is called by all of them, in the same order.

    rank: this one's number, of `world`. local: its number on its machine, hence its GPU; machine: that one's number.
    restarts: how often torchrun has started anew. One thread at a time may use a group: `beside` is for another.

    >>> alone = Ranks()
    >>> alone.gathered({"a": 1}), alone.total(torch.ones(2)).tolist(), alone.shared("ab", list)
    ([{'a': 1}], [1.0, 1.0], ['a', 'b'])
    """

    rank: int = 0
    world: int = 1
    local: int = 0
    machine: int = 0
    restarts: int = 0
    group: dist.ProcessGroup | None = None
    store: Store | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes and says."""
        return self.rank == 0

    def total(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The sums over the ranks, the same on all of them: of a few numbers, in main memory."""
        if self.world == 1:
            return values
        sums = values.detach().to("cpu", torch.float64, copy=True)
        dist.all_reduce(sums, group=self.group)
        return sums

    def gathered(self, value: Any) -> list[Any]:
        """The JSON value of each rank, in their order."""
        if self.world == 1:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(own)]), group=self.group)
        longest = max(int(size) for size in sizes)
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world)]
        dist.all_gather(parts, torch.cat([own, own.new_zeros(longest - len(own))]), group=self.group)
        return [json.loads(part[: int(n)].numpy().tobytes()) for part, n in zip(parts, sizes, strict=True)]

    def broadcast(self, value: Any) -> Any:
        """The first rank's JSON value; what the others give does not count."""
        return self.gathered(value if self.is_first else None)[0]

    def wait(self) -> None:
        """Returns when all ranks have called it."""
        self.total(torch.zeros(1))

    def shared(self, rows: Sequence[Row], work: Callable[[Sequence[Row]], Sequence[Any]]) -> list[Any]:
        """work(rows), one JSON value a row: each rank does every world-th row, and all get all, in the rows' order."""
        if self.world == 1:
            return list(work(rows))
        own = rows[self.rank :: self.world]
        done = self.gathered(list(work(own)) if len(own) else [])
        return [done[number % self.world][number // self.world] for number in range(len(rows))]

    @contextmanager
    def in_turn(self, name: str, everywhere: bool = False) -> Iterator[None]:
        """Around work whose result stays on a machine's disk: its local rank 0 does it first, then all others.

        name: of the work; each has its own. everywhere: rank 0 of all does it first, for a disk that all share.
        """
        key = f"done/{name}/{'all' if everywhere else self.machine}"
        number = self.rank if everywhere else self.local
        if self.store is not None and number:
            self.store.wait([key], PREPARING)
        yield
        if self.store is not None and not number:
            self.store.set(key, "1")

    def beside(self) -> Ranks:
        """The same ranks with a channel of their own, for another thread."""
        return self if self.world == 1 else replace(self, group=dist.new_group(backend="gloo"))


ALONE = Ranks()


@contextmanager
def joined(device: str, timeout_seconds: float) -> Iterator[Ranks]:
    """Within it, this process is one of those that torchrun has started; without torchrun it is ALONE.

    device: "cpu" or "cuda", whose collectives are NCCL's. timeout_seconds: after which a rank that does not answer is
    given up. Raises AttendoError where one is lost or hangs; torchrun then ends the others, or starts all anew.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield ALONE
        return
    timeout = timedelta(seconds=timeout_seconds)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        store = _store(rank, world, timeout)
        if device == "cuda":
            torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
        machine, restarts = (
            int(os.environ.get(name, "0")) for name in ("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT")
        )
        yield Ranks(rank, world, local, machine, restarts, store=store)
        dist.destroy_process_group()  # not after an error: it would wait for the lost
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not any(word in str(error).lower() for word in LOST):
            raise
        raise AttendoError(
            f"rank {rank} of {world}: another rank was lost or did not answer within {timeout_seconds:g} s"
            f" ({str(error).splitlines()[0][:200]}); its own messages say why. The run goes on from its newest"
            " checkpoint with the same command, or with `attendo resume`"
        ) from error


def _store(rank: int, world: int, timeout: timedelta) -> Store:
    """The job's key-value store, under a name that only the processes living now know.

    torchrun keeps one store over all restarts, and what is read there under the old names are addresses of the dead.
    """
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world,
        is_master=rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timeout,
        wait_for_workers=False,
    )
    return PrefixStore(_agreed_name(store, rank, world, timeout), store)


def _agreed_name(store: Store, rank: int, world: int, timeout: timedelta) -> str:
    """A name that all ranks have settled on, and that nobody before them can have used.

    Each writes a random word; rank 0 collects them, and goes on once each of the others has found its own word in the
    collection; its name is the hash of that.
    """
    word, deadline = secrets.token_hex(8), time.monotonic() + timeout.total_seconds()
    store.set(f"attendo/word/{rank}", word)
    others = range(1, world)
    while time.monotonic() < deadline:
        if rank == 0:
            words = [store.get(f"attendo/word/{r}").decode() for r in range(world)]
            name = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
            store.set("attendo/words", json.dumps(words))
            seen = [f"attendo/seen/{name}/{r}" for r in others]
            if store.check(seen):
                store.set(f"attendo/go/{name}", "1")
                return name
        else:
            words = json.loads(store.get("attendo/words"))
            name = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
            if len(words) == world and words[rank] == word:
                store.set(f"attendo/seen/{name}/{rank}", "1")
                if store.check([f"attendo/go/{name}"]):
                    return name
        time.sleep(0.01)
    raise RuntimeError(f"timed out: not all of {world} ranks have come to the store")
