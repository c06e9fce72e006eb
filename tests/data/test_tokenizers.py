"""Tokenizers: nothing is lost, no text spells a special, the same texts give the same file."""

import hashlib
import json
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from attendo.bundle import load_tokenizer
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import BYTES, MARK, SPECIALS, Kind, Tokenizer, tokenizer_document, well_formed
from attendo.errors import AttendoError

ENGLISH = [
    "the cat sat on the mat .",
    "a dog sat on the cat's mat , didn't it ?",
    "In 2024 the cats ate 12 mats !",
]
JAPANESE = [
    "猫がマットに座った。",
    "犬はラーメンを食べる。",
    "明日は東京で雨が降るでしょう。",
    "猫が食べるラーメン。",
]
TEXTS = (ENGLISH + JAPANESE) * 3
KINDS: tuple[Kind, ...] = ("bpe", "unigram", "character", "byte", "word", "uncased")
EXACT = KINDS[:4]


def trained(kind: Kind, texts: list[str] = TEXTS, size: int | None = None) -> Tokenizer:
    size = size or (400 if kind in ("bpe", "unigram") else None)
    return train_tokenizer(iter(texts), TokenizerConfig(kind=kind, vocab_size=size))


@cache
def ready(kind: Kind) -> Tokenizer:
    return trained(kind)


@cache
def file_text(kind: Kind) -> str:
    with TemporaryDirectory() as folder:
        ready(kind).save(Path(folder, "tokenizer.json"))
        return Path(folder, "tokenizer.json").read_text("utf-8")


@cache
def library(kind: Kind) -> LibraryTokenizer:
    return LibraryTokenizer.from_str(file_text(kind))


@cache
def without_cuts(kind: Kind) -> LibraryTokenizer:
    document = json.loads(file_text(kind))
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    document["normalizer"] = {"type": "Sequence", "normalizers": [document["normalizer"], spaces]}
    document["pre_tokenizer"] = None
    return LibraryTokenizer.from_str(json.dumps(document))


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return ready(request.param)


SPELLED = [
    *SPECIALS, "<0x41>", "<0xE3>", MARK, " ", "  ", "\t", "\n", "\r\n", "\0",
    "ー", "…", "👨‍👩‍👧", "🇯🇵", "e\u0301",
]  # fmt: skip
ODD = [*SPELLED, *"\u200f\u202e\ue000\ufeff\ufffe\u2028\x85𠮷\U0010ffff", "か\u3099", "ｶﾞ"]
texts = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*ODD, "cat", "the", "猫", "食べる", "12", "."])).map("".join),
    st.lists(st.one_of(st.sampled_from(ODD), st.text(max_size=3)), max_size=12).map("".join),
)
any_strings = st.text(st.characters(exclude_categories=[]))  # with lone surrogates


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=200)
@given(text=texts)
def test_decode_is_the_exact_inverse_of_encode(kind: Kind, text: str) -> None:
    ids = ready(kind).encode(text)
    assert ready(kind).decode(ids) == text
    assert all(i > 3 for i in ids)


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=50)
@given(first=texts.filter(bool), second=texts)
def test_a_text_may_be_encoded_in_two_parts(kind: Kind, first: str, second: str) -> None:
    tokenizer = ready(kind)
    ids = tokenizer.encode(first) + tokenizer.encode_on(second)
    assert tokenizer.decode(ids) == first + second
    assert all(i > 3 for i in ids)
    assert tokenizer.encode_batch([second, first], going_on=True) == [
        tokenizer.encode_on(second),
        tokenizer.encode_on(first),
    ]
    if kind in ("character", "byte"):
        assert ids == tokenizer.encode(first + second)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(first=texts.filter(bool), second=texts)
def test_a_part_that_begins_with_a_space_has_the_ids_of_the_whole(kind: Kind, first: str, second: str) -> None:
    tokenizer = ready(kind)
    assert tokenizer.encode(first) + tokenizer.encode_on(f" {second}") == tokenizer.encode(f"{first} {second}")


