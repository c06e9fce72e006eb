"""The built-in corpus `forecasts`: English-Japanese weather forecasts from a grammar, in any number of pairs.

A forecast is a small structure (`forecasts_grammar.py`): date, place, a main clause and up to two clauses
nested below it, each about the weather (drawn from the Markov chain of `weather.py` in the day's order), a
temperature, a wind or a warning. The split is a function of the structure without its temperatures, so that a
held-out forecast is never a training forecast with another number in it.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, pairwise
from typing import Literal, TypeVar

import numpy as np

from attendo.data import forecasts_lexicon as lexicon
from attendo.data import weather
from attendo.data.forecasts_grammar import (
    Alert,
    Clause,
    Connective,
    Event,
    Forecast,
    Temperature,
    Weather,
    Wind,
    english,
    japanese,
)

__all__ = [
    "Alert",
    "Clause",
    "Event",
    "Forecast",
    "Split",
    "Temperature",
    "Weather",
    "Wind",
    "combination",
    "english",
    "forecasts",
    "japanese",
    "nearest_neighbor_baseline",
    "pairs",
    "sample",
    "split_of",
]

Split = Literal["train", "valid", "test"]
T = TypeVar("T")

_NAMED_DATES = tuple(lexicon.NAMED_DATES)
_MONTH_DAYS = tuple(lexicon.MONTH_DAYS)
_PLACES = tuple(lexicon.PLACES)
_NESTINGS: tuple[tuple[Connective, Connective], ...] = (  # outer, inner: the pairs that read well
    ("although", "if"),
    ("although", "because"),
    ("although", "after"),
    ("although", "even if"),
    ("because", "if"),
    ("because", "after"),
    ("if", "after"),
    ("even if", "after"),
)


# ---- drawing a forecast


def _pick(options: Sequence[T], rng: np.random.Generator) -> T:
    # Generator.random alone is used everywhere: it is quick, and its stream is the same on every platform.
    return options[int(rng.random() * len(options))]


@cache
def _fitting_phenomena(state: str, degrees: int, by_night: bool) -> tuple[str, ...]:
    return tuple(
        name
        for name, entry in lexicon.PHENOMENA.items()
        if entry.state == state
        and entry.coldest <= degrees <= entry.hottest
        and not (by_night and name in lexicon.ONLY_BY_DAY)
    )


@cache
def _fitting_warnings(state: str | None, degrees: int) -> tuple[str, ...]:
    return tuple(
        name
        for name, entry in lexicon.WARNINGS.items()
        if (state is None or entry.state == state) and entry.coldest <= degrees <= entry.hottest
    )


class _Day:
    """Draws the events of one forecast in the order of the day, all of which fit one imagined temperature."""

    def __init__(self, degrees: int, rng: np.random.Generator):
        self.degrees, self.rng = degrees, rng
        self.state: int | None = None  # of the last weather event
        self.said: set[str] = set()  # no phenomenon, temperature or wind is told twice

    def event(self, by_night: bool = False, with_warnings: bool = False) -> Event:
        draw = self.rng.random()
        if draw < 0.15 and "temperature" not in self.said:
            self.said.add("temperature")
            return Temperature("rise" if self.rng.random() < 0.5 else "fall", self.degrees)
        if 0.15 <= draw < 0.3 and "wind" not in self.said:
            self.said.add("wind")
            strength = _pick(lexicon.WIND_STRENGTH_NAMES, self.rng)
            return Wind(strength, _pick(lexicon.WIND_DIRECTION_NAMES, self.rng))
        if with_warnings and 0.3 <= draw < 0.45:
            state = None if self.state is None else weather.STATES[self.state]
            return Alert(_pick(_fitting_warnings(state, self.degrees), self.rng))
        return self._weather(by_night)

    def _weather(self, by_night: bool) -> Weather:
        self.state = weather.next_state(self.state, self.rng)
        options = _fitting_phenomena(weather.STATES[self.state], self.degrees, by_night)
        phenomenon = _pick(options, self.rng)
        while phenomenon in self.said:
            phenomenon = _pick(options, self.rng)
        self.said.add(phenomenon)
        return Weather(phenomenon)


def _sensible(earlier: Event, later: Event) -> tuple[Connective, ...]:
    """The connectives that make sense with the earlier event in the clause below the later event's."""
    if isinstance(later, Alert):
        return ("if", "because", "after")
    if isinstance(earlier, Weather) and isinstance(later, Weather):
        if lexicon.PHENOMENA[earlier.phenomenon].state == lexicon.PHENOMENA[later.phenomenon].state:
            return ("if", "after")
        return ("although", "if", "after", "even if")
    if isinstance(later, Temperature):
        is_sun = isinstance(earlier, Weather) and lexicon.PHENOMENA[earlier.phenomenon].state == "sun"
        is_due = later.change == ("rise" if is_sun else "fall")
        return ("if", "because", "after") if is_due else ("although", "after", "even if")
    return ("although", "if", "because", "after", "even if")


