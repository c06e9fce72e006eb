"""verify-resume: a sound run is proven, and whatever differs is told apart."""

import json
import shutil

import pytest
import torch
from command_line import attendo, refused
from cut_runs import finished, stopped_at
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_corpus import pairs_file, small_run

from attendo.errors import AttendoError
from attendo.files import write_manifest
from attendo.runs.resume import resumed_run, verify_resume
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import new_run
from attendo.training.checkpoints import checkpoints

SETTINGS = {
    "training": {"steps": 9, "evaluate_every": 4, "accumulation": 2},
    "checkpoint": {"every_steps": 3, "keep_last": 9},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return pairs_file(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory, file):
    """A run with checkpoints at steps 3, 4, 6 and 9."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    finished(small_run(folder, file, **SETTINGS))
    names = [path.name for path in checkpoints(folder / "checkpoints")]
    assert names == ["step-3", "step-4", "step-6", "step-9"]
    return folder


@pytest.fixture
def run(tmp_path, ended):
    return shutil.copytree(ended, tmp_path / "run")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def keep(folder, *steps):
    """Only these checkpoints are left."""
    for path in checkpoints(folder / "checkpoints"):
        if path.name not in {f"step-{step}" for step in steps}:
            shutil.rmtree(path)


def rewrite_log(folder, change):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(change(line)) + "\n" for line in lines))


def test_a_sound_run_is_proven_and_nothing_in_it_changes(run):
    keep(run, 3, 9)
    before = contents(run)
    found = verify_resume(run)
    assert (found.start, found.end, found.threads, found.whole, found.differing) == (3, 9, 1, True, "")
    assert found.chains == 3  # those that were logged at steps 4, 6 and 9
    assert contents(run) == before


def test_some_steps_are_compared_where_the_log_has_their_chain(run):
    keep(run, 3, 9)
    found = verify_resume(run, 4)
    assert (found.start, found.end, found.chains, found.whole, found.differing) == (3, 7, 2, False, "")
    said = []
    assert verify_resume(run, 100, said.append).whole
    assert said[-1] == "only the steps up to the newest checkpoint can be replayed: 6 steps instead of 100"
    keep(run, 9)
    found = verify_resume(run, 2, said.append)
    assert (found.end, found.chains, found.differing) == (3, 1, "")
    assert said[-1].endswith("only at logged checkpoints: replaying 3 steps, to step 3, instead of 2")


def test_a_run_with_one_checkpoint_is_made_again_from_its_beginning(run):
    keep(run, 4)
    found = verify_resume(run)
    assert (found.start, found.end, found.chains, found.whole, found.differing) == (0, 4, 2, True, "")


def test_a_run_that_was_stopped_and_resumed_is_proven_across_the_cut(tmp_path, file):
    run = small_run(tmp_path / "run", file, **SETTINGS)
    assert stopped_at(run, 4 + 2 * 4)  # four batches are tried first at most; the fifth update
    finished(resumed_run(tmp_path / "run"))
    keep(tmp_path / "run", 3, 9)
    assert verify_resume(tmp_path / "run").differing == ""


def test_a_run_that_started_from_another_needs_two_checkpoints(tmp_path, file, ended):
    tables = {"data": {"train": [str(file)]}} | {"training": {"steps": 4, "batch_tokens": 512, "evaluate_every": 9}}
    tables["checkpoint"] = {"every_steps": 2}
    folder = tmp_path / "second"
    said = []
    finished(new_run(family_of("translation"), tables, folder, said.append, init_from=ended))
    assert "rows read" in said[0]  # and accounted for, as in any run
    assert verify_resume(folder).differing == ""
    keep(folder, 4)
    with pytest.raises(AttendoError, match=r"has a single checkpoint and started from .*\. Train until"):
        verify_resume(folder)


def flip(path, name, bit=0):
    """Changes one bit of one weight, or what the optimizer keeps of it, and makes the manifest vouch for it."""
    tensors = load_file(path / name)
    key = next(key for key in tensors if key.startswith("encoder.blocks.0.feed_forward.in_proj.weight"))
    tensors[key].view(torch.int32)[3, 3] ^= 1 << bit
    with safe_open(path / name, "pt") as file:
        header = file.metadata()
    save_file(tensors, path / name, header)
    write_manifest(path, json.loads((path / "manifest.json").read_text())["extra"])


@pytest.mark.parametrize(("name", "said"), [("model", "weights"), ("optimizer", "state of the optimizer")])
def test_one_bit_of_the_state_is_told(run, name, said):
    flip(run / "checkpoints" / "step-9", f"{name}.safetensors")
    found = verify_resume(run)
    assert found.whole and found.differing == said


def test_one_bit_of_the_weights_before_changes_all_that_follows(run):
    flip(run / "checkpoints" / "step-6", "model.safetensors", 22)
    found = verify_resume(run)
    assert found.differing == "losses, gradient norms or rows, between step 6 and step 9"


def test_a_chain_that_was_logged_otherwise_is_told_with_its_steps(run):
    keep(run, 3, 9)
    rewrite_log(run, lambda line: line | {"chain": "0" * 64} if line["step"] == 6 and "chain" in line else line)
    found = verify_resume(run)
    assert (found.chains, found.differing) == (2, "losses, gradient norms or rows, between step 4 and step 6")


def test_other_rows_are_told(run, monkeypatch):
    """The same numbers of rows in another order."""
    from attendo.runs.tasks import TranslationTask

    batches = TranslationTask.batches
    monkeypatch.setattr(
        TranslationTask, "batches", lambda self, seed, epoch, start: batches(self, seed + 1, epoch, start)
    )
    assert "rows" in verify_resume(run).differing


def test_another_number_of_threads_is_said(run, monkeypatch):
    said, numbers = [], []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    verify_resume(run, say=said.append, threads=2)
    assert numbers == [2]
    assert any(line.startswith("note: 2 threads instead of 1, so") for line in said)


def test_damaged_checkpoints_are_passed_over_by_name(run):
    (run / "checkpoints" / "step-9" / "model.safetensors").write_bytes(b"")
    said = []
    found = verify_resume(run, say=said.append)
    assert (found.start, found.end, found.differing) == (4, 6, "")
    assert any(line.startswith("skipped damaged checkpoint step-9: ") for line in said)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(AttendoError, match=r"has no valid checkpoint\. Train until the first"):
        verify_resume(run)


def test_the_command_says_what_was_the_same(run):
    outcome = attendo("verify-resume", run)
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "replayed: step 6 to step 9, 1 thread",
        "bit-identical: losses, gradient norms, rows",
        "bit-identical: weights, optimizer, random states",
    ]
    keep(run, 3, 9)
    some = attendo("verify-resume", run, "--steps", "4")
    assert some.code == 0
    assert some.out.splitlines() == [
        "replayed: step 3 to step 7, 1 thread",
        "bit-identical: losses, gradient norms, rows",
    ]


def test_the_command_ends_with_1_where_something_differs(run):
    flip(run / "checkpoints" / "step-9", "model.safetensors")
    outcome = attendo("verify-resume", run)
    assert outcome.code == 1
    assert "NOT identical: weights" in outcome.out.splitlines()


def test_the_command_ends_with_2_where_there_is_nothing_to_prove(run, tmp_path):
    shutil.rmtree(run / "checkpoints")
    assert "has no valid checkpoint" in refused("verify-resume", run)
    assert "no such run folder" in refused("verify-resume", tmp_path / "nothing")
    assert "'--steps'" in refused("verify-resume", run, "--steps", "0")
