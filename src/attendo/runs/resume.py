"""Functions that resume a run exactly from its newest checkpoint, or verify that a run resumes exactly."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attendo.bundle import Bundle, load_bundle, pick_device, save_description
from attendo.custom_modules import RESUME, VERIFY, CustomModules
from attendo.data.batches import TokenDataset
from attendo.data.corpus_base import Corpus
from attendo.data.held_out import TrainedRows, trained_rows
from attendo.display.formats import Say, plural
from attendo.errors import AttendoError
from attendo.files import locked, manifest_files, mend_folder
from attendo.runs.settings import RunConfig
from attendo.runs.task_specs import TaskSpec, family_of
from attendo.runs.tracking import LOG_NAME, read_log
from attendo.runs.training_run import LOCK, TrainingRun, loop_run, new_model, refuse_second
from attendo.training import checkpoints
from attendo.training.checkpoints import Progress, load_checkpoint, newest_checkpoint, read_progress
from attendo.training.distributed import ALONE, Ranks, Stored
from attendo.training.loop import steps
from attendo.training.optimizer import BUDGETS, Horizon
from attendo.training.run import Clock, Run, more_time, standing, total_steps


def resumed_run(
    folder: str | Path,
    changes: Mapping[str, Any] | None = None,
    say: Say = lambda line: None,
    device: str = "auto",
    threads: int | None = None,
    clock: Clock | None = None,
    ranks: Ranks = ALONE,
    own_parts: CustomModules | None = None,
) -> TrainingRun:
    """Return the run of a folder, restored from its newest valid checkpoint.

    Args:
        folder: The run folder.
        changes: A new limit of the run: `steps`, `epochs`, `minutes` or `cpu_minutes` (totals), or `more_steps`.
        say: A function that receives the printed lines.
        device: The device: "auto", "cpu" or "cuda".
        threads: The number of CPU threads (default: the number at the last checkpoint).
        clock: The clock for time budgets (default: a new clock).
        ranks: The processes of the run. The number of processes can change.
        own_parts: The function that adds custom modules, as in training.

    Raises:
        AttendoError: There is no valid checkpoint, or the training data has changed.
    """
    folder = Path(folder)
    bundle = load_bundle(folder, own_parts)
    bundle.require_own_parts(folder, RESUME)
    with ranks.in_turn("checkpoints", everywhere=True):
        found = sound_checkpoint(folder, say) if ranks.is_first else None
    name = ranks.broadcast(None if found is None else found.name)
    if name is None:
        is_new = not checkpoints.checkpoints(folder / "checkpoints")
        again = "Run the training command again" if is_new else "Train again in another folder"
        raise AttendoError(f"{folder} has no valid checkpoint to resume from. {again}")
    path = folder / "checkpoints" / name
    config = config_of(folder, bundle)
    run = restored(folder, bundle, config, path, say, device, clock or Clock(), ranks)
    set_threads(threads, run.progress.threads, say)
    say_other_torch(bundle.card, say)
    if (before := run.progress.planned_end) not in ("", run.training.planned_end):  # config.toml has changed
        if not changes:
            say(f"the end in config.toml has changed since {path.name}: {run.training.planned_end}, was {before}")
        forget_end(run)
    if changes:
        prolong(run, dict(changes))
        bundle.tables["training"] = replace(config, training=run.training).tables()["training"]
        if ranks.is_first:
            save_description(folder, bundle)
    trained = TrainingRun(folder, run, bundle)
    if trained.has_ended:
        longer = more_time(run)
        say(f"{folder} has finished ({run.progress.ended}). To train longer, use `more_steps` N{longer}")
        return trained
    if ranks.is_first:
        trained.log.resume(run.progress, path.name)
    say(f"resumed {path.name} of {folder}: {standing(run)}")
    return trained


def joined_run(folder: Path, say: Say, device: str, clock: Clock, ranks: Ranks) -> TrainingRun:
    """Return the new run for a rank other than the first, from the run folder that the first rank has written."""
    with ranks.in_turn("description", everywhere=True):
        bundle = load_bundle(folder)
    run = restored(folder, bundle, config_of(folder, bundle), None, say, device, clock, ranks)
    return TrainingRun(folder, run, bundle)


def sound_checkpoint(folder: Path, say: Say) -> Path | None:
    """Return the newest valid checkpoint, or None. The names of damaged checkpoints are printed.

    Files that killed processes have left in the folder are removed.
    """
    with locked(folder / LOCK) as free:
        if not free:
            refuse_second(folder)
        for place in (folder, folder / "checkpoints"):
            if place.is_dir():
                mend_folder(place)
    path, damaged = newest_checkpoint(folder / "checkpoints")
    for line in damaged:
        say(line)
    return path


def config_of(folder: Path, bundle: Bundle) -> RunConfig:
    """Return the settings of a run folder."""
    return RunConfig.from_tables(family_of(bundle.card["task"]), bundle.tables, f"{folder / 'config.toml'}")


def restored(
    folder: Path,
    bundle: Bundle,
    config: RunConfig,
    path: Path | None,
    say: Say,
    device: str,
    clock: Clock,
    ranks: Ranks = ALONE,
) -> Run:
    """Return the state of the training loop from a checkpoint, or at the start of the run if `path` is None.

    The training data must be unchanged.
    """
    config.data.check()
    family = config.family
    with ranks.in_turn("store"):
        corpus = family.open(config.data, say)
        corpus.trained = trained_rows(folder, "before") or TrainedRows()
        material = same_material(family, config, corpus, bundle, say)
    started = bundle if path is None else replace(bundle, card={})  # the checkpoint overwrites its weights
    model = new_model(started, config, pick_device(device, ranks.local if ranks.world > 1 else None), say)
    task = family.task(corpus, material, family.user(bundle, model), config.training)
    if path is not None:
        require_own_shapes(bundle, path, model)
    run = loop_run(folder, config, model, task, clock, ranks)
    if path is not None and (word := load_checkpoint(path, run)):
        say(word)
    return run


def require_own_shapes(bundle: Bundle, path: Path, model: nn.Module) -> None:
    """Raise AttendoError if the shapes of custom modules differ from the shapes in a checkpoint."""
    if bundle.own_parts is not None:
        weights = Stored(path, checkpoints.WEIGHTS)
        bundle.require_shapes(path, {name: weights.shape(name) for name in weights}, model)


def same_material(family: TaskSpec, config: RunConfig, corpus: Corpus[Any], bundle: Bundle, say: Say) -> TokenDataset:
    """Return the training data if it is unchanged since the run began. A changed token store in the cache is rebuilt.

    Raises AttendoError with both hashes if the data or its tokens have changed.
    """
    before = bundle.card["data"]
    files = ", ".join(config.data.train)
    remedy = "Restore the files, or train again in another folder"
    material = family.material(corpus, bundle.tokenizer, bundle.tables)
    facts = material.facts
    if facts.key != before["store"]:
        raise AttendoError(
            f"{files}: the data has changed since the run started (store {facts.key[:12]}, was"
            f" {before['store'][:12]}). {remedy}"
        )
    if facts.content == before.get("content", facts.content):
        return material
    facts.discard()
    material = family.material(corpus, bundle.tokenizer, bundle.tables)
    if material.facts.content != before["content"]:
        raise AttendoError(
            f"{files}: the same texts no longer give the same tokens (content {material.facts.content[:12]}, was"
            f" {before['content'][:12]}). Install the versions listed in card.json, or train again in another folder"
        )
    say("the token store had changed; it was rebuilt with identical content")
    return material


def prolong(run: Run, changes: dict[str, Any]) -> None:
    """Change the limit of a run. A learning rate decay that has begun is undone."""
    if more := changes.pop("more_steps", None):
        changes["steps"] = run.progress.step + more
    try:
        run.training = replace(run.training, **(dict.fromkeys(BUDGETS) | changes))
    except ValueError as error:
        raise AttendoError(str(error)) from None
    done, total = run.progress.step, total_steps(run)
    spent = run.progress.wall_seconds if run.training.minutes is not None else run.progress.cpu_seconds
    if total is not None and total <= done:
        raise AttendoError(f"the run has already made {done:,} steps. Give a larger total, or `more_steps` N")
    if run.training.seconds is not None and run.training.seconds <= spent:
        raise AttendoError(f"the run has already used {spent / 60:.1f} minutes. Give a larger total")
    forget_end(run)


def forget_end(run: Run) -> None:
    """Clear the end and the planned learning rate decay of a run, and reset the count for early stopping."""
    run.progress = replace(run.progress, ended=None, horizon=Horizon(), evaluations_since_best=0)


def set_threads(wanted: int | None, before: int, say: Say) -> None:
    """Set the number of CPU threads to `wanted` (default: `before`). If the number changes, print a note."""
    if wanted is not None and wanted != before:
        say(
            f"note: {wanted} threads instead of {before}, so the weights will differ slightly from an uninterrupted run"
        )
    torch.set_num_threads(wanted or before)


def say_other_torch(card: Mapping[str, Any], say: Say) -> None:
    """Print a note if the run began with another version of PyTorch, because results can then differ."""
    here, before = str(torch.__version__), card.get("versions", {}).get("torch")
    if before not in (None, here):
        say(f"note: torch {here} instead of {before}, so the weights may differ slightly from an uninterrupted run")


# ---- proof that a run resumes exactly


NEVER = 10**9


@dataclass(frozen=True)
class Verification:
    """Result of a replay of the steps from `start` to `end`, with the number of compared hashes (`chains`).

    Each hash covers steps, losses, gradient norms and row numbers. If a checkpoint was reached (`whole`), weights,
    optimizer state and random states were also compared. `differing` describes the first difference, or is "".
    """

    start: int
    end: int
    threads: int
    chains: int
    whole: bool
    differing: str = ""

    def __str__(self) -> str:
        threads = plural(self.threads, "thread")
        lines = [f"replayed: step {self.start:,} to step {self.end:,}, {threads}"]
        if self.differing:
            lines.append(f"NOT identical: {self.differing}")
            lines.append("Possible reasons: another version of torch, CPU or number of threads (see card.json).")
        else:
            lines.append("bit-identical: losses, gradient norms, rows")
            if self.whole:
                lines.append("bit-identical: weights, optimizer, random states")
        return "\n".join(lines)


def verify_resume(
    folder: str | Path,
    n_steps: int | None = None,
    say: Say = lambda line: None,
    device: str = "auto",
    threads: int | None = None,
    own_parts: CustomModules | None = None,
) -> Verification:
    """Replay the steps between the two newest valid checkpoints of a run, and compare the results. Nothing is written.

    If a run has only one checkpoint, the run is replayed from its start.

    Args:
        folder: The run folder.
        n_steps: The maximum number of steps (default: all). If no checkpoint was logged in these steps, the replay
            continues to the next logged checkpoint.
        say: A function that receives the printed lines.
        device: The device: "auto", "cpu" or "cuda".
        threads: The number of CPU threads (default: the number at the last checkpoint).
        own_parts: The function that adds custom modules, as in training.

    Returns:
        The compared steps, and a description of the first difference.

    Raises:
        AttendoError: The run has no valid checkpoint, or has only one and started from another run.
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
    logged = {entry["step"]: entry["chain"] for entry in read_log(folder / LOG_NAME)[0] if "chain" in entry}
    if last < target.step and not any(first < step <= last for step in logged):
        last = min((step for step in logged if first < step <= target.step), default=target.step)
        say(
            f"results can be compared only at logged checkpoints: replaying {plural(last - first, 'step')}, to step"
            f" {last:,}, instead of {n_steps:,}"
        )
    if n_steps is not None and target.step < first + n_steps:
        few = plural(target.step - first, "step")
        say(f"only the steps up to the newest checkpoint can be replayed: {few} instead of {n_steps:,}")
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
        differing = "the hash chain of the steps"
    return replace(found, chains=compared, differing=differing)