def _connectives(events: Sequence[Event], rng: np.random.Generator) -> tuple[Connective, ...]:
    """Connectives of the clauses below the main one, outer first; `events` in the order of the day."""
    if len(events) == 1:
        return ()
    outer = _sensible(events[-2], events[-1])
    if len(events) == 2:
        return (_pick(outer, rng),)
    inner = _sensible(events[-3], events[-2])
    return _pick([pair for pair in _NESTINGS if pair[0] in outer and pair[1] in inner], rng)


def _increasing_times(n: int, rng: np.random.Generator) -> list[int]:
    chosen: set[int] = set()
    while len(chosen) < n:
        chosen.add(int(rng.random() * len(lexicon.TIMES)))
    return sorted(chosen)


def sample(rng: np.random.Generator) -> Forecast:
    """One random forecast, of any split; takes a varying count of numbers from `rng`."""
    date = _pick(_MONTH_DAYS if rng.random() < 0.25 else _NAMED_DATES, rng)
    place = _pick(_PLACES, rng)
    coldest, hottest = lexicon.CLIMATES[lexicon.PLACES[place][1]]
    degrees = coldest + int(rng.random() * (hottest - coldest + 1))
    draw = rng.random()
    depth = 0 if draw < 0.46 else 1 if draw < 0.84 else 2

    # The chain runs in the order of the day: yesterday, then the innermost clause, and the main clause last.
    day = _Day(degrees, rng)
    yesterday = day.event() if depth < 2 and rng.random() < 0.15 else None
    times = _increasing_times(depth + 1, rng)
    events = [
        day.event(by_night=time >= lexicon.FIRST_TIME_BY_NIGHT, with_warnings=number == depth)
        for number, time in enumerate(times)
    ]
    said_times = [time if rng.random() > 0.15 else None for time in times]
    clauses = [Clause(event, time) for event, time in zip(events, said_times, strict=True)]
    main = clauses.pop()
    if main.time is not None and isinstance(main.event, Weather | Wind) and rng.random() < 0.35:
        main = Clause(main.event, main.time, onward=True)
    below = tuple(zip(_connectives(events, rng), reversed(clauses), strict=True))

    high_and_low = None
    if depth == 0 and yesterday is None and isinstance(main.event, Weather) and rng.random() < 0.35:
        high_and_low = (degrees, max(degrees - 2 - int(rng.random() * 7), lexicon.COLDEST))
    return Forecast(date, place, _pick(lexicon.CERTAINTY_DRAWS, rng), main, below, yesterday, high_and_low)


# ---- splits and pairs


def combination(forecast: Forecast) -> str:
    """Everything in `forecast` but its temperatures, as one line: what the split is a function of.

    >>> combination(Forecast("today", "Oslo", "may", Clause(Temperature("fall", -3), 6)))
    'today|Oslo|may|fall@6'
    """
    parts = [forecast.date, forecast.place, forecast.certainty, _clause_key(forecast.main)]
    parts.extend(f"{connective} {_clause_key(clause)}" for connective, clause in forecast.below)
    if forecast.yesterday is not None:
        parts.append(f"yesterday {_event_key(forecast.yesterday)}")
    if forecast.high_and_low is not None:
        parts.append("high and low")
    return "|".join(parts)


