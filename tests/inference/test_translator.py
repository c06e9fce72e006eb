"""Long texts in parts and back, loops found and mended, on a translator that was never trained."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.data import forecasts
from attendo.data.segments import split_text
from attendo.decoding.protocols import Hypothesis
from attendo.errors import AttendoError
from attendo.inference.translations import is_looping, repeats

SENTENCES = [source for source, _ in forecasts.pairs(12, "train")]
PARAGRAPH = " ".join(SENTENCES)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def translator(tokenizer):
    return tiny_translator(tokenizer, max_len=64)


def n_tokens(translator):
    return lambda text: len(translator.tokenizer.encode(text))


# ---- long texts


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_long_text_is_its_parts_translated_each_on_its_own(tokenizer, positions):
    translator = tiny_translator(tokenizer, max_len=64, positions=positions)
    text = f"  {PARAGRAPH}\n\nThe end.\n"
    segments = split_text(text, 63, n_tokens(translator))
    assert len(segments.pieces) > 10
    alone = translator.translate(segments.pieces)
    found = translator.translate(["rain", text, ""])
    assert [translation.parts for translation in found] == [1, len(segments.pieces), 1]
    best = found[1].candidates[0]
    assert best.text == segments.joined([translation.text for translation in alone])
    assert best.text.startswith("  ") and "\n\n" in best.text and best.text.endswith("\n")
    assert best.score == pytest.approx(sum(translation.score for translation in alone) / len(alone))
    parts = [translation.candidates[0] for translation in alone]
    assert best.log_prob == pytest.approx(sum(part.log_prob for part in parts))
    assert best.token_ids == tuple(itertools.chain(*(part.token_ids for part in parts)))
    assert len(best.token_log_probs) == len(best.token_ids) + sum(part.finished for part in parts)
    assert best.finished == all(part.finished for part in parts)


def test_the_longest_text_is_one_part_and_one_token_more_is_not(tokenizer):
    translator = tiny_translator(tokenizer, max_len=30, positions="learned")
    assert translator.longest == 29
    texts = ["a " * (n - 1) + "a" for n in (29, 30)]
    assert list(map(n_tokens(translator), texts)) == [29, 30]
    assert [found.parts for found in translator.translate(texts)] == [1, 2]
    assert [found.parts for found in translator.translate(texts, longest=20)] == [2, 2]


@pytest.mark.parametrize("kind", ["byte", "character", "word"])
def test_texts_without_a_mark_are_split_with_every_tokenizer(kind):
    translator = tiny_translator(tiny_tokenizer(kind), max_len=24, positions="learned")
    texts = ["雪" * 100, "rain" * 50, "rain " * 50, "👩🏽\u200d🚀" * 9, "."]
    for text, found in zip(texts, translator.translate(texts), strict=True):
        parts = split_text(text, 23, n_tokens(translator)).pieces
        assert found.parts == len(parts)
        assert all(n_tokens(translator)(part) <= 23 for part in parts)


def test_the_n_best_of_a_split_text_are_the_best_combinations(translator):
    text, n = "It will rain. There is fog at dawn. Snow!", 10
    options = {"beam": 3, "n_best": 3, "longest": n, "guard": False}
    parts = split_text(text, n, n_tokens(translator)).pieces
    assert 2 <= len(parts) <= 5
    alone = translator.translate(parts, **options)
    assert all(len(translation.candidates) == 3 for translation in alone)
    scores = [[c.score for c in translation.candidates] for translation in alone]
    wanted = sorted((sum(choice) / len(parts) for choice in itertools.product(*scores)), reverse=True)[:3]
    found = translator.translate([text], **options)[0]
    assert [c.score for c in found.candidates] == pytest.approx(wanted)
    assert len({c.text for c in found.candidates}) == 3


def test_texts_beside_a_long_one_stay_as_they_are(translator):
    together = [translation.text for translation in translator.translate(["rain", PARAGRAPH, "snow"])]
    assert together[::2] == [translation.text for translation in translator.translate(["rain", "snow"])]


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_a_prepared_search_finds_the_same(kind):
    plain, ready = tiny_translator(tiny_tokenizer(kind)), tiny_translator(tiny_tokenizer(kind)).prepare()
    texts = ["rain", "snow in Oslo", PARAGRAPH]
    found = [[(c.text, c.score) for c in t.candidates] for t in plain.translate(texts, beam=3, n_best=2)]
    again = [[(c.text, c.score) for c in t.candidates] for t in ready.translate(texts, beam=3, n_best=2)]
    assert [[text for text, _ in t] for t in found] == [[text for text, _ in t] for t in again]
    scores = [score for t in found for _, score in t]
    assert scores == pytest.approx([score for t in again for _, score in t], abs=1e-4)


def test_8_bits_are_near_and_their_scores_are_their_own():
    plain, small = tiny_translator(tiny_tokenizer()), tiny_translator(tiny_tokenizer()).prepare(8)
    one, other = (translator.translate(["rain"], beam=1)[0] for translator in (plain, small))
    assert other.score != one.score and other.score == pytest.approx(one.score, rel=0.2)
    pairs = [("rain", "雨")]
    assert small.score(pairs) != plain.score(pairs)
    assert small.score(pairs)[0].log_prob == pytest.approx(plain.score(pairs)[0].log_prob, rel=0.01)


def test_nothing_to_translate(translator):
    for text in ("", " ", "\n\u3000"):
        found = translator.translate([text])[0]
        assert (found.text, found.parts, found.loop, found.score) == ("", 1, "none", 0.0)
    assert translator.translate([]) == []


@pytest.mark.parametrize("longest", [7, 64, 0, -1])
def test_a_length_that_the_model_cannot_read_is_refused(translator, longest):
    with pytest.raises(AttendoError, match=f"longest={longest} must be 8 to 63"):
        translator.translate(["rain"], longest=longest)


def test_a_recording_holds_the_parts(translator):
    with translator.recording() as record:
        found = translator.translate([PARAGRAPH])[0]
        weights = record["decoder.blocks.0.cross_attention"].weights
    assert weights.shape[0] == found.parts > 10


def test_a_text_to_score_cannot_be_split(tokenizer):
    translator = tiny_translator(tokenizer, max_len=30, positions="learned")
    with pytest.raises(AttendoError, match=r"\(expected at most 29\)\. Split the text"):
        translator.score([(PARAGRAPH, "rain")])
    with pytest.raises(AttendoError, match=r"\(expected at most 29\)\. Split the text"):
        translator.score([("rain", PARAGRAPH)])


# ---- loops


def test_a_loop_is_searched_again_without_repetition_and_flagged(tokenizer, monkeypatch):
    translator = tiny_translator(tokenizer, beam=2, max_length_extra=60, max_len=64)
    rows = {}

    def decode(sources, config, starts):
        """A model that loops unless n-grams may not repeat; a text of more than 30 tokens loops anyway."""
        rows[config.no_repeat_ngram] = len(sources)
        looped, sound = hypothesis([7, 8, 9] * 6), hypothesis([7, 8, 9, 10])
        return [
            [looped if len(source) > 30 or (len(source) > 5 and not config.no_repeat_ngram) else sound]
            for source in sources
        ]

    monkeypatch.setattr(translator, "search", decode)
    short, middle, long = "a b", "a b c d e f g h", " ".join("abcdefghijklmnopqrstuvwxyz" + "zyxwvut")
    found = translator.translate([short, middle, long])
    assert [translation.loop for translation in found] == ["none", "mended", "left"]
    assert [len(translation.candidates[0].token_ids) for translation in found] == [4, 4, 18]
    assert rows == {0: 3, 4: 2}
    rows.clear()
    plain = translator.translate([middle], guard=False)[0]
    assert (plain.loop, len(plain.candidates[0].token_ids), rows) == ("none", 18, {0: 1})
    rows.clear()
    translator.decoding = dataclasses.replace(translator.decoding, no_repeat_ngram=3)
    assert translator.translate([long])[0].loop == "left"
    assert rows == {3: 1}  # it was searched so already


def test_a_real_search_that_loops_is_mended(tokenizer):
    """This model's most likely texts go round in circles, as those of a barely trained one do."""
    translator = next(
        found
        for found in (
            tiny_translator(tokenizer, seed, scale=0.3, beam=1, max_length_extra=40, max_len=64) for seed in range(20)
        )
        if repeats(found.translate(["rain"], guard=False)[0].candidates[0].token_ids)
    )
    plain, guarded = (translator.translate(["rain"], guard=guard)[0] for guard in (False, True))
    assert (plain.loop, guarded.loop) == (
        "none",
        "left" if repeats(guarded.candidates[0].token_ids) else "mended",
    )
    ids = guarded.candidates[0].token_ids
    four_grams = [ids[i : i + 4] for i in range(len(ids) - 3)]
    assert guarded.loop == "mended" and len(set(four_grams)) == len(four_grams)


def hypothesis(ids, finished=True):
    return Hypothesis(tuple(ids), -1.0, -1.0, (-0.1,) * (len(ids) + finished), finished)


def test_what_runs_away():
    source = [5, 6, 7, 8, 3]
    assert is_looping(source, hypothesis([5, 6, 7, 8] * 3))
    assert not is_looping([5, 6] * 6, hypothesis([7, 8] * 6))  # the source says it so often, too
    assert not is_looping(source, hypothesis(range(100)))  # long, but it has an end
    assert is_looping(source, hypothesis(range(41), finished=False))
    assert not is_looping(source, hypothesis(range(40), finished=False))
    assert not is_looping(source, hypothesis([]))


@given(
    st.lists(st.integers(0, 3), max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.integers(1, 14),
    st.lists(st.integers(0, 3), max_size=6),
)
def test_repetition_against_the_definition(before, period, times, after):
    ids = [*before, *period * times, *after]
    assert repeats(ids) == any(
        ids[start : start + n] * times == ids[start : start + n * times]
        for n in range(1, len(ids) // 3 + 1)
        for times in [max(3, -(-12 // n))]
        for start in range(len(ids) - n * times + 1)
    )
