"""The command `attendo trial`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attendo.cli.options import OneJson, argument, option, refuse_if, use_threads, with_groups
from attendo.cli.reporting import follow, preparing, say
from attendo.cli.train import AnyOptions, SettingOptions, Tables, TrainingOptions, require_data
from attendo.display.tables import WIDTH, table_lines
from attendo.display.width import beside, flowed, shown

if TYPE_CHECKING:
    from attendo.runs.training_run import TrainingRun
    from attendo.runs.trials import Outcome, Trial

NAMES = "BCDEFGHIJKLMNOPQRSTUVWXYZ"
AT_ONCE = 8
"""The largest number of columns in the table of scores by seed."""


@with_groups
def trial(
    *,
    task: str = argument("TASK", "Task, for example classification, as in `attendo train`."),
    out: Path = option("DIR", "Folder of the trial; to resume, run the same command again.", default=...),
    tries: list[str] | None = option(
        "SETTINGS",
        "Variant B, C …: 'model.dropout=0.1 model.norm=rms' or a settings file F.toml; repeatable.",
        "--try",
    ),
    seeds: int = option("N", "Number of seeds, from --seed (default: 1) upward.", min=2, default=5),
    metric: str | None = option(
        "M", "Validation metric to compare, for example accuracy (default: the metric that selects models)."
    ),
    data: AnyOptions,
    chosen: SettingOptions,
    training: TrainingOptions,
    as_json: OneJson = False,
) -> int:
    """Compare settings over several seeds at equal CPU time.

    Setting A is the run that `attendo train` starts with the same options. Each --try adds a variant that changes the
    given settings of A. Each seed trains all variants with the same data, in changing order. --cpu-minutes limits each
    run, without the time to read the data. A variant that is clearly worse than A, or diverges, gets no further seeds.

    The table shows the mean difference from A over equal seeds, with a 95% confidence interval (Student's t, corrected
    for early stopping). The interval measures the chance of the seeds, not the chance of the validation rows. To
    test two trained models on new rows, use attendo compare.

    Run the same command again to continue a trial after Ctrl-C or a crash. The runs are in DIR/A/seed-1 and so on.

    Example: attendo trial classification --train reviews.tsv --out trials/a --try model.dropout=0.1 --cpu-minutes 2
    """
    with preparing():
        from attendo.runs.task_specs import family_of
        from attendo.runs.trials import trial as run_trial

    family = family_of(task)
    tables = chosen.joined(family, data.settings_of(task) | training.settings())
    require_data(tables)
    refuse_if(not tries, "no variant. Give --try SETTINGS, for example --try model.dropout=0.1")
    n_tries = len(tries or ())
    refuse_if(n_tries > len(NAMES), f"{n_tries} variants are too many (expected at most {len(NAMES)})")
    use_threads(training.threads)
    found = run_trial(
        family.name,
        tables,
        dict(zip(NAMES, map(settings_of, tries or ()), strict=False)),
        out,
        seeds=seeds,
        metric=metric and metric.replace("-", "_"),
        init_from=chosen.init_from,
        device=training.device,
        say=say,
        train=_follow,
    )
    print(json.dumps(as_plain(found), ensure_ascii=False) if as_json else "\n".join(trial_lines(found)))
    return 0


def settings_of(text: str) -> Tables:
    """Return the settings of a variant: assignments separated by spaces, or a TOML file.

    >>> settings_of("model.dropout=0.1 tokenizer.kind=byte")
    {'model': {'dropout': 0.1}, 'tokenizer': {'kind': 'byte'}}
    """
    from attendo.config import override, read_toml

    if text.endswith(".toml") and "=" not in text:
        return read_toml(Path(text))
    return override({}, re.split(r"\s+(?=[\w-]+(?:\.[\w-]+)+\s*=)", text.strip()))


def _follow(run: TrainingRun) -> None:
    """Train a run of the trial to its end, with a live line. After Ctrl-C or SIGTERM, exit."""
    folder = run.folder
    if not run.has_ended and (code := follow(run, f"{folder.parent.name}/{folder.name}  ")):
        raise typer.Exit(code)


def trial_lines(found: Trial) -> Iterator[str]:
    """Yield the result of a trial: the settings, the differences from A, the scores by seed, and the best run."""
    from attendo.bundle import usage
    from attendo.runs.learning_curves import MEASURES
    from attendo.runs.task_specs import family_of

    outcomes = found.outcomes()
    for one in outcomes:
        yield from beside(f"{one.name}  ", shown(" ".join(one.settings)) or "baseline", WIDTH)
    name = MEASURES[found.measure].en if found.measure in MEASURES else found.measure
    way = "higher" if found.higher_is_better else "lower"
    yield from ("", f"validation {name}, {way} is better; {_limit(found)} per run", "")
    rows = [_row(found, one) for one in outcomes]
    yield from table_lines(("", "mean", "difference from A", "95% interval", "seeds", "verdict"), rows)
    for start in range(0, len(outcomes), AT_ONCE):
        part = outcomes[start : start + AT_ONCE]
        scores = [[str(seed), *(_said(found, one.scores.get(seed)) for one in part)] for seed in found.plan["seeds"]]
        yield from ("", *table_lines(("seed", *(one.name for one in part)), scores))
    yield ""
    if (n := len(outcomes) - 1) > 1:
        yield from flowed(
            f"Each interval is for one comparison. If all settings were equally good, up to {min(100, 5 * n)}% of"
            f" trials with {n} variants would call one better or worse. Confirm a result with new seeds (--seed).",
            WIDTH,
        )
    family = family_of(found.plan["task"])
    yield f"best run: {usage(family.name, family.architecture, found.best_run)}"


def _row(found: Trial, one: Outcome) -> tuple[str, ...]:
    low, high = one.interval or (None, None)
    interval = "unknown" if low is None else f"{_said(found, low, '+')} to {_said(found, high, '+')}"
    of_difference = ("", "") if one.difference is None else (_said(found, one.difference, "+"), interval)
    return (one.name, _said(found, one.mean), *of_difference, str(len(one.scores)), one.verdict or "")


def _said(found: Trial, value: float | None, sign: str = "") -> str:
    from attendo.cli.compare import FORMS

    form = FORMS.get(found.measure.replace("_", "-"), ".4f")
    return "–" if value is None else format(value, sign + form).replace("-", "−")


def _limit(found: Trial) -> str:
    training: dict[str, Any] = found.plan["settings"]["training"]
    names = {"cpu_minutes": "CPU-minutes", "minutes": "minutes", "steps": "steps", "epochs": "epochs"}
    return next(f"at most {training[key]:g} {name}" for key, name in names.items() if key in training)


def as_plain(found: Trial) -> dict[str, Any]:
    """Return the result of a trial as plain values for JSON."""
    return {
        "out": str(found.folder),
        "metric": found.measure,
        "higher_is_better": found.higher_is_better,
        "outcomes": [asdict(one) for one in found.outcomes()],
        "best_run": str(found.best_run),
        "runs": found.results,
    }
