"""From one run to the next: adapters and frozen parts through the commands, cuts and resumptions included."""

import json
import random
import tomllib
from pathlib import Path

import pytest
import torch
from command_line import attendo, refused
from cut_runs import finished, killed_at, lasting, log, stopped_at, traces
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_corpus import SMALL, pairs_file, small_run
from tiny_texts import SMALL as TEXTS
from tiny_texts import labelled_file, text_file

from attendo.bundle import weights_hash
from attendo.errors import AttendoError
from attendo.runs import planning
from attendo.runs.init_from import with_adapter
from attendo.runs.resume import resumed_run, verify_resume
from attendo.runs.settings import joined
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import new_run
from attendo.training.checkpoints import checkpoints, kept_weights

LEARNING = {"learning_rate": 0.02, "steps": 12, "evaluate_every": 6, "accumulation": 2, "prefetch": 2}
TUNED = {
    "training": SMALL["training"] | LEARNING | {"frozen": ["source_embedding"]},
    "lora": {"rank": 4, "dropout": 0.1},
    "checkpoint": {"every_steps": 4, "keep_last": 9},
}
TRAIN = ("train", "translation", "--threads", 1)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return pairs_file(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def base(tmp_path_factory, file):
    """A translator that has begun to learn."""
    folder = tmp_path_factory.mktemp("base") / "run"
    finished(small_run(folder, file, training={"steps": 6}))
    return folder


def tuned_run(folder, file, base):
    tables = joined({"data": {"train": [str(file)]}, "decoding": SMALL["decoding"]}, TUNED)
    return new_run(family_of("translation"), tables, folder, init_from=base)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, file, base):
    folder = tmp_path_factory.mktemp("tuned") / "run"
    finished(tuned_run(folder, file, base))
    return folder


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "evaluation"]


def tensors(model):
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_what_is_left_is_an_ordinary_run_and_a_small_file(tuned, base):
    before, after = load_file(base / "model.safetensors"), load_file(tuned / "model.safetensors")
    assert before.keys() == after.keys()
    learned = {name for name in before if not torch.equal(before[name], after[name])}
    assert all(".blocks." in name and name.endswith("_proj.weight") for name in learned) and len(learned) == 16
    merged = tensors(with_adapter(base, tuned / "adapter.safetensors"))
    assert all(torch.equal(merged[name], after[name]) for name in after)
    with safe_open(tuned / "adapter.safetensors", "pt") as opened:
        assert opened.metadata()["base_weights_sha256"] == weights_hash(base)
        assert all(".lora." in name for name in opened.keys())  # noqa: SIM118 - no mapping
    last = load_file(checkpoints(tuned / "checkpoints")[-1] / "model.safetensors")
    assert all(torch.equal(last[name], before[name]) for name in before)
    states = load_file(checkpoints(tuned / "checkpoints")[-1] / "optimizer.safetensors")
    assert len(states) == 3 * 32 and all(".lora." in name for name in states)


def test_the_loss_falls_and_the_commands_know_nothing_of_it(tuned, base):
    assert losses(tuned)[-1] < losses(base)[-1] - 0.1
    said = attendo("info", tuned)
    assert "adapters of rank 4 on all linear layers; frozen:" in " ".join(said.out.split())
    outcome = attendo("translate", tuned, "It will rain .", "Snow .")
    assert outcome.code == 0 and len(outcome.out.splitlines()) == 2
    assert attendo("score", tuned, Path(json.loads((tuned / "card.json").read_text())["init_from"])).code == 2


def test_the_film_over_checkpoints_shows_merged_weights(tuned, base):
    """The checkpoint at the best evaluation holds what model.safetensors does."""
    with safe_open(tuned / "model.safetensors", "pt") as opened:
        best = opened.metadata()["step"]
    kept, after = (
        kept_weights(tuned, tuned / "checkpoints" / f"step-{best}"),
        load_file(tuned / "model.safetensors"),
    )
    assert kept.keys() == after.keys() and all(torch.equal(kept[name], after[name]) for name in after)
    first = kept_weights(base, checkpoints(base / "checkpoints")[-1])
    assert first.keys() == after.keys()


