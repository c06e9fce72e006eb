"""On from where a run stopped: the same state, the same data, and as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attendo.bundle import Bundle, load_bundle, save_description
from attendo.custom_modules import RESUME, CustomModules
from attendo.data.batches import TokenDataset
from attendo.data.trained_rows import TrainedRows, trained_rows
from attendo.devices import pick_device
from attendo.display.formats import Say
from attendo.errors import AttendoError
from attendo.files import locked
from attendo.runs.settings import RunConfig
from attendo.runs.task_specs import DataSource, TaskSpec, family_of
from attendo.runs.training_run import LOCK, TrainingRun, loop_run, new_model, refuse_second
from attendo.training.checkpoints import WEIGHTS, load_checkpoint, newest_checkpoint, sweep
from attendo.training.distributed import ALONE, Ranks, Stored
from attendo.training.optimizer import Horizon
from attendo.training.run import Run
from attendo.training.stopping import Clock, more_time, standing, total_steps


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
    """The run of a folder, where its newest sound checkpoint left it, with as many threads.

    changes: another end (one of steps, epochs, minutes, cpu_minutes; more_steps). ranks: those that go on with it, as
    many as before or others. own_parts: those that it was trained with. Raises AttendoError where there is nothing to
    resume from, or where the data have changed.
    """
    folder = Path(folder)
    bundle = load_bundle(folder, own_parts)
    bundle.require_own_parts(folder, RESUME)
    with ranks.in_turn("checkpoints", everywhere=True):
        found = sound_checkpoint(folder, say) if ranks.is_first else None
    name = ranks.broadcast(None if found is None else found.name)
    if name is None:
        raise AttendoError(
            f"{folder} has no sound checkpoint to resume from; train again into another folder"
        )
    path, config = folder / "checkpoints" / name, config_of(folder, bundle)
    clock = Clock() if clock is None else clock
    run = restored(folder, bundle, config, path, say, device, clock, ranks)
    set_threads(threads, run.progress.threads, say)
    say_other_torch(bundle.card, say)
    if (before := run.progress.planned_end) not in ("", run.training.planned_end):  # the end was moved since
        if not changes:
            say(f"config.toml has another end than at {path.name}: {run.training.planned_end}, was {before}")
        forget_end(run)
    if changes:
        prolong(run, dict(changes))
        bundle.tables["training"] = replace(config, training=run.training).tables()["training"]
        if ranks.is_first:
            save_description(folder, bundle)
    trained = TrainingRun(folder, run, bundle)
    if trained.has_ended:
        longer = more_time(run)
        say(f"{folder} has ended ({run.progress.ended}); train further with `more_steps` N{longer}")
        return trained
    if ranks.is_first:
        trained.log.resume(run.progress, path.name)
    say(f"resumed {path.name} of {folder}: {standing(run)}")
    return trained


def goes_on(folder: Path, ranks: Ranks) -> bool:
    """Whether torchrun has started these processes anew after one was lost, and the run in the folder has begun."""
    # on a machine that took another's place they count anew
    restarted = any(ranks.gathered(ranks.restarts > 0))
    return restarted and ranks.broadcast(newest_checkpoint(folder / "checkpoints")[0] is not None)


def joined_run(folder: Path, say: Say, device: str, clock: Clock, ranks: Ranks) -> TrainingRun:
    """The run that the first of the ranks has just described in a folder, at its beginning, for one of the others."""
    with ranks.in_turn("description", everywhere=True):
        bundle = load_bundle(folder)
    run = restored(folder, bundle, config_of(folder, bundle), None, say, device, clock, ranks)
    return TrainingRun(folder, run, bundle)


def sound_checkpoint(folder: Path, say: Say) -> Path | None:
    """The newest checkpoint that verifies, once what killed processes left is cleared up; damaged ones are named."""
    with locked(folder / LOCK) as free:
        if not free:
            refuse_second(folder)
        for place in (folder, folder / "checkpoints"):
            sweep(place)
    path, damaged = newest_checkpoint(folder / "checkpoints")
    for line in damaged:
        say(line)
    return path


def config_of(folder: Path, bundle: Bundle) -> RunConfig:
    """The settings of a run folder."""
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
    """The loop's state as a checkpoint holds it, or at its very beginning, on the data of then."""
    config.data.check()
    family = config.family
    with ranks.in_turn("store"):
        corpus = family.open(config.data, say)
        corpus.trained = trained_rows(folder, "before") or TrainedRows()
        material = same_material(family, config, corpus, bundle, say)
    started = bundle if path is None else replace(bundle, card={})  # its weights are overwritten
    model = new_model(started, config, pick_device(device, ranks.local if ranks.world > 1 else None), say)
    task = family.task(corpus, material, family.user(bundle, model), config.training)
    if path is not None:
        require_own_shapes(bundle, path, model)
    run = loop_run(folder, config, model, task, clock, ranks)
    if path is not None and (word := load_checkpoint(path, run)):
        say(word)
    return run


