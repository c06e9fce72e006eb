"""The loop: its gradient, its end, its cursor, its best; on a model and a task that are tiny."""

import threading
import time
from contextlib import closing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_task import TinyTask, collated, tiny_model, tiny_run

from attendo.training.checkpoints import checkpoints
from attendo.training.loop import grouped, prefetched, train, update
from attendo.training.losses import batch_loss, token_losses
from attendo.training.run import Clock


def gradients(model, batches, n_targets):
    model.zero_grad()
    for batch in batches:
        batch_loss(model, batch, 0.1, 1.0 / n_targets).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("rows_per_batch", [1, 2, 3, 5])
def test_the_gradient_is_that_of_all_rows_whatever_the_batches_and_the_padding(rows_per_batch):
    model = tiny_model(dropout=0.0).double()
    task = TinyTask(n_rows=10)
    n_targets = sum(len(target) + 1 for _, target in task.rows())
    alone = [collated([row], [i]) for i, row in enumerate(task.rows())]
    wanted = gradients(model, alone, n_targets)
    task.rows_per_batch = rows_per_batch
    for name, found in gradients(model, task.batches(1, 0, 0), n_targets).items():
        torch.testing.assert_close(found, wanted[name], rtol=1e-10, atol=1e-10)


def test_the_loss_is_the_mean_over_real_targets():
    model = tiny_model(dropout=0.0).double()
    (batch,) = TinyTask(n_rows=4, rows_per_batch=4).batches(1, 0, 0)
    logits = model(**batch.inputs)
    real = batch.targets != 0
    wanted = token_losses(logits[real], batch.targets[real], 0.1).mean()
    assert batch_loss(model, batch, 0.1, 1 / batch.n_targets).item() == pytest.approx(wanted.item(), rel=1e-12)
    assert batch.n_targets == int(real.sum()) < batch.targets.numel()


def test_accumulation_equals_one_large_batch(tmp_path):
    weights = []
    for rows, accumulation in ((6, 1), (2, 3)):
        run = tiny_run(tmp_path, TinyTask(n_rows=6, rows_per_batch=rows), 0.0, accumulation=accumulation)
        run.model.double()
        for batches in grouped(run.task.batches(1, 0, 0), accumulation):
            update(run, batches)
        weights.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-7, atol=1e-9)


def test_every_row_is_seen_once_an_epoch_and_the_cursor_says_where(tmp_path):
    run = tiny_run(tmp_path, TinyTask(n_rows=10, rows_per_batch=3), epochs=2)
    places = [(r.progress.epoch, r.progress.batch) for r in train(run) if r.kind == "step"]
    assert places == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert run.progress.ended == "all 8 steps done"
    assert run.progress.tokens == 2 * sum(len(target) + 1 for _, target in run.task.rows())


def test_steps_end_with_an_evaluation_and_a_checkpoint(tmp_path):
    reports = list(train(tiny_run(tmp_path, steps=10)))
    assert [(r.kind, r.progress.step) for r in reports if r.kind != "step"][-3:] == [
        ("evaluation", 10),
        ("checkpoint", 10),
        ("end", 10),
    ]
    assert [path.name for path in checkpoints(tmp_path)] == ["step-4", "step-8", "step-10"]
    rates = [r.rate for r in reports if r.kind == "step"]
    assert rates[1] == rates[7] == max(rates)
    assert rates[7] > rates[8] > rates[9]


class FakeClock(Clock):
    """Each look at it takes a tenth of a second."""

    now = 0.0

    def note(self, progress):
        self.now += 0.1
        progress.cpu_seconds = self.now


def test_a_time_budget_decides_once_when_the_decay_starts_and_ends(tmp_path):
    run = tiny_run(tmp_path, TinyTask(n_rows=300, rows_per_batch=1), cpu_minutes=1, evaluate_every=1000)
    run.clock = FakeClock()
    horizons, rates = [], []
    for report in train(run):
        if report.kind == "step":
            horizons.append(run.progress.horizon)
            rates.append(report.rate)
    decided = {horizon for horizon in horizons if horizon.end is not None}
    assert len(decided) == 1
    (horizon,) = decided
    assert horizon.end == run.progress.step
    assert rates[horizon.decay_start - 1] == pytest.approx(1e-3) and rates[-1] < 1e-4
    assert run.progress.ended == "time budget used" and run.clock.now < 60


def test_patience_ends_a_run_that_gets_no_better(tmp_path):
    run = tiny_run(tmp_path, TinyTask(values=[1.0, 2.0, 1.5, 1.5]), steps=1000, patience=2)
    best = [r.is_best for r in train(run) if r.kind == "evaluation"]
    assert best == [True, True, False, False]
    assert run.progress.ended == "no improvement in 2 evaluations (early stopping)"
    assert (run.progress.best, run.progress.best_step) == (2.0, 8)