def ends(folder: Path, init_from: str | None, say: Say) -> tuple[Path | None, Path]:
    """Return the checkpoints at which a replay starts (None: the start of the run) and ends."""
    sound, damaged = checkpoints.sound_checkpoints(folder / "checkpoints", 2)
    for line in damaged:
        say(line)
    if len(sound) == 2:
        return sound[1], sound[0]
    if not sound:
        raise AttendoError(f"{folder} has no valid checkpoint. Train until the first checkpoint")
    if init_from is not None:
        raise AttendoError(
            f"{folder} has a single checkpoint and started from {init_from}. Train until the next checkpoint"
        )
    return None, sound[0]


def chains_of(run: Run, last: int, target: Progress) -> Iterator[tuple[int, str]]:
    """Repeat the training steps up to step `last`, without evaluations. Yield each step and the hash chain after it."""
    no_end = dict.fromkeys(BUDGETS) | {"steps": NEVER, "evaluate_every": NEVER, "patience": 0}
    run.training = replace(run.training, **no_end)
    run.progress = replace(run.progress, horizon=target.horizon, ended=None, evaluation_due=False)
    run.folder = None
    for report in steps(run, checkpoints.Saver(run)):
        if report.kind == "step":
            yield run.progress.step, run.progress.chain
        if run.progress.step >= last:
            return


def tensors_differing(run: Run, path: Path) -> str:
    """Describe the tensors of a checkpoint that differ from the state of the run. Return "" if all bits are equal."""
    with tempfile.TemporaryDirectory() as folder:
        mine = manifest_files(checkpoints.write_checkpoint(Path(folder), checkpoints.snapshot(run)))
    theirs = manifest_files(path)
    kinds = {
        checkpoints.WEIGHTS: "weights",
        checkpoints.OPTIMIZER: "state of the optimizer",
        checkpoints.RANDOM: "random states",
    }
    differing = [name for name in theirs if name.endswith(".safetensors") and mine.get(name) != theirs[name]]
    return " and ".join(words for stem, words in kinds.items() if any(n.startswith(stem) for n in differing))