@settings(max_examples=100)
@given(text=texts)
def test_bytes_are_the_ids_of_utf_8(text: str) -> None:
    byte = ready("byte")
    assert byte.vocab_size == 260
    assert byte.encode(text) == [4 + b for b in text.encode()]


def random_text(random: Random) -> str:
    """Odd strings, words, and code points from anywhere, surrogates included, in any order."""
    parts = []
    for _ in range(random.randrange(12)):
        match random.randrange(4):
            case 0:
                parts.append(random.choice(ODD))
            case 1:
                parts.append(random.choice(TEXTS)[: random.randrange(9)])
            case 2:
                parts.append(chr(random.randrange(0x3000)))
            case _:
                parts.append(chr(random.randrange(0x110000)))
    return "".join(parts)


@pytest.mark.full
@pytest.mark.parametrize("kind", EXACT)
def test_decode_is_the_exact_inverse_of_encode_for_a_million_texts(kind: Kind) -> None:
    random = Random(kind)
    for _ in range(350):
        batch = [random_text(random) for _ in range(1000)]
        for text, ids in zip(batch, ready(kind).encode_batch(batch), strict=True):
            assert ready(kind).decode(ids) == well_formed(text)
            assert not ids or min(ids) > 3


@settings(max_examples=200)
@given(text=any_strings)
def test_any_string_at_all_is_taken_and_lone_surrogates_are_replaced(text: str) -> None:
    plain = well_formed(text)
    assert len(plain.encode()) > 0 or text == ""
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert plain == text
    for kind in EXACT:
        assert ready(kind).decode(ready(kind).encode(text)) == plain


def test_surrogate_pairs_are_one_character_and_halves_are_replaced() -> None:
    assert well_formed("\ud83d\ude00") == "\U0001f600"
    assert well_formed("a\ud800b\udfffc") == "a\ufffdb\ufffdc"


@settings(max_examples=100)
@given(words=st.lists(st.sampled_from(["the", "cat", "mat", "", "犬はラーメンを食べる。", "cat's"])))
def test_known_words_are_kept_with_every_space(words: list[str]) -> None:
    text = " ".join(words)
    ids = ready("word").encode(text)
    assert ready("word").decode(ids) == text
    assert len(ids) == (len(words) if text else 0)
    assert all(i > 3 for i in ids)


@settings(max_examples=100)
@given(text=texts)
def test_unknown_words_become_unk_and_nothing_else(text: str) -> None:
    ids = ready("word").encode(text)
    assert all(i == Tokenizer.unk_id or i > 3 for i in ids)
    assert len(ids) == (len(text.split(" ")) if text else 0)


def test_unknown_words_are_shown_in_the_text() -> None:
    word = ready("word")
    ids = word.encode("the zebra sat")
    assert ids[1] == word.unk_id
    assert word.decode(ids) == "the <unk> sat"


def test_a_word_spelled_like_a_special_is_a_word() -> None:
    word = trained("word", ["</s> <pad> x"])
    assert word.decode(word.encode("<pad> </s>")) == "<pad> </s>"
    assert min(word.encode("<pad> </s> <unk>")) == word.unk_id
    assert word.pieces(word.encode("</s>")) == ["</s>"]


@settings(max_examples=50)
@given(batch=st.lists(texts, max_size=6))
def test_a_batch_is_each_text_alone(batch: list[str]) -> None:
    for kind in KINDS:
        assert ready(kind).encode_batch(batch) == [ready(kind).encode(text) for text in batch]


@settings(max_examples=100)
@given(text=texts)
def test_the_file_alone_decodes_the_same_in_the_library(text: str) -> None:
    for kind in EXACT:
        assert library(kind).decode(ready(kind).encode(text), skip_special_tokens=False) == text


@settings(max_examples=100)
@given(text=st.lists(st.sampled_from(list("cat dog. 12ー猫がマラ東降!é🦀"))).map("".join))
def test_the_same_pieces_are_found_without_cuts_as_a_sentencepiece_model_does(text: str) -> None:
    for kind in ("bpe", "unigram"):
        assert without_cuts(kind).encode(text).ids == ready(kind).encode(text)


