"""attendo translate --ray: a file on a Ray cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendo.cli.reporting import say

if TYPE_CHECKING:
    from attendo.decoding.options import DecodingConfig
    from attendo.inference.batch_files import Ahead

OnRay = Annotated[
    bool, typer.Option("--ray", help="A file on a Ray cluster; --threads is then of each worker, else 1.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(metavar="A", help="Of a cluster that runs, as auto; else one is made on this machine."),
]
RayWorkers = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="On the cluster; else all that fit.")
]

RUN_FILES = ("config.toml", "tokenizer.json", "card.json", "model.safetensors")


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """How to translate, as it is sent to the workers. work: with `translator`, a field, left out."""

    work: Any
    decoding: DecodingConfig
    n_runs: int
    shortlist: bool
    int8: bool
    device: str
    threads: int

    def __call__(self, folder: Path) -> Any:
        """The work, from the runs in folders 0, 1, ... of the folder."""
        import torch

        from attendo.inference import Translator
        from attendo.inference.shortlists import load_shortlist

        torch.set_num_threads(self.threads)
        runs = [folder / str(number) for number in range(self.n_runs)]
        translator = Translator.load(runs[0], self.device, runs[1:])
        translator.decoding = self.decoding
        if self.shortlist:
            translator.shortlist = load_shortlist(folder / "shortlist", translator.tokenizer)
        return dataclasses.replace(self.work, translator=translator.prepare(int8=self.int8))


@dataclasses.dataclass(frozen=True)
class RayOptions:
    """The options as they were given."""

    ray: bool
    address: str | None
    workers: int | None

    def check(self, in_files: bool, int8: bool, device: str) -> None:
        """BadParameter for options that do not go together."""
        if not self.ray and (self.address is not None or self.workers is not None):
            raise typer.BadParameter("--ray-address and --ray-workers are for --ray; give that, too")
        if self.ray and not in_files:
            raise typer.BadParameter("--ray is for a file; give --input and --output")
        if self.ray and int8 and device == "cuda":
            raise typer.BadParameter("--int8 is for processors; leave it out, or leave out --device")

    @contextmanager
    def cluster(
        self, work: Any, runs: Sequence[Path], shortlist: Path | None, int8: bool, device: str, threads: int
    ) -> Iterator[Ahead]:
        """Within it, the same work done by the workers of the cluster. device: cuda is a GPU for each worker."""
        from attendo.inference.batch_ray import Cluster, on_ray

        say("joining the Ray cluster" if self.address else "starting Ray on this machine")
        on_gpu = device == "cuda"
        make = Elsewhere(
            work=dataclasses.replace(work, translator=None),
            decoding=work.translator.decoding,
            n_runs=len(runs),
            shortlist=shortlist is not None,
            int8=int8,
            device="cuda" if on_gpu else "cpu",
            threads=threads,
        )
        files = {
            f"{number}/{name}": (run / name).read_bytes()
            for number, run in enumerate(runs)
            for name in RUN_FILES
        }
        if shortlist is not None:
            files["shortlist"] = shortlist.read_bytes()
        with on_ray(make, files, Cluster(self.address, self.workers, threads, int(on_gpu))) as ahead:
            yield ahead
