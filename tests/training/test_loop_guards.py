"""What keeps a run alive and its weights sound: numbers that are none, too little memory, a stop at any time."""

import math

import numpy as np
import pytest
import torch
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_task import EOS, TinyTask, collated, tiny_run

from attendo.data.batches import EpochBatches
from attendo.errors import AttendoError
from attendo.training.checkpoints import (
    checkpoints,
    load_checkpoint,
    require_finite,
    snapshot,
    torch_states,
    write_checkpoint,
)
from attendo.training.distributed import ALONE
from attendo.training.loop import (
    parts_that_fit,
    positions,
    summed_gradients,
    train,
    try_largest_batches,
    update,
)
from attendo.training.run import Interrupted


def weights(run):
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def spoiled(run, path, number=math.nan):
    """From now on the module at `path` gives such numbers."""
    return run.model.get_submodule(path).register_forward_hook(lambda m, i, out: out * number)


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("path", ["encoder.blocks.0.feed_forward", "decoder.blocks.0.cross_attention.out_proj"])
def test_an_update_that_is_not_finite_is_left_out_and_its_module_named(tmp_path, path, number):
    run = tiny_run(tmp_path)
    update(run, run.task.batches(1, 0, 0)[:1])
    kept, state = weights(run), {k: v.clone() for k, v in run.optimizer.state_dict()["state"][0].items()}
    handle = spoiled(run, path, number)
    report = update(run, run.task.batches(1, 0, 1)[:1])
    handle.remove()
    assert report.kind == "skipped" and report.note.startswith(f"{path} is non-finite at step 2")
    assert same(kept, weights(run)) and run.progress.step == 1 and run.progress.batch == 2
    after = run.optimizer.state_dict()["state"][0]
    assert all(torch.equal(state[key], after[key]) for key in state)
    assert all(p.grad is None for p in run.model.parameters())
    assert update(run, run.task.batches(1, 0, 2)[:1]).kind == "step" and run.progress.skipped_in_a_row == 0


def test_a_gradient_that_is_not_finite_names_its_parameter(tmp_path):
    run = tiny_run(tmp_path, dropout=0.0)
    name = "decoder.blocks.0.feed_forward.out_proj.weight"
    run.model.get_parameter(name).register_hook(lambda grad: grad * math.inf)
    report = update(run, run.task.batches(1, 0, 0)[:1])
    assert report.note.startswith(f"the gradient of {name} is non-finite") and math.isfinite(report.loss)


def test_three_in_a_row_end_the_run_and_nothing_that_is_not_finite_is_saved(tmp_path):
    run = tiny_run(tmp_path / "c", checkpoint_every=1)
    reports = []
    with pytest.raises(AttendoError, match=r"3 updates in a row.*Lower training.learning_rate"):
        for report in train(run):
            reports.append(report)
            if report.progress.step == 2 and report.kind == "checkpoint":
                spoiled(run, "encoder.blocks.0.feed_forward")
    assert [r.kind for r in reports[-2:]] == ["skipped", "skipped"] and run.progress.skipped == 3
    for path in checkpoints(tmp_path / "c"):
        fresh = tiny_run(tmp_path)
        load_checkpoint(path, fresh)
        require_finite(fresh.model, 0)


def test_weights_that_are_not_finite_reach_no_checkpoint_and_no_evaluation(tmp_path):
    run = tiny_run(tmp_path)
    with torch.no_grad():
        run.model.output_proj.weight[3, 3] = math.nan
    with pytest.raises(AttendoError, match=r"weight is non-finite at step 0, so no checkpoint was saved"):
        write_checkpoint(tmp_path, snapshot(run))
    assert not checkpoints(tmp_path)


class ShortOfMemory:
    """Makes a run's model fail as torch does, on batches of more positions than it holds."""

    def __init__(self, run, most):
        self.times = 0
        hidden = run.model.hidden

        def held(**inputs):
            states = hidden(**inputs)
            if inputs["src"].numel() + 2 * inputs["tgt"].numel() > most:
                self.times += 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return states

        run.model.hidden = held


def test_a_batch_that_does_not_fit_is_cut_with_an_equal_gradient(tmp_path):
    whole, cut = (tiny_run(tmp_path, TinyTask(n_rows=12, rows_per_batch=12), dropout=0.0, steps=101) for _ in range(2))
    batch = whole.task.batches(1, 0, 0)[0]
    short = ShortOfMemory(cut, positions(batch) // 3)
    for _ in range(examples(25, 100)):
        one, other = update(whole, [batch]), update(cut, [batch])
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
    assert other.note == ""
    assert 1 <= short.times <= 3  # it is known then, and not tried again


def test_the_gradient_of_a_cut_batch_in_float64(tmp_path):
    runs = [tiny_run(tmp_path, TinyTask(n_rows=9, rows_per_batch=9), dropout=0.0) for _ in range(2)]
    batch = runs[0].task.batches(1, 0, 0)[0]
    ShortOfMemory(runs[1], positions(batch) // 4)
    for run in runs:
        run.model.double()
        summed_gradients(run, [batch], 1 / batch.n_targets)
    assert runs[1].progress.too_large
    for one, other in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


def test_a_single_row_that_does_not_fit_is_told(tmp_path):
    run = tiny_run(tmp_path)
    ShortOfMemory(run, 0)
    with pytest.raises(AttendoError, match=r"out of memory at step 1 with .* in a single row.*smaller model"):
        update(run, run.task.batches(1, 0, 0)[:1])


def test_other_errors_are_not_taken_for_a_lack_of_memory(tmp_path):
    run = tiny_run(tmp_path)
    run.model.hidden = lambda **inputs: (_ for _ in ()).throw(RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="multiplied"):
        update(run, run.task.batches(1, 0, 0)[:1])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=9), st.integers(1, 60))
