"""The processes of a training job: their exchange of numbers and JSON values, and tensors that are sharded by rows."""

import errno
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from attendo.errors import AttendoError
from attendo.files import atomic_folder

Row = TypeVar("Row")
PREPARING = timedelta(days=7)
"""Longest wait for the rank that prepares the data. If that rank dies, torchrun ends the other ranks."""
LOST = ("gloo", "nccl", "connection", "timed out")
"""Words in the error messages of a rank whose peers are lost."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """One of the processes that train a model together. All processes must call the methods in the same order.

    Only one thread at a time may use a process group. `beside` creates a group for another thread.

    Attributes:
        rank, world: Number of this process, from 0, and number of processes.
        local: Number of this process on its machine, from 0, which is also the number of its GPU.
        machine: Number of the machine, from 0.
        restarts: Number of restarts by torchrun.
        timeout: Longest wait for another process.

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
    timeout: timedelta | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0, which writes files and prints output."""
        return self.rank == 0

    def total(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the sums of a few numbers over all ranks, in main memory. All ranks receive equal sums."""
        if self.world == 1:
            return values
        sums = values.detach().to("cpu", torch.float64, copy=True)
        dist.all_reduce(sums, group=self.group)
        return sums

    def gathered(self, value: Any) -> list[Any]:
        """Return the JSON values of all ranks, in the order of the ranks."""
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
        """Return the JSON value of the first rank on all ranks."""
        return self.gathered(value if self.is_first else None)[0]

    def shared(self, rows: Sequence[Row], work: Callable[[Sequence[Row]], Sequence[Any]]) -> list[Any]:
        """Divide the work on `rows` among the ranks. Return one JSON value per row, in order, on all ranks.

        `work` computes the values of a list of rows. Rank r processes the rows r, r + world, r + 2 · world and so on.
        """
        if self.world == 1:
            return list(work(rows))
        own = rows[self.rank :: self.world]
        done = self.gathered(list(work(own)) if len(own) else [])
        return [done[number % self.world][number // self.world] for number in range(len(rows))]

    @contextmanager
    def in_turn(self, name: str, everywhere: bool = False) -> Iterator[None]:
        """Order work that writes to a machine's disk: local rank 0 runs first, then the other ranks of the machine.

        `name` identifies the work. With `everywhere`, the first rank of the whole job runs first, for a shared disk.
        """
        key = f"done/{name}/{'all' if everywhere else self.machine}"
        number = self.rank if everywhere else self.local
        if self.store is not None and number:
            self.store.wait([key], PREPARING)
        yield
        if self.store is not None and not number:
            self.store.set(key, "1")

    def beside(self) -> "Ranks":
        """Return the same ranks with their own process group, for use in another thread."""
        if self.world == 1:
            return self
        return replace(self, group=dist.new_group(backend="gloo", timeout=self.timeout))


ALONE = Ranks()


@contextmanager
def joined(device: str, timeout_seconds: float) -> Iterator[Ranks]:
    """Join the processes that torchrun has started, during the `with` block. Without torchrun, yield ALONE.

    Raises AttendoError if a rank is lost or does not answer for `timeout_seconds`. torchrun then ends or restarts the
    other ranks.
    """
    rank, world = _from_environment("RANK"), _from_environment("WORLD_SIZE", 1)
    if world == 1:
        yield ALONE
        return
    timeout = timedelta(seconds=timeout_seconds)
    local = _from_environment("LOCAL_RANK")
    try:
        store = _store(rank, world, timeout)
        if device == "cuda":
            torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
        restarts = _from_environment("TORCHELASTIC_RESTART_COUNT")
        machine = _from_environment("GROUP_RANK")
        yield Ranks(rank, world, local, machine, restarts, store=store, timeout=timeout)
        dist.destroy_process_group()  # after an error, this call would wait for the lost rank
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not any(word in str(error).lower() for word in LOST):
            raise
        raise AttendoError(
            f"rank {rank} of {world}: another rank was lost or did not answer within {timeout_seconds:g} s "
            f"({str(error).splitlines()[0][:200]}). Its own messages name the cause. To resume from the "
            "newest checkpoint, run the same command or `attendo resume`"
        ) from error


def _from_environment(name: str, default: int = 0) -> int:
    return int(os.environ.get(name, default))


def _store(rank: int, world: int, timeout: timedelta) -> Store:
    """Return the job's key-value store with a prefix for these processes. torchrun keeps old addresses in the store."""
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
    """Return a new name that all ranks agree on: the hash of one random word per rank, which rank 0 collects."""
    word = secrets.token_hex(8)
    deadline = time.monotonic() + timeout.total_seconds()
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
    raise RuntimeError(f"timed out: not all of {world} ranks have joined")


# ---- tensors in shards


FIRST_ROWS = "first_rows"
"""Key in a file header for a JSON object: for each tensor, the number of its first row and the number of all rows."""


@dataclass(frozen=True)
class Rows:
    """Rows of a tensor that has `of` rows in total, beginning with row number `first`."""

    tensor: Tensor
    first: int
    of: int


def is_sharded(tensor: Tensor) -> bool:
    """Return whether this rank has only some rows of a tensor."""
    if type(tensor) in (Tensor, nn.Parameter):
        return False
    from torch.distributed.tensor import DTensor  # takes half a second

    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return the rows of a tensor on this rank, which are all rows if the tensor is not sharded."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def gathered(tensor: Tensor) -> Tensor:
    """Return the whole tensor, whether it is sharded or not. All ranks must call this function together."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def rows_of(tensor: Tensor) -> Rows:
    """Return the rows of a tensor on this rank, with their position in the whole tensor.

    >>> rows_of(torch.zeros(3, 2)).of
    3
    """
    first, _ = span(tensor)
    return Rows(local(tensor), first, tensor.shape[0] if tensor.ndim else 1)


def span(tensor: Tensor) -> tuple[int, int]:
    """Return the number of a tensor's first row on this rank, and the number of the row after the last one."""
    n = tensor.shape[0] if tensor.ndim else 1
    if not is_sharded(tensor):
        return 0, n
    mesh = cast(Any, tensor).device_mesh
    each = -(-n // mesh.size())  # FSDP2 cuts along the rows; the last pieces are shorter, or empty
    first = min(n, each * mesh.get_local_rank())
    return first, min(n, first + each)


def with_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return a tensor that is sharded like `tensor`, with the given rows on this rank."""
    from torch.distributed.tensor import DTensor

    like = cast(DTensor, tensor)
    return DTensor.from_local(
        rows.to(like.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def shard_name(stem: str, ranks: Ranks = ALONE) -> str:
    """Return the file name of a rank: "model.safetensors", or with several ranks "model-2-of-4.safetensors".

    >>> shard_name("model", Ranks(1, 4))
    'model-2-of-4.safetensors'
    """
    part = "" if ranks.world == 1 else f"-{ranks.rank + 1}-of-{ranks.world}"
    return f"{stem}{part}.safetensors"


def save_rows(tensors: Mapping[str, Rows], path: Path) -> None:
    """Write the rows of this rank to one file. Raises OSError if the file cannot be written."""
    places = {name: [rows.first, rows.of] for name, rows in sorted(tensors.items())}
    values = {name: rows.tensor for name, rows in tensors.items()}
    try:
        save_file(values, path, {FIRST_ROWS: json.dumps(places)})
    except SafetensorError as error:  # usually a full disk
        raise OSError(*refusal(error), str(path)) from error


def refusal(error: Exception) -> tuple[int, str]:
    """Return the number and text of the operating system's error that caused an OSError or an error of safetensors.

    >>> refusal(SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"))
    (28, 'No space left on device')
    """
    if isinstance(error, OSError):
        return error.errno or errno.EIO, error.strerror or str(error)
    found = re.search(r"\(os error (\d+)\)", str(error))
    return (int(found[1]), os.strerror(int(found[1]))) if found else (errno.EIO, str(error))


class Stored(Mapping[str, Tensor]):
    """Tensors by name, from all shards of one file in a folder. Any number of ranks can have written the shards.

    Each tensor is read when it is used. `like` contains the tensors of a model. If a parameter is sharded in `like`, a
    rank reads only its own rows of the parameter and of its optimizer state ("PARAMETER/KEY"). Raises AttendoError if
    a shard is missing.
    """

    def __init__(self, folder: Path, stem: str, like: Mapping[str, Tensor] | None = None):
        self._like = {} if like is None else like
        self._parts: dict[str, list[tuple[int, Any]]] = {}
        self._of: dict[str, int] = {}
        for path in shard_files(folder, stem):
            file = safe_open(path, framework="pt")
            places = json.loads((file.metadata() or {}).get(FIRST_ROWS, "{}"))
            for name in file.keys():  # noqa: SIM118 - no mapping
                shape = file.get_slice(name).get_shape()
                first, of = places.get(name, [0, shape[0] if shape else 1])
                self._parts.setdefault(name, []).append((first, file))
                self._of[name] = of

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, name: str) -> Tensor:
        target = self._like.get(name, self._like.get(name.rpartition("/")[0]))
        if target is None or not is_sharded(target) or self.shape(name) != list(target.shape):
            return self._read(name, 0, self._of[name])
        return with_rows(target, self._read(name, *span(target)))

    def shape(self, name: str) -> list[int]:
        """Return the shape of the whole tensor. The tensor itself is not read."""
        shape = self._parts[name][0][1].get_slice(name).get_shape()
        return [self._of[name], *shape[1:]] if shape else []

    def _read(self, name: str, first: int, end: int) -> Tensor:
        """Return rows `first` to `end` of a tensor, or a tensor without dimensions as it is."""
        parts = self._parts[name]
        if not self.shape(name):
            return parts[0][1].get_tensor(name)
        found = [parts[0][1].get_slice(name)[0:0]]
        place = first
        for begins, file in sorted(parts, key=lambda part: part[0]):
            rows = file.get_slice(name)
            if begins <= place < (high := min(end, begins + rows.get_shape()[0])):
                found.append(rows[place - begins : high - begins])
                place = high
        if place < end:
            raise AttendoError(f"row {place} of {name} is in no shard. Resume from another checkpoint")
        return found[1] if len(found) == 2 else torch.cat(found)


def shard_files(folder: Path, stem: str) -> list[Path]:
    """Return the shards named after `stem` in the order of their ranks. Raises AttendoError if a file is missing."""
    whole = folder / shard_name(stem)
    if whole.exists():
        return [whole]
    found = {
        (int(m[1]), int(m[2])): path
        for path in folder.glob(f"{stem}-*.safetensors")
        if (m := re.fullmatch(rf"{re.escape(stem)}-(\d+)-of-(\d+)\.safetensors", path.name))
    }
    world = max((of for _, of in found), default=1)
    for number in range(1, world + 1):
        if (number, world) not in found:
            name = shard_name(stem, Ranks(number - 1, world))
            raise AttendoError(f"{folder} has no {name}. Restore the file, or resume from another checkpoint")
    return [found[number, world] for number in range(1, world + 1)]


def write_together(path: Path, write: Callable[[Path], None], finish: Callable[[Path], None], ranks: Ranks) -> None:
    """Write a folder with files of all ranks atomically. An existing folder of this name is replaced.

    Each rank calls `write`, and then the first rank calls `finish`. Raises OSError on all ranks if one rank failed.
    """
    if ranks.is_first:
        failed: list[tuple[int, str]] = []
        try:
            with atomic_folder(path, replace=True) as temporary:
                ranks.broadcast(str(temporary))
                failed = _failures(temporary, write, ranks)
                if failed:
                    raise OSError(*failed[0], str(path))
                finish(temporary)
        except OSError as error:
            failed = failed or [refusal(error)]
        ranks.broadcast(failed)
    else:
        begun = ranks.broadcast(None)
        if isinstance(begun, str):
            _failures(Path(begun), write, ranks)
            failed = ranks.broadcast(None)
        else:  # the first rank failed before it could begin
            failed = begun
    if failed:
        raise OSError(*failed[0], str(path))


def _failures(folder: Path, write: Callable[[Path], None], ranks: Ranks) -> list[tuple[int, str]]:
    """Call `write` on each rank, and return the errors of all ranks in the form of `refusal`."""
    error = None
    try:
        write(folder)
    except OSError as failed:
        number, words = refusal(failed)
        error = number, words if ranks.world == 1 else f"rank {ranks.rank}: {words}"
    return [found for found in ranks.gathered(error) if found is not None]
