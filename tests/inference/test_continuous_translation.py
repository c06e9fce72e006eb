"""Translations side by side are what each is alone, whenever they come, and whoever leaves."""

import dataclasses
import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.decoding.options import DecodingConfig
from attendo.errors import AttendoError
from attendo.inference.continuous_translation import Translating, TranslationJob

TOKENIZER = tiny_tokenizer()
USER = tiny_translator(TOKENIZER, max_len=24).prepare()
WORDS = ["rain", "snow", "it", "will", "tomorrow", ".", "Oslo", "\n\n"]
texts = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)
requests = st.fixed_dictionaries(
    {
        "texts": st.lists(texts, min_size=1, max_size=3),
        "beam": st.integers(1, 3),
        "guard": st.booleans(),
        "alignments": st.booleans(),
        "wait": st.integers(0, 5),
        "leaves": st.one_of(st.none(), st.integers(0, 4)),
    }
)


def sources(lines):
    return USER.sources(lines)


def finished(translating, leaving=()):
    """What comes until nothing goes on: pieces and translations by request; leaving: (after so many steps, number)."""
    pieces, whole, step = {}, {}, 0
    while translating.going_on:
        translating.leave([number for after, number in leaving if after == step])
        for news in translating.advance():
            if news.translations is None:
                pieces.setdefault(news.number, []).append(news.piece)
            else:
                whole[news.number] = news.translations
        step += 1
    return pieces, whole


@settings(max_examples=40, deadline=None)
@given(st.lists(requests, min_size=1, max_size=5), st.integers(1, 9))
def test_each_request_gets_what_translate_gives(asked, rows):
    translating = Translating(USER, rows)
    wanted, whole, leaving = {}, {}, []
    for one in asked:
        for _ in range(one["wait"]):
            whole |= {n.number: n.translations for n in translating.advance() if n.translations is not None}
        config = dataclasses.replace(USER.decoding, beam=one["beam"], n_best=one["beam"])
        number = translating.add(TranslationJob(sources(one["texts"]), config, one["guard"], one["alignments"]))
        wanted[number] = one
        if one["leaves"] is not None:
            leaving.append((one["leaves"], number))
    whole |= finished(translating, leaving)[1]
    assert wanted.keys() - {number for _, number in leaving} <= whole.keys() <= wanted.keys()
    for number, found in whole.items():
        one = wanted[number]
        options = {"guard": one["guard"], "alignments": one["alignments"], "n_best": one["beam"]}
        expected = USER.translate(one["texts"], one["beam"], **options)
        assert [t.candidates for t in found] == [t.candidates for t in expected]
        assert list(found) == expected


@settings(max_examples=30, deadline=None)
@given(texts, texts)
def test_a_stream_gives_its_text_in_pieces(streamed, beside):
    translating = Translating(USER)
    greedy = dataclasses.replace(USER.decoding, beam=1, n_best=1)
    other = translating.add(TranslationJob(sources([beside]), greedy))
    number = translating.add(TranslationJob(sources([streamed]), greedy, guard=False, stream=True))
    pieces, whole = finished(translating)
    assert other not in pieces and all(pieces.get(number, []))
    (expected,) = USER.translate([streamed], 1, guard=False)
    assert "".join(pieces.get(number, [])) == whole[number][0].text == expected.text


def test_a_short_request_does_not_wait_for_the_end_of_a_long_one():
    translating = Translating(USER, rows=4)
    config = dataclasses.replace(USER.decoding, beam=1)
    long = translating.add(TranslationJob(sources(["rain . " * 200]), config))
    short = translating.add(TranslationJob(sources(["snow"]), config))
    done = []
    while short not in done:
        done += [news.number for news in translating.advance() if news.translations is not None]
    assert long not in done and translating.going_on == 1


def test_searches_that_nobody_needs_do_not_gather(monkeypatch):
    made = []
    monkeypatch.setattr(USER, "continuous", lambda config, make=USER.continuous: made.append(make(config)) or made[-1])
    translating = Translating(USER)
    for n in range(6):
        gone = translating.add(TranslationJob(sources(["rain"]), dataclasses.replace(USER.decoding, min_length=n)))
        translating.advance()
        translating.leave([gone])
    finished_at = [translating.add(TranslationJob(sources(["snow"]), USER.decoding)) for _ in range(2)]
    _, whole = finished(translating)
    assert sorted(whole) == finished_at
    alive = [weakref.ref(search) for search in made]
    made.clear()
    gc.collect()
    assert sum(search() is not None for search in alive) == 1


@pytest.mark.parametrize(
    ("change", "texts", "message"),
    [
        ({"coverage_penalty": 0.2}, ["rain"], "coverage penalty"),
        ({"beam": 2}, ["rain"], "Use beam 1"),
        ({"beam": 1}, ["rain", "snow"], "and one text"),
    ],
)
def test_what_cannot_go_on_side_by_side_is_refused(change, texts, message):
    translating = Translating(USER)
    config = DecodingConfig(**{"n_best": 1, **change})
    with pytest.raises(AttendoError, match=message):
        translating.add(TranslationJob(sources(texts), config, stream=True))
