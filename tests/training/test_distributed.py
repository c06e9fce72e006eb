"""Ranks that talk, gradients summed over them, and tensors in shards; float64 where it is maths."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import RanksFailed, in_ranks
from tiny_task import TinyTask, tiny_model

from attendo.errors import AttendoError
from attendo.nn.blocks import EncoderBlock
from attendo.training.acceleration import recomputed
from attendo.training.checkpoints import load_optimizer, load_weights, optimizer_tensors, weights_of
from attendo.training.distributed import (
    ALONE,
    Ranks,
    Rows,
    Stored,
    joined,
    rows_of,
    save_rows,
    shard_name,
    write_together,
)
from attendo.training.losses import TrainStepExecutor
from attendo.training.optimizer import TrainingConfig, build_optimizer

EXECUTORS = [("ddp", 4), ("fsdp", 3), *(pytest.param(p, 2, marks=pytest.mark.full) for p in ("ddp", "fsdp"))]


def executor_of(model, parallel, ranks, **settings):
    return TrainStepExecutor(model, TrainingConfig(steps=9, parallel=parallel, **settings), ranks)


def share(batch, ranks):
    """This rank's rows; where it has none, one that does not count."""
    rows = list(range(ranks.rank, len(batch.ids), ranks.world))
    return batch.part(rows or [0]), 1.0 if rows else 0.0


def talk(ranks):
    values = torch.tensor([1.0, ranks.rank], dtype=torch.float64)
    sums = ranks.total(values).tolist()
    assert values.tolist() == [1.0, ranks.rank]
    beside, heard = ranks.beside(), []
    thread = threading.Thread(target=lambda: heard.append(beside.broadcast([ranks.rank, "aside"])))
    thread.start()
    gathered = ranks.gathered({"rank": ranks.rank, "text": "日本" * ranks.rank})
    thread.join()
    ranks.gathered(None)
    squares = [ranks.shared(range(n), lambda part: [i * i for i in part]) for n in (0, 1, 3, 9)]
    return [sums, gathered, heard, ranks.broadcast(["first", ranks.rank]), squares, ranks.is_first]


@pytest.mark.some(1)
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_tell_each_other_numbers_and_json(world):
    for rank, (sums, gathered, heard, first, squares, is_first) in enumerate(in_ranks(world, talk)):
        assert sums == [world, sum(range(world))]
        assert gathered == [{"rank": r, "text": "日本" * r} for r in range(world)]
        assert heard == [[0, "aside"]] and first == ["first", 0] and is_first == (rank == 0)
        assert squares == [[i * i for i in range(n)] for n in (0, 1, 3, 9)]


def test_without_torchrun_a_process_is_alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with joined("cpu", 1.0) as ranks:
        assert ranks is ALONE and ranks.beside() is ranks and ranks.broadcast("x") == "x"
        with ranks.in_turn("data"):
            ranks.gathered(None)


def test_the_first_of_a_machine_prepares_what_the_others_use(tmp_path):
    def prepare(ranks):
        with ranks.in_turn("data"):
            found = sorted(path.name for path in tmp_path.iterdir())
            (tmp_path / str(ranks.rank)).touch()
        return found

    first, *others = in_ranks(3, prepare)
    assert first == [] and all("0" in found for found in others)


def test_an_error_on_one_rank_ends_all():
    def fail(ranks):
        if ranks.rank == 1:
            raise ValueError("only here")
        ranks.gathered(None)

    with pytest.raises(RanksFailed, match="only here"):
        in_ranks(2, fail)


def gradients_of(executor):
    with torch.no_grad():
        grads = {n: p.grad for n, p in executor.trained_model.named_parameters()}
        return {n: (g.full_tensor() if executor.is_sharded else g).tolist() for n, g in grads.items()}


