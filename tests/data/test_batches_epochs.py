"""Epochs of more rows than are sorted at once: every row once, by position, in memory that does not grow with them."""

import hashlib
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.data.batches import EpochBatches, EpochRows, Grouping, Rows, padding_share, token_batches
from attendo.data.store import RowLengths
from attendo.data.token_stream import TokenStream, window_batches
from attendo.runs.tasks import MaskedDataset, MaskingConfig

FEW = Grouping(at_once=10, shard=7, shards=3)
NUMBERS = st.integers(0, 9)


def lengths_of(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Sources of 2 to 39 tokens, and targets of up to 8 more."""
    random = np.random.default_rng(0)
    source = random.integers(2, 40, n)
    return source, source + random.integers(0, 9, n)


def stream_of(lengths: np.ndarray) -> TokenStream:
    offsets = np.cumsum([0, *lengths.tolist()])
    return TokenStream(np.zeros(offsets[-1], "<u2"), offsets, lengths, lengths)


def digest(batches: Sequence[Rows]) -> str:
    found = hashlib.sha256()
    for rows in batches:
        found.update(np.array([len(rows), *rows], "<i8").tobytes())
    return found.hexdigest()[:16]


def as_lists(batches: Sequence[Rows]) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


def test_the_lists_of_smaller_corpora_are_what_they_always_were() -> None:
    """Stored results and runs that are to be resumed rest on them."""
    source, target = lengths_of(20_000)
    assert [
        digest(token_batches(source, target, 2048, 0, 0)),
        digest(token_batches(source, target, 512, 3, 5)),
        digest(token_batches(source, None, 4096, 1, 2)),
        digest(token_batches(source, np.zeros_like(source), 4096, 1, 2)),
    ] == ["0e4272cc023264b3", "a52e84f2d97ef2bb", "a5538eab9833f2dc", "a5538eab9833f2dc"]
    stream = stream_of(source)
    assert digest(window_batches(stream, 16, 256, 3, 5).rows) == "cf4d2a0a2b115eab"
    material = MaskedDataset(stream, 16, 100, MaskingConfig())
    assert digest(material.batches(512, 3, 5).rows) == "1a4f7d2956caaf95"


@settings(max_examples=40)
@given(n=st.integers(11, 300), budget=st.integers(40, 300), seed=NUMBERS, epoch=NUMBERS)
def test_every_row_is_in_one_batch_within_the_budget(n: int, budget: int, seed: int, epoch: int) -> None:
    source, target = lengths_of(n)
    batches = token_batches(source, target, budget, seed, epoch, FEW)
    assert isinstance(batches, EpochRows)
    assert sorted(np.concatenate(list(batches)).tolist()) == list(range(n))
    for rows in batches:
        longest = max(source[rows].max(), target[rows].max()) + 1
        assert len(rows) == 1 or len(rows) * longest <= budget
    assert as_lists(batches) == as_lists(token_batches(source, target, budget, seed, epoch, FEW))


@settings(max_examples=40)
@given(n=st.integers(11, 300), parts=st.tuples(*[st.one_of(st.none(), st.integers(-70, 70))] * 3))
def test_they_are_a_sequence_like_a_list_of_them(n: int, parts: tuple[int | None, int | None, int]) -> None:
    start, stop, step = parts
    batches = token_batches(*lengths_of(n), 100, 1, 2, FEW)
    whole = as_lists(batches)
    assert len(batches) == len(whole)
    index = slice(start, stop, step or None)
    part = batches[index]
    assert as_lists(part) == whole[index] and len(part) == len(whole[index])
    if step in (None, 1) and len(whole[index]):
        assert part[-1].tolist() == whole[index][-1]
        assert as_lists(part[1:]) == whole[index][1:]
        assert EpochBatches(part, lambda rows: None).sizes.tolist() == [*map(len, whole[index])]
    assert [batches[i].tolist() for i in range(-len(whole), len(whole))] == whole * 2
    for beyond in (len(whole), -len(whole) - 1):
        with pytest.raises(IndexError):
            batches[beyond]
    with pytest.raises(IndexError):
        batches[2:4][2]


def test_epochs_and_seeds_differ_and_a_batch_mixes_distant_rows() -> None:
    lengths = lengths_of(60_000)
    grouping = Grouping(at_once=1, shard=500, shards=8)
    runs = [token_batches(*lengths, 2048, *key, grouping) for key in [(0, 0), (0, 1), (1, 0)]]
    assert len({frozenset(map(tuple, as_lists(batches))) for batches in runs}) == 3
    assert np.median([np.ptp(rows) for rows in runs[0] if len(rows) > 9]) > 20_000


@pytest.mark.parametrize("budget", [1024, 4096])
def test_groups_pad_no_more_than_sorting_all_at_once(budget: int) -> None:
    source, target = lengths_of(300_000)
    target[:] = source
    grouping = Grouping(at_once=1, shard=1 << 13, shards=8)
    shares = [
        padding_share(token_batches(source, target, budget, 0, 0, way), source, target)
        for way in (Grouping(), grouping)
    ]
    assert shares[1] < shares[0] + 0.005 < 0.03


def test_where_to_go_on_is_found_without_collating_what_is_before() -> None:
    collated: list[Rows] = []
    batches = EpochBatches(token_batches(*lengths_of(5000), 200, 0, 0, FEW), collated.append)
    later = batches[100:]
    next(iter(later))
    assert as_lists(collated) == as_lists(list(batches.rows)[100:101])


def test_the_groups_before_a_position_are_the_only_ones_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def cut(rows: Rows, random: np.random.Generator) -> Sequence[Rows]:
        made.append(len(rows))
        return np.array_split(rows, 10)

    batches = EpochRows(7 * 3 * 50, (0, 0), cut, FEW)
    next(iter(batches[25:]))
    assert len(made) == 3  # ten batches each
    assert len(batches) == 500 and len(made) == 50
    assert len(batches) == 500 and len(made) == 50


def test_an_epoch_asked_for_again_is_not_made_again() -> None:
    material = MaskedDataset(stream_of(lengths_of(50)[0]), 16, 100, MaskingConfig())
    first = material.batches(64, 0, 0)
    assert material.batches(64, 0, 1) is not first and material.batches(64, 0, 0) is first


def test_a_thread_that_loads_and_one_that_counts_see_the_same() -> None:
    batches = token_batches(*lengths_of(30_000), 500, 0, 0, Grouping(1, 300, 5))
    wanted, found = as_lists(token_batches(*lengths_of(30_000), 500, 0, 0, Grouping(1, 300, 5))), []
    thread = threading.Thread(target=lambda: found.extend(as_lists(batches)))
    thread.start()
    total = sum(len(batches[i]) for i in range(0, len(batches), 7))
    thread.join()
    assert found == wanted and total == sum(map(len, wanted[::7]))


@settings(max_examples=20)
@given(n=st.integers(60, 400), context=st.integers(2, 9), seed=NUMBERS)
def test_windows_in_groups_hold_every_position_once(n: int, context: int, seed: int) -> None:
    stream = stream_of(np.arange(n) % 7)
    batches = window_batches(stream, context, 3 * context, seed, 1, FEW)
    assert isinstance(batches.rows, EpochRows)
    rows = np.concatenate(list(batches.rows))
    assert sorted(rows.tolist()) == list(range(len(rows)))
    assert sum(batch.n_targets for batch in batches) == stream.n_positions
    assert max(map(len, batches.rows)) <= 3


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that Python and numpy took for it at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_for_the_batches_of_an_epoch_does_not_grow_with_its_rows() -> None:
    def epoch(n: int) -> Callable[[], object]:
        offsets = np.arange(n + 1) * 5 + np.arange(n + 1) % 3
        lengths = RowLengths(offsets)

        def read() -> None:
            batches = token_batches(lengths, lengths, 512, 0, 0, Grouping(1 << 13, 1 << 10, 8))
            assert sum(map(len, batches)) == n == int(EpochBatches(batches, lambda rows: None).sizes.sum())
            assert padding_share(batches, lengths, lengths) < 0.2

        return read

    few, many = 1 << 16, 1 << 18
    growth = (peak_bytes(epoch(many)) - peak_bytes(epoch(few))) / (many - few)
    assert growth < 0.5  # bytes a row: the sizes of the batches, four each


UNDER_A_LIMIT = """
import resource, sys
from itertools import islice
from pathlib import Path
from attendo.data.batches import padding_share
from attendo.data.store import PairStore
from attendo.data.pair_corpus import PairDataset
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + int(sys.argv[2]),) * 2)
material = PairDataset(PairStore(Path(sys.argv[1])))
batches = material.batches(4096, 0, 0)
rows = sum(len(batch.ids) for batch in islice(batches[len(batches) // 2 :], 50))
print(len(material.store) == sum(map(len, batches.rows)), rows > 50, padding_share(batches.rows, *sides) < 0.01)
""".replace("*sides", "material.store.sources.lengths, material.store.targets.lengths")


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA bounds all that is private on Linux alone")
def test_twelve_million_pairs_are_read_in_100_megabytes(tmp_path: Path) -> None:
    from attendo.files import write_manifest

    n, random = 12_000_000, np.random.default_rng(0)
    for side in ("source", "target"):
        offsets = np.cumsum(np.append(0, random.integers(2, 9, n)), dtype="<i8")
        (tmp_path / f"{side}.offsets").write_bytes(offsets.tobytes())
        (tmp_path / f"{side}.ids").write_bytes(np.full(offsets[-1], 7, "<u2").tobytes())
    (tmp_path / "rows").write_bytes(np.arange(1, n + 1, dtype="<i8").tobytes())
    write_manifest(tmp_path, {"format": 1, "key": "k", "dtype": "<u2"})
    command = [sys.executable, "-c", UNDER_A_LIMIT, str(tmp_path), str(100 << 20)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert found.stdout.split() == ["True"] * 3, found.stderr
