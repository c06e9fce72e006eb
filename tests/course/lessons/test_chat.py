"""attendo lesson chat: the grammar of questions and answers, its judge, the pairs, and the lesson in a few steps."""

from dataclasses import replace
from itertools import islice

import pytest

from attendo.data.chat import conversation
from attendo_course.lessons import chat, chat_stages, chat_talks
from attendo_course.lessons.forecast_grammar import split_of
from attendo_course.lessons.lesson import Conclusion, Options, Table

LANGUAGES = ("en", "ja")


@pytest.fixture(scope="module")
def asked():
    return list(islice(chat_talks.questions("test"), 400))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_answers_of_the_grammar_are_correct_and_changed_answers_are_not(asked, language):
    for question in asked:
        conversation(question.messages(language))
        short, full = question.answers(language)
        assert [question.grade(one, language) for one in ("", short, full)] == [0, 1, 2]
        for wrong in (full[:-1], full + full[-1], f"{short} {full}", full[1:]):
            assert question.grade(wrong, language) == 0, wrong


@pytest.mark.parametrize("language", LANGUAGES)
def test_another_fact_another_place_or_a_refusal_is_wrong(asked, language):
    for question in asked:
        right = question.answers(language)
        others = [replace(question, kind=kind) for kind in chat_talks.QUESTIONS if kind != question.kind]
        others += [replace(question, place=one.place) for one in question.day if one.place != question.place]
        for other in others:
            answer = other.answers(language)[1]
            assert answer == right[1] or question.grade(answer, language) == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_answers_contain_what_the_forecast_says(asked, language):
    n_facts = 0
    for question in asked:
        forecast = next((one for one in question.day if one.place == question.place), None)
        if question.kind in ("high", "low") and forecast is not None:
            number = forecast.high_and_low[question.kind == "low"]
            assert all(f"{abs(number)}" in said for said in question.answers(language))
            assert chat_talks.degrees(number, language) in chat_talks.sentence(forecast, language)
            n_facts += 1
    assert n_facts > 100


def test_held_out_questions_are_about_other_forecasts_and_of_all_kinds(asked):
    assert {split_of(one) for question in asked for one in question.day} == {"test"}
    trained = islice(chat_talks.questions("train"), 50)
    assert {split_of(one) for question in trained for one in question.day} == {"train"}
    unknown = [q for q in asked if q.kind != "other" and q.place not in [one.place for one in q.day]]
    other = [q for q in asked if q.kind == "other"]
    assert all(0.05 < len(some) / len(asked) < 0.25 for some in (unknown, other))
    assert sum(q.before is not None for q in asked) > 80
    assert list(islice(chat_talks.questions("test"), 3)) == asked[:3]


@pytest.mark.parametrize("language", LANGUAGES)
def test_worse_answers_are_never_graded_full(language):
    grades = [question.grade(worse, language) for question, worse in chat_stages.preferences(language, 200)]
    assert {*grades} == {0, 1}


@pytest.mark.some(1)
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_lesson_trains_three_stages_and_shows_the_answers_of_each(monkeypatch, language):
    small = {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_decoder_layers": 1}
    monkeypatch.setattr(chat_stages, "SIZES", chat_stages.SIZES | small)
    for name in ("BULLETINS", "TALKS", "PAIRS"):
        monkeypatch.setattr(chat_stages, name, 400)
    monkeypatch.setattr(chat, "STEPS", (30, 30, 2))
    monkeypatch.setattr(chat, "N_HELD_OUT", 12)
    pieces = list(chat.teach(Options(language=language)))
    answers, stages = (piece for piece in pieces if isinstance(piece, Table))
    assert len(answers.rows) == 5 * 4
    losses = [float(row[1]) for row in stages.rows]
    assert losses[2] < losses[0] - 1  # the answers were learned
    assert stages.rows[0][-1] == "" and stages.rows[3][-1].endswith("%")
    said = next(piece for piece in pieces if isinstance(piece, Conclusion)).words
    assert stages.rows[3][3] in said.en and stages.rows[3][4] in said.ja  # ended, correct


def test_wins_count_ties_half():
    before = chat.Exam(0.0, [], [0, 1, 2, 2])
    assert chat.Exam(0.0, [], [1, 1, 2, 0]).wins(before) == 0.5
    assert before.correct == 0.75 and before.full == 0.5
