"""The grammar of the `forecasts` corpus: the structure of a forecast, its English text and its Japanese text.

Both languages are written from the structure. The English determines it, so each English text has one right
Japanese. The Japanese is head-final: the innermost clause comes first and the main verb last; a relative
clause precedes its noun.
"""

from dataclasses import dataclass
from typing import Literal

from attendo.data import forecasts_lexicon as lexicon

Connective = Literal["although", "if", "because", "after", "even if"]


@dataclass(frozen=True)
class Weather:
    """A phenomenon happens: a key of `lexicon.PHENOMENA`."""

    phenomenon: str


@dataclass(frozen=True)
class Temperature:
    """The temperature rises or falls to so many degrees Celsius."""

    change: Literal["rise", "fall"]
    degrees: int


@dataclass(frozen=True)
class Wind:
    """A wind blows, of some strength ("" = unsaid) from some direction."""

    strength: str
    direction: str


@dataclass(frozen=True)
class Alert:
    """An official warning is issued: a key of `lexicon.WARNINGS`; in main clauses only."""

    name: str


Event = Weather | Temperature | Wind | Alert


@dataclass(frozen=True)
class Clause:
    """An event at (or, `onward`, from) a time of day, an index into `lexicon.TIMES`; None = no time said."""

    event: Event
    time: int | None = None
    onward: bool = False


@dataclass(frozen=True)
class Forecast:
    """One forecast; `below` holds the nested clauses from outer to inner, each after its connective."""

    date: str
    place: str
    certainty: str
    main: Clause
    below: tuple[tuple[Connective, Clause], ...] = ()
    yesterday: Event | None = None  # a relative clause on the place
    high_and_low: tuple[int, int] | None = None


# ---- English


def english_event(event: Event, mood: str, place: str = "") -> str:
    """The English clause of `event`; `mood` is "present", "past" or a key of `lexicon.CERTAINTIES`."""
    match event:
        case Weather(phenomenon):
            form = lexicon.PHENOMENA[phenomenon].form
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
    time = lexicon.TIMES[clause.time]
    return f" {time.onward if clause.onward else time.at}"


def english(forecast: Forecast) -> str:
    """The English text of `forecast`; different forecasts have different texts.

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


def _japanese_event(event: Event) -> tuple[str, lexicon.Endings]:
    match event:
        case Weather(phenomenon):
            entry = lexicon.PHENOMENA[phenomenon]
            return entry.stem, lexicon.VERB_CLASSES[entry.verb_class]
        case Temperature(change, degrees):
            verb = "上が" if change == "rise" else "下が"
            return f"気温が{_japanese_degrees(degrees)}まで{verb}", lexicon.VERB_CLASSES["る5"]
        case Wind(strength, direction):
            stem = f"{lexicon.WIND_DIRECTIONS[direction]}の風が{lexicon.WIND_STRENGTHS[strength]}吹"
            return stem, lexicon.VERB_CLASSES["く5"]
        case Alert(name):
            return f"{lexicon.WARNINGS[name].japanese}が発表され", lexicon.VERB_CLASSES["1"]


def _japanese_degrees(degrees: int) -> str:
    return f"{'氷点下' if degrees < 0 else ''}{abs(degrees)}度"


def _japanese_time(clause: Clause, particle: str) -> str:
    if clause.time is None:
        return ""
    return f"{lexicon.TIMES[clause.time].japanese}{'から' if clause.onward else particle}"


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
    """The Japanese text of `forecast`.

    >>> below = (("if", Clause(Wind("", "north"))),)
    >>> japanese(Forecast("tomorrow", "Sapporo", "will", Clause(Weather("snow"), 3), below))
    '明日の札幌は、北の風が吹けば、午後は雪が降るでしょう。'
    """
    date, place = lexicon.DATES[forecast.date], lexicon.PLACES[forecast.place][0]
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
    return "".join(parts) + f"{time}{stem}{endings.plain}{lexicon.CERTAINTIES[forecast.certainty]}。"
