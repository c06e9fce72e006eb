"""The benchmarks of training: what they count, and that what they compare is the same work."""

import doctest
import importlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TINY = {"layers": 2, "d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.0, "smoothing": 0.1}
VOCAB = 30


@pytest.fixture
def benchmark_module(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.mark.parametrize("name", ["training", "training_shares", "training_guards", "scale_paper"])
def test_examples_hold(benchmark_module, name):
    assert doctest.testmod(benchmark_module(name)).failed == 0


def batch():
    src = np.array([[5, 6, 7, 8, 3], [9, 10, 3, 0, 0]])
    tgt = np.array([[2, 11, 12, 13, 3], [2, 14, 3, 0, 0]])
    return src, tgt


def test_flops_are_those_of_the_products_in_attendo_s_own_model(benchmark_module):
    from torch.utils.flop_counter import FlopCounterMode

    peers, training = benchmark_module("training_peers"), benchmark_module("training")
    model, _ = peers.contender_of("attendo-torch-products", VOCAB, TINY, False, [])
    src, tgt = torch.randint(4, VOCAB, (1, 8)), torch.randint(4, VOCAB, (1, 7))
    with FlopCounterMode(display=False) as counted:
        model(src=src, tgt=tgt).sum().backward()
    counts = counted.get_flop_counts()["Global"]
    products = sum(n for kind, n in counts.items() if str(kind) in ("aten.mm", "aten.addmm"))
    pairs = training.lengths_of(src.numpy(), torch.cat([torch.tensor([[2]]), tgt], 1).numpy())
    assert pairs == [(8, 7)]
    d, ff, layers = TINY["d_model"], TINY["d_ff"], TINY["layers"]
    looks = layers * d * (12 * 8 * 8 + 6 * 7 * 7 + 12 * 7 * 8)
    assert products == benchmark_module("training_shares").least_flops(TINY, VOCAB, pairs) - looks
    assert products > 6 * layers * 15 * (4 * d * d + 2 * d * ff)


def test_contenders_have_the_same_parameters(benchmark_module):
    peers = benchmark_module("training_peers")
    losses = {"torch": [], "attendo-torch-products": []}
    models = {}
    for name, found in losses.items():
        torch.manual_seed(1)
        models[name], loop = peers.contender_of(name, VOCAB, TINY, False, found)
        loop(iter([batch()] * 2))
        assert len(found) == 2
        assert all(np.isfinite(found))
    norms = 2 * 2 * TINY["d_model"]  # torch.nn.Transformer ends each stack with one more
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    assert counts["torch"] == counts["attendo-torch-products"] + norms


def test_figures_are_ratios_of_the_same_rounds(benchmark_module):
    training = benchmark_module("training")
    options = type("Options", (), {"size": "small", "rounds": 2, "steps_per_round": 1})
    batches = [batch()] * 3
    said = {
        "torch": [{"seconds": 2.0, "loss": 4.0}, {"seconds": 4.0, "loss": 3.0}],
        "attendo": [{"seconds": 1.0, "loss": 4.0}, {"seconds": 2.0, "loss": 2.5}],
        "sgemm": [{"torch": 1e9, "onednn": 2e9}] * 2,
    }
    found = training.figures(options, VOCAB, said, batches)
    assert found["ratio_quartiles"] == {"attendo / torch": [2.0, 2.0, 2.0]}
    assert found["target_tokens_per_second_quartiles"]["attendo"][2] == pytest.approx(6 * (0.25 * 0.5 + 0.75))
    shares = (
        found["share_of_torch_sgemm_quartiles"]["attendo"],
        found["share_of_fastest_sgemm_quartiles"]["attendo"],
    )
    assert shares[0][1] == pytest.approx(2 * shares[1][1], rel=0.5)
    assert found["last_loss"] == {"torch": 3.0, "attendo": 2.5}


def test_a_run_keeps_its_plan_and_counts_its_sittings(benchmark_module, tmp_path, monkeypatch, capsys):
    quality, peers = benchmark_module("quality"), benchmark_module("quality_peers")
    given = ["quality.py", "--tool", "joeynmt", "--out", str(tmp_path / "run"), "--cpu-minutes", "2,1"]
    given += [f"--{name}=x.tsv" for name in ("train", "valid", "test")]
    monkeypatch.setattr("sys.argv", given)
    assert quality.read_options()[1]["marks"] == [1.0, 2.0]
    assert quality.read_options()[1]["marks"] == [1.0, 2.0]
    monkeypatch.setattr("sys.argv", [*given, "--seed", "2"])
    with pytest.raises(SystemExit):
        quality.read_options()
    assert "has another plan" in capsys.readouterr().err
    spent = peers.Spent(tmp_path / "spent.json")
    spent.before += 100
    spent.save()
    again = peers.Spent(tmp_path / "spent.json")
    assert again.before == spent.saved
    assert json.loads((tmp_path / "spent.json").read_text())["cpu_seconds"] > 100
    assert not again.due()


# ---- failures of accelerators (scale_paper.py)


@pytest.fixture(scope="module")
def scale_paper():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return importlib.import_module("scale_paper")


@given(st.floats(0.5, 600.0), st.floats(3e3, 1e6), st.floats(0.0, 1000.0))
def test_the_interval_between_checkpoints_loses_the_least(scale_paper, saving, between, restart):
    interval = scale_paper.checkpoint_interval(saving, between)
    least = min(
        scale_paper.lost_share(interval * factor, saving, restart, between) for factor in np.geomspace(0.3, 3, 61)
    )
    assert scale_paper.lost_share(interval, saving, restart, between) - least < 2e-3


def test_the_lost_share_is_that_of_a_run_that_is_played_through(scale_paper):
    saving, restart, between, interval = 60.0, 300.0, 8_000.0, 900.0
    rng = random.Random(3)
    passed, done, steps = 0.0, 0, 6_000
    until = rng.expovariate(1 / between)
    while done < steps:
        if until > interval + saving:
            until -= interval + saving
            passed += interval + saving
            done += 1
        else:
            passed += until
            until = rng.expovariate(1 / between)
            while until < restart:  # it may fail again while it restarts
                passed += until
                until = rng.expovariate(1 / between)
            until -= restart
            passed += restart
    assert 1 - steps * interval / passed == pytest.approx(
        scale_paper.lost_share(interval, saving, restart, between), rel=0.05
    )


def test_saving_that_takes_longer_than_failures_are_apart(scale_paper):
    assert scale_paper.checkpoint_interval(500.0, 100.0) == 100.0