@pytest.mark.parametrize("better", [True, False])
def test_the_average_is_kept_only_if_it_is_the_best(tmp_path, better):
    values = [1.0, 1.0, 1.0, 2.0 if better else 0.5]
    run = tiny_run(tmp_path, TinyTask(values=values), steps=12, average_last=3)
    reports = list(train(run))
    averaged = reports[-2]
    assert averaged.note == "mean of the last 3 checkpoints" and averaged.is_best == better
    own = [p.clone() for p in run.model.parameters()]
    last = tiny_run(tmp_path / "again", TinyTask(values=[1.0]), steps=12)
    list(train(last))
    same = all(torch.equal(a, b) for a, b in zip(own, last.model.parameters(), strict=True))
    assert same != better


@pytest.mark.parametrize(("final", "kept"), [([1.0, 2.0], 8), ([2.0, 1.0], 12)])
@pytest.mark.parametrize("ema_decay", [0.0, 0.5])
def test_the_last_choice_is_made_on_all_validation_rows(tmp_path, final, kept, ema_decay):
    """Of the last state and the best so far, by other values than those that made it the best so far."""
    task = TinyTask(values=[1.0, 3.0, 2.0], final=TinyTask(values=[*final]))
    run = tiny_run(tmp_path, task, steps=12, ema_decay=ema_decay)
    shown = {}
    for report in train(run):
        if report.is_best:
            with run.evaluation_weights():
                shown[report.progress.step, report.note] = [p.clone() for p in run.model.parameters()]
    ends = [p.clone() for p in run.model.parameters()]
    note = f"all validation rows: step {kept} is kept"
    assert run.progress.best_step == kept and list(shown) == [(4, ""), (8, ""), (12, note)]
    same = all(map(torch.equal, shown[8, ""], shown[12, note]))
    assert same == (kept == 8)
    alone = tiny_run(tmp_path / "alone", TinyTask(), steps=12, ema_decay=ema_decay)
    list(train(alone))
    assert all(map(torch.equal, ends, alone.model.parameters()))  # the run's own weights are as they were


def test_an_evaluation_changes_no_random_number(tmp_path):
    often = tiny_run(tmp_path / "a", evaluate_every=1)
    list(train(often))
    rarely = tiny_run(tmp_path / "b", evaluate_every=10)
    list(train(rarely))
    for one, other in zip(often.model.parameters(), rarely.model.parameters(), strict=True):
        assert torch.equal(one, other)


def loading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("loading")]


def failing_at(n, made):
    """Numbers from 0 on, with an error in the place of n."""
    for number in range(1000):
        if number == n:
            raise ZeroDivisionError(f"at {n}")
        made.append(number)
        yield number


@given(st.lists(st.integers() | st.none()), st.integers(0, 5))
def test_all_come_once_in_their_order(items, ahead):
    assert list(prefetched(items, ahead)) == items
    assert not loading_threads()


@given(st.integers(0, 20), st.integers(0, 5))
def test_an_error_comes_at_its_place(n, ahead):
    made, came = [], []
    with pytest.raises(ZeroDivisionError, match=f"^at {n}$"):
        came.extend(prefetched(failing_at(n, made), ahead))
    assert came == made == list(range(n))
    iterator = prefetched(failing_at(n, []), ahead)
    assert [next(iterator) for _ in range(n)] == list(range(n))
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    assert not loading_threads()


@settings(max_examples=20)
@given(st.integers(0, 10), st.integers(1, 5))
def test_no_more_are_made_than_were_to_be_ahead(taken, ahead):
    made = []
    with closing(prefetched(failing_at(999, made), ahead)) as coming:
        for number in range(taken):
            assert next(coming) == number
        until = time.monotonic() + 60
        while taken and len(made) < taken + ahead and time.monotonic() < until:
            time.sleep(0.001)
    assert len(made) <= (taken + ahead + 1 if taken else 0)  # one more waits for its place
    assert not loading_threads()
    assert not taken or len(made) >= taken + ahead


@given(st.integers(1, 5))
def test_one_that_is_left_in_the_middle_ends_its_thread(ahead):
    made = []
    for number in (coming := prefetched(failing_at(999, made), ahead)):
        if number == 3:
            break
    coming.close()
    n = len(made)
    assert not loading_threads() and n <= 4 + ahead + 1
    time.sleep(0.002)
    assert len(made) == n


def test_an_iterator_that_nobody_looked_at_has_no_thread():
    coming = prefetched(range(3), 2)
    assert not loading_threads()
    coming.close()
    del coming


def test_threads_of_an_iterator_that_is_thrown_away_end_too():
    coming = prefetched(range(1000), 2)
    next(coming)
    assert len(loading_threads()) == 1
    del coming
    assert not loading_threads()


def test_a_stop_within_making_is_passed_on():
    def interrupted():
        yield 1
        raise KeyboardInterrupt

    coming = prefetched(interrupted(), 4)
    assert next(coming) == 1
    with pytest.raises(KeyboardInterrupt):
        next(coming)


@given(st.lists(st.integers()), st.integers(1, 6))
def test_groups_hold_all_in_their_order(items, size):
    groups = list(grouped(items, size))
    assert [item for group in groups for item in group] == items
    assert all(len(group) == size for group in groups[:-1]) and all(groups)
