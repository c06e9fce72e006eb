"""The token stream: what went in comes out, whether documents come whole or in chunks, from memory or a store."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.data import token_stream as module
from attendo.data.texts import Chunk, TextSource, read_documents
from attendo.data.token_stream import TokenStream, token_stream
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Kind, Tokenizer

TEXTS = ["the cat sat on the mat . 猫", "a dog\n  sat ▁ on 12 mats", "x"]
KINDS: tuple[Kind, ...] = ("bpe", "unigram", "character", "byte")


@cache
def tokenizer(kind: Kind = "character") -> Tokenizer:
    size = 300 if kind in ("bpe", "unigram") else None
    return train_tokenizer(TEXTS * 5, TokenizerConfig(kind=kind, vocab_size=size))


def in_chunks(texts: list[str], width: int) -> Iterator[Chunk]:
    for text in texts:
        for start in range(0, len(text), width):
            yield Chunk(text[start : start + width], start == 0)


def check(stream: TokenStream, texts: list[str], found: Tokenizer) -> None:
    assert len(stream) == len(texts)
    assert stream.n_tokens == len(stream.ids) == stream.offsets[-1]
    assert stream.n_positions == stream.n_tokens + len(texts)
    for text, document in zip(texts, stream.documents(), strict=True):
        assert found.decode(document.ids.tolist()) == text
        assert (document.n_characters, document.n_bytes) == (len(text), len(text.encode()))
        assert document.n_targets == len(document.ids) + 1


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(texts=st.lists(st.text(min_size=1), max_size=6), width=st.integers(1, 9))
def test_documents_come_out_as_they_went_in(kind: Kind, texts: list[str], width: int) -> None:
    before = module._AT_ONCE
    module._AT_ONCE = 8
    try:
        parts = zip(*module._encoded(in_chunks(texts, width), tokenizer(kind)), strict=True)
        ids, offsets, n_bytes, n_characters = map(np.concatenate, parts)
        check(TokenStream(ids, offsets, n_bytes, n_characters), texts, tokenizer(kind))
    finally:
        module._AT_ONCE = before
    check(TokenStream.of(texts, tokenizer(kind)), texts, tokenizer(kind))


def test_half_a_surrogate_pair_counts_as_what_it_is_read_as() -> None:
    check(TokenStream.of(["a\ud800"], tokenizer()), ["a\ufffd"], tokenizer())


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_store_holds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 20)
    stream = token_stream(in_chunks(TEXTS[:n], 4), tokenizer(), "k", tmp_path)
    check(stream, TEXTS[:n], tokenizer())
    assert stream.facts.key == "k"
    assert stream.ids.dtype == np.uint16
    held = TokenStream.of(TEXTS[:n], tokenizer())
    for name in ("ids", "offsets", "n_bytes", "n_characters"):
        np.testing.assert_array_equal(getattr(stream, name), getattr(held, name))
    for wrong in (-1, n):
        with pytest.raises(IndexError):
            stream.document(wrong)


def test_it_is_built_once_and_again_when_damaged(tmp_path: Path) -> None:
    def never() -> Iterator[Chunk]:
        raise AssertionError("the texts were read although the store is there")
        yield

    token_stream(in_chunks(TEXTS, 100), tokenizer(), "k", tmp_path)
    check(token_stream(never(), tokenizer(), "k", tmp_path), TEXTS, tokenizer())
    names = sorted(path.name for path in (tmp_path / "texts-k").iterdir())
    assert names == ["bytes", "characters", "ids", "manifest.json", "offsets"]
    for name in names:
        file = tmp_path / "texts-k" / name
        file.write_bytes(file.read_bytes()[:-1])
        check(token_stream(in_chunks(TEXTS, 100), tokenizer(), "k", tmp_path), TEXTS, tokenizer())
    with pytest.raises(AssertionError, match="were read"):
        token_stream(never(), tokenizer(), "other", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["texts-k"]


@pytest.mark.parametrize("kind", [*KINDS, "word"])
def test_a_long_document_has_the_ids_of_the_whole(tmp_path: Path, kind: Kind) -> None:
    text = "\n\n".join(f"the cat sat on {i} mats ,\n  and a dog" for i in range(3000))
    (tmp_path / "long.txt").write_text(text, "utf-8")
    chunks = list(read_documents(TextSource((tmp_path / "long.txt",))))
    assert len(chunks) > 5
    stream = token_stream(chunks, tokenizer(kind), "k", tmp_path / "cache")
    assert stream.ids.tolist() == tokenizer(kind).encode(text)


def test_a_sample_is_bounded_and_the_same_each_time() -> None:
    texts = ["a" * n for n in range(1, 30)]
    stream = TokenStream.of(texts, tokenizer("byte"))
    everything = stream.sample(stream.n_positions, tokenizer("byte"))
    assert [d.n_characters for d in everything] == [len(text) for text in texts]
    for n_tokens in (1, 2, 17, 100, stream.n_positions - 1):
        chosen = stream.sample(n_tokens, tokenizer("byte"))
        assert sum(d.n_targets for d in chosen) == n_tokens
        assert all(d.ended for d in chosen[:-1])
        assert all(d.n_characters == d.n_bytes == len(d.ids) for d in chosen)
        again = stream.sample(n_tokens, tokenizer("byte"))
        assert [d.n_characters for d in again] == [d.n_characters for d in chosen]


def test_a_beginning_counts_whole_characters() -> None:
    document = TokenStream.of(["a猫b"], tokenizer("byte")).document(0)
    counts = [
        (d.n_characters, d.n_bytes, d.n_targets, d.ended)
        for d in (document.beginning(n, tokenizer("byte")) for n in (1, 2, 4, 5, 6))
    ]
    assert counts == [(1, 1, 1, False), (1, 1, 2, False), (2, 4, 4, False), (3, 5, 5, False), (3, 5, 6, True)]
