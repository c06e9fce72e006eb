"""Texts in parts and back: nothing is ever lost, and sentences end where readers see them end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.data import segments
from attendo.data.segments import SENTENCE, Segments, cuts, split_sentences, split_text

PARTS = (
    "It rains", "Dr. Li", "e.g. 3.5 mm", "「雨だ。」と言った", "雪", "！？", "。", ". ", "? ", "! ", ", ",
    "、", "\n", " ", "  ", "\u3000", "\r\n", "...", "」", "『", "(", ")", '"', "'s", "3．5", "é",
    "e\u0301", "👩🏽\u200d🚀", "यह वर्षा है।", "ฝนตก", "\u200b", "\x1c", "\u2028", "x" * 40, "\ud800",
)  # fmt: skip
texts = st.one_of(st.text(), st.lists(st.sampled_from(PARTS), max_size=30).map("".join))


def words(text):
    return len(text.split())


@given(texts)
def test_sentences_and_separators_are_the_text(text):
    found = split_sentences(text)
    assert found.text == text
    assert found.joined(found.pieces) == text
    assert all(piece == piece.strip() != "" for piece in found.pieces)
    assert all(gap == "" or gap.isspace() for gap in found.separators)
    assert len(found.separators) == len(found.pieces) + 1


@settings(max_examples=150)
@given(
    texts,
    st.integers(1, 30),
    st.sampled_from([len, words, lambda text: len(text.encode("utf-8", "replace"))]),
)
def test_parts_are_the_text_and_within_the_limit(text, limit, n_tokens):
    found = split_text(text, limit, n_tokens)
    assert found.text == text
    assert found.joined(found.pieces) == text
    assert all(piece == piece.strip() != "" for piece in found.pieces)
    assert all(n_tokens(piece) <= limit or len(piece) == 1 for piece in found.pieces)


@given(texts)
def test_a_text_within_the_limit_is_cut_at_sentences_only(text):
    assert split_text(text, 10**6, len) == split_sentences(text)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("It rains. It pours! Why? So…", ["It rains.", "It pours!", "Why?", "So…"]),
        (
            "The index fell 3.5 points. It was v1.2.3 of it.",
            ["The index fell 3.5 points.", "It was v1.2.3 of it."],
        ),
        ("Dr. J. R. Smith of the U.S. Army left.", ["Dr. J. R. Smith of the U.S. Army left."]),
        ("See Fig. 3. No. 4 is next. No. It isn't.", ["See Fig. 3. No. 4 is next.", "No.", "It isn't."]),
        ('"Really?" he asked. "Yes." She left.', ['"Really?" he asked.', '"Yes."', "She left."]),
        (
            "He came (it rained. It poured). Then he left.",
            ["He came (it rained. It poured).", "Then he left."],
        ),
        ("Wait... what? Well... Then no.", ["Wait... what?", "Well...", "Then no."]),
        ("Es war der 3. Mai. Es hat z.B. geregnet.", ["Es war der 3. Mai.", "Es hat z.B. geregnet."]),
        ("¿Qué pasa? ¡Nada! «Bien.» Él se fue.", ["¿Qué pasa?", "¡Nada!", "«Bien.»", "Él se fue."]),
        ("Это 5 тыс. рублей. Дождь идёт.", ["Это 5 тыс. рублей.", "Дождь идёт."]),
        ("雨が降る。風も強い！本当か？そうだ。", ["雨が降る。", "風も強い！", "本当か？", "そうだ。"]),
        ("「雨だ。風も強い。」と彼は言った。次の日。", ["「雨だ。風も強い。」と彼は言った。", "次の日。"]),
        ("『本当！？』彼女は驚いた。", ["『本当！？』", "彼女は驚いた。"]),
        ("（注：晴れ。）次へ。3．5度。え!うそ", ["（注：晴れ。）", "次へ。", "3．5度。", "え!", "うそ"]),
        ("« Quoi ? » Rien.", ["« Quoi ? »", "Rien."]),
        ("Er kam. »Guten Tag«, sagte er.", ["Er kam.", "»Guten Tag«, sagte er."]),
        ("he left. she stayed", ["he left.", "she stayed"]),
        ("下雨了。风很大。", ["下雨了。", "风很大。"]),
        ("यह वर्षा है। हवा चली।", ["यह वर्षा है।", "हवा चली।"]),
        ("هل تمطر؟ نعم.", ["هل تمطر؟", "نعم."]),
        ("one\ntwo\r\n\r\n three", ["one", "two", "three"]),
        ("（閉じない。\n次の行。", ["（閉じない。", "次の行。"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_where_sentences_end(text, pieces):
    assert list(split_sentences(text).pieces) == pieces


def test_a_long_sentence_is_cut_where_it_does_least_harm():
    commas = "the wind came from the west, the rain from the south, the snow from where nobody knows"
    assert split_text(commas, 9, words).pieces == (
        "the wind came from the west,",
        "the rain from the south,",
        "the snow from where nobody knows",
    )
    assert split_text("風は西から吹き、雨は南から降り、雪は北から来た。", 12, len).pieces == (
        "風は西から吹き、",
        "雨は南から降り、",
        "雪は北から来た。",
    )
    doubtful = "「雨が強く降っている。風も、かなり強い。」と言った"
    assert split_text(doubtful, 20, len).pieces == ("「雨が強く降っている。", "風も、かなり強い。」と言った")


def test_parts_of_one_sentence_are_of_about_one_size():
    """Not one as long as can be and a rest of two words."""
    found = split_text(" ".join(["word"] * 102), 100, words)
    assert [words(piece) for piece in found.pieces] == [59, 43]


def test_a_character_is_not_parted_from_its_marks():
    assert split_text("e\u0301" * 5, 3, len).pieces == ("e\u0301",) * 5
    assert split_text("👩🏽\u200d🚀" * 2, 5, len).pieces == ("👩🏽\u200d🚀",) * 2


def test_a_number_of_tokens_that_shrinks_as_the_text_grows_breaks_no_limit():
    """As with pieces: "internationa" may have more of them than "international"."""

    def n_tokens(text):
        return words(text) + 5 * text.endswith(",")

    text = "w " * 8 + "w, " + "w " * 12 + "w"
    found = split_text(text, 12, n_tokens)
    assert found.text == text
    assert max(map(n_tokens, found.pieces)) <= 12


@pytest.mark.parametrize(
    ("text", "translations", "joined"),
    [
        ("雨だ。風だ。", ["It rains.", "It blows."], "It rains. It blows."),
        ("雨だ。\n風だ。\n", ["It rains.", "It blows."], "It rains.\nIt blows.\n"),
        (" It rains.  It blows.\n\nIt snows.", ["雨だ。", "風だ。", "雪だ。"], " 雨だ。風だ。\n\n雪だ。"),
        ("It rains.  It blows.", ["Es regnet.", "Es weht."], "Es regnet.  Es weht."),
        ("雨だ。風だ。", ["下雨。", "刮风。"], "下雨。刮风。"),
        ("It rains. 3.5!", ["3,5!", "7!"], "3,5! 7!"),  # no letters tell of no script
    ],
)
def test_translations_are_put_in_the_places_of_their_sentences(text, translations, joined):
    assert split_sentences(text).joined(translations) == joined


def test_the_caller_may_know_the_script_better():
    found = split_sentences("雨だ。風だ。")
    assert found.joined(["7!", "8!"], spaced=True) == "7! 8!"
    assert found.joined(["It rains.", "It blows."], spaced=False) == "It rains.It blows."


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="limit=0 must be at least 1"):
        split_text("a", 0, len)
    with pytest.raises(ValueError, match="1 texts for 2 pieces"):
        Segments(("a", "b"), ("", "", "")).joined(["c"])


def test_a_megabyte_without_a_mark_is_no_trouble():
    """Each character is looked at a bounded number of times, whatever the text: here counted, not timed."""
    seen = 0

    def counted(text):
        nonlocal seen
        seen += len(text)
        return len(text)

    text = "雪" * 20_000 + " a,b" * 10_000
    found = split_text(text, 500, counted)
    assert found.text == text
    assert seen < 40 * len(text)
    assert len(cuts("a. " * 3_000)) == 2_999
    assert all(cut.rank == SENTENCE for cut in cuts("雨。" * 3_000))


def test_a_row_of_brackets_is_read_once(monkeypatch):
    """What follows each of them would be read to its end: minutes for 50,000."""
    asked, beginning = [], segments._BEGINNING

    class Counted:
        def match(self, text, start):
            asked.append(start)
            return beginning.match(text, start)

    monkeypatch.setattr(segments, "_BEGINNING", Counted())
    pieces = split_text("(" * 1000, 100, len).pieces
    assert max(map(len, pieces)) <= 100 and "".join(pieces) == "(" * 1000
    assert not asked and len(cuts("It rains. It pours.")) == 3 and len(asked) == 2
