"""Trials: settings that are compared over several seeds at equal cost, by the differences of runs with equal seeds."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attendo.bundle import TaskName
from attendo.data.data_files import expanded
from attendo.display.formats import Say, plural
from attendo.errors import AttendoError
from attendo.files import locked, remove_folder, sha256_file, write_atomic
from attendo.runs.resume import resumed_run
from attendo.runs.settings import Tables, check_tables, joined, section, with_absolute_files
from attendo.runs.task_specs import TaskSpec, family_of
from attendo.runs.tracking import LOG_NAME, NOTE_NAME, last_entry
from attendo.runs.training_run import TrainingRun, new_run
from attendo.training.checkpoints import newest_checkpoint
from attendo.training.optimizer import BUDGETS
from attendo.training.run import LOWER_IS_BETTER, Clock, measured

FILE, LOCK = "trial.json", ".lock"
BASELINE = "A"
"""Name of the settings with which all variants are compared."""
SHARED = {
    "model": ("d_model", "dropout"),
    "training": ("precision", "products", "batch_tokens", "prefetch", "compile"),
}
"""Automatic choices that a variant takes from the baseline, so that they do not depend on two speed measurements."""
UNLIMITED = 1e9
"""Most epochs in a time budget: all variants use their time, unless they stop early."""
Verdict = Literal["better", "worse", "worse, stopped", "diverged", "no clear difference"]

# ---- statistics of paired differences

ERROR, EARLY_ERROR = 0.05, 0.01
"""Probability that an interval misses the true mean difference, and the part of it for all looks before the last."""
FIRST_LOOK = 3
"""Number of seeds after which a variant can be stopped for the first time."""


def error_at(n_seeds: int, planned: int) -> float:
    """Return the probability of error of the interval after `n_seeds` of `planned` seeds.

    A trial looks at the differences after each seed from FIRST_LOOK on. The looks before the last share EARLY_ERROR,
    and the last look has the rest of ERROR. The sum over all looks is ERROR, so the last printed interval is wrong with
    at most this probability, whichever rule stops the trial (Bonferroni). Strict early looks cost the last look little
    (Haybittle 1971; Peto et al. 1976).

    >>> [round(error_at(n, 5), 4) for n in range(1, 6)], error_at(3, 3)
    ([0.0, 0.0, 0.005, 0.005, 0.04], 0.05)
    """
    n_early = max(0, planned - FIRST_LOOK)
    if n_seeds >= planned:
        return ERROR - EARLY_ERROR if n_early else ERROR
    return EARLY_ERROR / n_early if n_seeds >= FIRST_LOOK else 0.0


def paired_interval(differences: Sequence[float], planned: int) -> tuple[float, float]:
    """Return the confidence interval of a mean difference: mean ± t · s / √n with n − 1 degrees of freedom.

    This is the interval of Student (1908) for paired differences, at the level of `error_at`. It assumes that the
    differences of different seeds are independent and normally distributed. The bounds are infinite before the first
    look, and if all differences are equal but not 0, because rounded scores then hide how much the differences vary.

    >>> [round(bound, 3) for bound in paired_interval([0.1, 0.3, 0.2], 3)]
    [-0.048, 0.448]
    """
    from scipy.special import stdtrit

    n, error = len(differences), error_at(len(differences), planned)
    if n < 2 or not error:
        return -math.inf, math.inf
    mean, deviation = float(np.mean(differences)), float(np.std(differences, ddof=1))
    if deviation <= 1e-12 * abs(mean) and mean:
        return -math.inf, math.inf
    half = float(stdtrit(n - 1, 1 - error / 2)) * deviation / math.sqrt(n)
    return mean - half, mean + half


# ---- the state of a trial


@dataclass(frozen=True)
class Outcome:
    """Scores of a variant by seed, their mean, and their mean difference from the baseline over equal seeds.

    `settings` differ from the baseline, for example ("model.dropout=0.1",). `interval` is the 95% confidence interval
    of the difference, or None if it is unknown. Scores of diverged runs are left out.
    """

    name: str
    settings: tuple[str, ...]
    scores: dict[int, float]
    mean: float | None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    verdict: Verdict | None = None


@dataclass
class Trial:
    """A trial. All fields except `folder` and `metric` are stored in trial.json.

    Attributes:
        plan: Task, settings, variants by name, seeds and hashes of the data files, which never change.
        chosen: The settings of each variant's first run with all automatic choices, which its other runs share.
        results: Results of the finished runs by folder, for example "B/seed-1". Without measures, the run diverged.
        metric: The compared measure (default: bits per byte, or otherwise the deciding measure of the first run).
    """

    folder: Path
    plan: dict[str, Any]
    chosen: dict[str, Any] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    metric: str | None = None

    def save(self) -> None:
        """Write trial.json."""
        state = {"format": 1, "plan": self.plan, "chosen": self.chosen, "results": self.results}
        write_atomic(self.folder / FILE, json.dumps(state, indent=1, ensure_ascii=False) + "\n")

    @property
    def names(self) -> list[str]:
        """The names of the baseline and the variants."""
        return [BASELINE, *self.plan["variants"]]

    @property
    def measure(self) -> str:
        """The name of the compared measure."""
        first = next((result for result in self.results.values() if result["measures"]), None)
        if first is None:
            return self.metric or ""
        known = [name for name in first["measures"] if measured({name: 0.0})]
        found = self.metric or ("bits_per_byte" if "bits_per_byte" in known else first["deciding"])
        if found not in known:
            raise AttendoError(f"{found} is not measured in this task (expected {', '.join(known)}). Fix `metric`")
        return found

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of the compared measure are better."""
        return self.measure not in LOWER_IS_BETTER

    def scores(self, name: str) -> dict[int, float]:
        """Return the finite scores of a variant by seed."""
        paths = {seed: f"{name}/seed-{seed}" for seed in self.plan["seeds"]}
        runs = {seed: self.results[path]["measures"] for seed, path in paths.items() if path in self.results}
        scores = {seed: measures.get(self.measure, math.nan) for seed, measures in runs.items()}
        return {seed: score for seed, score in scores.items() if math.isfinite(score)}

    def _verdict(self, name: str, n_seeds: int) -> tuple[list[float], tuple[float, float], Verdict]:
        """Return the differences from the baseline over the first `n_seeds` seeds, their interval and a verdict."""
        own, base = self.scores(name), self.scores(BASELINE)
        differences = [own[seed] - base[seed] for seed in self.plan["seeds"][:n_seeds] if {seed} <= own.keys() & base]
        if len(own) < sum(path.startswith(f"{name}/") for path in self.results):
            return differences, (-math.inf, math.inf), "diverged"
        low, high = paired_interval(differences, len(self.plan["seeds"]))
        if low <= 0 <= high:
            return differences, (low, high), "no clear difference"
        return differences, (low, high), "better" if (low > 0) == self.higher_is_better else "worse"

    def is_stopped(self, name: str, n_seeds: int) -> bool:
        """Return whether a variant gets no further seeds after `n_seeds`: it diverged, or its interval is all worse."""
        looks = (0, *range(FIRST_LOOK, n_seeds + 1)) if name != BASELINE else ()
        return any(self._verdict(name, look)[2] in ("worse", "diverged") for look in looks)

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of the baseline and of each variant."""
        planned = len(self.plan["seeds"])
        found = []
        for name in self.names:
            scores, own = self.scores(name), assignments(self.plan["variants"].get(name, {}))
            one = Outcome(name, own, scores, float(np.mean([*scores.values()])) if scores else None)
            differences, bounds, verdict = self._verdict(name, planned)
            if name != BASELINE:
                if verdict == "worse" and len(differences) < planned:
                    verdict = "worse, stopped"
                interval = bounds if math.isfinite(bounds[0]) else None
                difference = float(np.mean(differences)) if differences else None
                one = replace(one, difference=difference, interval=interval, verdict=verdict)
            found.append(one)
        return found

    @property
    def best_run(self) -> Path:
        """The folder of the best run with the settings of the best mean, without settings that were stopped."""
        sign = 1 if self.higher_is_better else -1
        whole = [one for one in self.outcomes() if one.verdict not in ("diverged", "worse, stopped")]
        best = max(whole, key=lambda one: sign * (one.mean or 0.0))
        return self.folder / best.name / f"seed-{max(best.scores, key=lambda seed: sign * best.scores[seed])}"


def assignments(tables: Tables) -> tuple[str, ...]:
    """Return settings in the notation of `--set`.

    >>> assignments({"model": {"dropout": 0.1, "norm": "rms"}})
    ('model.dropout=0.1', 'model.norm=rms')
    """
    return tuple(
        f"{name}.{key}={value if isinstance(value, str) else json.dumps(value)}"
        for name, table in tables.items()
        for key, value in table.items()
    )


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
    evaluations. Each seed trains all variants in turn, in rotating order, so a change of the machine's speed affects
    all variants alike. A variant that diverges or is clearly worse gets no further seeds. If the folder contains the
    same trial, the trial continues where it ended.

    Args:
        task: The task, as in `attendo.train`.
        settings: Tables as in config.toml, with the data files and one limit of each run. They are the baseline, "A".
        variants: The tables that override the baseline, by name of the variant, for example "B".
        out: The folder of the trial. The run of variant B with seed 1 is in its folder "B/seed-1".
        seeds: The number of seeds, from `training.seed` (default: 1) upward.
        metric: The compared measure, for example "accuracy" (default: the measure that selects the best model).
        init_from: The folder of a run whose weights initialize all models.
        device: The device: "auto", "cpu" or "cuda".
        say: A function that receives a line for each finished run.
        train: A function that trains a run to its end.

    Returns:
        The trial with all results. Its `outcomes()` are the scores, differences, intervals and verdicts.

    Raises:
        AttendoError: Settings or data are invalid, the folder contains another trial or other data, or the baseline
            diverges.
    """
    family, folder = replace(family_of(task), most_epochs=UNLIMITED), Path(out)
    if metric and not measured({metric: 0.0}):
        raise AttendoError(f"unknown metric {metric} (expected for example accuracy, chrf or loss). Fix `metric`")
    start = None if init_from is None else Path(init_from).absolute()
    plan = planned_trial(family, settings, variants, seeds, start)
    is_new = not (folder / FILE).exists()
    if is_new and folder.exists() and not (folder.is_dir() and all(p.name == LOCK for p in folder.iterdir())):
        raise AttendoError(f"{folder} exists and contains no trial. Give `out` a new or empty folder")
    with locked(folder / LOCK) as free:
        if not free:
            raise AttendoError(f"another process works on the trial in {folder}. Wait until it ends, or stop it")
        found = Trial(folder, plan, metric=metric) if is_new else read_trial(folder, plan, metric)
        found.save()
        _Training(found, family, start, device, say, train).to_end()
    return found