def require_own_shapes(bundle: Bundle, path: Path, model: nn.Module) -> None:
    """Raises AttendoError where parts of a user's own are of other shapes than in a checkpoint."""
    if bundle.own_parts is not None:
        weights = Stored(path, WEIGHTS)
        bundle.require_shapes(path, {name: weights.shape(name) for name in weights}, model)


def same_material(
    family: TaskSpec, config: RunConfig, corpus: DataSource, bundle: Bundle, say: Say
) -> TokenDataset:
    """The training data as they were when the run began; their store is made anew where the cache holds another.

    Raises AttendoError with both hashes where the data have changed, or are no longer cut into the same tokens.
    """
    before, files = bundle.card["data"], ", ".join(config.data.train)
    remedy = "restore the files, or train again into another folder"
    material = family.material(corpus, bundle.tokenizer, bundle.tables)
    facts = material.facts
    if facts.key != before["store"]:
        raise AttendoError(
            f"{files}: the data have changed since the run began (store {facts.key[:12]}, was"
            f" {before['store'][:12]}); {remedy}"
        )
    if facts.content == before.get("content", facts.content):
        return material
    facts.discard()
    material = family.material(corpus, bundle.tokenizer, bundle.tables)
    if material.facts.content != before["content"]:
        raise AttendoError(
            f"{files}: the same texts no longer give the same tokens (content {material.facts.content[:12]}, was"
            f" {before['content'][:12]}); install the versions that card.json names, or train again into another folder"
        )
    say("the token store was not as it had been; it was made anew, and is the same")
    return material


def prolong(run: Run, changes: dict[str, Any]) -> None:
    """Moves the end of a run; a decay that had begun is taken back."""
    if more := changes.pop("more_steps", None):
        changes["steps"] = run.progress.step + more
    ends = {"steps": None, "epochs": None, "minutes": None, "cpu_minutes": None}
    try:
        run.training = replace(run.training, **(ends | changes))
    except ValueError as error:
        raise AttendoError(str(error)) from None
    done, total = run.progress.step, total_steps(run)
    spent = run.progress.wall_seconds if run.training.minutes is not None else run.progress.cpu_seconds
    if total is not None and total <= done:
        raise AttendoError(f"the run has made {done:,} steps already; give more than that, or `more_steps` N")
    if run.training.seconds is not None and run.training.seconds <= spent:
        raise AttendoError(f"the run has spent {spent / 60:.1f} minutes already; give more than that, in all")
    forget_end(run)


def forget_end(run: Run) -> None:
    """Takes back that a run has ended, and a decay towards its end; patience counts anew."""
    run.progress = replace(run.progress, ended=None, horizon=Horizon(), evaluations_since_best=0)


def set_threads(wanted: int | None, before: int, say: Say) -> None:
    """Goes on with as many threads as before, unless told otherwise: then the run is no longer bit-equal."""
    if wanted is not None and wanted != before:
        say(
            f"{wanted} threads instead of {before}: the weights will differ in their last bits from an unbroken run's"
        )
    torch.set_num_threads(wanted or before)


def say_other_torch(card: Mapping[str, Any], say: Say) -> None:
    """A word where the run began with another torch: then it is not surely bit-equal, either."""
    here, before = str(torch.__version__), card.get("versions", {}).get("torch")
    if before not in (None, here):
        say(
            f"torch {here} instead of {before}: the weights may differ in their last bits from an unbroken run's"
        )
