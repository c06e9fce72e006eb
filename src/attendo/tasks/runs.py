"""Training runs: from settings to a run folder, and on from where a run stopped."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from attendo.bundle import Bundle, load_bundle, save_card, save_description, save_weights
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.models import parameter_count
from attendo.tasks.choice import choose_tokenizer, choose_training
from attendo.tasks.families import family_of
from attendo.tasks.family import Corpus, Family, Material, Say
from attendo.tasks.settings import RunConfig, Tables, check_tables, joined, section, with_absolute_files
from attendo.tasks.starting import shape_of, take_weights
from attendo.training.checkpoints import checkpoints, load_checkpoint, newest_checkpoint, sweep
from attendo.training.clock import Clock
from attendo.training.ending import total_steps
from attendo.training.loop import train
from attendo.training.run import Report, Run
from attendo.training.schedules import Horizon
from attendo.training.state import seed_all

SAMPLE_TEXTS, MUCH_UNKNOWN = 1000, 0.1
"""Texts looked at, and the share of unknown words above which there is a word about them."""
LOG_EVERY = 20
"""Steps whose mean loss makes one line of metrics.jsonl."""


@dataclass
class TrainingRun:
    """A run folder at work: its loop, its bundle, and its log."""

    folder: Path
    run: Run
    bundle: Bundle
    _losses: list[float] = field(default_factory=list)

    def reports(self) -> Iterator[Report]:
        """Trains to the end; keeps model.safetensors at the best evaluation, metrics.jsonl and the card."""
        try:
            for report in train(self.run):
                self._keep(report)
                yield report
        except OSError as error:
            kept = checkpoints(self.folder / "checkpoints")
            remedy = (
                f"{kept[-1].name} is intact: mend that, then `attendo resume {self.folder}`"
                if kept
                else (f"nothing was saved: mend that, remove {self.folder}, and train again")
            )
            raise AttendoError(f"{error}; {remedy}") from error

    def stop(self) -> None:
        """Makes `reports` save what is done, and end, soon; a signal handler may call it."""
        self.run.stop()

    def _keep(self, report: Report) -> None:
        progress = report.progress
        line: dict[str, Any] = {"kind": report.kind, "step": progress.step, "epoch": progress.epoch}
        clock = {
            "cpu_seconds": round(progress.cpu_seconds, 2),
            "wall_seconds": round(progress.wall_seconds, 2),
        }
        match report.kind:
            case "step":
                self._losses.append(report.loss)
                if progress.step % LOG_EVERY:
                    return
                line |= {"loss": sum(self._losses) / len(self._losses), "rate": report.rate}
                line |= {"gradient_norm": report.gradient_norm, "tokens": progress.tokens, **clock}
                self._losses.clear()
            case "evaluation":
                assert report.evaluation is not None
                line |= report.evaluation.measures | {"best": report.is_best, "note": report.note, **clock}
                if report.is_best:
                    self._save_best(report)
            case "checkpoint" | "end":
                line |= {"note": report.note, **clock}
                line |= {"decay_start": progress.horizon.decay_start, "end": progress.horizon.end}
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")

    def _save_best(self, report: Report) -> None:
        assert report.evaluation is not None
        save_weights(self.folder, self.run.model, self.bundle, report.progress.step)
        self.bundle.card["validation"] = {"step": report.progress.step, **report.evaluation.measures}
        save_card(self.folder, self.bundle.card)


def new_run(
    family: Family,
    tables: Tables,
    folder: Path,
    say: Say = lambda line: None,
    clock: Clock | None = None,
    device: str = "auto",
    init_from: Path | None = None,
) -> TrainingRun:
    """Prepares a run in a new folder: reads the data, learns the tokenizer, chooses what the tables leave open.

    init_from: a run whose tokenizer, shape and weights this one starts from, as far as the models have parts in
    common. Raises AttendoError for a folder that holds a run already, for wrong settings, and for unusable data.
    """
    clock = Clock() if clock is None else clock
    require_no_run(folder)
    check_tables(family, tables, "the settings")
    given = with_absolute_files(tables)
    tables = joined(family.defaults(), given)
    data = section(family.data, tables, "data", "the settings")
    data.check()
    where, corpus = pick_device(device), family.open(data, say)
    if init_from is None:
        tables, tokenizer = choose_tokenizer(tables, family, corpus, say)
    else:
        tables, tokenizer = shape_of(init_from, family, given)
        tables = joined(tables, {"model": corpus.model_facts()})
        say_unknown_words(tokenizer, corpus, say)
    material = family.material(corpus, tokenizer, tables)
    tables = choose_training(tables, family, material, where, say)
    config = RunConfig.from_tables(family, tables, "the settings")
    bundle = Bundle(config.tables(), tokenizer, new_card(config) | corpus.facts())
    run = loop_run(folder, bundle, config, corpus, material, clock, where)
    if init_from is not None:
        bundle.card["init_from"] = str(init_from.absolute())
        say(take_weights(init_from, run.model))
    facts = run.task.describe()
    bundle.card |= {
        "parameters": parameter_count(run.model),
        "data": facts | {"store": material.facts.key, "content": material.facts.content},
    }
    save_description(folder, bundle)
    padding = f", {facts['padding_share']:.1%} padding" if "padding_share" in facts else ""
    say(
        f"{bundle.card['parameters']:,} parameters; {material.n_tokens:,} tokens in"
        f" {facts['batches_per_epoch']:,} batches an epoch{padding}"
    )
    return TrainingRun(folder, run, bundle)


def resumed_run(
    folder: Path,
    changes: dict[str, Any] | None = None,
    say: Say = lambda line: None,
    device: str = "auto",
    threads: int | None = None,
    clock: Clock | None = None,
) -> TrainingRun:
    """The run of a folder, where its newest sound checkpoint left it, with as many threads.

    changes: another end (one of steps, epochs, minutes, cpu_minutes; more_steps). Raises AttendoError where there
    is nothing to resume from, or where the data have changed since.
    """
    clock = Clock() if clock is None else clock
    bundle = load_bundle(folder)
    sweep(folder / "checkpoints")
    path, damaged = newest_checkpoint(folder / "checkpoints")
    for line in damaged:
        say(line)
    if path is None:
        raise AttendoError(
            f"{folder} has no sound checkpoint to resume from; start again with `attendo train`"
        )
    family = family_of(bundle.card["task"])
    config = RunConfig.from_tables(family, bundle.tables, f"{folder / 'config.toml'}")
    config.data.check()
    corpus = family.open(config.data, say)
    material = same_material(family, config, corpus, bundle, say)
    run = loop_run(folder, bundle, config, corpus, material, clock, pick_device(device))
    run.progress, _ = load_checkpoint(path, run.model, run.optimizer)
    set_threads(threads, run.progress.threads, say)
    if run.progress.planned_end not in ("", run.training.planned_end):  # saved before the end was moved
        forget_end(run)
    if changes:
        _prolong(run, dict(changes))
        bundle.tables["training"] = replace(config, training=run.training).tables()["training"]
        save_description(folder, bundle)
    elif run.progress.ended:
        say(f"{folder} has ended ({run.progress.ended}); train further with --more-steps N")
        return TrainingRun(folder, run, bundle)
    cut_metrics(folder / "metrics.jsonl", run.progress.step)
    say(f"resumed {path.name} of {folder}")
    return TrainingRun(folder, run, bundle)


def same_material(family: Family, config: RunConfig, corpus: Corpus, bundle: Bundle, say: Say) -> Material:
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
    if facts.content == before["content"]:
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


def _prolong(run: Run, changes: dict[str, Any]) -> None:
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
        raise AttendoError(f"the run has made {done:,} steps already; give more than that, or --more-steps N")
    if run.training.seconds is not None and run.training.seconds <= spent:
        raise AttendoError(f"the run has spent {spent / 60:.1f} minutes already; give more than that, in all")
    forget_end(run)


def forget_end(run: Run) -> None:
    """Takes back that a run has ended, and a decay towards its end; patience counts anew."""
    run.progress = replace(run.progress, ended=None, horizon=Horizon(), evaluations_since_best=0)


def loop_run(
    folder: Path,
    bundle: Bundle,
    config: RunConfig,
    corpus: Corpus,
    material: Material,
    clock: Clock,
    device: torch.device,
) -> Run:
    """The loop's state at step 0, its weights drawn from the seed."""
    seed_all(config.training.seed)
    model = bundle.new_model().to(device)
    task = config.family.task(corpus, material, config.family.user(bundle, model), config.training)
    return Run(model, task, config.training, config.checkpoint, folder / "checkpoints", clock=clock)


