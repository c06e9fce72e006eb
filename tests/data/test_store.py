"""The token store: what went in comes out, once built it is opened, and a damaged one is built again."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from forked import begun_child

from attendo.cache import cache_folder
from attendo.data import store as store_module
from attendo.data.store import PairStore, pair_store, store_key
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import LearnedTokenizer, Tokenizer
from attendo.errors import AttendoError

PAIRS = [(3 * i + 1, f"the cat {i}", f"猫{i} が " * (i % 4)) for i in range(50)]
FILES = ["manifest.json", "rows", "source.ids", "source.offsets", "target.ids", "target.offsets"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([text for pair in PAIRS for text in pair[1:]], TokenizerConfig(kind="character"))


def never() -> Iterator[tuple[int, str, str]]:
    raise AssertionError("the pairs were read although the store is there")
    yield


def check(store: PairStore, tokenizer: Tokenizer, pairs: list[tuple[int, str, str]]) -> None:
    assert len(store) == len(pairs)
    for i, (number, source, target) in enumerate(pairs):
        assert store.row_numbers[i] == number
        assert store.sources[i].tolist() == tokenizer.encode(source)
        assert store.targets[i].tolist() == tokenizer.encode(target)
        assert store.sources.lengths[:][i] == len(tokenizer.encode(source))
        assert store.targets.lengths[:][i] == len(tokenizer.encode(target))


@pytest.mark.parametrize("n", [0, 1, 6, 7, 8, 50])
def test_what_went_in_comes_out(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(store_module, "_CHUNK", 7)
    store = pair_store(iter(PAIRS[:n]), tokenizer, "k", tmp_path)
    check(store, tokenizer, PAIRS[:n])
    assert store.facts.key == "k"
    assert (store.sources.lengths[:].dtype, store.targets.lengths[:].dtype) == (np.int32, np.int32)
    assert store.row_numbers.dtype == np.int64
    for wrong in (-1, n):
        with pytest.raises(IndexError):
            store.sources[wrong]


def test_two_bytes_a_token_and_four_where_the_vocabulary_needs_them(tmp_path: Path) -> None:
    words = [str(i) for i in range((1 << 16) - 4)]
    big = train_tokenizer([" ".join(words)], TokenizerConfig(kind="word"))
    assert big.vocab_size == (1 << 16) + 1
    last = big.pieces([1 << 16])[0]
    assert pair_store([(1, last, "")], big, "big", tmp_path).sources[0].tolist() == [1 << 16]
    small = train_tokenizer([" ".join(words[:-1])], TokenizerConfig(kind="word"))
    assert small.vocab_size == 1 << 16
    last = small.pieces([(1 << 16) - 1])[0]
    store = pair_store([(1, last, "")], small, "small", tmp_path)
    assert store.sources[0].tolist() == [(1 << 16) - 1]
    assert store.sources[0].dtype == np.uint16


def test_a_store_that_is_there_is_opened_without_reading_the_pairs(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pair_store(PAIRS, tokenizer, "k", tmp_path)
    check(pair_store(never(), tokenizer, "k", tmp_path), tokenizer, PAIRS)
    with pytest.raises(AssertionError, match="were read"):
        pair_store(never(), tokenizer, "other", tmp_path)


def test_it_is_kept_in_the_cache_folder(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENDO_CACHE", str(tmp_path / "deep" / "cache"))
    pair_store(PAIRS, tokenizer, "k")
    assert [p.name for p in (tmp_path / "deep" / "cache").iterdir()] == ["pairs-k"]
    monkeypatch.delenv("ATTENDO_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == Path.home() / ".cache" / "attendo"


@pytest.mark.some(6)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["removed", "cut short", "longer", "changed"])
def test_a_damaged_store_is_built_again(tokenizer: Tokenizer, tmp_path: Path, name: str, damage: str) -> None:
    pair_store(PAIRS, tokenizer, "k", tmp_path)
    assert sorted(p.name for p in (tmp_path / "pairs-k").iterdir()) == FILES
    file = tmp_path / "pairs-k" / name
    data = file.read_bytes()
    match damage:
        case "removed":
            file.unlink()
        case "cut short":
            file.write_bytes(data[:-1])
        case "longer":
            file.write_bytes(data + b"x")
        case _:
            file.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    check(pair_store(iter(PAIRS), tokenizer, "k", tmp_path), tokenizer, PAIRS)
    check(pair_store(never(), tokenizer, "k", tmp_path), tokenizer, PAIRS)
    assert [p.name for p in tmp_path.iterdir()] == ["pairs-k"]


def test_pairs_that_end_in_an_error_leave_nothing(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        pair_store(itertools.chain(PAIRS * 100, never()), tokenizer, "k", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_more_than_a_chunk_is_held(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_CHUNK", 10)
    read, most = [0], [0]
    encode_batch = LearnedTokenizer.encode_batch
    done = [0]

    def counted(self: LearnedTokenizer, texts: tuple[str, ...]) -> list[list[int]]:
        most[0] = max(most[0], read[0] - done[0] // 2)
        done[0] += len(texts)
        return encode_batch(self, texts)

    def pairs() -> Iterator[tuple[int, str, str]]:
        for pair in PAIRS:
            read[0] += 1
            yield pair

    monkeypatch.setattr(LearnedTokenizer, "encode_batch", counted)
    pair_store(pairs(), tokenizer, "k", tmp_path)
    assert done[0] == 2 * len(PAIRS)
    assert most[0] == 10


def test_a_cache_that_is_no_folder_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(AttendoError, match=r"file is not a folder. .* ATTENDO_CACHE"):
        pair_store(PAIRS, tokenizer, "k", file)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="rights don't bind this user")
def test_a_cache_that_can_not_be_written_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(AttendoError, match="set ATTENDO_CACHE"):
        pair_store(PAIRS, tokenizer, "k", tmp_path)


def test_the_key_depends_on_contents_options_and_tokenizer_alone(tokenizer: Tokenizer, tmp_path: Path) -> None:
    a, b, c = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    a.write_bytes(b"x\ty\n")
    b.write_bytes(b"x\ty\n")
    c.write_bytes(b"x\tz\n")
    other = train_tokenizer(["abc"], TokenizerConfig(kind="character"))
    options = {"columns": [1, 2], "header": False}
    key = store_key([a], options, tokenizer)
    assert key == store_key([b], dict(reversed(options.items())), tokenizer)
    assert len(key) == 64
    different = [
        store_key([c], options, tokenizer),
        store_key([a, b], options, tokenizer),
        store_key([a], options | {"header": True}, tokenizer),
        store_key([a], options, other),
        store_key([a, c], options, tokenizer),
        store_key([c, a], options, tokenizer),
    ]
    assert len({key, *different}) == 7


def test_several_processes_may_build_one_store(tokenizer: Tokenizer, tmp_path: Path) -> None:
    waiting, begin = os.pipe()
    lengths = [len(tokenizer.encode("the cat" * (i % 5))) for i in range(3000)]

    def build() -> int:
        os.close(begin)
        os.read(waiting, 1)  # all begin at once
        rows = ((i, "the cat" * (i % 5), "猫" * (i % 7)) for i in range(3000))
        store = pair_store(rows, tokenizer, "k", tmp_path / "cache")
        found = len(store), int(store.sources.lengths.sum()), int(store.targets.lengths.sum())
        return int(found != (3000, sum(lengths), sum(i % 7 for i in range(3000))))

    builders = [begun_child(build) for _ in range(3)]
    os.close(begin)
    os.close(waiting)
    assert [os.waitpid(builder, 0)[1] for builder in builders] == [0, 0, 0]
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["pairs-k"]
