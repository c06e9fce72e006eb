"""Processing of files of any size on a Ray cluster, whose workers compute several chunks at a time.

Each worker is a Ray actor with its own copy of the model, and processes one chunk at a time. Results are written in the
order of the chunks, and a killed command can be resumed (`batch_files.Ahead`). A dead worker is replaced, and its chunk
is assigned to the next free worker. The model is sent through Ray's object store, so other machines need no run folder.
"""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from attendo.errors import AttendoError, install_command
from attendo.inference.batch_files import Ahead, Chunk, Done, whole

AHEAD = 4
"""Largest number of chunks per worker that are computed, or wait to be written, at a time."""
TRIES = 5
"""Number of workers that die on one chunk, or in a row before they load the model, until an error is raised."""
PATIENCE = 600.0
"""Seconds within which a worker must start if no worker is running. A growing cluster can take minutes."""


Make = Callable[[Path], Callable[[int, list[str]], Done]]
"""A function that runs on a worker, on the folder of the sent files, and returns the function that processes chunks."""


@dataclass(frozen=True)
class Cluster:
    """The settings of a Ray cluster, with the numbers of CPU threads and GPUs per worker.

    Without an address, a local cluster is started. The default number of workers is what the cluster has resources for.
    """

    address: str | None = None
    workers: int | None = None
    threads: int = 1
    gpus: int = 0


@contextmanager
def on_ray(make: Make, files: Mapping[str, bytes], cluster: Cluster) -> Iterator[Ahead]:
    """Start the workers of a Ray cluster, and provide the `work` of `through_file` within the `with` block.

    `files` are copied to each worker, which then calls `make` on its copy. The results must not depend on the worker,
    because any worker can compute a chunk, and workers can fail. Raises AttendoError if Ray or the cluster is
    unavailable, or if workers die repeatedly. Errors of `make` and of the work are also raised.
    """
    ray = _ray()
    connected = not ray.is_initialized()
    if connected:
        _connect(ray, cluster)
    try:
        crew = _Crew(ray, make, ray.put(dict(files)), cluster, _n_workers(ray, cluster))
        try:
            yield Ahead(crew.done)
        finally:
            crew.dismiss()
    finally:
        if connected:
            ray.shutdown()