@pytest.mark.parametrize(("parallel", "world"), EXECUTORS)
def test_gradients_are_those_of_one_process_however_unequal_the_ranks_counts(parallel, world):
    # 9 rows of 1 to 6 targets, 4, and 1: with 4 ranks some have two or three rows, some one, some none
    batches = [b for n in (9, 4, 1) for b in TinyTask(n_rows=n, rows_per_batch=n).batches(1, 0, 0)]
    n_targets = sum(b.n_targets for b in batches)

    def gradient(ranks):
        executor = executor_of(tiny_model(0.0).double(), parallel, ranks)
        executor.warm_up(share(batches[0], ranks)[0])
        value, counts = torch.zeros(1, dtype=torch.float64), []
        for number, batch in enumerate(batches):
            part, weight = share(batch, ranks)
            counts.append(part.n_targets * weight)
            one = executor.loss(part, weight / n_targets, last=number == len(batches) - 1)
            one.backward()
            value += one.detach()
        return [gradients_of(executor), executor.clip(0.5), ranks.total(value).item(), counts]

    [(wanted, norm, value, _)] = [gradient(ALONE)]
    found = in_ranks(world, gradient)
    assert len({json.dumps(counts) for *_, counts in found}) == world  # unequal indeed
    for grads, its_norm, its_value, _ in found:
        assert abs(its_value - value) < 1e-12 and abs(its_norm - norm) < 1e-12 and norm > 0.5
        for name in wanted:
            np.testing.assert_allclose(grads[name], wanted[name], rtol=0, atol=1e-12)


def trained(ranks, parallel, steps=2):
    """An executor and its optimizer after some updates."""
    executor = executor_of(tiny_model(0.0).double(), parallel, ranks)
    optimizer = build_optimizer(executor.trained_model, TrainingConfig(steps=9))
    for batch in TinyTask(n_rows=30, rows_per_batch=7).batches(1, 0, 0)[:steps]:
        part, weight = share(batch, ranks)
        executor.loss(part, weight / batch.n_targets).backward()
        executor.clip(1.0)
        optimizer.step()
        optimizer.zero_grad()
    return executor, optimizer


def test_a_sharded_model_is_whole_within_whole():
    def evaluate(ranks):
        plain = tiny_model(0.0).double()
        executor = executor_of(plain, "fsdp", ranks, activation_checkpointing=True)
        recomputing = [isinstance(m, recomputed(EncoderBlock)) for m in executor.trained_model.encoder.blocks]
        assert all(recomputing) and executor.trained_model is not plain
        assert not any(isinstance(m, recomputed(EncoderBlock)) for m in plain.modules())
        assert sum(p.untyped_storage().nbytes() for p in plain.parameters()) == 0
        assert [n for n, _ in plain.named_parameters()] == [n for n, _ in executor.trained_model.named_parameters()]
        with executor.whole(), executor.whole():
            logits = plain(torch.tensor([[4, 5]]), torch.tensor([[2, 6]])).tolist()
        doubled = {n: 2.0 * p.detach() for n, p in executor.trained_model.named_parameters()}
        load_weights(executor.trained_model, doubled, "here")
        with executor.whole():
            return [logits, [p.detach().sum().item() for p in plain.parameters()]]

    model = tiny_model(0.0).double()
    for logits, sums in in_ranks(2, evaluate):
        wanted = model(torch.tensor([[4, 5]]), torch.tensor([[2, 6]])).detach()
        np.testing.assert_array_equal(logits, wanted)
        np.testing.assert_allclose(sums, [2 * p.detach().sum().item() for p in model.parameters()], atol=1e-12)


@pytest.mark.parametrize(
    ("before", "after"),
    [(3, 1), *(pytest.param(*p, marks=pytest.mark.full) for p in ((1, 3), (2, 3), (4, 2)))],
)
def test_what_one_number_of_ranks_saves_any_other_loads(tmp_path, before, after):
    """Weights and optimizer, with rows that do not divide: 3 ranks share 16, 20 and 32."""

    def save(ranks):
        executor, optimizer = trained(ranks, "fsdp")
        for stem, tensors in (
            ("model", weights_of(executor.trained_model)),
            ("optimizer", optimizer_tensors(executor.trained_model, optimizer)),
        ):
            rows = {n: rows_of(t) for n, t in tensors.items()}
            save_rows(rows, tmp_path / shard_name(stem, ranks))
        return _step(ranks, executor, optimizer)

    def load(ranks):
        executor, optimizer = trained(ranks, "fsdp", steps=0)
        like = dict(executor.trained_model.named_parameters())
        load_weights(executor.trained_model, Stored(tmp_path, "model", like), "here")
        load_optimizer(executor.trained_model, optimizer, Stored(tmp_path, "optimizer", like), "here")
        return _step(ranks, executor, optimizer)

    [wanted, *_] = in_ranks(before, save) if before > 1 else [save(ALONE)]
    for found in in_ranks(after, load) if after > 1 else [load(ALONE)]:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)  # Adam's first steps blow up rounding