def planned_trial(
    family: TaskSpec, settings: Tables, variants: Mapping[str, Tables], seeds: int, start: Path | None
) -> dict[str, Any]:
    """Return the plan of a trial. Raises AttendoError for invalid settings."""
    check_tables(family, settings, "the settings")
    section(family.data, joined(family.defaults(), settings), "data", "the settings").check()
    if not settings.get("training", {}).keys() & set(BUDGETS):
        raise AttendoError("the runs have no limit (expected an equal limit). Give `cpu_minutes`, the time of each run")
    if seeds < 2:
        raise AttendoError(f"{plural(seeds, 'seed')} cannot be compared (expected at least 2). Give more `seeds`")
    # otherwise the scores of two runs would not measure the same thing
    fixed = ("data", "masking", *(("tokenizer",) if family.architecture == "masked" else ()))
    for name, tables in variants.items():
        check_tables(family, joined(settings, tables), f"the settings of {name}")
        keys = [f"{part}.{key}" for part, table in tables.items() for key in table]
        if wrong := [key for key in keys if key.split(".")[0] in fixed or key.split(".")[1] in (*BUDGETS, "seed")]:
            raise AttendoError(f"{name}: {wrong[0]} must be equal in all runs of a trial. Set it for the whole trial")
    first = settings.get("training", {}).get("seed", 1)
    plan = {
        "task": family.name,
        "settings": with_absolute_files(settings),
        "variants": variants,
        "seeds": list(range(first, first + seeds)),
        "init_from": None if start is None else str(start),
        "data": data_hashes(with_absolute_files(settings)),
    }
    return json.loads(json.dumps(plan))  # as in trial.json


