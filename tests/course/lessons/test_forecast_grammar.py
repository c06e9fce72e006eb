"""The forecasts corpus: what is drawn, honest splits, and what remembering them is worth."""

import hashlib
import re
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from attendo_course import weather_chain as weather
from attendo_course.lessons import forecast_grammar as lexicon

drawn = st.integers(0, 2**32).map(lambda seed: lexicon.sample(np.random.Generator(np.random.PCG64(seed))))


def first_forecasts(n, split, seed=0):
    return list(islice(lexicon.forecasts(split, seed), n))


@pytest.fixture(scope="module")
def train():
    return first_forecasts(examples(8_000, 20_000), "train")


@pytest.fixture(scope="module")
def held_out():
    return first_forecasts(500, "test") + first_forecasts(500, "valid")


def events_of(forecast):
    """In the order of the day."""
    earlier = [forecast.yesterday] if forecast.yesterday else []
    return [*earlier, *(clause.event for _, clause in reversed(forecast.below)), forecast.main.event]


def test_no_english_text_has_two_japanese(train):
    japanese_of = {}
    for forecast in train:
        assert japanese_of.setdefault(lexicon.english(forecast), lexicon.japanese(forecast)) == lexicon.japanese(
            forecast
        )
    assert len(japanese_of) == len(train)  # distinct structures, distinct texts


# ---- what is drawn


def test_places_phenomena_and_depths_are_plenty(train):
    places = Counter(forecast.place for forecast in train)
    events = [event for forecast in train for event in events_of(forecast)]
    phenomena = Counter(event.phenomenon for event in events if isinstance(event, lexicon.Weather))
    assert len(places) == len(lexicon.PLACES) >= 60
    assert len(phenomena) == len(lexicon.PHENOMENA) >= 30
    assert min(places.values()) > 0.0075 * len(train)
    assert min(phenomena.values()) > 0.0025 * len(train)
    depths = Counter(len(forecast.below) for forecast in train)
    assert set(depths) == {0, 1, 2}
    assert min(depths.values()) > 0.15 * len(train)


def test_the_weather_follows_the_markov_chain():
    rng = np.random.Generator(np.random.PCG64(2))
    counts, first_counts = np.zeros((3, 3)), np.zeros(3)
    for _ in range(examples(10_000, 30_000)):
        events = [event for event in events_of(lexicon.sample(rng)) if isinstance(event, lexicon.Weather)]
        states = [weather.STATES.index(lexicon.PHENOMENA[event.phenomenon].state) for event in events]
        if states:
            first_counts[states[0]] += 1
        np.add.at(counts, (states[:-1], states[1:]), 1)
    assert first_counts / first_counts.sum() == pytest.approx(weather.INITIAL, abs=0.02)
    totals = counts.sum(axis=1, keepdims=True)
    largest = 4 * 0.5 / totals.min() ** 0.5  # four standard errors
    assert counts / totals == pytest.approx(weather.transition_matrix(), abs=largest)


def test_times_run_forward_and_the_night_has_no_sunshine(train):
    for forecast in train:
        in_order = [*(clause for _, clause in reversed(forecast.below)), forecast.main]
        times = [clause.time for clause in in_order if clause.time is not None]
        assert times == sorted(set(times))
        for clause in in_order:
            if clause.time is not None and clause.time >= lexicon.FIRST_TIME_BY_NIGHT:
                assert getattr(clause.event, "phenomenon", "") not in lexicon.ONLY_BY_DAY


def test_all_temperatures_are_in_range_and_fit_the_phenomena(train):
    for forecast in train:
        told = {event.degrees for event in events_of(forecast) if isinstance(event, lexicon.Temperature)}
        if forecast.high_and_low is not None:
            high, low = forecast.high_and_low
            assert lexicon.COLDEST <= low < high
            told.add(high)
        assert len(told) <= 1
        for degrees in told:
            assert -20 <= degrees <= 40
            for event in events_of(forecast):
                if isinstance(event, lexicon.Weather):
                    entry = lexicon.PHENOMENA[event.phenomenon]
                    assert entry.coldest <= degrees <= entry.hottest


