"""Words without case: how texts are cut, that no text spells a special, and who may use them."""

import re
import string
from pathlib import Path

import pytest
from corpus_files import write
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.bundle import load_tokenizer
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import SPECIALS, LearnedTokenizer, is_spaced
from attendo.errors import AttendoError
from attendo.runs.settings import check_tables, choose_tokenizer
from attendo.runs.task_specs import family_of

UNCASED = TokenizerConfig(kind="uncased")
CUTS = {
    "I DON'T know": "i do n't know",
    "they can't, won't": "they ca n't , wo n't",
    "It’s the film's plot... isn't it?": "it 's the film 's plot ... is n't it ?",
    "we're they've I'd I'm": "we 're they 've i 'd i 'm",
    "l'homme aujourd'hui": "l ' homme aujourd ' hui",
    "good.<br /><br>bad": "good . bad",
    "3.5 out of 10 -- ok": "3 . 5 out of 1 0 -- ok",
    "STRASSE Straße ΣΊΓΜΑΣ": "strasse straße σίγμασ",
    "ＡＢＣ ﬁne": "abc fine",
    "東京タワーへ行く": "東 京 タワー へ 行 く",
    "don't n't 'n'": "do n't n't ' n '",
    "  \t spaces \n ": "spaces",
    "": "",
    " \n": "",
}


@pytest.mark.parametrize(("text", "words"), CUTS.items())
def test_words_are_those_of_the_penn_treebank_in_lower_case(text: str, words: str) -> None:
    tokenizer = train_tokenizer([text, "x"], UNCASED)
    assert tokenizer.pieces(tokenizer.encode(text)) == words.split()
    assert tokenizer.decode(tokenizer.encode(text)) == words


@settings(max_examples=150)
@given(
    text=st.one_of(
        st.text(max_size=30), st.lists(st.sampled_from([*SPECIALS, "n't", "'s", "’", " ", "ab"])).map("".join)
    )
)
def test_all_signs_of_a_text_are_in_its_words_and_none_is_a_special(text: str) -> None:
    tokenizer = train_tokenizer([text, "x"], UNCASED)
    ids = tokenizer.encode(text)
    assert min(ids, default=4) >= len(SPECIALS)
    words = tokenizer.pieces(ids)
    # what has no case and no compatible form is kept sign by sign
    plain = "".join(c for c in text if c.isascii() and not c.isspace() and c.isprintable())
    if text.isascii() and text.isprintable() and "<br" not in text.lower():
        assert "".join(words) == plain.lower()
    # cutting what was cut changes nothing
    again = tokenizer.encode(" ".join(words))
    if set(text) <= set(string.printable):  # pieces show control characters by their numbers
        assert again == ids


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["Good", "FILM", "don't", "!", "plot"]), max_size=6))
def test_case_and_spaces_do_not_matter(words: list[str]) -> None:
    tokenizer = train_tokenizer(["good film do n't ! plot"], UNCASED)
    text = " ".join(words)
    assert tokenizer.encode(text) == tokenizer.encode(text.lower()) == tokenizer.encode(f" {text.upper()}  ")
    assert tokenizer.encode(text) == tokenizer.encode_on(text)


def test_unknown_and_rare_words_are_one_word() -> None:
    tokenizer = train_tokenizer(["a film", "a plot"], TokenizerConfig(kind="uncased", min_count=2))
    assert tokenizer.vocab_size == 5
    assert tokenizer.encode("A film, a PLOT") == [4, 1, 1, 4, 1]
    assert tokenizer.decode([4, 1]) == "a <unk>"


def test_the_file_tells_its_kind(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["A film."], UNCASED)
    tokenizer.save(tmp_path / "tokenizer.json")
    read = load_tokenizer(tmp_path / "tokenizer.json")
    assert read.kind == "uncased" and read.encode("a FILM") == tokenizer.encode("a FILM")
    text = (tmp_path / "tokenizer.json").read_text("utf-8")
    changed = re.sub(r"<br\\\\s\*/\?>", "<hr>", text)
    assert changed != text
    with pytest.raises(AttendoError, match="splits texts differently"):
        LearnedTokenizer(changed)


@pytest.mark.parametrize("name", ["translation", "language-model"])
def test_what_forgets_case_cannot_write(name: str) -> None:
    with pytest.raises(AttendoError, match=r"kind='uncased' drops case.*Choose bpe"):
        check_tables(family_of(name), {"tokenizer": {"kind": "uncased"}}, "--set")


@pytest.mark.parametrize("name", ["classification", "masked-language-model"])
def test_what_only_reads_may_use_it(name: str) -> None:
    check_tables(family_of(name), {"tokenizer": {"kind": "uncased"}}, "--set")


@pytest.mark.parametrize(
    ("texts", "spaced"),
    [
        (["A cat.", "Кот"], True),
        (["猫が好き", "犬 is a dog"], False),
        (["ไทยดี"], False),
        (["12 !"], False),
        ([], False),
    ],
)
def test_which_scripts_have_spaces(texts: list[str], spaced: bool) -> None:
    assert is_spaced(texts) == spaced


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("classification", "a good film", "uncased"),
        ("masked-language-model", "a good film", "uncased"),
        ("classification", "良い映画だった", "bpe"),
        ("language-model", "a good film", "bpe"),
    ],
)
def test_words_are_chosen_for_what_only_reads_texts_with_spaces(
    tmp_path: Path, name: str, text: str, kind: str
) -> None:
    file = write(tmp_path / "f.tsv", "".join(f"{'ab'[i % 2]}\t{text} {i}\n" for i in range(60)))
    family = family_of(name)
    columns = {"column": "2"} if name != "classification" else {}
    corpus = family.open(family.data(train=(str(file),), **columns), lambda line: None)
    tables, tokenizer = choose_tokenizer({}, family, corpus, lambda line: None)
    assert tokenizer.kind == tables["tokenizer"].get("kind", "bpe") == kind
    own, tokenizer = choose_tokenizer({"tokenizer": {"kind": "byte"}}, family, corpus, lambda line: None)
    assert tokenizer.kind == "byte" and own["tokenizer"] == {"kind": "byte"}
