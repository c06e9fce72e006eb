"""attendo plan: what it predicts is what training then builds; it says what is measured, and leaves nothing behind."""

import json
import math

import pytest
from command_line import attendo, refused, settings
from tiny_corpus import SMALL, pairs_file

from attendo.runs import planning
from attendo.runs import settings as run_settings
from attendo.runs.planning import carried, plan_run
from attendo.runs.settings import joined
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import new_run
from attendo.training.costs import ACCELERATORS

TINY = {"d_model": 16, "d_ff": 32, "n_heads": 2}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return pairs_file(tmp_path_factory.mktemp("pairs"))


@pytest.fixture
def quick(monkeypatch):
    """An update takes 0.02 s, and the matrix peak is 1 GFLOP/s; nothing is tried."""
    for room in (run_settings, planning):
        monkeypatch.setattr(room, "measured_pace", lambda *arguments: 0.02)
    monkeypatch.setattr(planning, "matrix_peak", lambda *arguments: 1e9)


def plan_json(pairs, *options, tables=SMALL):
    outcome = attendo("plan", "--train", pairs, "--json", *settings(tables), *options)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def files_of(task, folder):
    """A file that the task can train on, as a [data] table has it."""
    if task == "translation":
        return [str(pairs_file(folder))]
    path = folder / "texts.tsv"
    if task == "classification":
        path.write_text("".join(f"{'ab'[n % 2]}\tword {n} of {n % 7}\n" for n in range(120)))
    else:
        path = path.with_suffix(".txt")
        path.write_text("\n".join(f"a line with word {n} of {n % 7}" for n in range(400)))
    return [str(path)]


@pytest.mark.parametrize("task", ["translation", "classification", "language-model", "masked-language-model"])
def test_the_plan_is_of_the_model_and_the_batches_that_training_builds(task, tmp_path, quick):
    family = family_of(task)
    layers = {name: n for name, n in (("n_encoder_layers", 1), ("n_decoder_layers", 1)) if name not in family.model}
    tables = {
        "model": TINY | layers | ({"max_len": 32} if "language" in task else {}),
        "tokenizer": {"kind": "word"} if task == "classification" else {"vocab_size": 600},
        "training": {"epochs": 3, "batch_tokens": 256, "precision": "float32", "products": "torch"},
        "data": {"train": files_of(task, tmp_path)},
    }
    made, run = plan_run(family, tables), new_run(family, tables, tmp_path / "run")
    assert made.n_parameters == run.bundle.card["parameters"]
    batches = run.run.task.batches(made.training.seed, 0, 0)
    assert made.batches_per_epoch == len(batches)
    assert made.updates == 3 * len(batches)
    assert made.training == run.run.training and made.model == run.run.model.config
    if len(batches) <= planning.MOST_BATCHES:
        assert made.load.output == pytest.approx(sum(batch.n_targets for batch in batches) / len(batches))


def test_two_parallel_files_are_named_as_train_names_them(pairs, tmp_path, quick):
    for side, name in enumerate(("p.en", "p.ja")):
        rows = [line.split("\t")[side] for line in pairs.read_text(encoding="utf-8").splitlines()]
        (tmp_path / name).write_bytes("".join(f"{text}\r\n" for text in rows).encode())
    sides = "--train-source", tmp_path / "p.en", "--train-target", tmp_path / "p.ja"
    outcome = attendo("plan", *sides, "--json", *settings(SMALL))
    assert json.loads(outcome.out)["n_parameters"] == plan_json(pairs)["n_parameters"]


def test_what_it_prints_fits_80_columns_and_names_what_is_measured(pairs, tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    options = ["--accelerators", 1000, "--price", 2.5, "--tokens", 1e6]
    outcome = attendo("plan", "--train", pairs, *settings(SMALL), *options)
    assert outcome.code == 0 and not list(tmp_path.iterdir())
    assert max(map(len, outcome.out.splitlines())) <= 80
    for said in ("(counted)", "(predicted)", "(measured)", "assumed", "data sheet", "nothing is measured"):
        assert said in outcome.out
    assert "steps 12: 12 updates" in outcome.out and "0.02 CPU-s per update" in outcome.out


def test_updates_are_really_tried(pairs):
    found = plan_run(family_of("translation"), joined(SMALL, {"data": {"train": [str(pairs)]}}), probe_seconds=0.0)
    assert found.pace.measured and 0 < found.pace.seconds < 60 and found.pace.peak > 1e6
    assert found.pace.clock == "CPU"


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("option", "updates"), [(["--steps", 7], 7), (["--cpu-minutes", 1], 2700), (["--minutes", 2], 5400)]
)
def test_the_end_that_is_asked_for_decides_the_updates(pairs, quick, option, updates):
    tables = {**SMALL, "training": {**SMALL["training"]}}
    del tables["training"]["steps"]
    found = plan_json(pairs, *option, tables=tables)
    spent = 0.0 if option[0] == "--steps" else found["preparation"] * 0.9 / 0.02
    assert found["updates"] == pytest.approx(updates - spent, abs=1)


