"""Runs of several ranks: the curve of one process, resumed at any number, and whole after one is lost or hangs."""

import os
import random
import signal
import time
from functools import cache

import numpy as np
import pytest
import torch
from cut_runs import state
from ranks import RanksFailed, in_ranks
from tiny_task import TinyTask, tiny_model

from attendo.training.checkpoints import CheckpointConfig, load_checkpoint, newest_checkpoint, seed_all
from attendo.training.distributed import ALONE
from attendo.training.loop import train
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import Run

full = pytest.mark.full


def a_run(ranks, folder=None, dropout=0.0, dtype=torch.float64, **settings):
    """The tiny model on 50 rows, 7 and at last 1 at a time, so that 4 ranks never have equally many tokens."""
    config = TrainingConfig(**{"steps": 12, "evaluate_every": 100, "warmup_steps": 2, **settings})
    seed_all(config.seed + ranks.rank)
    task, checkpoint = TinyTask(n_rows=50, rows_per_batch=7), CheckpointConfig(every_steps=3)
    return Run(tiny_model(dropout).to(dtype), task, config, checkpoint, folder, ranks=ranks)


def curve(run):
    """Loss and gradient norm of each step, the order of the rows, and how many tokens."""
    steps = [report for report in train(run) if report.kind == "step"]
    return [
        [(report.loss, report.gradient_norm) for report in steps],
        run.progress.order,
        run.progress.tokens,
    ]


@cache
def of_one_process(steps):
    return curve(a_run(ALONE, steps=steps, accumulation=2))


def same_curve(found, wanted):
    np.testing.assert_allclose(found[0], wanted[0], rtol=0, atol=1e-6)
    assert found[1:] == wanted[1:]


@pytest.mark.parametrize(
    ("parallel", "world", "steps"),
    [
        ("fsdp", 2, 4),
        pytest.param("ddp", 4, 12, marks=full),  # test_distributed.py of the training has its gradients
        *(pytest.param(p, w, 200, marks=full) for p in ("ddp", "fsdp") for w in (1, 2, 4)),
    ],
)
def test_the_curve_is_that_of_one_process(parallel, world, steps):
    settings = {"parallel": parallel, "steps": steps, "accumulation": 2}
    wanted = of_one_process(steps)
    assert len(wanted[0]) == steps
    for found in in_ranks(world, lambda ranks: curve(a_run(ranks, **settings))):
        same_curve(found, wanted)


@pytest.mark.full
@pytest.mark.parametrize(
    ("parallel", "before", "after"),
    [
        ("fsdp", 3, 1),
        pytest.param("fsdp", 1, 2, marks=full),
        pytest.param("fsdp", 2, 4, marks=full),
        pytest.param("ddp", 4, 2, marks=full),
    ],
)
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path, parallel, before, after):
    def begin(ranks):
        for report in train(a_run(ranks, tmp_path, parallel=parallel)):
            if report.kind == "checkpoint" and report.progress.step == 6:
                return

    def go_on(ranks):
        run = a_run(ranks, tmp_path, parallel=parallel)
        word = load_checkpoint(newest(tmp_path), run)
        return [word, curve(run)]

    wanted = curve(a_run(ALONE))
    in_ranks(before, begin)
    for word, found in in_ranks(after, go_on):
        assert f"{after} process" in word and f"instead of {before}" in word
        same_curve(found, [wanted[0][6:], *wanted[1:]])


def shown(run):
    """The curve of a run, and the weights that would be kept at its end."""
    losses, *rest = curve(run)
    with run.evaluation_weights():
        return [losses, [p.detach().sum().item() for p in run.model.parameters()], *rest]


@full
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({"ema_decay": 0.9}, 1e-8),
        ({"average_last": 2, "evaluate_every": 3}, 1e-8),
        ({"activation_checkpointing": True}, 1e-8),
        ({"prefetch": 2, "clip_norm": 0.0}, 1e-8),
        ({"optimizer": "muon"}, 1e-3),  # its products are cut otherwise
        ({"precision": "bfloat16"}, 1e-2),
    ],
)
def test_other_settings_are_the_same_for_many(tmp_path, parallel, settings, tolerance):
    losses, weights, *wanted = shown(a_run(ALONE, tmp_path / "alone", **settings))
    for found in in_ranks(2, lambda r: shown(a_run(r, tmp_path / "two", parallel=parallel, **settings))):
        np.testing.assert_allclose(found[0], losses, rtol=0, atol=tolerance)
        np.testing.assert_allclose(found[1], weights, rtol=0, atol=tolerance)
        assert found[2:] == wanted


class Killer:
    """Kills one rank, chosen at random, `times` times, each a random number of reports after a start."""

    def __init__(self, seed, times, pulse):
        self.random, self.times, self.pulse = random.Random(seed), times, pulse
        self.killed, self.due = 0, 0

    def __call__(self, pids, restart):
        reports = self.pulse.stat().st_size if self.pulse.exists() else 0
        if self.killed < self.times and self.killed == restart and reports >= self.due:
            time.sleep(self.random.uniform(0.0, 0.3 if self.due == reports == 0 else 0.02))
            os.kill(self.random.choice(pids), signal.SIGKILL)
            self.killed += 1
            self.due = reports + self.random.randint(1, 8)


@pytest.mark.parametrize(
    ("parallel", "world", "times"),
    [("ddp", 2, 1), pytest.param("ddp", 4, 20, marks=full), pytest.param("fsdp", 3, 20, marks=full)],
)
def test_a_lost_rank_leaves_no_trace(tmp_path, parallel, world, times):
    """In float32 with dropout, to the bit; all ranks start anew, as under torchrun."""
    pulse, starts = tmp_path / "pulse", tmp_path / "starts"

    def to_the_end(ranks, folder):
        run = a_run(ranks, folder, 0.1, torch.float32, parallel=parallel, steps=8 * (times + 1))
        path, damaged = newest_checkpoint(folder)
        if path is not None:
            load_checkpoint(path, run)
        note(ranks, starts, f"{run.progress.step}\n")
        for _ in train(run):
            note(ranks, pulse, ".")
        return damaged

    in_ranks(world, lambda ranks: to_the_end(ranks, tmp_path / "whole"))
    for path in (pulse, starts):
        path.unlink()
    killer = Killer(times, times, pulse)
    found = in_ranks(world, lambda ranks: to_the_end(ranks, tmp_path / "broken"), max_restarts=times, watch=killer)
    assert killer.killed == times and found == [[]] * world
    assert len(set(starts.read_text().split())) > times // 4  # it was cut at many places
    broken, whole = newest(tmp_path / "broken"), newest(tmp_path / "whole")
    assert broken.name == whole.name and state(broken) == state(whole)


def newest(folder):
    path, _ = newest_checkpoint(folder)
    assert path is not None
    return path


def note(ranks, path, text):
    """The first rank appends to a file."""
    if ranks.is_first:
        with path.open("a") as file:
            file.write(text)


@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=full)])
def test_a_hung_rank_ends_the_job(parallel):
    def hang(ranks):
        for report in train(a_run(ranks, parallel=parallel)):
            if ranks.rank == 1 and report.progress.step == 3:
                time.sleep(1000)

    with pytest.raises(RanksFailed, match="another rank was lost or did not answer within 2 s"):
        in_ranks(2, hang, timeout=2.0)
