"""Checkpoints with a byte changed, cut short or lost: each is noticed before the first step, and named."""

import random
import shutil

import pytest
from cut_runs import finished, lasting, log, traces
from tiny_corpus import pairs_file, small_run
from tiny_task import tiny_run

from attendo.errors import AttendoError
from attendo.runs.resume import resumed_run
from attendo.training.checkpoints import checkpoints, newest_checkpoint
from attendo.training.loop import train

FILES = {"manifest.json", "clock.json", "progress.json"} | {
    f"{stem}.safetensors" for stem in ("model", "optimizer", "random")
}


def damage(file, rng):
    """Flips bits of one byte, or cuts the file short; gives what it was."""
    whole = file.read_bytes()
    place = rng.randrange(len(whole))
    if rng.random() < 0.5:
        changed = bytearray(whole)
        changed[place] ^= rng.randint(1, 255)
    else:
        changed = whole[:place]
    file.write_bytes(changed)
    return whole


@pytest.mark.parametrize("n", [64, pytest.param(10_000, marks=pytest.mark.full)])
def test_every_flip_and_every_cut_is_noticed(tmp_path, n):
    list(train(tiny_run(tmp_path, steps=8)))
    older, newest = checkpoints(tmp_path)
    files = sorted(newest.iterdir())
    assert {file.name for file in files} == FILES
    rng, noticed = random.Random(n), 0
    for _ in range(n):
        file = rng.choice(files)
        whole = damage(file, rng)
        found, damaged = newest_checkpoint(tmp_path)
        noticed += found == older
        assert (
            len(damaged) == 1
            and damaged[0].startswith("skipped damaged checkpoint step-8: ")
            and file.name in damaged[0]
        )
        file.write_bytes(whole)
    assert noticed == n
    assert newest_checkpoint(tmp_path) == (newest, [])


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("damage")
    settings = {"training": {"steps": 6, "evaluate_every": 3}, "checkpoint": {"every_steps": 2}}
    finished(small_run(folder / "run", pairs_file(folder), **settings))
    steps = [path.name for path in checkpoints(folder / "run" / "checkpoints")]
    assert steps == ["step-2", "step-3", "step-4", "step-6"]
    return folder / "run"


@pytest.mark.some(2)
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_run_goes_on_from_the_checkpoint_before_and_ends_the_same(ended, tmp_path, name):
    folder = tmp_path / "run"
    shutil.copytree(ended, folder)
    damage(folder / "checkpoints" / "step-6" / name, random.Random(name))
    (folder / "checkpoints" / "step-4" / name).unlink()
    said = []
    run = resumed_run(folder, say=said.append)
    assert run.run.progress.step == 3
    assert [line.split(":")[0] for line in said if "skipped damaged" in line] == [
        "skipped damaged checkpoint step-6",
        "skipped damaged checkpoint step-4",
    ]
    finished(run)
    assert traces(folder) == traces(ended) and lasting(log(folder)) == lasting(log(ended))
    assert newest_checkpoint(folder / "checkpoints")[1] == []


def test_where_none_is_whole_the_run_is_refused_and_each_is_named(ended, tmp_path):
    folder, rng = tmp_path / "run", random.Random(3)
    shutil.copytree(ended, folder)
    for path in checkpoints(folder / "checkpoints"):
        damage(path / rng.choice(sorted(FILES)), rng)
    said = []
    with pytest.raises(AttendoError, match=r"run has no valid checkpoint to resume from. Train again in"):
        resumed_run(folder, say=said.append)
    assert [line.split(":")[0].split()[-1] for line in said] == ["step-6", "step-4", "step-3", "step-2"]


def test_files_that_do_not_belong_there_change_nothing(ended, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(ended, folder)
    (folder / "checkpoints" / "step-six").mkdir()
    (folder / "checkpoints" / "step-7").write_text("no folder")
    (folder / "checkpoints" / "step-6" / "notes.txt").write_text("mine")
    said = []
    assert resumed_run(folder, say=said.append).run.progress.step == 6
    assert len([line for line in said if line.startswith("skipped damaged checkpoint step-7")]) == 1