def test_every_day_has_phenomena_enough_to_choose_from():
    """A forecast tells at most three different ones of one state, so three must fit whatever the day."""
    coldest = min(low for low, _ in lexicon.CLIMATES.values())
    hottest = max(high for _, high in lexicon.CLIMATES.values())
    for degrees in range(coldest, hottest + 1):
        for state in weather.STATES:
            fitting = [
                name
                for name, entry in lexicon.PHENOMENA.items()
                if entry.state == state and entry.coldest <= degrees <= entry.hottest
            ]
            assert len(set(fitting) - lexicon.ONLY_BY_DAY) >= 3, (degrees, state)
            of_state = [notice for notice in lexicon.WARNINGS.values() if notice.state == state]
            assert any(notice.coldest <= degrees <= notice.hottest for notice in of_state), (degrees, state)


def test_the_space_is_far_larger_than_a_training_set(train):
    # By the birthday rule 20,000 draws from ten million equally likely combinations repeat 20 times, from one
    # million 200 times; the simple sentences repeat first.
    assert len({lexicon.combination(forecast) for forecast in train}) > len(train) - 100
    longer = [lexicon.combination(forecast) for forecast in train if forecast.below]
    assert len(set(longer)) > len(longer) - 10


# ---- splits


def parts_of(forecast):
    """The smallest parts a text is made of: words, numbers, times and the ways clauses are joined."""
    numbers = set(forecast.high_and_low or ())
    parts = {forecast.date, forecast.place, forecast.certainty}
    parts.add("-".join(["nesting", *(connective for connective, _ in forecast.below)]))
    parts.add(f"yesterday {type(forecast.yesterday).__name__}")
    for clause in (forecast.main, *(clause for _, clause in forecast.below)):
        parts.add(f"time {clause.time} {clause.onward}")
    for event in events_of(forecast):
        match event:
            case lexicon.Weather(name) | lexicon.Alert(name):
                parts.add(name)
            case lexicon.Wind(strength, direction):
                parts |= {f"strength {strength}", direction}
            case lexicon.Temperature(change, degrees):
                parts.add(change)
                numbers.add(degrees)
    return parts | {f"degrees {number}" for number in numbers}


def test_held_out_forecasts_use_only_parts_seen_in_training(train, held_out):
    known = set().union(*map(parts_of, train))
    for forecast in held_out:
        assert parts_of(forecast) <= known


def test_no_combination_is_on_both_sides(train, held_out):
    assert {lexicon.split_of(forecast) for forecast in train} == {"train"}
    assert [lexicon.split_of(forecast) for forecast in held_out] == ["test"] * 500 + ["valid"] * 500
    assert {lexicon.combination(f) for f in train}.isdisjoint({lexicon.combination(f) for f in held_out})
    assert {lexicon.english(f) for f in train}.isdisjoint({lexicon.english(f) for f in held_out})
    assert {lexicon.japanese(f) for f in train}.isdisjoint({lexicon.japanese(f) for f in held_out})


@given(drawn, st.integers(-20, 40), st.integers(-20, 40))
def test_other_temperatures_stay_in_the_same_split(forecast, degrees, low):
    def changed(clause):
        is_temperature = isinstance(clause.event, lexicon.Temperature)
        return replace(clause, event=replace(clause.event, degrees=degrees)) if is_temperature else clause

    other = replace(
        forecast,
        main=changed(forecast.main),
        below=tuple((connective, changed(clause)) for connective, clause in forecast.below),
        high_and_low=None if forecast.high_and_low is None else (degrees, low),
    )
    assert lexicon.split_of(other) == lexicon.split_of(forecast)


def test_a_combination_is_a_text_without_its_temperatures(train):
    words = [re.sub(r"-?\d+ degrees?", "", lexicon.english(forecast)) for forecast in train]
    combinations = [lexicon.combination(forecast) for forecast in train]
    assert len(set(zip(words, combinations, strict=True))) == len(set(words)) == len(set(combinations))
    assert len(set(words)) < len(train)  # some do repeat with other numbers


def test_splits_have_their_shares():
    rng = np.random.Generator(np.random.PCG64(3))
    shares = Counter(lexicon.split_of(lexicon.sample(rng)) for _ in range(6_000))
    assert shares["train"] / 6_000 == pytest.approx(0.8, abs=0.02)
    assert shares["valid"] / 6_000 == pytest.approx(0.1, abs=0.015)


def test_pairs_are_distinct_repeatable_and_the_same_on_every_platform():
    first = lexicon.pairs(300, "train", seed=7)
    assert len(set(first)) == 300
    assert lexicon.pairs(500, "train", seed=7)[:300] == first
    assert lexicon.pairs(300, "train", seed=8) != first
    text = "\n".join(f"{source}\t{target}" for source, target in lexicon.pairs(200, "test"))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "c9f631fb12667fcb"  # renew it when the grammar changes
