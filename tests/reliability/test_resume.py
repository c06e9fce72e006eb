"""A run that was cut and resumed is the run that was not: weights, optimizer, random states and log, bit for bit."""

import json
import random
import shutil

import numpy as np
import pytest
import torch
from command_line import attendo
from cut_runs import finished, lasting, log, traces
from tiny_corpus import SMALL, pairs_file, small_run

from attendo.errors import AttendoError
from attendo.runs import training_run
from attendo.runs.resume import resumed_run, say_other_torch


def cut_at(run, step):
    """Leaves the loop after the checkpoint of a step, as a killed process does."""
    for report in run.reports():
        if report.kind == "checkpoint" and report.progress.step == step:
            return
    raise AssertionError(f"no checkpoint at {step}")


def test_a_cut_run_ends_as_the_unbroken_one(tmp_path, monkeypatch):
    """Also if what is imported first draws random numbers: before the loop, or where the caller has a report."""
    describe = training_run.describe

    def drawing(*arguments):
        random.random(), np.random.rand()
        describe(*arguments)

    file = pairs_file(tmp_path)
    settings = {"checkpoint": {"every_steps": 3}}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with monkeypatch.context() as first:
        first.setattr(training_run, "describe", drawing)
        for _ in small_run(whole, file, **settings).reports():
            random.random(), np.random.rand(), torch.rand(1)
    cut_at(small_run(cut, file, **settings), 3)
    torch.manual_seed(12345)  # whatever the new process starts from
    finished(resumed_run(cut))
    assert traces(cut) == traces(whole) and traces(cut)["progress"]["ended"] == "all 12 steps done"
    assert lasting(log(cut)) == lasting(log(whole))
    assert [line["step"] for line in log(cut) if line["kind"] == "checkpoint"] == [
        line["step"] for line in log(whole) if line["kind"] == "checkpoint"
    ]


def test_a_run_killed_between_its_last_checkpoint_and_its_end_comes_to_it(tmp_path):
    """The last mean, the average of checkpoints and the end are all still to come."""
    file = pairs_file(tmp_path)
    settings = {"training": {"average_last": 3, "steps": 10}, "checkpoint": {"every_steps": 3}}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert finished(small_run(whole, file, **settings)).has_ended
    cut_at(small_run(cut, file, **settings), 10)
    said = []
    run = resumed_run(cut, say=said.append)
    assert run.run.progress.ended and not run.has_ended and not any("has ended" in line for line in said)
    outcome = attendo("resume", cut)
    assert outcome.code == 0 and "done: all 10 steps done" in outcome.err
    assert traces(cut) == traces(whole) and lasting(log(cut)) == lasting(log(whole))
    assert [line["kind"] for line in log(cut)][-2:] == ["step", "end"]
    assert attendo("resume", cut).err.endswith("(all 10 steps done). To train longer, use --more-steps N\n")
    assert lasting(log(cut)) == lasting(log(whole))


def test_what_killed_processes_left_beside_is_cleared_up(tmp_path):
    file, folder = pairs_file(tmp_path), tmp_path / "run"
    cut_at(small_run(folder, file), 5)
    (folder / ".model.safetensors.0123456789ab.tmp").touch()
    (folder / "checkpoints" / ".step-7.0123456789ab.tmp").mkdir()
    resumed_run(folder)
    assert not list(folder.rglob("*.tmp"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    finished(small_run(folder / "run", pairs_file(folder)))
    return folder


@pytest.fixture
def ended(trained, tmp_path):
    """A finished run, and the file it learned from: copies that a test may change."""
    folder, file = shutil.copytree(trained / "run", tmp_path / "run"), tmp_path / "pairs.tsv"
    shutil.copy(trained / file.name, file)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace(str(trained / file.name), str(file)))
    return folder, file


def test_more_steps_go_on_where_the_run_ended(ended):
    folder, _ = ended
    run = finished(resumed_run(folder, {"more_steps": 6}))
    assert run.run.progress.step == 18
    steps = [line["step"] for line in log(folder) if line["kind"] == "evaluation"]
    assert steps == [5, 10, 12, 15, 18, 18]  # the last one on all validation rows
    again = resumed_run(folder)
    assert again.run.progress.ended == "all 18 steps done"


def test_an_end_that_was_edited_is_said(ended):
    folder, _ = ended
    said, config = [], folder / "config.toml"
    config.write_text(config.read_text().replace("steps = 12\n", "steps = 18\n"))
    assert resumed_run(folder, say=said.append).run.progress.ended is None
    assert "the end in config.toml has changed since step-12: steps 18, was steps 12" in said


def test_changed_data_are_refused_with_both_hashes(ended):
    folder, file = ended
    file.write_text(file.read_text(encoding="utf-8") + "one more\tもう一つ\n", encoding="utf-8")
    with pytest.raises(AttendoError, match=r"data has changed.*store [0-9a-f]{12}, was [0-9a-f]{12}"):
        resumed_run(folder)


def test_another_number_of_threads_is_said(ended):
    folder, _ = ended
    said = []
    before = torch.get_num_threads()
    try:
        resumed_run(folder, say=said.append, threads=2)
        assert any("2 threads instead of 1" in line for line in said)
    finally:
        torch.set_num_threads(before)


def test_another_torch_is_said(ended):
    folder, _ = ended
    said = []
    card = json.loads((folder / "card.json").read_text())
    card["versions"]["torch"] = "1.0"
    (folder / "card.json").write_text(json.dumps(card))
    resumed_run(folder, say=said.append)
    assert any(line.startswith(f"note: torch {torch.__version__} instead of 1.0, so") for line in said)
    say_other_torch({"versions": {"torch": str(torch.__version__)}}, pytest.fail)
    say_other_torch({}, pytest.fail)


def test_two_ends_are_refused(ended):
    folder, _ = ended
    with pytest.raises(AttendoError, match="exactly one of"):
        resumed_run(folder, {"steps": 20, "epochs": 3})
    assert SMALL["training"]["steps"] == 12