def _clause_key(clause: Clause) -> str:
    time = "" if clause.time is None else clause.time
    return f"{_event_key(clause.event)}@{time}{'+' if clause.onward else ''}"


def _event_key(event: Event) -> str:
    match event:
        case Weather(phenomenon):
            return phenomenon
        case Temperature(change, _):
            return change
        case Wind(strength, direction):
            return f"{strength} {direction}"
        case Alert(name):
            return name


def split_of(forecast: Forecast) -> Split:
    """The split `forecast` belongs to, by a hash of its combination: 80 % train, 10 % valid, 10 % test."""
    digest = hashlib.blake2b(combination(forecast).encode(), digest_size=8).digest()
    bucket = int.from_bytes(digest, "big") % 10
    return "valid" if bucket == 0 else "test" if bucket == 1 else "train"


def forecasts(split: Split, seed: int = 0) -> Iterator[Forecast]:
    """Distinct forecasts of `split` without end, the same on every platform for the same `seed`."""
    rng = np.random.Generator(np.random.PCG64(seed))
    seen: set[Forecast] = set()
    while True:
        forecast = sample(rng)
        if split_of(forecast) == split and forecast not in seen:
            seen.add(forecast)
            yield forecast


def pairs(n: int, split: Split, seed: int = 0) -> list[tuple[str, str]]:
    """The first `n` distinct (English, Japanese) pairs of `split`; fewer pairs are a prefix of more.

    >>> pairs(1, "train") == pairs(2, "train")[:1]
    True
    """
    return [(english(forecast), japanese(forecast)) for forecast in islice(forecasts(split, seed), n)]


# ---- what mere memory reaches

_WORD = re.compile(r"-?\w+")


def _features(text: str) -> list[str]:
    words = _WORD.findall(text.lower())
    return words + [f"{first} {second}" for first, second in pairwise(words)]


def nearest_neighbor_baseline(
    train_pairs: Sequence[tuple[str, str]], test_pairs: Sequence[tuple[str, str]]
) -> float:
    """The share of test pairs whose target is exactly that of the training pair with the most similar source.

    Similarity is the cosine of TF-IDF vectors over words and word pairs; of equals the first wins. The score
    is what remembering the training set is worth. ValueError if either side is empty.

    >>> nearest_neighbor_baseline([("it will rain", "雨"), ("it will snow", "雪")], [("snow it will", "雪")])
    1.0
    """
    if not train_pairs or not test_pairs:
        raise ValueError("nearest_neighbor_baseline needs at least one training pair and one test pair")
    postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row, (source, _) in enumerate(train_pairs):
        for feature, count in Counter(_features(source)).items():
            postings[feature].append((row, count))

    # Per feature: the training rows that hold it and their weights; each vector is then brought to length 1.
    n_train = len(train_pairs)
    squared_lengths = np.full(n_train, 1e-12)
    index: dict[str, tuple[np.ndarray, np.ndarray, float]] = {}
    for feature, entries in postings.items():
        rows, counts = np.array(entries).T
        rarity = float(np.log((1 + n_train) / (1 + len(rows)))) + 1e-3
        index[feature] = rows, counts * rarity, rarity
        squared_lengths[rows] += (counts * rarity) ** 2
    lengths = np.sqrt(squared_lengths)

    n_right = 0
    for source, target in test_pairs:
        scores = np.zeros(n_train)
        for feature, count in Counter(_features(source)).items():
            if feature in index:
                rows, weights, rarity = index[feature]
                scores[rows] += weights * (count * rarity)
        n_right += train_pairs[int(np.argmax(scores / lengths))][1] == target
    return n_right / len(test_pairs)
