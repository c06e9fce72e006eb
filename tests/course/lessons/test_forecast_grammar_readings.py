"""The grammar of the forecasts corpus: each English text has one reading, and both languages are right."""

import re
from itertools import islice

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo_course.lessons import forecast_grammar as lexicon
from attendo_course.lessons.forecast_grammar import (
    Alert,
    Clause,
    Forecast,
    Temperature,
    Weather,
    Wind,
    english,
    english_event,
    forecasts,
    japanese,
)

CONNECTIVES = ("although", "if", "because", "after", "even if")
TEMPERATURES = [Temperature(change, degrees) for change in ("rise", "fall") for degrees in range(-30, 46)]
WINDS = [Wind(strength, side) for strength in lexicon.WIND_STRENGTHS for side in lexicon.WIND_DIRECTIONS]
EVENTS = [*(Weather(name) for name in lexicon.PHENOMENA), *TEMPERATURES, *WINDS]
MAIN_EVENTS = [*EVENTS, *(Alert(name) for name in lexicon.WARNINGS)]


@pytest.fixture(scope="module")
def drawn():
    return list(islice(forecasts("train"), 2_000))


# ---- the English determines the structure: a parser that finds every reading of a text


def time_readings(text):
    yield (None, False), text
    for number, time in enumerate(lexicon.TIMES):
        if text.startswith(f" {time.at}"):
            yield (number, False), text.removeprefix(f" {time.at}")
        if text.startswith(f" {time.onward}"):
            yield (number, True), text.removeprefix(f" {time.onward}")


def event_readings(text, mood, events, place=""):
    for event in events:
        clause = english_event(event, mood, place)
        if text.startswith(clause):
            yield event, text.removeprefix(clause)


def below_readings(text):
    if text == ".":
        yield ()
    for connective in CONNECTIVES:
        for start in (f" {connective} ", f", {connective} "):
            if not text.startswith(start):
                continue
            for mood in ("will", "present"):
                for event, after_event in event_readings(text.removeprefix(start), mood, EVENTS):
                    for (time, onward), rest in time_readings(after_event):
                        for below in below_readings(rest):
                            yield ((connective, Clause(event, time, onward)), *below)


def main_readings(text):
    """(place, yesterday, certainty, main event) of what follows the date, and the rest."""
    for place in lexicon.PLACES:
        if place not in text:
            continue
        for certainty in lexicon.CERTAINTIES:
            for event, rest in event_readings(text, certainty, MAIN_EVENTS, place):
                yield (place, None, certainty, event), rest
        start = f"in {place}, where "
        if text.startswith(start):
            for yesterday, rest in event_readings(text.removeprefix(start), "past", EVENTS):
                if rest.startswith(" yesterday, "):
                    main = rest.removeprefix(" yesterday, ")
                    for certainty in lexicon.CERTAINTIES:
                        for event, end in event_readings(main, certainty, MAIN_EVENTS):
                            yield (place, yesterday, certainty, event), end


def readings(text):
    for date in lexicon.DATES:
        start = f"{date[0].upper()}{date[1:]} "
        if not text.startswith(start):
            continue
        for (place, yesterday, certainty, event), after_main in main_readings(text.removeprefix(start)):
            for (time, onward), rest in time_readings(after_main):
                main = Clause(event, time, onward)
                range_ = re.match(r", with a high of (-?\d+) degrees? and a low of (-?\d+) degrees?", rest)
                high_and_low = None
                if range_:
                    high_and_low, rest = (int(range_[1]), int(range_[2])), rest[range_.end() :]
                for below in below_readings(rest):
                    yield Forecast(date, place, certainty, main, below, yesterday, high_and_low)


def clauses(events, onward):
    times = st.integers(0, len(lexicon.TIMES) - 1)
    timed = st.builds(Clause, st.sampled_from(events), times, onward)
    return timed | st.builds(Clause, st.sampled_from(events))


clauses_below = st.tuples(st.sampled_from(CONNECTIVES), clauses(EVENTS, st.just(False)))
any_forecast = st.builds(
    Forecast,
    date=st.sampled_from(list(lexicon.DATES)),
    place=st.sampled_from(list(lexicon.PLACES)),
    certainty=st.sampled_from(list(lexicon.CERTAINTIES)),
    main=clauses(MAIN_EVENTS, st.booleans()),
    below=st.lists(clauses_below, max_size=2).map(tuple),
    yesterday=st.none() | st.sampled_from(EVENTS),
    high_and_low=st.none() | st.tuples(st.integers(-30, 45), st.integers(-30, 45)),
)


@settings(max_examples=150, deadline=None)
@given(any_forecast)
def test_each_english_text_has_exactly_one_reading(forecast):
    assert list(readings(english(forecast))) == [forecast]


def test_drawn_texts_have_exactly_one_reading_too(drawn):
    for forecast in drawn[: examples(60, 300)]:
        assert list(readings(english(forecast))) == [forecast]