def data_hashes(settings: Tables) -> dict[str, str]:
    """Return the SHA-256 of each data file in the settings."""
    data = settings["data"]
    names = [name for key in ("train", "valid", "against") for name in data.get(key) or ()]
    files = [file for name in names for file in expanded(Path(name), None)]
    return {str(file): sha256_file(file) for file in files if file.is_file()}


def read_trial(folder: Path, plan: dict[str, Any], metric: str | None = None) -> Trial:
    """Return the trial of a folder. Raises AttendoError if it is damaged or has another plan."""
    try:
        state = json.loads((folder / FILE).read_bytes())
        found = Trial(folder, state["plan"], state["chosen"], state["results"], metric)
        differing = [part for part in plan if found.plan[part] != plan[part]]
    except (ValueError, KeyError, TypeError):
        raise AttendoError(f"{folder / FILE} is damaged. Restore the file, or give another `out`") from None
    if differing:
        raise AttendoError(
            f"the {differing[0]} of the trial in {folder} differ from those in its {FILE}. To continue the trial, use"
            " the earlier command and files. For a new trial, give another `out`"
        )
    return found


@dataclass(frozen=True)
class _Training:
    """The training of all runs of a trial."""

    trial: Trial
    family: TaskSpec
    start: Path | None
    device: str
    say: Say
    train: Callable[[TrainingRun], object]

    def to_end(self) -> None:
        """Train all runs that have no result yet, except those of variants that are stopped."""
        trial, names, seeds = self.trial, self.trial.names, self.trial.plan["seeds"]
        total = f"{plural(len(names), 'setting')} with {plural(len(seeds), 'seed')}"
        self.say(f"{total}: {len(trial.results)} of {len(names) * len(seeds)} runs done")
        for number, seed in enumerate(seeds):
            at = number % len(names)
            for name in names[at:] + names[:at]:
                path = f"{name}/seed-{seed}"
                if path in trial.results or trial.is_stopped(name, number):
                    continue
                trial.results[path] = result = self._result(name, seed, path)
                trial.save()
                score = measured({trial.measure: result["measures"].get(trial.measure, math.nan)})
                used = f"{plural(result['steps'], 'step')}, {result['cpu_seconds']:,.0f} CPU-seconds"
                self.say(f"{path}: {', '.join([*score, used])}; {result['end']}")

    def _result(self, name: str, seed: int, path: str) -> dict[str, Any]:
        """Train a run to its end and return its result."""
        if data_hashes(self.trial.plan["settings"]) != self.trial.plan["data"]:
            raise AttendoError(f"the data files of {self.trial.folder} have changed. Restore the files")
        run = self._begun(name, seed, self.trial.folder / path)
        measures, deciding, end = {}, "", "training diverged"
        try:
            self.train(run)
            if not run.has_ended:
                raise KeyboardInterrupt
            card = run.bundle.card
            measures = {key: value for key, value in card["validation"].items() if key != "step"}
            deciding, end = card["deciding"], last_entry(run.folder / LOG_NAME).get("note", "")
        except AttendoError as error:
            if not isinstance(error.__cause__, FloatingPointError):
                raise
            if name == BASELINE:
                raise AttendoError(f"the baseline {BASELINE} with seed {seed}: {error}") from None
        used = {"steps": run.run.progress.step, "cpu_seconds": round(run.run.progress.cpu_seconds, 1)}
        return {"measures": measures, "deciding": deciding, **used, "end": end}

    def _begun(self, name: str, seed: int, folder: Path) -> TrainingRun:
        """Return a run: resumed from its newest checkpoint, or new."""
        trial, clock = self.trial, Clock()
        say = self.say if not trial.chosen else lambda line: None
        if newest_checkpoint(folder / "checkpoints")[0] is not None:
            run = resumed_run(folder, say=say, device=self.device, clock=clock)
        else:
            if folder.exists():  # a run that was killed before its first checkpoint
                remove_folder(folder)
            own, base = trial.plan["variants"].get(name, {}), trial.chosen.get(BASELINE, {})
            shared = {
                part: {key: base[part][key] for key in keys if key in base[part]}
                for part, keys in SHARED.items()
                if base
            }
            tables = trial.chosen.get(name) or joined(shared, trial.plan["settings"], own)
            tables = joined(tables, {"training": {"seed": seed}})
            run = new_run(self.family, tables, folder, say, clock, self.device, self.start)
            write_atomic(folder / NOTE_NAME, " ".join(assignments(own)) or "baseline of a trial")
        if name not in trial.chosen:
            trial.chosen[name] = run.bundle.tables
            trial.save()
        # the first runs fill the cache of tokens, so preparation would not cost all runs the same
        clock.cpu_start, clock.wall_start = time.process_time(), time.monotonic()
        return run
