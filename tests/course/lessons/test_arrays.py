"""Arrays as a task: which rows a batch has, what is measured, and a run of the loop."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attendo_course.lessons.arrays import NO_TARGET, ArrayTask, Examples, curve, measures, seeded, trained


class Reader(nn.Module):
    """Logits are the input's vectors times a matrix."""

    def __init__(self, n: int = 3):
        super().__init__()
        self.output_proj = nn.Linear(n, n)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return x


def identity_reader() -> Reader:
    model = Reader()
    nn.init.eye_(model.output_proj.weight)
    nn.init.zeros_(model.output_proj.bias)
    return model


def numbered(n: int) -> Examples:
    """Row i is (i, 0, 0), its target i mod 3."""
    x = torch.zeros(n, 3)
    x[:, 0] = torch.arange(n)
    return Examples({"x": x}, torch.arange(n) % 3)


def drawn(rng: np.random.Generator, n: int) -> Examples:
    x = torch.from_numpy(rng.normal(size=(n, 3))).float()
    return Examples({"x": x}, x.argmax(1))


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_has_every_row_once_and_is_a_function_of_seed_and_epoch(n, batch_rows, seed, epoch):
    task = ArrayTask(numbered(n), numbered(1), batch_rows)
    batches = list(task.batches(seed, epoch, 0))
    rows = np.concatenate([batch.ids for batch in batches])
    assert sorted(rows) == list(range(n))
    assert [len(batch.ids) for batch in batches[:-1]] == [batch_rows] * (len(batches) - 1)
    for batch in batches:
        assert batch.inputs["x"][:, 0].tolist() == batch.ids.tolist()
        assert batch.targets.tolist() == (batch.ids % 3).tolist()
        assert batch.n_targets == len(batch.ids)
    again = task.batches(seed, epoch, 0)
    assert len(again) == len(batches)
    for i, batch in enumerate(batches):
        assert (again[i].ids == batch.ids).all()


@given(st.integers(0, 7), st.booleans())
def test_start_leaves_out_the_first_batches(start, fixed):
    task = ArrayTask(numbered(13) if fixed else drawn, numbered(1), 2, batches_per_epoch=7)
    whole, rest = list(task.batches(1, 2, 0)), list(task.batches(1, 2, start))
    assert len(rest) == len(task.batches(1, 2, start)) == 7 - start
    for a, b in zip(whole[start:], rest, strict=True):
        assert torch.equal(a.inputs["x"], b.inputs["x"])
        assert torch.equal(a.targets, b.targets)
    for a, b in zip(whole[start:], task.batches(1, 2, 0)[start:], strict=True):
        assert torch.equal(a.inputs["x"], b.inputs["x"])


@pytest.mark.parametrize("train", [numbered(100), drawn])
def test_seeds_epochs_and_batches_differ(train):
    task = ArrayTask(train, numbered(1), 10)
    first = [
        task.batches(seed, epoch, n)[0].inputs["x"] for seed, epoch, n in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))
    ]
    assert not any(torch.equal(first[0], other) for other in first[1:])


def test_sizes_that_make_no_batch_are_refused():
    with pytest.raises(ValueError, match="batch_rows is 0"):
        ArrayTask(drawn, numbered(1), 0)
    with pytest.raises(ValueError, match="train is 0"):
        ArrayTask(numbered(0), numbered(1), 1)
    with pytest.raises(ValueError, match="x has 2 rows, the targets have 3"):
        Examples({"x": torch.zeros(2, 3)}, torch.zeros(3, dtype=torch.int64))


def test_measures_are_those_of_the_definition():
    logits = torch.tensor([[[2.0, 0, 0], [0, 1, 0]], [[0, 0, 3], [5, 0, 0]], [[0, 1, 0], [0, 0, 9]]])
    targets = torch.tensor([[0, 1], [2, 1], [1, NO_TARGET]])
    losses = [
        -np.log(np.exp(float(logits[r, p, targets[r, p]])) / np.exp(logits[r, p].numpy()).sum())
        for r, p in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))
    ]
    found = measures(identity_reader(), Examples({"x": logits}, targets))
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["accuracy"] == pytest.approx(4 / 5)
    assert found["exact"] == pytest.approx(2 / 3)


def test_measures_do_not_depend_on_the_chunks(monkeypatch):
    test = drawn(np.random.default_rng(0), 50)
    whole = measures(identity_reader(), test)
    monkeypatch.setattr("attendo_course.lessons.arrays.CHUNK", 7)
    assert measures(identity_reader(), test) == pytest.approx(whole)


def test_places_without_a_target_count_in_no_loss():
    x = torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, NO_TARGET]] * 8)
    full = Examples({"x": x[:, :1]}, targets[:, :1])
    padded = Examples({"x": x}, targets)
    runs = [trained(identity_reader(), ArrayTask(rows, full, 8), 3, 0.1, 1) for rows in (full, padded)]
    assert runs[0].losses == pytest.approx(runs[1].losses)


def test_a_run_learns_is_repeatable_and_leaves_the_random_state():
    task = ArrayTask(drawn, drawn(np.random.default_rng(9), 200), 50)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    runs = [trained(seeded(Reader, 1), task, 40, 0.1, seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert runs[0].losses == runs[1].losses != runs[2].losses
    assert len(runs[0].losses) == 40
    assert runs[0].losses[-1] < 0.5 < runs[0].losses[0]
    assert runs[0].measures == measures(runs[0].model, task.test)
    assert not runs[0].model.training


def test_a_curve_keeps_the_mean():
    losses = list(np.random.default_rng(0).uniform(size=120))
    assert curve(losses, 60).mean() == pytest.approx(np.mean(losses))
    assert curve(losses[:5], 60).tolist() == losses[:5]
