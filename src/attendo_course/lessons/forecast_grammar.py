"""The grammar of the corpus `forecasts`: English-Japanese weather forecasts in any number of pairs.

A forecast is a small structure: date, place, a main clause and up to two nested clauses. Each clause describes the
weather, a temperature, a wind or a warning. The weather follows the Markov chain of `weather_chain.py` in the order of
the day. Both languages are generated from the structure. The English text determines the structure and therefore
exactly one correct Japanese text. Japanese is head-final: the innermost clause comes first, the main verb comes last,
and a relative clause precedes its noun.

The split depends on the structure without its temperatures. A held-out and a training forecast therefore never differ
only in their temperatures.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from attendo.data.forecasts import Split
from attendo_course import weather_chain

T = TypeVar("T")

# ---- the words


class Endings(NamedTuple):
    """The four endings of a Japanese verb in the grammar."""

    plain: str
    conditional: str  # if ...
    past: str
    te: str


_WORDS = json.loads((files("attendo_course.lessons") / "forecast_words.json").read_text(encoding="utf-8"))
VERB_CLASSES = {name: Endings(*endings) for name, endings in _WORDS["verb_classes"].items()}


class Phenomenon(NamedTuple):
    """A weather phenomenon: its state in the Markov chain, its temperature range in degrees Celsius, and its words."""

    state: str
    coldest: int
    hottest: int
    form: str
    stem: str
    verb_class: str


PHENOMENA = {name: Phenomenon(*values) for name, values in _WORDS["phenomena"].items()}
ONLY_BY_DAY = frozenset(
    ("sunny", "blue skies", "sunny spells", "sunshine", "strong sunshine", "sweltering", "yellow dust")
)


class Notice(NamedTuple):
    """An official warning: its weather state, its temperature range in degrees Celsius, and its Japanese name."""

    state: str
    coldest: int
    hottest: int
    japanese: str


WARNINGS = {name: Notice(*values) for name, values in _WORDS["warnings"].items()}


class TimeOfDay(NamedTuple):
    """A time of day in English ("at" and "from" form) and in Japanese."""

    at: str
    onward: str
    japanese: str


TIMES = tuple(TimeOfDay(*values) for values in _WORDS["times"])
FIRST_TIME_BY_NIGHT = 5  # index into TIMES

_ORDINAL_ENDINGS = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}

NAMED_DATES = {
    "today": "今日",
    "tomorrow": "明日",
    "the day after tomorrow": "明後日",
    "this weekend": "週末",
    **{f"on {english}": japanese for english, japanese in _WORDS["weekdays"].items()},
    **{f"next {english}": f"来週の{japanese}" for english, japanese in _WORDS["weekdays"].items()},
}
MONTH_DAYS = {f"on the {day}{_ORDINAL_ENDINGS.get(day, 'th')}": f"{day}日" for day in range(1, 32)}
DATES = {**NAMED_DATES, **MONTH_DAYS}

WIND_DIRECTIONS: dict[str, str] = _WORDS["wind_directions"]
WIND_STRENGTHS = {"light": "弱く", "": "", "strong": "強く", "very strong": "非常に強く"}

CERTAINTIES = {"will": "でしょう", "may": "かもしれません", "expected": "見込みです"}
CERTAINTY_DRAWS = ("will", "will", "may", "expected")

# The range of temperatures, in degrees Celsius, in each climate.
CLIMATES = {"cold": (-15, 28), "mild": (-8, 40), "warm": (14, 40)}
COLDEST = -20  # the lowest temperature of any forecast

# The Japanese name and the climate of each place.
PLACES: dict[str, tuple[str, str]] = {
    name: (japanese, climate) for name, (japanese, climate) in _WORDS["places"].items()
}

Connective = Literal["although", "if", "because", "after", "even if"]


@dataclass(frozen=True)
class Weather:
    """A weather event. `phenomenon` is a key of `PHENOMENA`."""

    phenomenon: str


@dataclass(frozen=True)
class Temperature:
    """A temperature event: the temperature rises or falls to a number of degrees Celsius."""

    change: Literal["rise", "fall"]
    degrees: int


@dataclass(frozen=True)
class Wind:
    """A wind event with a direction and a strength, which is "" if it is not mentioned."""

    strength: str
    direction: str


@dataclass(frozen=True)
class Alert:
    """An official warning, which occurs only in main clauses. `name` is a key of `WARNINGS`."""

    name: str


Event = Weather | Temperature | Wind | Alert


@dataclass(frozen=True)
class Clause:
    """An event at a time of day, or from then on (`onward`). `time` is an index into `TIMES`, or None for no time."""

    event: Event
    time: int | None = None
    onward: bool = False


@dataclass(frozen=True)
class Forecast:
    """One forecast. `below` contains the nested clauses with their connectives, from the outer to the inner clause."""

    date: str
    place: str
    certainty: str
    main: Clause
    below: tuple[tuple[Connective, Clause], ...] = ()
    yesterday: Event | None = None  # a relative clause on the place
    high_and_low: tuple[int, int] | None = None


# ---- English


def english_event(event: Event, mood: str, place: str = "") -> str:
    """Return the English clause for `event`. `mood` is "present", "past" or a key of `CERTAINTIES`."""
    match event:
        case Weather(phenomenon):
            form = PHENOMENA[phenomenon].form
            if form == "verb":
                subject, base, present, past = "it", phenomenon, f"{phenomenon}s", f"{phenomenon}ed"
                if phenomenon.endswith("e"):
                    past = f"{phenomenon}d"
            else:
                subject = "it" if form == "be" else "there"
                verb, was = ("are", "were") if form == "there are" else ("is", "was")
                base, present, past = f"be {phenomenon}", f"{verb} {phenomenon}", f"{was} {phenomenon}"
        case Temperature(change, degrees):
            subject, to = "the temperature", f"to {_degrees(degrees)}"
            forms = ("rise", "rises", "rose") if change == "rise" else ("fall", "falls", "fell")
            base, present, past = (f"{form} {to}" for form in forms)
        case Wind(strength, direction):
            subject = _with_article(f"{strength} {direction} wind".strip())
            base, present, past = "blow", "blows", "blew"
        case Alert(name):
            subject, base, present, past = _with_article(name), "be issued", "is issued", "was issued"
    match mood:
        case "present":
            predicate = present
        case "past":
            predicate = past
        case "expected":
            plural = present.startswith("are ")
            predicate = f"{'are' if plural else 'is'} expected to {base}"
        case _:
            predicate = f"{mood} {base}"
    if not place:
        return f"{subject} {predicate}"
    return f"{subject} {predicate} {'for' if isinstance(event, Alert) else 'in'} {place}"


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _degrees(degrees: int) -> str:
    return f"{degrees} degree{'' if abs(degrees) == 1 else 's'}"


def _english_time(clause: Clause) -> str:
    if clause.time is None:
        return ""
    time = TIMES[clause.time]
    return f" {time.onward if clause.onward else time.at}"


def english(forecast: Forecast) -> str:
    """Return the English text of `forecast`. Different forecasts have different texts.

    >>> below = (("if", Clause(Wind("", "north"))),)
    >>> english(Forecast("tomorrow", "Sapporo", "will", Clause(Weather("snow"), 3), below))
    'Tomorrow it will snow in Sapporo in the afternoon if a north wind blows.'
    """
    if forecast.yesterday is None:
        main = english_event(forecast.main.event, forecast.certainty, forecast.place)
    else:
        relative = english_event(forecast.yesterday, "past")
        main = english_event(forecast.main.event, forecast.certainty)
        main = f"in {forecast.place}, where {relative} yesterday, {main}"
    parts = [forecast.date[0].upper() + forecast.date[1:], " ", main, _english_time(forecast.main)]
    if forecast.high_and_low is not None:
        high, low = forecast.high_and_low
        parts.append(f", with a high of {_degrees(high)} and a low of {_degrees(low)}")
    for connective, clause in forecast.below:
        mood = "will" if connective in ("although", "because") else "present"
        comma = "," if connective == "although" else ""
        parts.append(f"{comma} {connective} {english_event(clause.event, mood)}{_english_time(clause)}")
    return "".join(parts) + "."


# ---- Japanese


def _japanese_event(event: Event) -> tuple[str, Endings]:
    match event:
        case Weather(phenomenon):
            entry = PHENOMENA[phenomenon]
            return entry.stem, VERB_CLASSES[entry.verb_class]
        case Temperature(change, degrees):
            verb = "上が" if change == "rise" else "下が"
            return f"気温が{_japanese_degrees(degrees)}まで{verb}", VERB_CLASSES["る5"]
        case Wind(strength, direction):
            stem = f"{WIND_DIRECTIONS[direction]}の風が{WIND_STRENGTHS[strength]}吹"
            return stem, VERB_CLASSES["く5"]
        case Alert(name):
            return f"{WARNINGS[name].japanese}が発表され", VERB_CLASSES["1"]


def _japanese_degrees(degrees: int) -> str:
    return f"{'氷点下' if degrees < 0 else ''}{abs(degrees)}度"


def _japanese_time(clause: Clause, particle: str) -> str:
    if clause.time is None:
        return ""
    return f"{TIMES[clause.time].japanese}{'から' if clause.onward else particle}"


def _japanese_below(connective: Connective, clause: Clause) -> str:
    stem, endings = _japanese_event(clause.event)
    match connective:
        case "although":
            ending, particle = f"{endings.plain}ものの", "は"
        case "because":
            ending, particle = f"{endings.plain}ため", "は"
        case "if":
            ending, particle = endings.conditional, "に"
        case "after":
            ending, particle = f"{endings.past}後", "に"
        case "even if":
            ending, particle = f"{endings.te}も", "に"
    return f"{_japanese_time(clause, particle)}{stem}{ending}、"


def japanese(forecast: Forecast) -> str:
    """Return the Japanese text of `forecast`.

    >>> below = (("if", Clause(Wind("", "north"))),)
    >>> japanese(Forecast("tomorrow", "Sapporo", "will", Clause(Weather("snow"), 3), below))
    '明日の札幌は、北の風が吹けば、午後は雪が降るでしょう。'
    """
    date, place = DATES[forecast.date], PLACES[forecast.place][0]
    is_warning = isinstance(forecast.main.event, Alert)
    if forecast.yesterday is None:
        parts = [f"{date}の{place}{'では' if is_warning else 'は'}、"]
    else:
        stem, endings = _japanese_event(forecast.yesterday)
        parts = [f"昨日{stem}{endings.past}{place}では、{date}、"]
    if forecast.high_and_low is not None:
        high, low = map(_japanese_degrees, forecast.high_and_low)
        parts.append(f"最高気温が{high}、最低気温が{low}で、")
    parts.extend(_japanese_below(connective, clause) for connective, clause in reversed(forecast.below))
    stem, endings = _japanese_event(forecast.main.event)
    time = _japanese_time(forecast.main, "に" if is_warning else "は")
    return "".join(parts) + f"{time}{stem}{endings.plain}{CERTAINTIES[forecast.certainty]}。"


_NAMED_DATES = tuple(NAMED_DATES)
_MONTH_DAYS = tuple(MONTH_DAYS)
_PLACES = tuple(PLACES)
_DIRECTIONS = tuple(WIND_DIRECTIONS)
_STRENGTHS = tuple(WIND_STRENGTHS)
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
    # Only Generator.random is used: it is fast, and its stream is the same on every platform.
    return options[int(rng.random() * len(options))]


@cache
def _fitting_phenomena(state: str, degrees: int, by_night: bool) -> tuple[str, ...]:
    return tuple(
        name
        for name, entry in PHENOMENA.items()
        if entry.state == state and entry.coldest <= degrees <= entry.hottest and not (by_night and name in ONLY_BY_DAY)
    )


@cache
def _fitting_warnings(state: str | None, degrees: int) -> tuple[str, ...]:
    return tuple(
        name
        for name, entry in WARNINGS.items()
        if (state is None or entry.state == state) and entry.coldest <= degrees <= entry.hottest
    )


class _Day:
    """A generator for the events of one forecast in the order of the day. All events fit one temperature."""

    def __init__(self, degrees: int, rng: np.random.Generator):
        self.degrees, self.rng = degrees, rng
        self.state: int | None = None  # of the last weather event
        self.said: set[str] = set()  # each phenomenon, temperature and wind occurs at most once

    def event(self, by_night: bool = False, with_warnings: bool = False) -> Event:
        draw = self.rng.random()
        if draw < 0.15 and "temperature" not in self.said:
            self.said.add("temperature")
            return Temperature("rise" if self.rng.random() < 0.5 else "fall", self.degrees)
        if 0.15 <= draw < 0.3 and "wind" not in self.said:
            self.said.add("wind")
            strength = _pick(_STRENGTHS, self.rng)
            return Wind(strength, _pick(_DIRECTIONS, self.rng))
        if with_warnings and 0.3 <= draw < 0.45:
            state = None if self.state is None else weather_chain.STATES[self.state]
            return Alert(_pick(_fitting_warnings(state, self.degrees), self.rng))
        return self._weather(by_night)

    def _weather(self, by_night: bool) -> Weather:
        self.state = weather_chain.next_state(self.state, self.rng)
        options = _fitting_phenomena(weather_chain.STATES[self.state], self.degrees, by_night)
        phenomenon = _pick(options, self.rng)
        while phenomenon in self.said:
            phenomenon = _pick(options, self.rng)
        self.said.add(phenomenon)
        return Weather(phenomenon)


def _sensible(earlier: Event, later: Event) -> tuple[Connective, ...]:
    """Return the connectives that make sense if the earlier event is nested in the clause of the later event."""
    if isinstance(later, Alert):
        return ("if", "because", "after")
    if isinstance(earlier, Weather) and isinstance(later, Weather):
        if PHENOMENA[earlier.phenomenon].state == PHENOMENA[later.phenomenon].state:
            return ("if", "after")
        return ("although", "if", "after", "even if")
    if isinstance(later, Temperature):
        is_sun = isinstance(earlier, Weather) and PHENOMENA[earlier.phenomenon].state == "sun"
        is_due = later.change == ("rise" if is_sun else "fall")
        return ("if", "because", "after") if is_due else ("although", "after", "even if")
    return ("although", "if", "because", "after", "even if")


def _connectives(events: Sequence[Event], rng: np.random.Generator) -> tuple[Connective, ...]:
    """Return the connectives of the nested clauses, outer first. `events` are in the order of the day."""
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
        chosen.add(int(rng.random() * len(TIMES)))
    return sorted(chosen)


def sample(rng: np.random.Generator) -> Forecast:
    """Return a random forecast of any split. The number of values drawn from `rng` varies."""
    date = _pick(_MONTH_DAYS if rng.random() < 0.25 else _NAMED_DATES, rng)
    place = _pick(_PLACES, rng)
    coldest, hottest = CLIMATES[PLACES[place][1]]
    degrees = coldest + int(rng.random() * (hottest - coldest + 1))
    draw = rng.random()
    depth = 0 if draw < 0.46 else 1 if draw < 0.84 else 2

    # The chain runs in the order of the day: yesterday, then the innermost clause, and the main clause last.
    day = _Day(degrees, rng)
    yesterday = day.event() if depth < 2 and rng.random() < 0.15 else None
    times = _increasing_times(depth + 1, rng)
    events = [
        day.event(by_night=time >= FIRST_TIME_BY_NIGHT, with_warnings=number == depth)
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
        high_and_low = (degrees, max(degrees - 2 - int(rng.random() * 7), COLDEST))
    return Forecast(date, place, _pick(CERTAINTY_DRAWS, rng), main, below, yesterday, high_and_low)


# ---- splits and pairs


def combination(forecast: Forecast) -> str:
    """Return all parts of `forecast` except its temperatures as one line of text, which determines the split.

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
    """Return the split of `forecast` by a hash of its combination: 80% train, 10% valid, 10% test."""
    digest = hashlib.blake2b(combination(forecast).encode(), digest_size=8).digest()
    bucket = int.from_bytes(digest, "big") % 10
    return "valid" if bucket == 0 else "test" if bucket == 1 else "train"


def forecasts(split: Split, seed: int = 0) -> Iterator[Forecast]:
    """Yield different forecasts of `split` forever. The same `seed` yields the same forecasts on every platform."""
    rng = np.random.Generator(np.random.PCG64(seed))
    seen: set[Forecast] = set()
    while True:
        forecast = sample(rng)
        if split_of(forecast) == split and forecast not in seen:
            seen.add(forecast)
            yield forecast


def pairs(n: int, split: Split, seed: int = 0) -> list[tuple[str, str]]:
    """Return the first `n` different (English, Japanese) pairs of `split`. A shorter list is a prefix of a longer list.

    >>> pairs(1, "train") == pairs(2, "train")[:1]
    True
    """
    return [(english(forecast), japanese(forecast)) for forecast in islice(forecasts(split, seed), n)]
