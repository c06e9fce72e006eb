"""The processes of a training job: their exchange of numbers and JSON, and tensors sharded by rows."""

from __future__ import annotations

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
"""The longest wait for the rank that prepares the data; if it dies, torchrun ends the others."""
LOST = ("gloo", "nccl", "connection", "timed out")
"""Words in the errors of a rank whose peers are gone."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """One of the processes that train a model together. All of them call each method, in the same order.

    rank: its number, of `world`. local: its number on its machine, and of its GPU; machine: the machine's number.
    restarts: of torchrun. Only one thread at a time may use a group: `beside` is for another thread.

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
        """Whether this is the rank that writes and prints."""
        return self.rank == 0

    def total(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The sums over the ranks, equal on all of them: of a few numbers, in main memory."""
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
        """The first rank's JSON value."""
        return self.gathered(value if self.is_first else None)[0]

    def shared(self, rows: Sequence[Row], work: Callable[[Sequence[Row]], Sequence[Any]]) -> list[Any]:
        """work(rows), one JSON value per row, in their order: each rank does every world-th row, and all get all."""
        if self.world == 1:
            return list(work(rows))
        own = rows[self.rank :: self.world]
        done = self.gathered(list(work(own)) if len(own) else [])
        return [done[number % self.world][number // self.world] for number in range(len(rows))]

    @contextmanager
    def in_turn(self, name: str, everywhere: bool = False) -> Iterator[None]:
        """Order work whose result is on a machine's disk: its local rank 0 first, then the others.

        name: unique for the work. everywhere: rank 0 of all machines goes first, for a shared disk.
        """
        key = f"done/{name}/{'all' if everywhere else self.machine}"
        number = self.rank if everywhere else self.local
        if self.store is not None and number:
            self.store.wait([key], PREPARING)
        yield
        if self.store is not None and not number:
            self.store.set(key, "1")

    def beside(self) -> Ranks:
        """The same ranks with their own group, for another thread."""
        return self if self.world == 1 else replace(self, group=dist.new_group(backend="gloo"))


ALONE = Ranks()


@contextmanager
def joined(device: str, timeout_seconds: float) -> Iterator[Ranks]:
    """Join the processes that torchrun has started within the `with` block; without torchrun, yield ALONE.

    Raises AttendoError if a rank is lost or silent for `timeout_seconds`; torchrun then ends or restarts the others.
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
        yield Ranks(rank, world, local, _from_environment("GROUP_RANK"), restarts, store=store)
        dist.destroy_process_group()  # after an error it would wait for the lost rank
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
    """The job's key-value store with a prefix of these processes: torchrun keeps one store, with old addresses."""
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
    """A new name that all ranks agree on: the hash of a random word of each.

    Rank 0 collects the words, and continues when each other rank has seen its own word in the collection.
    """
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
"""The key in a file's header for the first row of each tensor in the whole, and the number of all rows; JSON."""


@dataclass(frozen=True)
class Rows:
    """Rows of a tensor with `of` rows, from row `first` on."""

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
    """The rows of a tensor on this rank: of a tensor that is not sharded, all."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor, sharded or not; all ranks call it together."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def rows_of(tensor: Tensor) -> Rows:
    """The rows of a tensor on this rank, with their place.

    >>> rows_of(torch.zeros(3, 2)).of
    3
    """
    first, _ = span(tensor)
    return Rows(local(tensor), first, tensor.shape[0] if tensor.ndim else 1)


def span(tensor: Tensor) -> tuple[int, int]:
    """The first row of a tensor on this rank, and the row after its last."""
    n = tensor.shape[0] if tensor.ndim else 1
    if not is_sharded(tensor):
        return 0, n
    mesh = cast(Any, tensor).device_mesh
    each = -(-n // mesh.size())  # FSDP2 cuts along the rows; the last pieces are shorter, or empty
    first = min(n, each * mesh.get_local_rank())
    return first, min(n, first + each)


def with_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """A tensor that is sharded as another, with these rows on this rank."""
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
    """The file of a rank: "model.safetensors", or "model-2-of-4.safetensors" where there are several.

    >>> shard_name("model", Ranks(1, 4))
    'model-2-of-4.safetensors'
    """
    part = "" if ranks.world == 1 else f"-{ranks.rank + 1}-of-{ranks.world}"
    return f"{stem}{part}.safetensors"


def save_rows(tensors: Mapping[str, Rows], path: Path) -> None:
    """Write one file of this rank's rows. Raises OSError where the system cannot."""
    places = {name: [rows.first, rows.of] for name, rows in sorted(tensors.items())}
    values = {name: rows.tensor for name, rows in tensors.items()}
    try:
        save_file(values, path, {FIRST_ROWS: json.dumps(places)})
    except SafetensorError as error:  # a full disk, most often
        raise OSError(*refusal(error), str(path)) from error


def refusal(error: Exception) -> tuple[int, str]:
    """The number and the text of the system's error, which are at the end of safetensors' message.

    >>> refusal(SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"))
    (28, 'No space left on device')
    """
    if isinstance(error, OSError):
        return error.errno or errno.EIO, error.strerror or str(error)
    found = re.search(r"\(os error (\d+)\)", str(error))
    return (int(found[1]), os.strerror(int(found[1]))) if found else (errno.EIO, str(error))


class Stored(Mapping[str, Tensor]):
    """The tensors of all files of one stem in a folder, by name, written by any number of ranks; each is read lazily.

    like: the tensors of a model: of a sharded parameter, and of its states ("PARAMETER/KEY"), a rank reads its own rows
    only, as a tensor that is sharded in the same way. Raises AttendoError where a shard is missing.
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
        """The shape of the whole tensor, which is not read."""
        shape = self._parts[name][0][1].get_slice(name).get_shape()
        return [self._of[name], *shape[1:]] if shape else []

    def _read(self, name: str, first: int, end: int) -> Tensor:
        """Rows `first` to `end` of a tensor; one without dimensions is read as it is."""
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
    """The files of one stem, in the order of their ranks. Raises AttendoError where one is missing."""
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


def write_together(
    path: Path, write: Callable[[Path], None], finish: Callable[[Path], None], ranks: Ranks
) -> None:
    """Write a folder with files of all ranks atomically, replacing a folder of this name.

    Each rank calls `write`, then the first calls `finish`. Raises OSError on all ranks if one failed.
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
        else:  # the first rank could not even begin
            failed = begun
    if failed:
        raise OSError(*failed[0], str(path))


def _failures(folder: Path, write: Callable[[Path], None], ranks: Ranks) -> list[tuple[int, str]]:
    """Call `write` on each rank; the errors of all ranks, as in `refusal`."""
    error = None
    try:
        write(folder)
    except OSError as failed:
        number, words = refusal(failed)
        error = number, words if ranks.world == 1 else f"rank {ranks.rank}: {words}"
    return [found for found in ranks.gathered(error) if found is not None]