def test_parts_hold_every_row_once_and_fit(lengths, too_large):
    rows = [([5] * source, [6] * target) for source, target in lengths]
    batch = collated(rows, list(range(len(rows))))
    parts = list(parts_that_fit(batch, too_large))
    assert np.concatenate([part.ids for part in parts]).tolist() == batch.ids.tolist()
    assert sum(part.n_targets for part in parts) == batch.n_targets
    assert all(positions(part) < too_large or len(part.ids) == 1 for part in parts)
    assert torch.cat([part.targets for part in parts]).equal(batch.targets)
    assert list(parts_that_fit(batch, 0)) == [batch] and (batch.targets == EOS).sum() == len(rows)


def test_the_largest_batches_are_tried_first_and_leave_no_trace(tmp_path):
    run = tiny_run(tmp_path)
    made = run.task.batches(1, 0, 0)
    asked = []

    def collate(rows):
        asked.append(int(rows[0]))
        return made[int(rows[0])]

    rows = [np.array([0] * 2), np.array([1] * 9), np.array([2]), np.array([3] * 4)]
    run.task.batches = lambda seed, epoch, start: EpochBatches(rows[start:], collate)
    kept, random = weights(run), torch_states()
    ShortOfMemory(run, positions(made[1]) - 1)
    try_largest_batches(run)
    assert asked == [1, 2] and run.progress.too_large == positions(made[1])
    assert same(kept, weights(run)) and torch.equal(random["random/cpu"], torch.get_rng_state())
    assert not run.optimizer.state_dict()["state"] and run.progress.step == 0


class StoppedAt(TinyTask):
    """Asks the run to stop while it evaluates, or while it makes a batch."""

    run, where = None, ""

    def evaluate(self, model, ranks=ALONE):
        """Stops in the middle."""
        torch.rand(3)
        if self.where == "evaluation":
            self.where = ""
            self.run.stop()
        return super().evaluate(model, ranks)


def finished(run):
    return [(r.kind, r.progress.step) for r in train(run)]


def test_a_stop_in_the_last_choice_comes_too_late(tmp_path):
    final = StoppedAt(values=[2.0])
    run = tiny_run(tmp_path, TinyTask(values=[1.0, 3.0, 2.0], final=final), steps=12)
    final.run, final.where = run, "evaluation"
    assert [r.kind for r in train(run)][-1] == "end"
    assert final.where == "" and run.progress.ended and not run.progress.evaluation_due


@pytest.mark.parametrize("average_last", [1, 2])
def test_a_stop_during_an_evaluation_saves_at_once_and_evaluates_later(tmp_path, average_last):
    whole, task = tiny_run(tmp_path / "whole", average_last=average_last), StoppedAt()
    finished(whole)
    cut = tiny_run(tmp_path / "cut", task, average_last=average_last)
    task.run, task.where = cut, "evaluation"
    assert finished(cut)[-1] == ("checkpoint", 4) and cut.progress.evaluation_due
    on = tiny_run(tmp_path / "cut", average_last=average_last)
    load_checkpoint(checkpoints(tmp_path / "cut")[-1], on)
    assert finished(on)[:2] == [("evaluation", 4), ("checkpoint", 4)]
    assert on.progress.ended and not on.progress.evaluation_due
    assert same(weights(on), weights(whole)) and on.progress.chain == whole.progress.chain


def test_a_stop_between_two_batches_of_an_update_leaves_it_undone(tmp_path):
    whole = tiny_run(tmp_path / "whole", accumulation=3)
    finished(whole)
    cut = tiny_run(tmp_path / "cut", accumulation=3)
    hidden, calls = cut.model.hidden, []

    def stopping(**inputs):
        calls.append(1)
        if len(calls) == 6:  # the second batch of the third update
            cut.stop()
        return hidden(**inputs)

    cut.model.hidden = stopping
    assert finished(cut)[-1] == ("checkpoint", 2) and not cut._can_be_interrupted
    on = tiny_run(tmp_path / "cut", accumulation=3)
    load_checkpoint(checkpoints(tmp_path / "cut")[-1], on)
    finished(on)
    assert same(weights(on), weights(whole)) and on.progress.order == whole.progress.order


def test_work_that_cannot_be_left_is_not(tmp_path):
    run = tiny_run(tmp_path)
    run.stop()
    assert run.stopping
    with pytest.raises(Interrupted), run.interruption():
        raise AssertionError("not reached")