def test_specials_come_first_and_are_left_out_of_the_text(tokenizer: Tokenizer) -> None:
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2, 3)
    assert tokenizer.pieces(range(4)) == list(SPECIALS)
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([2, *ids[:1], 0, *ids[1:], 3, 0, 0]) == "the cat"


def test_pieces_are_readable() -> None:
    bpe = ready("bpe")
    assert bpe.pieces(bpe.encode("the cat 猫\tÿ")) == ["▁the", "▁cat", "▁猫", "<09>", "<C3>", "<BF>"]
    assert ready("character").pieces(ready("character").encode("a 猫")) == ["a", "▁", "猫"]
    assert ready("word").pieces(ready("word").encode("the  cat zebra")) == ["the", "▁", "cat", "<unk>"]
    assert ready("byte").pieces(ready("byte").encode("a <é\n")) == ["a", "▁", "<", "<C3>", "<A9>", "<0A>"]
    control = trained("character", ["a\u200db"])
    assert control.pieces(control.encode("\u200d")) == ["<U+200D>"]


def test_japanese_is_cut_by_script_and_digits_stand_alone() -> None:
    scripts = [set("猫座犬食明日東京雨降"), set("がにったはをべるでしょう"), set("マットラーメン")]
    for kind in ("bpe", "unigram"):
        tokenizer = trained(kind, ["猫がマットに座った1234猫がマットに座った。"] * 20, 320)
        pieces = [p.lstrip(MARK) for p in tokenizer.pieces(range(260, tokenizer.vocab_size))]
        assert any(len(p) > 1 for p in pieces)
        for piece in pieces:
            kinds = {next((i for i, s in enumerate(scripts) if c in s), c) for c in piece}
            assert len(kinds) <= 1, piece
        ids = tokenizer.encode("1234")
        assert tokenizer.pieces(ids)[-3:] == ["2", "3", "4"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_frequent_words_are_one_piece(kind: Kind) -> None:
    assert ready(kind).pieces(ready(kind).encode("the cat")) == ["▁the", "▁cat"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_runs_of_spaces_and_line_breaks_are_one_token(kind: Kind) -> None:
    code = "def f(x):\n    if x:\n        return 1\n\n\n"
    tokenizer = trained(kind, [code] * 20)
    pieces = tokenizer.pieces(ids := tokenizer.encode(code))
    assert tokenizer.decode(ids) == code
    assert {MARK * 3, MARK * 7} < {*pieces} and MARK not in pieces  # the last space belongs to the word
    assert [tokenizer.decode([i]) for i in ids if "\n" in tokenizer.decode([i])] == ["\n", "\n", "\n\n\n"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_tokenizers_of_earlier_versions_read_each_space_alone(kind: Kind, tmp_path: Path) -> None:
    trained(kind).save(path := tmp_path / "tokenizer.json")
    document = json.loads(path.read_text())
    document["pre_tokenizer"] = tokenizer_document(kind, {}, runs=False)["pre_tokenizer"]
    path.write_text(json.dumps(document))
    earlier = load_tokenizer(path)
    text = "the   cat"
    assert earlier.pieces(earlier.encode(text))[:3] == ["▁the", "▁", "▁"]
    assert earlier.decode(earlier.encode(text)) == text


def test_rare_characters_between_spaces_are_no_run_of_spaces() -> None:
    texts = [f"a {chr(0x4E00 + i)} b" for i in range(99)]
    tokenizer = train_tokenizer(texts, TokenizerConfig(kind="bpe", vocab_size=400, character_coverage=0.6))
    assert sum(chr(0x4E00 + i) in tokenizer.entries for i in range(99)) < 60  # the others are not in the alphabet
    assert not [entry for entry in tokenizer.entries if MARK * 2 in entry]


def test_rare_characters_are_spelled_in_bytes() -> None:
    common = ["猫が食べる" * 400]
    rare = [chr(0x5000 + i) for i in range(100)]
    config = TokenizerConfig(kind="bpe", vocab_size=300, character_coverage=0.9)
    tokenizer = train_tokenizer(common + rare, config)
    assert len(tokenizer.encode(rare[99])) == 4  # the mark and three bytes
    assert len(tokenizer.encode("猫")) <= 2
    full = train_tokenizer(common + rare, TokenizerConfig(vocab_size=300 + 100, character_coverage=1.0))
    assert len(full.encode(rare[99])) == 2


@pytest.mark.parametrize(("kind", "least"), list(zip(KINDS, (268, 268, 261, 260, 6, 5), strict=True)))
def test_a_vocabulary_that_is_too_small_names_the_least_possible(kind: Kind, least: int) -> None:
    with pytest.raises(AttendoError, match=f"vocab_size={least - 1} is too small.* at least {least}"):
        trained(kind, ["abcdefg"], least - 1)
    smallest = trained(kind, ["abcdefg"], least)
    assert smallest.vocab_size == least


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("empty", [[], [""], [" ", "\n"]])
def test_no_text_is_an_error(kind: Kind, empty: list[str]) -> None:
    with pytest.raises(AttendoError, match="no text to train a tokenizer from"):
        trained(kind, empty)


def test_pieces_need_a_size_and_configurations_are_checked() -> None:
    with pytest.raises(AttendoError, match=r"Set tokenizer\.vocab_size"):
        train_tokenizer(["a"], TokenizerConfig())
    for wrong in (
        {"vocab_size": 0},
        {"min_count": 0},
        {"character_coverage": 0.0},
        {"character_coverage": 1.1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TokenizerConfig(**wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_short_texts_are_enough(kind: Kind) -> None:
    tokenizer = trained(kind, ["a"], 8000)
    assert tokenizer.decode(tokenizer.encode("a")) == "a"
    assert tokenizer.vocab_size < 300


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_megabyte_without_a_space_is_learned_and_encoded(kind: Kind) -> None:
    endless = "a" * (1 << 20)
    tokenizer = trained(kind, [endless])  # hours, were the time quadratic in the length of a word
    assert tokenizer.decode(tokenizer.encode(endless)) == endless


def test_min_count_leaves_rare_entries_out() -> None:
    counted = ["b a a", "c a b"]
    word = train_tokenizer(counted, TokenizerConfig(kind="word", min_count=2))
    assert word.pieces(range(5, word.vocab_size)) == ["a", "b"]
    character = train_tokenizer(counted, TokenizerConfig(kind="character", min_count=2))
    assert character.pieces(range(260, character.vocab_size)) == ["▁", "a", "b"]


def test_saving_and_loading(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = load_tokenizer(path)
    assert again.kind == tokenizer.kind
    assert again.vocab_size == tokenizer.vocab_size == LibraryTokenizer.from_file(str(path)).get_vocab_size()
    assert again.sha256 == tokenizer.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert again.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)


def test_files_that_are_no_tokenizer_of_ours_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(AttendoError, match=r"tokenizer\.json: no such file"):
        load_tokenizer(path)
    good = file_text("bpe")
    document = json.loads(good)
    foreign_cut = document | {"pre_tokenizer": {"type": "WhitespaceSplit"}}
    special = {"id": 3, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False}
    added = document | {"added_tokens": [special | {"normalized": False, "special": True}]}
    moved = (vocab := document["model"]["vocab"]) | {"<pad>": vocab[BYTES[0]], BYTES[0]: 0}
    swapped = document | {"model": document["model"] | {"vocab": moved}}
    wrong = [good[: len(good) // 2], "", "{}", "[]", *map(json.dumps, (foreign_cut, added, swapped))]
    for text in wrong:
        path.write_text(text, "utf-8")
        with pytest.raises(AttendoError, match=r"tokenizer\.json: "):
            load_tokenizer(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(AttendoError, match="not a tokenizer file"):
        load_tokenizer(path)


def test_ids_out_of_range_are_refused(tokenizer: Tokenizer) -> None:
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(AttendoError, match=f"token id {wrong} "):
            tokenizer.decode([5, wrong])
        with pytest.raises(AttendoError, match=f"token id {wrong} "):
            tokenizer.pieces([wrong])


def test_what_a_model_makes_up_is_still_text() -> None:
    decode = ready("bpe").decode
    assert (decode([4 + 0xE3, 4 + 0x81]), decode([Tokenizer.unk_id])) == ("\ufffd", "")
