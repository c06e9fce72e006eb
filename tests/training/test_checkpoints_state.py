"""Checkpoints: they hold all state, tell damage, and refuse what does not belong."""

import pytest
import torch
from tiny_task import tiny_model, tiny_run

from attendo.errors import AttendoError
from attendo.training.checkpoints import (
    CheckpointConfig,
    Progress,
    average_weights,
    checkpoints,
    load_checkpoint,
    load_weights,
    newest_checkpoint,
    prune_checkpoints,
    snapshot,
    write_checkpoint,
)
from attendo.training.loop import train
from attendo.training.update import update


def saved(folder, run):
    """The folder of a checkpoint of all that the run is now."""
    return write_checkpoint(folder, snapshot(run))


def trained(folder, n=3):
    run = tiny_run(folder)
    for batch in run.task.batches(1, 0, 0)[:n]:
        update(run, [batch])
    return run


def test_a_checkpoint_brings_everything_back(tmp_path):
    run = trained(tmp_path)
    path = saved(tmp_path, run)
    drawn = torch.rand(4)
    other = tiny_run(tmp_path, seed=9)
    assert load_checkpoint(path, other) == "" and other.progress == run.progress
    assert torch.equal(torch.rand(4), drawn)
    for mine, theirs in zip(run.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    left, right = run.optimizer.state_dict()["state"], other.optimizer.state_dict()["state"]
    assert left.keys() == right.keys() and len(left) > 10
    for index, entry in left.items():
        assert all(torch.equal(value, right[index][key]) for key, value in entry.items())
    assert not list(path.glob("*.pt")) and not list(path.glob("*.pkl"))


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"]
)
@pytest.mark.parametrize("damage", ["flip", "cut", "lose"])
def test_a_damaged_checkpoint_is_named_and_passed_over(tmp_path, name, damage):
    run = trained(tmp_path)
    good = saved(tmp_path, run)
    update(run, run.task.batches(1, 0, 3)[:1])
    bad = saved(tmp_path, run)
    file = bad / name
    data = bytearray(file.read_bytes())
    match damage:
        case "flip":
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        case "cut":
            file.write_bytes(data[:-1])
        case "lose":
            file.unlink()
    found, damaged = newest_checkpoint(tmp_path)
    assert found == good
    assert len(damaged) == 1 and "step-4" in damaged[0]


def test_only_the_newest_are_kept(tmp_path):
    run = trained(tmp_path)
    for step in (2, 10, 9):
        run.progress.step = step
        saved(tmp_path, run)
    prune_checkpoints(tmp_path, 2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-9", "step-10"]


def test_the_average_is_the_mean(tmp_path):
    run = tiny_run(tmp_path, steps=8)
    list(train(run))
    mean = average_weights(checkpoints(tmp_path))
    first, second = tiny_run(tmp_path), tiny_run(tmp_path)
    for other, path in zip((first, second), checkpoints(tmp_path), strict=True):
        load_checkpoint(path, other)
    for name, parameter in first.model.named_parameters():
        wanted = (parameter + second.model.get_parameter(name)) / 2
        torch.testing.assert_close(mean[name], wanted.detach())


def test_weights_of_another_model_are_refused():
    model = tiny_model()
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    name = "encoder.blocks.0.feed_forward.in_proj.weight"
    with pytest.raises(AttendoError, match=r"in_proj.weight is on one side only"):
        load_weights(model, {n: t for n, t in tensors.items() if n != name}, "f")
    with pytest.raises(AttendoError, match=r"in_proj.weight is \(3, 16\), the config says \(32, 16\)"):
        load_weights(model, tensors | {name: torch.zeros(3, 16)}, "f")


def test_progress_survives_as_json():
    progress = Progress(step=3, best=1.5, threads=2, ended="why")
    assert Progress.from_json(progress.as_json()) == progress


def test_settings_that_would_lose_work_are_refused():
    with pytest.raises(ValueError, match="keep_last=0"):
        CheckpointConfig(keep_last=0)
    with pytest.raises(ValueError, match="every_steps=-1"):
        CheckpointConfig(every_steps=-1)