def test_no_two_entries_share_a_japanese_word():
    for words in (
        [japanese_name for japanese_name, _ in lexicon.PLACES.values()],
        [entry.stem + entry.verb_class for entry in lexicon.PHENOMENA.values()],
        [notice.japanese for notice in lexicon.WARNINGS.values()],
        [time.japanese for time in lexicon.TIMES],
        *(list(table.values()) for table in (lexicon.DATES, lexicon.WIND_DIRECTIONS, lexicon.WIND_STRENGTHS)),
    ):
        assert len(set(words)) == len(words)


# ---- both languages are right

RIGHT_PAIRS = [
    (
        Forecast("tomorrow", "Tokyo", "will", Clause(Weather("rain"), 3, onward=True)),
        "Tomorrow it will rain in Tokyo from the afternoon on.",
        "明日の東京は、午後から雨が降るでしょう。",
    ),
    (
        Forecast("on Monday", "Naha", "may", Clause(Weather("showers")), high_and_low=(31, 25)),
        "On Monday there may be showers in Naha, with a high of 31 degrees and a low of 25 degrees.",
        "月曜日の那覇は、最高気温が31度、最低気温が25度で、にわか雨が降るかもしれません。",
    ),
    (
        Forecast(
            "on the 3rd",
            "Oslo",
            "expected",
            Clause(Weather("light snow"), 5),
            yesterday=Temperature("fall", -1),
        ),
        "On the 3rd in Oslo, where the temperature fell to -1 degree yesterday, "
        "there is expected to be light snow at night.",
        "昨日気温が氷点下1度まで下がったオスロでは、3日、夜は小雪がちらつく見込みです。",
    ),
    (
        Forecast("today", "Nara", "will", Clause(Weather("sunny"), 4), (("although", Clause(Weather("foggy"), 0)),)),
        "Today it will be sunny in Nara in the evening, although it will be foggy at dawn.",
        "今日の奈良は、明け方は霧が出るものの、夕方は晴れるでしょう。",
    ),
    (
        Forecast(
            "next Friday",
            "Osaka",
            "will",
            Clause(Alert("flood warning"), 5),
            (("if", Clause(Weather("heavy rain"), 4)), ("after", Clause(Weather("yellow dust"), 1))),
        ),
        "Next Friday a flood warning will be issued for Osaka at night "
        "if there is heavy rain in the evening after there is yellow dust in the morning.",
        "来週の金曜日の大阪では、朝に黄砂が飛んだ後、夕方に大雨になれば、夜に洪水警報が発表されるでしょう。",
    ),
    (
        Forecast(
            "this weekend",
            "New York",
            "may",
            Clause(Weather("cold"), 6),
            (("because", Clause(Wind("very strong", "northeast"), 2)), ("if", Clause(Weather("drizzle")))),
        ),
        "This weekend it may be cold in New York late at night "
        "because a very strong northeast wind will blow around noon if it drizzles.",
        "週末のニューヨークは、霧雨が降れば、昼頃は北東の風が非常に強く吹くため、夜遅くは寒くなるかもしれません。",
    ),
    (
        Forecast(
            "the day after tomorrow",
            "Akita",
            "expected",
            Clause(Wind("", "east")),
            (("even if", Clause(Weather("mild"), 0)),),
            Weather("powder snow"),
        ),
        "The day after tomorrow in Akita, where there was powder snow yesterday, "
        "an east wind is expected to blow even if it is mild at dawn.",
        "昨日粉雪が舞った秋田では、明後日、明け方に寒さが和らいでも、東の風が吹く見込みです。",
    ),
]


@pytest.mark.parametrize(("forecast", "in_english", "in_japanese"), RIGHT_PAIRS)
def test_known_pairs(forecast, in_english, in_japanese):
    assert (english(forecast), japanese(forecast)) == (in_english, in_japanese)


def test_japanese_is_head_final(drawn):
    """Clauses come in the opposite order, and what is said of a place comes before its name."""

    def key_word(event, language):
        match event:
            case Weather(name):
                return name if language == "en" else lexicon.PHENOMENA[name].stem
            case Temperature():
                return "temperature" if language == "en" else "気温"
            case Wind():
                return "wind" if language == "en" else "風"
            case Alert(name):
                return name if language == "en" else lexicon.WARNINGS[name].japanese

    for forecast in drawn:
        in_japanese = japanese(forecast).removesuffix("。").split("、")
        text = english(forecast).replace("The day after tomorrow", "Tomorrow")  # no conjunction, that "after"
        in_english = re.split(rf",? (?:{'|'.join(CONNECTIVES)}) ", text)
        events = [forecast.main.event, *(clause.event for _, clause in forecast.below)]
        assert len(in_english) == len(events)
        for depth, event in enumerate(events):
            assert key_word(event, "en") in in_english[depth]
            assert key_word(event, "ja") in in_japanese[-1 - depth]
        if forecast.yesterday is not None:
            place = lexicon.PLACES[forecast.place][0]
            assert in_japanese[0].index(key_word(forecast.yesterday, "ja")) < in_japanese[0].index(place)
            assert in_english[0].index(forecast.place) < in_english[0].rindex("yesterday")
