"""A disk that is full at any write: checkpoints stay whole, the error is clear, and the run goes on later."""

import os
import random
import resource
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from command_line import refused
from cut_runs import finished, log, traces
from failing_calls import at_call, refuse
from forked import in_child
from tiny_corpus import pairs_file, small_run

from attendo.errors import AttendoError
from attendo.runs.resume import resumed_run
from attendo.training.checkpoints import newest_checkpoint

SETTINGS = {"training": {"steps": 4, "evaluate_every": 2}, "checkpoint": {"every_steps": 2}}
FAILED = 7


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return pairs_file(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, file):
    """The traces of the unbroken run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finished(small_run(folder, file, **SETTINGS))
    return traces(folder), log(folder)


def new(folder, file, background=True):
    settings = SETTINGS | {"checkpoint": SETTINGS["checkpoint"] | {"background": background}}
    return small_run(folder, file, **settings)


def goes_on(folder, file, whole):
    """Whatever was left: whole checkpoints only, from which the run ends as the unbroken one."""
    found, damaged = newest_checkpoint(folder / "checkpoints")
    assert damaged == []
    if found is None:
        shutil.rmtree(folder)
    finished(new(folder, file) if found is None else resumed_run(folder))
    assert (traces(folder), log(folder)) == whole
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"]


def remedy(folder, first="fix this"):
    found, _ = newest_checkpoint(folder / "checkpoints")
    if found is None:
        return f"No checkpoint was saved: {first}, remove {folder}, and train again"
    return f"{found.name} is intact: {first}, then run `attendo resume {folder}`"


def fails_at(call, lasting, folder, run, message):
    """The run in a fork whose disk is full at its n-th call, or from then on; the error goes to the file."""

    def action():
        calls = []
        text = message.open("w")
        at_call(call, 10**9 if lasting else call, refuse, folder, calls.append)
        try:
            finished(run)
        except AttendoError as error:
            text.write(str(error))
            text.close()
            return FAILED
        text.write(str(len(calls)))
        text.close()
        return 0

    return os.waitstatus_to_exitcode(in_child(action)) == FAILED


def check(call, lasting, folder, file, whole, background=True):
    """One run with a full disk; whether it met it."""
    message = folder.with_suffix(".txt")
    failed = fails_at(call, lasting, folder, new(folder, file, background), message)
    if failed:
        said = message.read_text()
        assert said.startswith(f"the disk is full: {folder}") and " could not be written. " in said
        assert "Errno" not in said and "rank" not in said
        assert said.endswith(f". {remedy(folder, 'make room')}")
    goes_on(folder, file, whole)
    shutil.rmtree(folder)
    return failed


def n_calls(folder, file):
    assert not fails_at(0, False, folder, new(folder, file), folder.with_suffix(".txt"))
    shutil.rmtree(folder)
    return int(folder.with_suffix(".txt").read_text())


def test_a_full_disk_at_some_calls(tmp_path, file, whole):
    n = n_calls(tmp_path / "run", file)
    assert n > 50
    calls = random.Random(2).sample(range(1, n), 2)
    met = [check(call, call % 2 == 0, tmp_path / "run", file, whole) for call in calls]
    assert any(met)


@pytest.mark.full
@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("lasting", [True, False])
def test_a_full_disk_at_every_call(tmp_path, file, whole, background, lasting):
    n = n_calls(tmp_path / "run", file)
    failed = [check(call, lasting, tmp_path / "run", file, whole, background) for call in range(1, n + 1)]
    assert sum(failed) > n / 2  # the others were removals


@contextmanager
def no_file_above(size):
    """Within it the system refuses to write a file beyond this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("size", "background"),
    [
        *[(0, True), (200, True), (5_000, True), (66_000, True), (100_000, True), (67_000, False)],
        *[pytest.param(size, False, marks=pytest.mark.full) for size in (0, 200, 700, 5_000, 66_000, 100_000)],
    ],
)
def test_a_limit_of_the_system_at_each_size_of_file(tmp_path, file, whole, size, background):
    folder = tmp_path / "run"
    run = new(folder, file, background)
    with pytest.raises(AttendoError, match="File too large") as caught, no_file_above(size):
        finished(run)
    assert str(caught.value).endswith(f". {remedy(folder)}")
    goes_on(folder, file, whole)


def test_what_was_there_before_is_untouched_and_the_command_says_so_in_one_line(tmp_path, file):
    folder = tmp_path / "run"
    finished(new(folder, file))
    checkpoint, _ = newest_checkpoint(folder / "checkpoints")
    files = [*checkpoint.iterdir(), folder / "model.safetensors", folder / "card.json"]
    before = {path: path.read_bytes() for path in files}
    with no_file_above(66_000):
        said = refused("resume", folder, "--more-steps", "4", code=1)
    assert "File too large" in said
    assert said.endswith(f"step-4 is intact: fix this, then run `attendo resume {folder}`")
    assert {path: path.read_bytes() for path in files} == before


def mounted(folder, *options):
    return subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", folder], check=False).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting is for root")
def test_a_file_system_that_fills_up(tmp_path, file):
    settings = {
        "training": {"steps": 9, "evaluate_every": 9},
        "checkpoint": {"every_steps": 1, "keep_last": 9},
    }
    finished(small_run(tmp_path / "whole", file, **settings))
    disk = tmp_path / "disk"
    disk.mkdir()
    if not mounted(disk, "-o", "size=1m"):
        pytest.skip("this place allows no mounts")
    try:
        with pytest.raises(AttendoError, match=r"disk is full: .*/step-\d .*\. step-\d is intact"):
            finished(small_run(disk / "run", file, **settings))
        assert mounted(disk, "-o", "remount,size=9m")
        run = resumed_run(disk / "run")
        assert run.run.progress.step >= 2
        finished(run)
        assert traces(disk / "run") == traces(tmp_path / "whole") and log(disk / "run") == log(tmp_path / "whole")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
