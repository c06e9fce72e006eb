"""Checkpoints on their way to the disk: in the background, in the place of others, and which of them are kept."""

import threading
import time

import pytest
import torch
from cut_runs import state
from tiny_task import TinyTask, tiny_model, tiny_run

from attendo.errors import AttendoError
from attendo.files import manifest_files
from attendo.training import checkpoints as module
from attendo.training.checkpoints import write_checkpoint
from attendo.training.loop import train, update


def saved(folder, run):
    """The folder of a checkpoint of all that the run is now."""
    return write_checkpoint(folder, module.snapshot(run))


def trained(folder, n=1, background=True):
    run = tiny_run(folder)
    run.checkpoint = module.CheckpointConfig(background=background, keep_last=2, every_steps=1)
    for batch in run.task.batches(1, 0, 0)[:n]:
        update(run, [batch])
    return run


def test_a_snapshot_is_a_copy_that_further_steps_do_not_touch(tmp_path):
    run = trained(tmp_path)
    taken = module.snapshot(run)
    first = write_checkpoint(tmp_path / "a", taken)
    update(run, run.task.batches(1, 0, 1)[:1])
    again = write_checkpoint(tmp_path / "b", taken)
    assert state(first) == state(again) and taken.step == 1
    assert state(saved(tmp_path / "c", run)) != state(first)


def test_the_state_does_not_depend_on_the_clock_but_on_all_else(tmp_path):
    run = trained(tmp_path)
    first = saved(tmp_path / "a", run)
    run.progress.cpu_seconds += 7.0
    run.progress.wall_seconds += 9.0
    second = saved(tmp_path / "b", run)
    assert state(first) == state(second)
    assert manifest_files(first)["clock.json"] != manifest_files(second)["clock.json"]
    assert module.read_progress(second).cpu_seconds == module.read_progress(first).cpu_seconds + 7.0
    changes = {
        "batch": lambda: setattr(run.progress, "batch", 99),
        "random": lambda: torch.rand(1),
        "weight": lambda: next(run.model.parameters()).data.view(-1)[:1].add_(1e-3),
        "moment": lambda: next(iter(run.optimizer.state.values()))["exp_avg"].view(-1)[:1].add_(1e-3),
    }
    states = [state(first)]
    for name, change in changes.items():
        change()
        states.append(state(write_checkpoint(tmp_path / name, module.snapshot(run))))
        assert states[-1] not in states[:-1]


def test_a_step_that_is_saved_once_more_replaces_what_was_there(tmp_path):
    run = trained(tmp_path)
    saved(tmp_path, run)
    run.progress.ended = "all done"
    path = saved(tmp_path, run)
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"] and module.read_progress(path).ended == "all done"


def test_the_best_is_kept_with_the_newest(tmp_path):
    run = trained(tmp_path)
    for step in (2, 4, 6, 8, 10):
        run.progress.step = step
        saved(tmp_path, run)
    module.prune_checkpoints(tmp_path, 2, best_step=4)
    assert [path.name for path in module.checkpoints(tmp_path)] == ["step-4", "step-8", "step-10"]
    module.prune_checkpoints(tmp_path, 2, best_step=10)
    assert [path.name for path in module.checkpoints(tmp_path)] == ["step-8", "step-10"]


def test_those_of_a_stop_make_room_for_no_others(tmp_path):
    run, left = trained(tmp_path), []
    for step in (3, 4, 6, 9, 10, 12, 14):
        run.progress.step = step
        saved(tmp_path, run)
        module.prune_checkpoints(tmp_path, 3, best_step=4, every=3)
        left.append([int(path.name.removeprefix("step-")) for path in module.checkpoints(tmp_path)])
    assert left == [[3], [3, 4], [3, 4, 6], [3, 4, 6, 9], [4, 6, 9, 10], [4, 6, 9, 12], [4, 9, 12, 14]]
    assert [p.name for p in module.regular_checkpoints(tmp_path, 3)] == ["step-9", "step-12", "step-14"]
    module.prune_checkpoints(tmp_path, 2, best_step=4, every=13)  # none is due: then the newest
    assert [path.name for path in module.checkpoints(tmp_path)] == ["step-4", "step-12", "step-14"]
    module.prune_checkpoints(tmp_path, 1, best_step=12, every=3)
    assert [path.name for path in module.checkpoints(tmp_path)] == ["step-12", "step-14"]


def test_a_run_keeps_its_best_and_its_newest(tmp_path):
    run = tiny_run(tmp_path, TinyTask(values=[1.0, 3.0, 2.0]), steps=20, keep_last=2)
    list(train(run))
    assert [path.name for path in module.checkpoints(tmp_path)] == ["step-8", "step-16", "step-20"]
    assert run.progress.best_step == 8


def test_what_the_system_cannot_read_is_passed_over(tmp_path, monkeypatch):
    run = trained(tmp_path)
    older = saved(tmp_path, run)
    run.progress.step = 2
    newest = saved(tmp_path, run)
    verify = module.verify_manifest

    def unreadable(path):
        if path == newest:
            raise OSError(5, "Input/output error", str(path / "model.safetensors"))
        return verify(path)

    monkeypatch.setattr(module, "verify_manifest", unreadable)
    found, said = module.newest_checkpoint(tmp_path)
    assert found == older and len(said) == 1
    assert said[0].startswith("skipped damaged checkpoint step-2: ") and "Input/output error" in said[0]


class Gate:
    """Stands in for the disk: writing waits until it is opened, or fails."""

    def __init__(self, monkeypatch):
        self.open, self.error, self.written = threading.Event(), None, []
        monkeypatch.setattr(module, "write_checkpoint", self.write)

    def write(self, folder, taken, ranks):
        assert self.open.wait(60)
        if self.error is not None:
            raise self.error
        self.written.append(taken.step)
        return write_checkpoint(folder, taken, ranks)


