"""Trials: what the intervals promise, and that a killed trial ends as an unbroken one."""

import numpy as np
import pytest
from cut_runs import Killed, traces
from tiny_texts import SMALL, text_file

from attendo.config import read_toml
from attendo.errors import AttendoError, diverged
from attendo.runs import trial
from attendo.runs.settings import joined
from attendo.runs.trials import Trial
from attendo.training.run import Report

SEEDS = 5


def simulated(effects, noise, seeds=SEEDS, metric="accuracy"):
    """A trial whose scores are drawn: one variant per effect, seeds that both have in common, and noise of each run."""
    names = [f"V{number}" for number in range(len(effects))]
    plan = {"variants": {name: {} for name in names}, "seeds": list(range(1, seeds + 1))}
    found = Trial(None, plan, metric=metric)
    for number, seed in enumerate(plan["seeds"]):
        luck = noise()
        for name, effect in zip(found.names, [0.0, *effects], strict=True):
            if not found.is_stopped(name, number):
                score = 0.8 + effect + luck + noise()
                found.results[f"{name}/seed-{seed}"] = {"measures": {metric: score}, "deciding": metric}
    return found.outcomes()[1:]


def covered(outcomes, effects):
    """Which of the intervals hold the true effect."""
    return np.array([one.interval[0] <= e <= one.interval[1] for one, e in zip(outcomes, effects, strict=True)])


NOISES = {
    "normal": lambda rng: rng.normal(0, 0.01),
    "skewed": lambda rng: rng.gumbel(0, 0.01),
    "long tails": lambda rng: 0.006 * rng.standard_t(4),
}


@pytest.mark.parametrize("kind", NOISES)
def test_the_intervals_cover_the_truth_in_95_of_100_settings_also_of_those_that_are_stopped(kind):
    rng = np.random.default_rng(7)
    hits, stopped = [], 0
    for _ in range(50 if kind == "normal" else 25):
        effects = rng.choice([-0.3, -0.05, -0.02, 0.0, 0.02], 20)
        outcomes = simulated(effects, lambda: NOISES[kind](rng))
        hits.append(covered(outcomes, effects))
        stopped += sum(one.verdict == "worse, stopped" for one in outcomes)
    assert stopped > 4 * len(hits)  # many are hopeless, and the worst are seen to be
    assert kind != "normal" or hits[0].sum() >= 18  # of the first 20 settings
    assert 0.945 <= np.mean(hits) <= 0.995


def test_equal_settings_are_rarely_told_apart_and_a_gain_of_three_deviations_is_seen():
    rng = np.random.default_rng(1)
    verdicts = [one.verdict for _ in range(30) for one in simulated([0.0] * 20, lambda: rng.normal(0, 0.01))]
    assert verdicts.count("no clear difference") >= 0.95 * 600
    better = [simulated([0.05], lambda: rng.normal(0, 0.01))[0].verdict for _ in range(200)]
    assert better.count("better") >= 0.9 * 200
    worse = [simulated([0.05], lambda: rng.normal(0, 0.01), metric="loss")[0].verdict for _ in range(20)]
    assert set(worse) <= {"worse", "worse, stopped", "no clear difference"} and "worse" in worse


def test_equal_differences_prove_nothing():
    (one,) = simulated([-0.1], lambda: 0.0)
    assert (one.interval, one.verdict, len(one.scores)) == (None, "no clear difference", SEEDS)


# ---- real runs

OWN = {
    "model": {"n_decoder_layers": 1, "max_len": 24},
    "training": {"steps": 6, "evaluate_every": 3},
    "checkpoint": {"every_steps": 2},
}
LOWER = {"training": {"learning_rate": 0.001}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trials")
    text_file(folder, 60)
    return folder


def started(place, name, train=None, variants=None, **others):
    settings = joined(SMALL, OWN, {"data": {"train": [str(place / "texts.txt")], "documents": "line"}})
    lines = []
    more = {} if train is None else {"train": train}
    variants = variants or {"B": LOWER}
    options = {"seeds": 2, "say": lines.append, **more, **others}
    return trial("language-model", settings, variants, place / name, **options), lines


def killed(after):
    """A training that is torn out after so many steps of all runs together."""
    left = [after]

    def train(run):
        for report in run.reports():
            assert isinstance(report, Report)
            left[0] -= report.kind == "step"
            if left[0] == 0:
                raise Killed

    return train


def test_a_killed_trial_ends_as_an_unbroken_one(place):
    whole, lines = started(place, "whole")
    order = ["A/seed-1", "B/seed-1", "B/seed-2", "A/seed-2"]
    assert [line.split(":")[0] for line in lines if "/seed-" in line] == order
    for steps in (1, 3, 9):  # before a checkpoint, after one, and in the second run
        with pytest.raises(Killed):
            started(place, "cut", killed(steps))
    cut, lines = started(place, "cut")
    assert lines[0] == "2 settings with 2 seeds: 1 of 4 runs done"
    for path, result in whole.results.items():
        assert cut.results[path] | {"cpu_seconds": 0} == result | {"cpu_seconds": 0}
        assert traces(place / "cut" / path) == traces(place / "whole" / path)
    assert cut.outcomes() == whole.outcomes()
    assert (cut.best_run / "model.safetensors").is_file()
    assert started(place, "cut")[1] == ["2 settings with 2 seeds: 4 of 4 runs done"]
    # what the first run chose itself, all seeds share; the rest is equal in all settings
    chosen = {path: read_toml(place / "whole" / path / "config.toml") for path in whole.results}
    for path, tables in chosen.items():
        assert tables["training"].pop("seed") == int(path[-1])
        assert tables["training"].pop("learning_rate") == (0.001 if path[0] == "B" else 0.01)
    assert all(tables == chosen["A/seed-1"] for tables in chosen.values())


def test_another_plan_is_refused(place):
    with pytest.raises(Killed):
        started(place, "same", killed(1), {"B": {}})
    for variants, others in (({"B": LOWER}, {}), ({"B": {}}, {"init_from": place / "x"})):
        with pytest.raises(AttendoError, match=r"differ from those in its trial\.json"):
            started(place, "same", variants=variants, **others)
    with pytest.raises(AttendoError, match=r"B: data\.column must be equal in all runs"):
        started(place, "other", variants={"B": {"data": {"column": "text"}}})
    with pytest.raises(AttendoError, match=r"B: training\.epochs must be equal"):
        started(place, "other", variants={"B": {"training": {"epochs": 3}}})
    with pytest.raises(AttendoError, match="contains no trial"):
        started(place, "same/A/seed-1")
    with pytest.raises(AttendoError, match="accuracy is not measured"):
        results = {"A/seed-1": {"measures": {"loss": 1.0}, "deciding": "loss"}}
        Trial(place, {"seeds": [1], "variants": {}}, {}, results, "accuracy").outcomes()
    texts = place / "texts.txt"
    before = texts.read_text()
    texts.write_text(before + "snow\n")
    with pytest.raises(AttendoError, match="the data of the trial"):
        started(place, "same", variants={"B": {}})
    texts.write_text(before)


def test_a_variant_that_diverges_gets_no_further_seeds(place):
    def train(run):
        if run.folder.parent.name == "B":
            raise diverged("NaN")
        run.to_end()

    found, _ = started(place, "diverged", train, {"B": {}})
    assert sorted(found.results) == ["A/seed-1", "A/seed-2", "B/seed-1"]
    assert [one.verdict for one in found.outcomes()] == [None, "diverged"]
    assert found.results["B/seed-1"]["measures"] == {}