def test_it_resumes_to_the_bit_wherever_it_was_cut(tmp_path, file, base, tuned):
    rng = random.Random(3)
    run = tuned_run(tmp_path / "run", file, base)
    assert killed_at(run, rng.randint(14, 20))  # two batches are tried first, and the first checkpoint comes after 10
    run = resumed_run(tmp_path / "run")
    assert stopped_at(run, rng.randint(4, 8))
    finished(resumed_run(tmp_path / "run"))
    assert traces(tmp_path / "run") == traces(tuned)
    assert lasting(log(tmp_path / "run")) == lasting(log(tuned))
    assert load_equal(tmp_path / "run" / "adapter.safetensors", tuned / "adapter.safetensors")
    assert verify_resume(tmp_path / "run").differing == ""


def load_equal(one, other):
    one, other = load_file(one), load_file(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_head_that_is_new_is_trained_whole(tmp_path):
    texts, labels = text_file(tmp_path), labelled_file(tmp_path)
    shape = {"n_encoder_layers": 1, "max_len": 24}
    tables = joined(TEXTS, {"data": {"train": [str(texts)], "documents": "line"}, "model": shape})
    tables["training"]["steps"] = 2
    finished(new_run(family_of("masked-language-model"), tables, tmp_path / "base"))
    outcome = attendo(
        "train", "classification", "--threads", 1, "--train", labels, "--out", tmp_path / "run",
        "--init-from", tmp_path / "base",
        "--steps", "3", "--set", "lora.rank=2", "--set", "training.precision=float32",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["lora"]["trained"] == ["output_proj"]
    names = load_file(tmp_path / "run" / "adapter.safetensors").keys()
    assert {name for name in names if ".lora." not in name} == {"output_proj.weight", "output_proj.bias"}
    n_trained = 16 * 2 + 2 + 6 * 2 * (16 + 16) + 2 * 2 * (16 + 32) - 2 * 2 * (16 + 16)
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    assert card["trained_parameters"] == n_trained
    assert f"parameters, {n_trained:,} trained;" in outcome.err


@pytest.mark.parametrize(
    ("setting", "trained", "rate"),
    [("lora.rank=4", 4 * (12 * 32 + 4 * 48), 2e-3 * 4), ('training.frozen=["encoder"]', None, 2e-4 * 4)],
)
def test_a_plan_counts_what_is_trained(setting, trained, rate, file, base, monkeypatch):
    """Of width 16; adapters bear the rate of a new model, weights that were trained before a tenth."""
    pace = planning.Pace(0.1, "CPU", 1e9, measured=True)
    monkeypatch.setattr(planning, "tried_pace", lambda *arguments: pace)
    options = ["--train", file, "--init-from", base, "--steps", "2", "--set", setting]
    outcome = attendo("plan", "translation", *options, "--json")
    assert outcome.code == 0, outcome.err
    plan = json.loads(outcome.out)
    wanted = trained or plan["n_parameters"] - plan["parameters"]["encoder"]
    assert plan["trained"] == wanted and plan["memory"]["gradients"] == 4 * wanted
    assert plan["training"]["learning_rate"] == pytest.approx(rate)
    assert plan["n_parameters"] == json.loads((base / "card.json").read_text())["parameters"]
    assert trained or f"trained {wanted:,}" in attendo("plan", "translation", *options).out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["lora.rnak=8"], "unknown key lora.rnak in --set; did you mean rank?"),
        (
            ["lora.rank=4", 'lora.targets=["q_porj"]'],
            "no linear layer is named 'q_porj'; did you mean q_proj?",
        ),
    ],
)
def test_bad_settings_are_one_line_and_leave_no_folder(settings, said, file, base, tmp_path):
    options = [word for setting in settings for word in ("--set", setting)]
    folder = tmp_path / "run"
    line = refused(*TRAIN, "--train", file, "--init-from", base, "--out", folder, *options)
    assert said in line
    assert not folder.exists()


def test_adapters_want_a_model_that_was_trained(file, tmp_path):
    line = refused(*TRAIN, "--train", file, "--out", tmp_path / "run", "--set", "lora.rank=8")
    assert "lora.rank=8 requires a trained model. Give one with --init-from DIR" in line


def test_an_adapter_of_other_weights_is_refused(tuned, base, tmp_path):
    with pytest.raises(AttendoError, match="was trained on other weights"):
        with_adapter(tuned, tuned / "adapter.safetensors")
    with pytest.raises(AttendoError, match="is not an adapter"):
        with_adapter(base, tuned / "model.safetensors")
    with pytest.raises(AttendoError, match="no such file"):
        with_adapter(base, tmp_path / "adapter.safetensors")
    short = tmp_path / "short.safetensors"
    short.write_bytes((tuned / "adapter.safetensors").read_bytes()[:900])
    with pytest.raises(AttendoError, match="is damaged"):
        with_adapter(base, short)