def _step(ranks, executor, optimizer):
    """All weights after one more update."""
    batch = TinyTask(n_rows=30, rows_per_batch=7).batches(1, 0, 0)[3]
    part, weight = share(batch, ranks)
    executor.loss(part, weight / batch.n_targets).backward()
    optimizer.step()
    with executor.whole():
        return torch.cat([p.detach().flatten() for p in executor._plain.parameters()]).tolist()


@settings(max_examples=30)
@given(st.integers(0, 9), st.integers(1, 5), st.data())
def test_rows_come_back_whoever_wrote_them(tmp_path_factory, n, world, data):
    folder = tmp_path_factory.mktemp("rows")
    whole, scalar, each = torch.arange(2.0 * n).view(n, 2), torch.tensor(7.0), -(-n // world)
    for rank in range(world):
        first = min(n, rank * each)
        rows = {"w": Rows(whole[first : first + each].clone(), first, n)}
        rows |= {"step": rows_of(scalar), "everywhere": rows_of(torch.ones(n, 3))}
        save_rows(rows, folder / shard_name("model", Ranks(rank, world)))
    stored = Stored(folder, "model")
    assert sorted(stored) == ["everywhere", "step", "w"] and stored["step"] == 7.0
    assert torch.equal(stored["w"], whole) and torch.equal(stored["everywhere"], torch.ones(n, 3))
    low = data.draw(st.integers(0, n))
    high = data.draw(st.integers(low, n))
    assert torch.equal(stored._read("w", low, high), whole[low:high])


def test_rows_in_no_shard_are_an_error(tmp_path):
    for rank, first in enumerate((0, 2)):
        save_rows({"w": Rows(torch.ones(1), first, 3)}, tmp_path / shard_name("model", Ranks(rank, 2)))
    with pytest.raises(AttendoError, match="row 1 of w is in no shard"):
        Stored(tmp_path, "model")["w"]


def test_a_missing_shard_is_named(tmp_path):
    for rank in (0, 2):
        save_rows({"w": Rows(torch.ones(1), rank, 3)}, tmp_path / shard_name("model", Ranks(rank, 3)))
    with pytest.raises(AttendoError, match=r"no model-2-of-3\.safetensors\. Restore the file"):
        Stored(tmp_path, "model")
    with pytest.raises(AttendoError, match=r"no optimizer\.safetensors"):
        Stored(tmp_path, "optimizer")


@pytest.mark.some(3)
@pytest.mark.parametrize("culprit", [None, 0, 1, "finish", "begin"])
def test_a_folder_of_all_ranks_is_whole_or_absent(tmp_path, culprit):
    path = tmp_path / "step-1" if culprit != "begin" else tmp_path / "nowhere" / "step-1"

    def write(folder: Path, rank):
        (folder / f"part-{rank}").write_text(str(rank))
        if rank == culprit:
            raise OSError(28, "No space left on device")

    def finish(folder: Path):
        assert sorted(p.name for p in folder.iterdir()) == ["part-0", "part-1"]
        if culprit == "finish":
            raise OSError(28, "No space left on device")

    def together(ranks):
        try:
            write_together(path, lambda folder: write(folder, ranks.rank), finish, ranks)
        except OSError as error:
            return str(error)

    found = in_ranks(2, together)
    if culprit is None:
        assert found == [None, None] and sorted(p.name for p in path.iterdir()) == ["part-0", "part-1"]
    else:
        assert all("No space left" in text or "No such file" in text for text in found)
        assert list(tmp_path.iterdir()) == []