def _ray() -> Any:
    """Return the module `ray`, with usage statistics disabled."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise AttendoError(f"a cluster requires Ray. Run: {install_command('ray')}") from None
    return ray


def _connect(ray: Any, cluster: Cluster) -> None:
    quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    try:
        if cluster.address is not None:
            _look_for(cluster.address)
            ray.init(cluster.address, **quiet)
        else:
            n_cpus = None if cluster.workers is None else cluster.workers * cluster.threads
            ray.init("local", num_cpus=n_cpus, include_dashboard=False, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError, ray.exceptions.RayError) as error:
        said = " ".join(str(error).split())[:200]
        where = "on this machine" if cluster.address is None else f"at {cluster.address}"
        raise AttendoError(f"no Ray cluster {where} ({said}). Check it with: ray status") from None


def _look_for(address: str) -> None:
    """Raise OSError if no server listens at host:port. Ray itself would search for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _n_workers(ray: Any, cluster: Cluster) -> int:
    """Return the requested number of workers, or the number that fits. Raises AttendoError if no worker fits."""
    if cluster.workers is not None:
        return cluster.workers
    needs = {"CPU": cluster.threads} | ({"GPU": cluster.gpus} if cluster.gpus else {})
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fit = sum(min(int(has.get(kind, 0)) // n for kind, n in needs.items()) for has in machines)
    if not fit:
        wanted = " and ".join(f"{n} {kind}" for kind, n in needs.items())
        raise AttendoError(f"no machine of the Ray cluster has {wanted} for a worker. Use fewer `threads`")
    return fit


class Worker:
    """The class of the Ray actors: a worker with its own copy of the model."""

    def begin(self, make: Make, files: Mapping[str, bytes], wanted: str) -> None:
        """Prepare the work with `make`. Raises AttendoError if the worker has another version of attendo."""
        if (own := version("attendo")) != wanted:
            raise AttendoError(
                f"worker {platform.node()} has attendo {own} (expected {wanted}). Install the same version"
            )
        with tempfile.TemporaryDirectory(prefix="attendo-") as folder:
            for name, data in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            self._work = make(Path(folder))

    def done(self, first: int, texts: list[str]) -> Done:
        """Return the results of a chunk, whose first line has the number `first`."""
        return whole(texts, self._work(first, texts))


@dataclass(eq=False)
class _Order:
    """A chunk, its result when it is finished, and the number of workers that died on the chunk."""

    chunk: Chunk
    result: Done | None = None
    deaths: int = 0


@dataclass(eq=False)
class _Crew:
    """The workers of a file. Each worker is free, computes a chunk, or is starting (None)."""

    ray: Any
    make: Make
    files: Any
    cluster: Cluster
    n_workers: int
    free: list[Any] = field(default_factory=list)
    owed: dict[Any, tuple[Any, _Order | None]] = field(default_factory=dict)
    to_do: deque[_Order] = field(default_factory=deque)
    n_early: int = 0  # workers that died before they started, since the last successful start

    def __post_init__(self) -> None:
        for _ in range(self.n_workers):
            self._hire()

    def done(self, chunks: Iterator[Chunk]) -> Iterator[Done]:
        """Yield the results of the chunks, in order."""
        row: deque[_Order] = deque()
        while True:
            new = [_Order(chunk) for chunk in islice(chunks, AHEAD * self.n_workers - len(row))]
            row.extend(new)
            self.to_do.extend(new)
            while self.free and self.to_do:
                self._give(self.free.pop(), self.to_do.popleft())
            if not row:
                return
            if (result := row[0].result) is None:
                self._wait()
            else:
                row.popleft()
                yield result

    def dismiss(self) -> None:
        """Kill all workers, even if they are busy."""
        for worker in [*self.free, *(worker for worker, _ in self.owed.values())]:
            self.ray.kill(worker)

    def _hire(self) -> None:
        """Add a worker. Ray itself neither restarts workers nor retries chunks, because any worker can take a chunk."""
        actor = self.ray.remote(Worker).options(
            num_cpus=self.cluster.threads, num_gpus=self.cluster.gpus, max_restarts=0, max_task_retries=0
        )
        worker = actor.remote()
        self.owed[worker.begin.remote(self.make, self.files, version("attendo"))] = worker, None

    def _give(self, worker: Any, order: _Order) -> None:
        self.owed[worker.done.remote(*order.chunk)] = worker, order

    def _wait(self) -> None:
        """Wait until a worker has finished its chunk, has started or has died."""
        works = any(order for _, order in self.owed.values())
        ready, _ = self.ray.wait(list(self.owed), timeout=None if works else PATIENCE)
        if not ready:
            raise AttendoError(
                f"no worker of the Ray cluster started within {PATIENCE:.0f} s. Check its resources with: ray status"
            )
        for ref in ready:
            self._settle(ref)

    def _settle(self, ref: Any) -> None:
        """Fetch the result of a worker at once, because the result is lost if the worker's machine fails."""
        worker, order = self.owed.pop(ref)
        failures = self.ray.exceptions
        try:
            result = self.ray.get(ref)
        except failures.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, AttendoError) else error) from None
        except failures.RayError as error:
            self.ray.kill(worker)  # it may only be unreachable
            self._lost(order, " ".join(str(error).split())[:200])
            self._hire()
            return
        self.free.append(worker)
        if order is None:
            self.n_early = 0
        else:
            order.result = result

    def _lost(self, order: _Order | None, why: str) -> None:
        """Queue the chunk of a dead worker again. Raises AttendoError after `TRIES` dead workers."""
        if order is None:
            self.n_early += 1
            if self.n_early == TRIES:
                raise AttendoError(f"{TRIES} workers died before they loaded the model ({why}). Use fewer per machine")
            return
        order.deaths += 1
        first, texts = order.chunk
        if order.deaths == TRIES:
            raise AttendoError(
                f"lines {first} to {first + len(texts) - 1}: {TRIES} workers died while processing them ({why})."
                " Earlier results are kept"
            )
        self.to_do.appendleft(order)
