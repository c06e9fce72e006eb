"""Batches: every row once, within the budget, little padding, the same ones for the same seed and epoch."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attendo.data.batches import Batch, pad_rows, padding_share, pair_batch, token_batches
from attendo.data.store import PairStore, pair_store
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer

lengths_of_rows = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=200).map(
    lambda rows: np.array(rows, np.int32).reshape(-1, 2).T
)
budgets = st.integers(1, 300)


def sentences(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lengths like those of real pairs: skewed, and correlated between the sides."""
    random = np.random.default_rng(seed)
    source = np.clip(random.gamma(9.0, 1.6, n), 2, 60)
    target = np.clip(source * random.normal(1.05, 0.2, n) + random.normal(0, 1, n), 2, 80)
    return source.astype(np.int32), target.astype(np.int32)


@given(lengths=lengths_of_rows, budget=budgets, seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_every_row_is_in_exactly_one_batch(lengths: np.ndarray, budget: int, seed: int, epoch: int) -> None:
    batches = token_batches(*lengths, budget, seed, epoch)
    assert all(len(batch) for batch in batches)
    assert sorted(np.concatenate([[], *batches]).tolist()) == list(range(lengths.shape[1]))


@given(lengths=lengths_of_rows, budget=budgets)
def test_no_batch_is_over_the_budget_but_a_single_row_may_be(lengths: np.ndarray, budget: int) -> None:
    for batch in token_batches(*lengths, budget, 0, 0):
        longest = max(lengths[0][batch].max(), lengths[1][batch].max()) + 1
        assert len(batch) == 1 or len(batch) * longest <= budget


def test_epochs_and_seeds_differ_in_composition_and_order() -> None:
    source, target = sentences(2000)
    runs = {key: token_batches(source, target, 1024, *key) for key in [(0, 0), (0, 1), (1, 0), (1, 1)]}
    again = token_batches(source.astype(np.int64), target.astype(np.int64), 1024, 1, 0)  # and are pure functions
    assert [batch.tolist() for batch in runs[1, 0]] == [batch.tolist() for batch in again]
    orders = {tuple(np.concatenate(batches).tolist()) for batches in runs.values()}
    contents = {frozenset(frozenset(b.tolist()) for b in batches) for batches in runs.values()}
    assert len(orders) == len(contents) == 4


def test_batches_do_not_come_by_length() -> None:
    source, target = sentences(20_000)
    mean = np.array([source[batch].mean() for batch in token_batches(source, target, 1024, 0, 0)])
    assert abs(np.corrcoef(mean[1:], mean[:-1])[0, 1]) < 0.3


@pytest.mark.parametrize("budget", [1024, 2048, 4096])
def test_padding_is_below_five_percent(budget: int) -> None:
    source, target = sentences(40_000)
    batches = token_batches(source, target, budget, 0, 0)
    assert padding_share(batches, source, target) < 0.05
    by_chance = np.array_split(np.random.default_rng(0).permutation(len(source)), len(batches))
    assert padding_share(by_chance, source, target) > 0.3


@given(lengths=lengths_of_rows, budget=budgets)
def test_padding_share_is_what_counting_gives(lengths: np.ndarray, budget: int) -> None:
    batches = token_batches(*lengths, budget, 0, 0)
    real = padded = 0
    for batch in batches:
        for side in lengths:
            real += int((side[batch] + 1).sum())
            padded += int(len(batch) * (side[batch].max() + 1))
    assert padding_share(batches, *lengths) == pytest.approx(1 - real / padded if padded else 0.0)


def test_a_million_rows_take_seconds() -> None:
    source, target = sentences(1_000_000)
    start = time.process_time()
    batches = token_batches(source, target, 2048, 0, 0)
    assert time.process_time() - start < 4  # about 0.3 on a quiet machine
    assert sum(map(len, batches)) == len(source)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_tokens=0 must be"):
        token_batches(np.array([1]), np.array([1]), 0, 0, 0)
    with pytest.raises(ValueError, match="2 source lengths but 1"):
        token_batches(np.array([1, 2]), np.array([1]), 8, 0, 0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PairStore:
    pairs = [(1, "ab", "c"), (2, "a", "bcd"), (3, "bc", "dd"), (4, "", "")]
    tokenizer = train_tokenizer(["abcd"], TokenizerConfig(kind="character"))
    return pair_store(pairs, tokenizer, "letters", Path(tmp_path_factory.mktemp("cache")))


A, B, C, D = 260, 261, 262, 263


def test_a_batch_as_tensors(store: PairStore) -> None:
    batch = pair_batch(store, np.array([0, 1, 3]))
    assert batch.inputs["src"].tolist() == [[A, B, 3], [A, 3, 0], [3, 0, 0]]
    assert batch.inputs["src_lengths"].tolist() == [3, 2, 1]
    assert batch.inputs["tgt"].tolist() == [[2, C, 0, 0], [2, B, C, D], [2, 0, 0, 0]]
    assert batch.targets.tolist() == [[C, 3, 0, 0], [B, C, D, 3], [3, 0, 0, 0]]
    assert batch.n_targets == 7 == int((batch.targets != 0).sum())
    assert batch.ids.tolist() == [0, 1, 3]
    assert {tensor.dtype for tensor in (*batch.inputs.values(), batch.targets)} == {torch.int64}


def test_full_sources_need_no_lengths(store: PairStore) -> None:
    batch = pair_batch(store, np.array([2, 0]))
    assert set(batch.inputs) == {"src", "tgt"}
    assert batch.inputs["src"].tolist() == [[B, C, 3], [A, B, 3]]


def test_a_batch_on_its_own_device_is_itself(store: PairStore) -> None:
    batch = pair_batch(store, np.array([0]))
    assert batch.to(torch.device("cpu")) is batch
    moved = batch.to(torch.device("meta"))
    assert {tensor.device.type for tensor in (*moved.inputs.values(), moved.targets)} == {"meta"}
    assert (moved.n_targets, moved.ids.tolist()) == (batch.n_targets, [0])


def test_rows_of_ids_are_padded_behind() -> None:
    padded, lengths = pad_rows([[5, 6, 7], [8]], 0)
    assert lengths is not None
    assert (padded.tolist(), lengths.tolist()) == ([[5, 6, 7], [8, 0, 0]], [3, 1])
    assert pad_rows([[5, 6], [7, 8]], 0)[1] is None


def test_processes_share_a_batch_row_by_row_and_none_goes_without():
    targets = torch.tensor([[4, 5, 6], [7, 8, 0], [9, 0, 0]])
    batch = Batch({"token_ids": targets + 1}, targets, 6, ((0,), (1,), (2,)), weights=torch.tensor([1.0, 2.0, 3.0]))
    assert batch.share(0, 1) == (batch, 1.0)
    (first, counts), (second, also) = batch.share(0, 2), batch.share(1, 2)
    assert (counts, also) == (1.0, 1.0)
    assert (first.ids, second.ids) == (((0,), (2,)), ((1,),))
    assert (first.n_targets, second.n_targets) == (4, 2)
    assert first.inputs["token_ids"].equal(targets[::2] + 1)
    assert first.weights.tolist() == [1.0, 3.0]
    another, counts = batch.share(3, 4)  # there are three rows: it computes along, for nothing
    assert (another.ids, counts) == (((0,),), 0.0)
