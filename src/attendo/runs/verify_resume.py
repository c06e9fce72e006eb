"""Proof that a run resumes exactly: steps that were made are made again, and everything is compared to the bit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from attendo.bundle import load_bundle
from attendo.custom_modules import VERIFY, CustomModules
from attendo.display.formats import Say, plural
from attendo.errors import AttendoError
from attendo.runs.resume import config_of, require_own_shapes, restored, set_threads
from attendo.runs.tracking import LOG_NAME, read_log
from attendo.training.checkpoints import (
    OPTIMIZER,
    RANDOM,
    WEIGHTS,
    Progress,
    file_hashes,
    read_progress,
    snapshot,
    sound_checkpoints,
    write_checkpoint,
)
from attendo.training.loop import steps
from attendo.training.run import Run
from attendo.training.stopping import Clock

NEVER = 10**9


@dataclass(frozen=True)
class Verification:
    """What came out. start, end: steps; differing: what was not equal, in words, "" if all was.

    chains: places where the hash over steps, losses, gradient norms and rows could be compared. whole: whether the
    replay reached a checkpoint, so that weights, optimizer and random states could be compared, too.
    """

    start: int
    end: int
    threads: int
    chains: int
    whole: bool
    differing: str = ""

    def __str__(self) -> str:
        threads = plural(self.threads, "thread")
        lines = [f"made again: step {self.start:,} to step {self.end:,}, {threads}"]
        if self.differing:
            lines.append(f"NOT the same: {self.differing}")
            lines.append("another torch, processor or number of threads than before? see card.json")
            return "\n".join(lines)
        lines.append("the same to the last bit: losses, gradient norms, rows")
        if self.whole:
            lines.append("the same to the last bit: weights, optimizer, random states")
        return "\n".join(lines)


def verify_resume(
    folder: str | Path,
    n_steps: int | None = None,
    say: Say = lambda line: None,
    device: str = "auto",
    threads: int | None = None,
    own_parts: CustomModules | None = None,
) -> Verification:
    """Replays up to `n_steps` steps between the two newest sound checkpoints of a run, and compares; writes nothing.

    Where the log has no checkpoint among so few, it goes on to the next one there: other lines have nothing to compare
    with. A run with one checkpoint is replayed from its beginning. own_parts: those that it was trained with. Raises
    AttendoError where there is nothing to replay.
    """
    folder = Path(folder)
    bundle = load_bundle(folder, own_parts)
    bundle.require_own_parts(folder, VERIFY)
    config = config_of(folder, bundle)
    start, end = ends(folder, bundle.card.get("init_from"), say)
    target = read_progress(end)
    run = restored(folder, bundle, config, start, say, device, Clock())
    require_own_shapes(bundle, end, run.model)
    set_threads(threads, target.threads, say)
    first = run.progress.step
    last = target.step if n_steps is None else min(target.step, first + n_steps)
    logged = logged_chains(folder / LOG_NAME)
    if last < target.step and not any(first < step <= last for step in logged):
        last = min((step for step in logged if first < step <= target.step), default=target.step)
        say(
            f"the log can be compared with at its checkpoints alone, the next of them at step {last:,}:"
            f" {plural(last - first, 'step')} are made again, not {n_steps:,}"
        )
    compared = 0
    found = Verification(first, last, torch.get_num_threads(), 0, last == target.step)
    for step, chain in chains_of(run, last, target):
        if step in logged:
            compared += 1
            if not chain.startswith(logged[step]):
                what = f"losses, gradient norms or rows, between step {first:,} and step {step:,}"
                return replace(found, chains=compared, differing=what)
            first = step
    differing = tensors_differing(run, end) if found.whole else ""
    if found.whole and not differing and run.progress.chain != target.chain:
        differing = "the chain over steps"
    return replace(found, chains=compared, differing=differing)


def ends(folder: Path, init_from: str | None, say: Say) -> tuple[Path | None, Path]:
    """The checkpoint to start from, None for the run's beginning, and the newest."""
    sound, damaged = sound_checkpoints(folder / "checkpoints", 2)
    for line in damaged:
        say(line)
    if len(sound) == 2:
        return sound[1], sound[0]
    if not sound:
        raise AttendoError(f"{folder} has no sound checkpoint; let training reach its first")
    if init_from is not None:
        raise AttendoError(
            f"{folder} has a single checkpoint and began from {init_from}; let training reach the next"
        )
    return None, sound[0]


def chains_of(run: Run, last: int, target: Progress) -> Iterator[tuple[int, str]]:
    """Makes the steps up to `last` again, without evaluations; the chain after each."""
    run.training = replace(
        run.training,
        steps=NEVER,
        epochs=None,
        minutes=None,
        cpu_minutes=None,
        evaluate_every=NEVER,
        patience=0,
    )
    run.progress.horizon, run.progress.ended, run.progress.evaluation_due = target.horizon, None, False
    for report in steps(run, None):
        if report.kind == "step":
            yield run.progress.step, run.progress.chain
        if run.progress.step >= last:
            return


def logged_chains(path: Path) -> dict[int, str]:
    """The chain, or the beginning of it, that the log has for some steps."""
    entries, _ = read_log(path)
    return {entry["step"]: entry["chain"] for entry in entries if "chain" in entry}


def tensors_differing(run: Run, path: Path) -> str:
    """Which file of a checkpoint the state of the run does not equal to the bit; "" if it equals them all."""
    with tempfile.TemporaryDirectory() as folder:
        mine = file_hashes(write_checkpoint(Path(folder), snapshot(run)))
    theirs = file_hashes(path)
    kinds = {WEIGHTS: "weights", OPTIMIZER: "state of the optimizer", RANDOM: "random states"}
    differing = [name for name in theirs if name.endswith(".safetensors") and mine.get(name) != theirs[name]]
    return " and ".join(words for stem, words in kinds.items() if any(n.startswith(stem) for n in differing))