def say_unknown_words(tokenizer: Tokenizer, corpus: Corpus, say: Say) -> None:
    """A word where many words of the texts are not in a tokenizer that was learned from others."""
    ids = [i for row in tokenizer.encode_batch(islice(corpus.texts(), SAMPLE_TEXTS)) for i in row]
    share = ids.count(tokenizer.unk_id) / max(1, len(ids))
    if share > MUCH_UNKNOWN:
        say(f"{share:.0%} of the words are unknown to the tokenizer that the run starts with")


def require_no_run(folder: Path) -> None:
    """Raises AttendoError if the folder holds a run, or anything else that training would mix with."""
    if (folder / "config.toml").exists():
        if not (folder / "model.safetensors").exists() and not checkpoints(folder / "checkpoints"):
            return  # a run that never began: its description is replaced
        raise AttendoError(
            f"{folder} already holds a run; give another --out, or go on with `attendo resume {folder}`"
        )
    if folder.exists() and not folder.is_dir():
        raise AttendoError(f"{folder} is a file; give --out a folder that is new or empty")
    if folder.is_dir() and any(folder.iterdir()):
        raise AttendoError(f"{folder} is not empty; give --out a folder that is new or empty")


def set_threads(wanted: int | None, before: int, say: Say) -> None:
    """Goes on with as many threads as before, unless told otherwise: then the run is no longer bit-equal."""
    if wanted is not None and wanted != before:
        say(
            f"{wanted} threads instead of {before}: the weights will differ in their last bits from an unbroken run's"
        )
    torch.set_num_threads(wanted or before)


def cut_metrics(path: Path, step: int) -> None:
    """Takes out of metrics.jsonl what was logged after a step: it will be done, and logged, again."""
    if not path.exists():
        return
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    kept = [line for line in lines if (entry := json.loads(line))["step"] <= step and entry["kind"] != "end"]
    write_atomic(path, "".join(line + "\n" for line in kept))


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" is the first GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise AttendoError(f"--device {name!r} is unknown; use auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise AttendoError(
            "--device cuda: torch sees no GPU here; use --device cpu, or install a CUDA build of torch"
        )
    return torch.device(name)


def new_card(config: RunConfig) -> dict[str, Any]:
    """What the model is, before it has learned anything."""
    tables = config.tables()
    return {
        "task": config.family.name,
        **({"decoding": tables["decoding"]} if "decoding" in tables else {}),
        "versions": {
            "attendo": _version(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "system": sys.platform,
        },
    }


def _version() -> str:
    from attendo import __version__

    return __version__
