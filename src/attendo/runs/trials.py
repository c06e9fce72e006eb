"""Trials: settings that are compared over several seeds at equal cost, by the differences of runs with equal seeds."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attendo.bundle import TaskName
from attendo.data.data_files import expanded
from attendo.display.formats import Say, plural
from attendo.errors import AttendoError, DivergedError
from attendo.files import locked, remove_folder, sha256_file, write_atomic
from attendo.runs.resume import resumed_run
from attendo.runs.settings import Tables, check_tables, joined, with_absolute_files
from attendo.runs.task_specs import TaskSpec, family_of
from attendo.runs.tracking import LOG_NAME, NOTE_NAME, last_entry
from attendo.runs.training_run import TrainingRun, new_run
from attendo.training.checkpoints import newest_checkpoint
from attendo.training.optimizer import BUDGETS
from attendo.training.run import LOWER_IS_BETTER, Clock, measured

FILE = "trial.json"
BASELINE = "A"
"""Name of the settings with which all variants are compared."""
FIXED = ("data", "masking")
"""Sections that are equal in all runs of a trial, because otherwise the scores would measure different things."""
SHAPE = ("d_model", "n_heads", "d_ff", "n_encoder_layers", "n_decoder_layers", "dropout")
"""Automatic choices in [model] that all seeds of a variant share."""
SHARED = {
    "model": ("d_model", "dropout"),
    "training": ("precision", "products", "batch_tokens", "prefetch", "compile"),
}
"""Automatic choices that a variant takes from the baseline, so that the measured speed decides only once."""
DERIVED = ("training.warmup_steps", "training.evaluate_every")
"""Automatic choices that follow the number of steps and are not reported."""
Verdict = Literal["better", "worse", "worse, stopped", "diverged", "no clear difference"]

# ---- statistics of paired differences

ERROR = 0.05
"""Probability that an interval does not contain the true mean difference."""
EARLY_ERROR = 0.01
"""Part of ERROR for all looks before the last."""
FIRST_LOOK = 3
"""Number of seeds after which a variant can be stopped for the first time."""


def error_at(n_seeds: int, planned: int) -> float:
    """Return the probability of error that the interval after `n_seeds` of `planned` seeds may have.

    The differences are examined after each seed from FIRST_LOOK on. All looks before the last share EARLY_ERROR, and
    the last look has the rest of ERROR. The probabilities of all looks add up to ERROR. Therefore (Bonferroni), the
    printed interval is wrong with a probability of at most ERROR, whichever look ended the comparison. Strict early
    looks cost the last look little (Haybittle 1971; Peto et al. 1976).

    >>> [round(error_at(n, 5), 4) for n in range(1, 6)], error_at(3, 3)
    ([0.0, 0.0, 0.005, 0.005, 0.04], 0.05)
    """
    n_early = max(0, planned - FIRST_LOOK)
    if n_seeds >= planned:
        return ERROR - EARLY_ERROR if n_early else ERROR
    return EARLY_ERROR / n_early if n_seeds >= FIRST_LOOK else 0.0


def paired_interval(differences: Sequence[float], planned: int) -> tuple[float, float]:
    """Return the confidence interval of a mean difference: mean ± t · s / √n with n − 1 degrees of freedom.

    The interval is that of Student (1908) for paired differences, at the level of `error_at`. It assumes that the
    differences of different seeds are independent and normally distributed. It has no bounds before FIRST_LOOK, or if
    all differences are equal but not 0: rounded scores do not show how much the differences vary.

    >>> low, high = paired_interval([0.1, 0.3, 0.2], 3)
    >>> round(low, 3), round(high, 3)
    (-0.048, 0.448)
    """
    from scipy.special import stdtrit

    values, n = np.asarray(differences, dtype=np.float64), len(differences)
    error = error_at(n, planned)
    mean, deviation = (float(values.mean()), float(values.std(ddof=1))) if n > 1 else (math.nan, 0.0)
    if n < 2 or not error or (deviation <= 1e-12 * abs(mean) and mean != 0):
        return -math.inf, math.inf
    half = float(stdtrit(n - 1, 1 - error / 2)) * deviation / math.sqrt(n)
    return mean - half, mean + half


# ---- the state of a trial


@dataclass(frozen=True)
class RunResult:
    """Result of a finished run: validation measures, deciding measure, steps, CPU seconds, and the reason of the end.

    `measures` is empty if the training diverged.
    """

    measures: dict[str, float]
    deciding: str = ""
    steps: int = 0
    cpu_seconds: float = 0.0
    end: str = ""


@dataclass(frozen=True)
class Outcome:
    """Scores of a variant by seed, and their mean difference from the baseline, over the seeds that both have.

    Attributes:
        settings: The settings that differ from the baseline, for example ("model.dropout=0.1",).
        interval: The 95% confidence interval of the mean difference, or None if it is unknown.
    """

    name: str
    settings: tuple[str, ...]
    scores: dict[int, float]
    mean: float
    difference: float | None = None
    interval: tuple[float, float] | None = None
    verdict: Verdict | None = None


@dataclass
class Trial:
    """A trial in its folder, in which trial.json contains the plan, the automatic choices, and the results by run.

    Attributes:
        plan: Task, settings, variants by name, seeds and hashes of the data files. A trial never changes its plan.
        chosen: Automatic choices that all seeds of a variant share, by name of the variant.
        results: Results of the finished runs by path of their folder in the trial, for example "B/seed-1".
        metric: The compared measure (default: bits per byte, or otherwise the deciding measure of the baseline).
    """

    folder: Path
    plan: dict[str, Any]
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    results: dict[str, RunResult] = field(default_factory=dict)
    metric: str | None = None

    def save(self) -> None:
        """Write trial.json."""
        results = {name: asdict(result) for name, result in self.results.items()}
        state = {"format": 1, "plan": self.plan, "chosen": self.chosen, "results": results}
        write_atomic(self.folder / FILE, json.dumps(state, indent=1, ensure_ascii=False) + "\n")

    @property
    def names(self) -> list[str]:
        """The names of the baseline and the variants."""
        return [BASELINE, *self.plan["variants"]]

    @property
    def measure(self) -> str:
        """The name of the compared measure."""
        first = next((result for result in self.results.values() if result.measures), RunResult({}))
        default = "bits_per_byte" if "bits_per_byte" in first.measures else first.deciding
        found = self.metric or default
        if first.measures and found not in first.measures:
            known = (name for name in first.measures if measured({name: 0.0}))
            raise AttendoError(f"unknown metric {found} (this task has {', '.join(known)}). Fix `metric`")
        return found

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of the compared measure are better."""
        return self.measure not in LOWER_IS_BETTER

    def scores(self, name: str) -> dict[int, float]:
        """Return the finite scores of a variant by seed."""
        found = {seed: self.results.get(f"{name}/seed-{seed}") for seed in self.plan["seeds"]}
        values = {seed: r.measures.get(self.measure, math.nan) for seed, r in found.items() if r is not None}
        return {seed: value for seed, value in values.items() if math.isfinite(value)}

    def has_diverged(self, name: str) -> bool:
        """Return whether a finished run of a variant has no finite score."""
        return len(self.scores(name)) < sum(path.startswith(f"{name}/") for path in self.results)

    def choices_beside(self, name: str) -> list[str]:
        """Return a line if automatic choices differ from those of the baseline, beside the settings of the variant."""
        own = keys_of(self.plan["variants"].get(name, {}))
        parts = []
        for section, table in self.chosen[name].items():
            base = self.chosen[BASELINE][section]
            for key in dict.fromkeys([*table, *base]):
                path, values = f"{section}.{key}", (table.get(key), base.get(key))
                if values[0] != values[1] and path not in own and path not in DERIVED:
                    here, there = (
                        "none" if value is None else f"{value:g}" if isinstance(value, float) else value
                        for value in values
                    )
                    parts.append(f"{path}={here} ({BASELINE}: {there})")
        return [f"{name}: also chosen differently: {', '.join(parts)}"] if parts else []

    def differences(self, name: str) -> list[float]:
        """Return the differences between the scores of a variant and of the baseline with equal seeds."""
        own, base = self.scores(name), self.scores(BASELINE)
        return [own[seed] - base[seed] for seed in own if seed in base]

    def is_stopped(self, name: str, n_seeds: int) -> bool:
        """Return whether a variant trains no more after `n_seeds` seeds: it diverged, or its interval is all worse."""
        if name == BASELINE:
            return False
        planned = len(self.plan["seeds"])
        looks = (self.differences(name)[:n] for n in range(FIRST_LOOK, min(n_seeds, planned - 1) + 1))
        return self.has_diverged(name) or any(self._verdict(look) == "worse" for look in looks)

    def _verdict(self, differences: Sequence[float]) -> Verdict:
        low, high = paired_interval(differences, len(self.plan["seeds"]))
        if low <= 0 <= high:
            return "no clear difference"
        return "better" if (low > 0) == self.higher_is_better else "worse"

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of the baseline and of each variant."""
        planned = len(self.plan["seeds"])
        found = []
        for name in self.names:
            scores, differences = self.scores(name), self.differences(name)
            own = assignments(self.plan["variants"].get(name, {}))
            mean = float(np.mean([*scores.values()])) if scores else math.nan
            if name == BASELINE or self.has_diverged(name) or not differences:
                verdict = None if name == BASELINE else "diverged"
                found.append(Outcome(name, own, scores, mean, verdict=verdict))
                continue
            verdict = self._verdict(differences)
            if len(differences) < planned and self.is_stopped(name, len(differences)):
                verdict = "worse, stopped"
            bounds = paired_interval(differences, planned)
            interval = bounds if math.isfinite(bounds[0]) else None
            difference = float(np.mean(differences))
            found.append(Outcome(name, own, scores, mean, difference, interval, verdict))
        return found

    @property
    def best_run(self) -> Path:
        """The folder of the best run of the settings with the best mean, without settings that were stopped."""
        sign = 1 if self.higher_is_better else -1
        whole = [one for one in self.outcomes() if one.verdict not in ("diverged", "worse, stopped")]
        best = max(whole, key=lambda one: sign * one.mean)
        return self.folder / best.name / f"seed-{max(best.scores, key=lambda seed: sign * best.scores[seed])}"


def assignments(tables: Tables) -> tuple[str, ...]:
    """Return settings in the notation of `--set`.

    >>> assignments({"model": {"dropout": 0.1, "norm": "rms"}})
    ('model.dropout=0.1', 'model.norm=rms')
    """
    return tuple(
        f"{section}.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for section, table in tables.items()
        for key, value in table.items()
    )


def keys_of(tables: Tables) -> set[str]:
    """Return the names of settings in the notation "section.key"."""
    return {f"{section}.{key}" for section, table in tables.items() for key in table}


# ---- training


def trial(
    task: TaskName,
    settings: Tables,
    variants: Mapping[str, Tables],
    out: str | Path,
    *,
    seeds: int = 5,
    metric: str | None = None,
    init_from: str | Path | None = None,
    device: str = "auto",
    say: Say = lambda line: None,
    train: Callable[[TrainingRun], object] = TrainingRun.to_end,
) -> Trial:
    """Compare variants of settings with the baseline `settings` over several seeds, as `attendo trial` does.

    All runs have the same rows and the same limit, for example `training.cpu_minutes`, which counts updates and
    evaluations. Each seed trains all variants in turn, and the order rotates, so that a change of the machine's speed
    affects all variants alike. A variant that diverges or that is clearly worse gets no further seeds (`error_at`). If
    the folder contains the trial already, the trial continues where it ended.

    Args:
        task: The task, as in `attendo.train`.
        settings: Tables as in config.toml, with the data files and one limit of the run. They are the baseline, "A".
        variants: The tables that override the baseline, by name of the variant.
        out: The folder of the trial. The run of variant B with seed 1 is in the folder "B/seed-1".
        seeds: The number of seeds, from `training.seed` (default: 1) upward.
        metric: The compared measure, for example "accuracy" (default: the measure that selects the best model).
        init_from: The folder of a run whose weights initialize all models.
        device: The device: "auto", "cpu" or "cuda".
        say: A function that receives a line for each finished run.
        train: A function that trains a run to its end.

    Returns:
        The trial with its results. `outcomes()` returns the mean, difference, interval and verdict of each variant.

    Raises:
        AttendoError: Settings or data are invalid, the folder contains another trial or other data, or the baseline
            diverges.
    """
    family, folder = family_of(task), Path(out)
    if metric and not measured({metric: 0.0}):
        raise AttendoError(
            f"unknown metric {metric} (expected for example accuracy, chrf or loss). Fix `metric`"
        )
    start = None if init_from is None else Path(init_from).absolute()
    plan = planned_trial(family, settings, variants, seeds, start)
    if (folder / FILE).exists():
        found = read_trial(folder, metric)
        require_same_plan(found, plan)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AttendoError(f"{folder} is not empty and contains no trial. Give `out` a new or empty folder")
    else:
        found = Trial(folder, plan, metric=metric)
        folder.mkdir(parents=True, exist_ok=True)
        found.save()
    with locked(folder / ".lock") as free:
        if not free:
            raise AttendoError(
                f"another process works on the trial in {folder}. Wait until it ends, or stop it"
            )
        for number, seed in enumerate(plan["seeds"]):
            at = number % len(found.names)
            for name in found.names[at:] + found.names[:at]:
                path = f"{name}/seed-{seed}"
                if path in found.results or found.is_stopped(name, number):
                    continue
                found.results[path] = result = _trained(found, family, path, start, device, say, train)
                found.save()
                scores = {found.measure: result.measures[found.measure]} if result.measures else {}
                said = [
                    *measured(scores),
                    plural(result.steps, "step"),
                    f"{result.cpu_seconds:,.0f} CPU-seconds",
                ]
                say(f"{path}: {', '.join(said)}; {result.end}")
    return found


def planned_trial(
    family: TaskSpec, settings: Tables, variants: Mapping[str, Tables], seeds: int, start: Path | None
) -> dict[str, Any]:
    """Return the plan of a trial. Raises AttendoError for invalid settings."""
    settings = with_absolute_files(settings)
    first = settings.get("training", {}).get("seed", 1)
    check_tables(family, settings, "the settings")
    if not settings.get("training", {}).keys() & set(BUDGETS):
        raise AttendoError(
            "a trial requires an equal limit for all runs. Give `cpu_minutes`, the time of each run"
        )
    if seeds < 2 or not variants:
        raise AttendoError(
            f"{plural(seeds, 'seed')}, {plural(len(variants), 'variant')} (expected at least 2 seeds and 1 variant)"
        )
    for name, tables in variants.items():
        if not re.fullmatch(r"\w[\w.-]*", name) or name == BASELINE:
            raise AttendoError(
                f"invalid name of a variant: {name!r} (expected letters and digits, and not {BASELINE})"
            )
        check_tables(family, joined(settings, tables), f"the settings of {name}")
        fixed = [*FIXED, *(["tokenizer"] if family.architecture == "masked" else [])]
        keys = keys_of(tables)
        limits = {f"training.{key}" for key in (*BUDGETS, "seed")}
        if wrong := sorted(key for key in keys if key in limits or key.partition(".")[0] in fixed):
            raise AttendoError(
                f"{name}: {wrong[0]} must be equal in all runs of a trial. Set it for the whole trial"
            )
    plan = {
        "task": family.name,
        "settings": settings,
        "variants": variants,
        "seeds": list(range(first, first + seeds)),
        "init_from": None if start is None else str(start),
        "data": data_hashes(settings),
    }
    return json.loads(json.dumps(plan))  # as it is read from trial.json


def data_hashes(settings: Tables) -> dict[str, str]:
    """Return the SHA-256 of each data file in the settings."""
    data = settings.get("data", {})
    names = [name for key in ("train", "valid", "against") for name in data.get(key) or ()]
    files = [file for name in names for file in expanded(Path(name), None)]
    return {str(file): sha256_file(file) for file in files if file.is_file()}


def read_trial(folder: Path, metric: str | None = None) -> Trial:
    """Return the trial of a folder. Raises AttendoError if trial.json is damaged."""
    try:
        state = json.loads((folder / FILE).read_bytes())
        results = {name: RunResult(**result) for name, result in state["results"].items()}
        return Trial(folder, state["plan"], state["chosen"], results, metric)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AttendoError(
            f"{folder / FILE} is damaged ({error}). Restore the file, or give another `out`"
        ) from None


def require_same_plan(found: Trial, plan: dict[str, Any]) -> None:
    """Raise AttendoError if the plan of a trial differs from the plan in its folder."""
    for part, value in plan.items():
        if found.plan.get(part) != value:
            raise AttendoError(
                f"{found.folder} contains a trial with other {part} (see its {FILE}). Repeat the earlier command to"
                " continue that trial, or give another `out`"
            )


def _trained(
    found: Trial,
    family: TaskSpec,
    path: str,
    start: Path | None,
    device: str,
    say: Say,
    train: Callable[[TrainingRun], object],
) -> RunResult:
    """Train a run of a trial to its end, or resume it, and return its result."""
    name, seed = path.split("/seed-")
    if data_hashes(found.plan["settings"]) != found.plan["data"]:
        raise AttendoError(
            f"{found.folder}: the data files have changed since the trial started. Restore the files"
        )
    run = _begun(found, family, path, start, device, say)
    try:
        train(run)
    except DivergedError as error:
        if name == BASELINE:
            raise AttendoError(f"the baseline {BASELINE} with seed {seed}: {error}") from None
        return RunResult({}, steps=run.run.progress.step, end="diverged")
    if not run.has_ended:
        raise KeyboardInterrupt
    card, progress = run.bundle.card, run.run.progress
    measures = {key: value for key, value in card["validation"].items() if key != "step"}
    end = str(last_entry(run.folder / LOG_NAME).get("note", ""))
    return RunResult(measures, card["deciding"], progress.step, round(progress.cpu_seconds, 1), end)


def _begun(
    found: Trial, family: TaskSpec, path: str, start: Path | None, device: str, say: Say
) -> TrainingRun:
    """Return a run of a trial: resumed from its newest checkpoint, or new."""
    folder, name, seed = found.folder / path, *path.split("/seed-")
    own = found.plan["variants"].get(name, {})
    clock = Clock()
    say_all = say if name not in found.chosen and name == BASELINE else lambda line: None
    if newest_checkpoint(folder / "checkpoints")[0] is not None:
        run = resumed_run(folder, say=say_all, device=device, clock=clock)
    else:
        if folder.exists():  # a run that was killed before its first checkpoint
            remove_folder(folder)
        base = found.chosen.get(BASELINE, {section: {} for section in SHARED})
        shared = {
            part: {key: base[part][key] for key in keys if key in base[part]} for part, keys in SHARED.items()
        }
        last = {"training": {"seed": int(seed)}}
        tables = joined(shared, found.plan["settings"], own, found.chosen.get(name, {}), last)
        run = new_run(family, tables, folder, say_all, clock, device, start)
        write_atomic(folder / NOTE_NAME, " ".join(assignments(own)) or "baseline of a trial")
    if name not in found.chosen:
        model, training = run.bundle.tables["model"], run.bundle.tables["training"]
        found.chosen[name] = {
            "model": {key: model[key] for key in SHAPE if key in model},
            "training": {key: value for key, value in training.items() if key != "seed"},
        }
        found.save()
        for line in found.choices_beside(name):
            say(line)
    # the first runs fill the cache of tokens, so preparation would not cost all runs the same
    clock.cpu_start, clock.wall_start = time.process_time(), time.monotonic()
    return run
