"""Every kind of model goes on to the bit, wherever it was cut: mid-epoch, mid-accumulation, with batches made ahead."""

import random
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from cut_runs import finished, killed_at, lasting, log, stopped_at, traces
from tiny_corpus import SMALL as PAIRS
from tiny_corpus import pairs_file
from tiny_texts import SMALL as TEXTS
from tiny_texts import labelled_file, text_file

from attendo.runs.resume import resumed_run
from attendo.runs.settings import joined
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import new_run
from attendo.training.run import Clock

full = pytest.mark.full
FAMILIES = ("translation", "classification", "language-model", "masked-language-model")
STEPS, ACCUMULATION, EVERY = 14, 3, 4
LEFT_OUT = 4  # batches that are tried first, and updates that are not finite with the first scale of float16
TABLES = {
    "training": {"steps": STEPS, "accumulation": ACCUMULATION, "evaluate_every": 5, "batch_tokens": 256},
    "model": {"dropout": 0.1},
    "checkpoint": {"every_steps": EVERY, "keep_last": 2},
}


class Family:
    """The small data of one kind of model, and its runs."""

    def __init__(self, name, folder, tables):
        self.name, self.folder = name, folder
        match name:
            case "translation":
                tables = joined(PAIRS, {"data": {"train": [str(pairs_file(folder))]}}, TABLES, tables)
            case "classification":
                own = {"data": {"train": [str(labelled_file(folder))]}, "model": {"n_encoder_layers": 1}}
                tables = joined(TEXTS, own, TABLES, tables)
            case _:
                layers = {"n_decoder_layers": 1} if name == "language-model" else {"n_encoder_layers": 1}
                own = {"data": {"train": [str(text_file(folder))], "documents": "line"}}
                tables = joined(TEXTS, own, {"model": {"max_len": 24, **layers}}, TABLES, tables)
        self.tables = tables
        self.whole = finished(self.run(folder / "whole"))
        self.wanted = traces(folder / "whole"), lasting(log(folder / "whole"))

    def run(self, folder, clock=None, **training):
        return new_run(family_of(self.name), joined(self.tables, {"training": training}), folder, clock=clock)

    def check(self, rng, n_cuts=1):
        """Cuts a run where a random batch is at work, by a kill or a stop, and brings it to its end."""
        folder = self.folder / "cut"
        first = self.run(folder, prefetch=rng.choice((0, 2, 4)))
        for _ in range(n_cuts):
            cut = rng.choice((killed_at, stopped_at))
            if not cut(first, rng.randrange((EVERY + LEFT_OUT) * ACCUMULATION, STEPS * ACCUMULATION)):
                break
            torch.manual_seed(rng.randrange(10**6))  # whatever a new process starts from
            random.seed(rng.randrange(10**6))
            first = resumed_run(folder)
            first.run.training = replace(first.run.training, prefetch=rng.choice((0, 2, 4)))
        if not first.has_ended:
            finished(first)
        assert traces(folder) == self.wanted[0]
        assert lasting(log(folder)) == self.wanted[1]
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """Made when first asked for."""
    made = {}

    def made_once(name, **tables):
        key = name, str(tables)
        if key not in made:
            made[key] = Family(name, tmp_path_factory.mktemp(name), tables)
        return made[key]

    return made_once


@pytest.mark.some(2)
@pytest.mark.parametrize("n", [1, pytest.param(20, marks=full)])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_cut_anywhere_ends_as_the_unbroken_one(families, name, n):
    family, rng = families(name), random.Random(f"{name} {n}")
    assert family.whole.run.progress.epoch > 0  # the cuts lie on both sides of an epoch's end
    for _ in range(n):
        family.check(rng, n_cuts=rng.randint(1, 2))


WAYS = [
    {"ema_decay": 0.9, "precision": "float16"},
    {"optimizer": "muon", "precision": "bfloat16"},
    {"average_last": 2},
]


@pytest.mark.parametrize(
    ("name", "settings", "n"),
    [
        ("classification", WAYS[0], 1),
        *[pytest.param(name, settings, 5, marks=full) for name in FAMILIES for settings in WAYS],
    ],
    ids=str,
)
def test_the_same_with_other_ways_of_training(families, name, settings, n):
    family, rng = families(name, training=settings), random.Random(f"{name} {settings}")
    for _ in range(n):
        family.check(rng)


@pytest.mark.some(1)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_cut_may_fall_on_the_end_of_an_epoch(families, tmp_path, prefetch):
    family = families("translation")
    per_epoch = len(family.whole.run.task.batches(1, 0, 0))
    run = family.run(tmp_path / "cut", prefetch=prefetch, accumulation=ACCUMULATION)
    tried = 2  # batches, before the first step
    assert stopped_at(run, tried + per_epoch - per_epoch % ACCUMULATION + (per_epoch % ACCUMULATION or 3) + 1)
    assert (run.run.progress.epoch, run.run.progress.batch) == (1, 0)
    finished(resumed_run(tmp_path / "cut"))
    assert (traces(tmp_path / "cut"), lasting(log(tmp_path / "cut"))) == family.wanted


class SteppedClock(Clock):
    """Each step takes as long as it is told; looking at it takes no time."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def note(self, progress):
        begun_at, spent = self._before_steps
        progress.cpu_seconds = spent + self.seconds * (progress.step - begun_at)
        progress.wall_seconds = progress.cpu_seconds

    def resume(self, progress):
        self._before_steps = progress.step, progress.cpu_seconds
        super().resume(progress)
        self.note(progress)


@pytest.fixture(scope="module")
def budgeted(families, tmp_path_factory):
    """A run of 24 seconds, each step takes one: after 18 of them the rate falls. And how to begin it again."""
    begun = partial(families("translation").run, steps=None, cpu_minutes=0.4, accumulation=1, evaluate_every=12)
    whole = tmp_path_factory.mktemp("budgeted") / "whole"
    horizon = finished(begun(whole, SteppedClock(1.0))).run.progress.horizon
    assert 16 < horizon.decay_start < 20 < horizon.end < 24
    return whole, horizon, begun


@pytest.mark.parametrize("seconds", [0.5, pytest.param(1.0, marks=full)])
def test_a_decay_that_had_begun_before_the_cut_ends_where_it_was_to(budgeted, tmp_path, seconds):
    """However quick the machine is that goes on."""
    whole, horizon, begun = budgeted
    folder, tried = tmp_path / "cut", 2
    cut = begun(folder, SteppedClock(1.0))
    assert stopped_at(cut, tried + horizon.decay_start + 2)
    assert cut.run.progress.horizon == horizon and cut.run.progress.step > horizon.decay_start
    cut = finished(resumed_run(folder, clock=SteppedClock(seconds)))
    assert cut.run.progress.step == horizon.end
    assert traces(folder) == traces(whole) and lasting(log(folder)) == lasting(log(whole))


def test_a_decay_that_had_not_begun_is_decided_on_the_machine_that_goes_on(budgeted, tmp_path):
    _, horizon, begun = budgeted
    cut = begun(tmp_path / "cut", SteppedClock(1.0))
    assert stopped_at(cut, 10) and cut.run.progress.horizon.end is None
    cut = finished(resumed_run(tmp_path / "cut", clock=SteppedClock(0.5)))
    assert cut.run.progress.horizon.end > horizon.end + 6 and cut.run.progress.cpu_seconds <= 24.0