def test_saving_in_the_background_stops_only_the_next_save_and_those_who_wait(tmp_path, monkeypatch):
    gate, run = Gate(monkeypatch), trained(tmp_path)
    saver = module.Saver(run)
    assert not saver.is_saved(run.progress) and saver.save(run) and saver.is_saved(run.progress)
    update(run, run.task.batches(1, 0, 1)[:1])  # goes on while nothing is on the disk yet
    assert gate.written == [] and not module.checkpoints(tmp_path) and not saver.is_saved(run.progress)
    gate.open.set()
    saver.save(run)
    assert gate.written[:1] == [1]
    saver.wait()
    assert gate.written == [1, 2] and [p.name for p in module.checkpoints(tmp_path)] == ["step-1", "step-2"]
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpoint"]


@pytest.mark.parametrize("how", ["save", "wait"])
def test_an_error_in_the_background_is_raised_once_by_the_next_call(tmp_path, monkeypatch, how):
    gate, run = Gate(monkeypatch), trained(tmp_path)
    gate.error = OSError(28, "No space left on device")
    gate.open.set()
    saver = module.Saver(run)
    saver.save(run)
    with pytest.raises(OSError, match="No space left"):
        getattr(saver, how)(*([run] if how == "save" else []))
    saver.wait()
    assert not module.checkpoints(tmp_path)


def test_an_error_in_the_background_ends_the_training(tmp_path, monkeypatch):
    gate, run = Gate(monkeypatch), tiny_run(tmp_path, checkpoint_every=2)
    gate.error = OSError(28, "No space left on device")
    gate.open.set()
    with pytest.raises(OSError, match="No space left"):
        list(train(run))
    assert run.progress.step == 3  # the next step, and no more


def test_never_is_more_than_one_interval_only_in_memory(tmp_path, monkeypatch):
    """However slowly the disk writes."""

    def slowly(*arguments):
        time.sleep(0.1)
        return write_checkpoint(*arguments)

    monkeypatch.setattr(module, "write_checkpoint", slowly)
    lost = []
    for report in train(tiny_run(tmp_path, checkpoint_every=2)):
        newest = max((int(path.name.removeprefix("step-")) for path in module.checkpoints(tmp_path)), default=0)
        lost.append(report.progress.step - newest)
    assert max(lost) == 2


def test_without_a_background_it_is_there_at_once(tmp_path):
    run = trained(tmp_path, background=False)
    module.Saver(run).save(run)
    assert [path.name for path in module.checkpoints(tmp_path)] == ["step-1"]


def test_another_models_optimizer_is_refused(tmp_path):
    path = write_checkpoint(tmp_path, module.snapshot(trained(tmp_path)))
    other = tiny_run(tmp_path)
    other.optimizer = torch.optim.AdamW([other.model.output_proj.weight])
    module.load_checkpoint(path, other)  # it has what that one needs
    run = trained(tmp_path)
    del run.optimizer.state[next(iter(run.optimizer.state))]
    run.progress.step = 5
    path = saved(tmp_path, run)
    with pytest.raises(AttendoError, match=r"step-5 has the optimizer of another model\. Resume with"):
        module.load_checkpoint(path, tiny_run(tmp_path))


def test_a_checkpoint_brings_everything_back(tmp_path):
    run = trained(tmp_path, 3)
    path = saved(tmp_path, run)
    drawn = torch.rand(4)
    other = tiny_run(tmp_path, seed=9)
    assert module.load_checkpoint(path, other) == "" and other.progress == run.progress
    assert torch.equal(torch.rand(4), drawn)
    for mine, theirs in zip(run.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    left, right = run.optimizer.state_dict()["state"], other.optimizer.state_dict()["state"]
    assert left.keys() == right.keys() and len(left) > 10
    for index, entry in left.items():
        assert all(torch.equal(value, right[index][key]) for key, value in entry.items())
    assert not list(path.glob("*.pt")) and not list(path.glob("*.pkl"))


def test_the_average_is_the_mean(tmp_path):
    run = tiny_run(tmp_path, steps=8)
    list(train(run))
    mean = module.average_weights(module.checkpoints(tmp_path))
    first, second = tiny_run(tmp_path), tiny_run(tmp_path)
    for other, path in zip((first, second), module.checkpoints(tmp_path), strict=True):
        module.load_checkpoint(path, other)
    for name, parameter in first.model.named_parameters():
        wanted = (parameter + second.model.get_parameter(name)) / 2
        torch.testing.assert_close(mean[name], wanted.detach())


def test_weights_of_another_model_are_refused():
    model = tiny_model()
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    name = "encoder.blocks.0.feed_forward.in_proj.weight"
    with pytest.raises(AttendoError, match=r"in_proj.weight is only in one of file and model"):
        module.load_weights(model, {n: t for n, t in tensors.items() if n != name}, "f")
    with pytest.raises(AttendoError, match=r"in_proj.weight has shape \(3, 16\), but config.toml defines \(32, 16\)"):
        module.load_weights(model, tensors | {name: torch.zeros(3, 16)}, "f")


def test_progress_survives_as_json():
    progress = module.Progress(step=3, best=1.5, threads=2, ended="why")
    assert module.Progress.from_json(progress.as_json()) == progress


def test_settings_that_would_lose_work_are_refused():
    with pytest.raises(ValueError, match="keep_last=0"):
        module.CheckpointConfig(keep_last=0)
    with pytest.raises(ValueError, match="every_steps=-1"):
        module.CheckpointConfig(every_steps=-1)