def test_a_price_of_this_machine(pairs, quick):
    outcome = attendo("plan", "--train", pairs, *settings(SMALL), "--price", 36_000, "--threads", 1)
    assert "2.40 at 36000 per hour" in outcome.out  # 12 updates of 0.02 s


def test_a_model_too_large_for_this_machine_is_counted_and_not_tried(pairs, monkeypatch, quick):
    monkeypatch.setattr(planning, "measured_pace", lambda *arguments: pytest.fail("tried"))
    huge = joined(SMALL, {"model": {"d_model": 65_536, "d_ff": 262_144, "n_encoder_layers": 3}})
    outcome = attendo("plan", "--train", pairs, *settings(huge))
    assert "no update was run: the model does not fit into memory here" in outcome.out
    assert "(assumed)" in outcome.out and "too large for this machine" in outcome.out
    slow = joined(SMALL, {"model": {"d_model": 1024, "d_ff": 4096}})
    outcome = attendo("plan", "--train", pairs, *settings(slow))
    assert "no update was run: it would take about" in outcome.out


def test_on_paper_the_same_tokens_are_read_by_more(pairs, quick):
    plan = plan_run(family_of("translation"), joined(SMALL, {"data": {"train": [str(pairs)]}}))
    h100 = ACCELERATORS["h100"]
    alone, many = carried(plan, 1, h100, mfu=1.0), carried(plan, 64, h100, tokens=12 * plan.tokens_per_update)
    assert alone.outcomes[0].time.total == pytest.approx(plan.flops / h100.flops)
    assert alone.outcomes[0].seconds == pytest.approx(alone.updates * alone.outcomes[0].time.total)
    assert (alone.updates, many.updates) == (12, 1)
    ddp, sharded = many.outcomes
    assert sharded.memory < ddp.memory and ddp.fits and ddp.time.binds == "traffic"


def test_what_does_not_fit_an_accelerator_is_flagged(pairs, quick):
    huge = joined(SMALL, {"model": {"d_model": 16_384, "d_ff": 65_536, "n_encoder_layers": 6}})
    outcome = attendo("plan", "--train", pairs, *settings(huge), "--accelerators", 512)
    assert "DDP does not fit into 80 GB" in outcome.out and "FSDP2 does not fit" not in outcome.out


def test_own_figures_of_an_accelerator(pairs, quick):
    options = ["--accelerators", 2, "--flops", 400e12, "--bandwidth", 25e9, "--mfu", 1.0]
    found = plan_json(pairs, *options)
    one = found["on_paper"]["accelerator"]
    assert (one["flops"], one["memory"], one["bandwidth"]) == (400e12, 80e9, 25e9)
    assert found["on_paper"]["outcomes"][0]["time"]["compute"] == pytest.approx(found["flops"] / 800e12)
    assert math.isfinite(found["peak_memory"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Give --train F"),
        (["--train", "F", "--accelerator", "abacus", "--accelerators", "2"], "expected one of a100"),
        (["sorting", "--train", "F"], "unknown task 'sorting'"),
        (["--train", "nowhere.tsv"], "nowhere.tsv"),
        (["--train", "F", "--steps", "3", "--minutes", "1"], "--steps and --minutes cannot be combined"),
        (["--train-source", "F"], "--train-source and --train-target must be given together"),
        (
            ["classification", "--train-source", "F", "--train-target", "G"],
            "apply only to a translator. Use --train",
        ),
    ],
    ids=str,
)
def test_wrong_usage_is_one_line(arguments, said):
    assert said in refused("plan", *arguments)
