"""The conversations of the chat lesson: forecasts of a day, questions about them, and the answers of the grammar.

A system message contains the forecasts of some places. Each question has a short answer and a full sentence, in English
and in Japanese. Because the grammar generates both, it also decides whether an answer of a model is correct.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from attendo.data.chat import Message
from attendo.display.i18n import Language, Localized
from attendo_course.lessons import forecast_grammar as forecasts
from attendo_course.lessons.forecast_grammar import (
    CLIMATES,
    COLDEST,
    NAMED_DATES,
    PHENOMENA,
    PLACES,
    Clause,
    Forecast,
    Split,
    Weather,
)

Kind = Literal["weather", "high", "low", "other"]
FACTS: tuple[Kind, ...] = ("weather", "high", "low")
"""The kinds of questions that a forecast answers."""
TOWNS = ("Oslo", "Tokyo", "Paris", "Cairo")
WEATHER = (
    "rain",
    "drizzle",
    "snow",
    "sleet",
    "showers",
    "thunderstorms",
    "cloudy",
    "foggy",
    "sunny",
    "clear",
)
"""The places and the weather of the lesson, from the words of the grammar."""
MOST_DRAWS = 60
"""The number of forecasts drawn for a date, before another date is chosen."""
N_PLACES = 2
"""The number of forecasts in a system message."""
QUESTIONS: dict[Kind, tuple[Localized, ...]] = {
    "weather": (
        Localized("What will the weather be in {place}?", "{place}の天気はどうなりますか。"),
        Localized("What is the forecast for {place}?", "{place}の予報を教えてください。"),
    ),
    "high": (
        Localized("How warm will it get in {place}?", "{place}はどこまで暖かくなりますか。"),
        Localized("What will the high be in {place}?", "{place}の最高気温は何度ですか。"),
    ),
    "low": (
        Localized("How cold will it get in {place}?", "{place}はどこまで寒くなりますか。"),
        Localized("What will the low be in {place}?", "{place}の最低気温は何度ですか。"),
    ),
    "other": (
        Localized("How many people live in {place}?", "{place}には何人が住んでいますか。"),
        Localized("Where can I eat in {place}?", "{place}ではどこで食事ができますか。"),
        Localized("Who is the mayor of {place}?", "{place}の市長は誰ですか。"),
        Localized("Can you sing a song about {place}?", "{place}の歌を歌えますか。"),
    ),
}
"""The phrasings of each kind of question. Questions of the kind "other" are not about the weather."""
FOLLOW_UP = Localized("And in {place}?", "では、{place}はどうですか。")
FULL = {
    "high": Localized("The high in {place} will be {degrees}.", "{place}の最高気温は{degrees}でしょう。"),
    "low": Localized("The low in {place} will be {degrees}.", "{place}の最低気温は{degrees}でしょう。"),
    "unknown": Localized("Sorry, I have no forecast for {place}.", "申し訳ありませんが、{place}の予報はありません。"),
    "other": Localized(
        "Sorry, I can only answer questions about the forecasts.",
        "申し訳ありませんが、予報についての質問にだけ答えられます。",
    ),
}
UNKNOWN = Localized("I do not know.", "わかりません。")
"""The short answer to all questions that the forecasts do not answer."""


@dataclass(frozen=True)
class Question:
    """A question about the forecasts of a day.

    Attributes:
        before: The previous question of the conversation.
        follows: Whether the words only name another place, and ask the same as `before`.
    """

    day: tuple[Forecast, ...]
    kind: Kind
    place: str
    phrasing: int = 0
    before: Question | None = None
    follows: bool = False

    def text(self, language: Language) -> str:
        """Return the words of the user.

        >>> Question((), "high", "Oslo").text("en")
        'How warm will it get in Oslo?'
        """
        words = FOLLOW_UP if self.follows else QUESTIONS[self.kind][self.phrasing]
        return words.text(language).format(place=name_of(self.place, language))

    def answers(self, language: Language) -> tuple[str, str]:
        """Return the correct answers: in few words, and as a polite full sentence."""
        forecast = next((one for one in self.day if one.place == self.place), None)
        facts = {"place": name_of(self.place, language), "degrees": ""}
        if self.kind == "other" or forecast is None:
            full = FULL["other" if self.kind == "other" else "unknown"].text(language)
            return UNKNOWN.text(language), full.format(**facts)
        if self.kind == "weather":
            return _weather(replace(forecast, high_and_low=None), language)
        assert forecast.high_and_low is not None
        facts["degrees"] = degrees(forecast.high_and_low[self.kind == "low"], language)
        ending = "。" if language == "ja" else "."
        return facts["degrees"] + ending, FULL[self.kind].text(language).format(**facts)

    def grade(self, answer: str, language: Language) -> int:
        """Return 2 for the correct full sentence, 1 for the correct answer in few words, and 0 for all else.

        >>> question = Question((), "weather", "Oslo")
        >>> [question.grade(answer, "en") for answer in (*question.answers("en"), "It will rain in Oslo.")]
        [1, 2, 0]
        """
        answers = self.answers(language)
        return 1 + answers.index(answer) if answer in answers else 0

    def messages(self, language: Language, full: bool = True) -> list[Message]:
        """Return the system message with the forecasts, the earlier questions with answers, and this question.

        `full` states whether the earlier answers are full sentences.
        """
        if self.before is None:
            earlier = [Message("system", day_text(self.day, language))]
        else:
            earlier = self.before.messages(language, full)
            earlier.append(Message("assistant", self.before.answers(language)[full]))
        return [*earlier, Message("user", self.text(language))]


def name_of(place: str, language: Language) -> str:
    """Return the name of a place in a language."""
    return PLACES[place][0] if language == "ja" else place


def degrees(n: int, language: Language) -> str:
    """Return a temperature in words, as the grammar writes it.

    >>> degrees(1, "en"), degrees(-5, "ja")
    ('1 degree', '氷点下5度')
    """
    if language == "ja":
        return f"{'氷点下' if n < 0 else ''}{abs(n)}度"
    return f"{n} degree{'' if abs(n) == 1 else 's'}"


def sentence(forecast: Forecast, language: Language) -> str:
    """Return a forecast in a language."""
    return forecasts.japanese(forecast) if language == "ja" else forecasts.english(forecast)


def day_text(day: tuple[Forecast, ...], language: Language) -> str:
    """Return the forecasts of a day as one text. Each forecast begins with its place, as a Japanese forecast does.

    A model reads from left to right. If the weather came before its place, a small model would not learn to look it up.
    """
    if language == "ja":
        return "".join(sentence(one, language) for one in day)
    return " ".join(f"{one.place}: {sentence(one, language).replace(f' in {one.place}', '')}" for one in day)


def _weather(forecast: Forecast, language: Language) -> tuple[str, str]:
    if language == "ja":  # the verb with its subject, without the politeness of でしょう
        full = sentence(forecast, language)
        return full.split("、", 1)[1].removesuffix("でしょう。") + "。", full
    short = forecasts.english_event(forecast.main.event, "present")
    later = forecasts.english_event(forecast.main.event, "will")
    return f"{short[0].upper()}{short[1:]}.", f"In {forecast.place}, {later}."


def _forecast(date: str, place: str, rng: np.random.Generator) -> Forecast:
    """Draw a forecast without a time. Its temperatures fit the climate and the weather, as in the grammar."""
    coldest, hottest = CLIMATES[PLACES[place][1]]
    while True:
        high = int(rng.integers(coldest, hottest + 1))
        name = WEATHER[rng.integers(len(WEATHER))]
        if PHENOMENA[name].coldest <= high <= PHENOMENA[name].hottest:
            low = max(high - int(rng.integers(2, 9)), COLDEST)
            return Forecast(date, place, "will", Clause(Weather(name)), high_and_low=(high, low))


def days(split: Split, seed: int) -> Iterator[tuple[Forecast, ...]]:
    """Yield days forever: forecasts of different places for one date, all from one split of the grammar."""
    rng = np.random.default_rng((seed, 29))
    dates = tuple(NAMED_DATES)
    while True:
        date, day = dates[rng.integers(len(dates))], dict[str, Forecast]()
        for _ in range(MOST_DRAWS):  # on some dates, a small split has forecasts of one place only
            forecast = _forecast(date, TOWNS[rng.integers(len(TOWNS))], rng)
            if forecasts.split_of(forecast) == split:
                day.setdefault(forecast.place, forecast)
            if len(day) == N_PLACES:
                yield tuple(day.values())
                break


def questions(split: Split, seed: int = 0, rounds: tuple[int, int] = (1, 2)) -> Iterator[Question]:
    """Yield the last questions of conversations forever.

    About a sixth of the questions are about a place without a forecast, and a tenth are about another subject.

    Args:
        split: The split of the forecasts.
        seed: The seed of the random numbers.
        rounds: The smallest and the largest number of questions in a conversation.
    """
    rng = np.random.default_rng((seed, 11))
    for day in days(split, seed):
        here, last = [one.place for one in day], None
        for _ in range(rng.integers(rounds[0], rounds[1] + 1)):
            places = here if rng.random() < 0.85 else [one for one in TOWNS if one not in here]
            place = places[rng.integers(len(places))]
            if last is not None and last.kind in FACTS and last.place != place and rng.random() < 0.7:
                last = Question(day, last.kind, place, before=last, follows=True)
                continue
            kind: Kind = "other" if rng.random() < 0.1 else FACTS[rng.integers(len(FACTS))]
            last = Question(day, kind, place, int(rng.integers(len(QUESTIONS[kind]))), last)
        assert last is not None
        yield last


def bulletins(split: Split, language: Language, seed: int = 0) -> Iterator[str]:
    """Yield texts without questions forever: the forecasts of a day, and a summary of single facts about them."""
    rng = np.random.default_rng((seed, 7))
    space = "" if language == "ja" else " "
    for day in days(split, seed):
        facts = [Question(day, kind, one.place).answers(language)[1] for kind in FACTS for one in day]
        chosen = [facts[i] for i in rng.permutation(len(facts))]
        yield space.join([day_text(day, language), *chosen])
