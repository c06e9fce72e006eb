"""The attention ladder: its data, its exact limits against enumeration, and what its models can't tell apart."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attendo.display.i18n import Localized
from attendo.models import parameter_count
from attendo.nn.attention import attention
from attendo_course.lessons import ladder
from attendo_course.lessons.arrays import ArrayTask, seeded, trained
from attendo_course.lessons.ladder import text
from attendo_course.lessons.lesson import Conclusion, Options, Table
from attendo_course.pictures import Picture
from attendo_course.weather_chain import entropy


@given(st.integers(0, 99), st.booleans(), st.booleans())
def test_counts_are_those_of_the_letters(seed, begin, difference):
    examples = ladder.counting([4, 9], begin=begin, difference=difference)(np.random.default_rng(seed), 5)
    for x, counts in zip(examples.inputs["x"], examples.targets.tolist(), strict=True):
        letters = text(x)
        wanted = [letters.count(letter) for letter in "ABC"]
        assert counts == wanted + [abs(wanted[0] - wanted[1])] * difference
        assert letters.count("^") == letters[:1].count("^") == begin
        assert len(letters) - begin in (4, 9)


@given(st.integers(0, 99), st.integers(1, 3))
def test_signals_are_counted_in_the_letters_behind_them(seed, n_signals):
    examples = ladder.signals(n_signals, 6)(np.random.default_rng(seed), 5)
    for x, counts in zip(examples.inputs["x"], examples.targets.tolist(), strict=True):
        letters = text(x)
        assert counts == [letters[n_signals:].count(signal) for signal in letters[:n_signals]]


def test_limits_of_one_who_sees_nothing():
    ten, five = ladder.count_distribution(10, 1 / 4), ladder.count_distribution(5, 1 / 4)
    assert round(float(entropy(ten)), 3) == 1.714
    assert round(float(entropy(five)), 3) == 1.342
    assert round(float(ten.max()), 3) == 0.282


def test_limits_agree_with_enumeration():
    differences = Counter(abs(row.count("A") - row.count("B")) for row in product("ABC ", repeat=4))
    assert ladder.difference_distribution(4) == pytest.approx([differences[n] / 4**4 for n in range(5)])
    answers: dict[str, Counter[int]] = {}
    for row in product("ABC", repeat=5):
        answers.setdefault("".join(sorted(row)), Counter())[row[1:].count(row[0])] += 1
    loss = -sum(n * np.log(n / c.total()) for c in answers.values() for n in c.values()) / 3**5
    right = sum(max(c.values()) for c in answers.values()) / 3**5
    assert ladder.unordered_signal_limit(4) == pytest.approx((loss, right))


def with_queries(model):
    """Queries that differ, as after training."""
    if isinstance(model.queries, torch.nn.Parameter):
        torch.nn.init.normal_(model.queries, generator=torch.Generator().manual_seed(0))
    return model.double()


@torch.no_grad()
@pytest.mark.parametrize("projected", [True, False, None])
def test_a_set_and_the_set_twice_look_alike_but_for_the_mark(projected):
    for begin in (False, True):
        n = 5 if begin else 4
        model = with_queries(
            ladder.one_hot_counter(n, range(1, 4), 11)
            if projected is None
            else ladder.counter(n, 3, 11, projected=projected)
        )
        x = ladder.counting([7], begin=begin)(np.random.default_rng(0), 8).inputs["x"].double()
        change = (model(torch.cat([x, x[:, begin:]], dim=1)) - model(x)).abs().max()
        assert (change > 1e-3) if begin else (change < 1e-12)


@torch.no_grad()
def test_only_positions_tell_the_signal():
    x = ladder.signals(2, 6)(np.random.default_rng(0), 8).inputs["x"].double()
    cases: tuple[tuple[ladder.Start, bool], ...] = (("none", True), ("drawn", False), ("zero", True))
    for positions, alike in cases:
        model = with_queries(ladder.signal_counter(2, 6, 7, n_heads=4, positions=positions))
        assert torch.allclose(model(x), model(x.flip(1)), atol=1e-9) is alike


@torch.no_grad()
def test_bare_attention_has_no_parameters_and_is_the_formula():
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bare = ladder.bare_attention(8).double()
    assert parameter_count(bare) == 0
    assert torch.allclose(bare(x, x), attention(x, x, x))


def test_one_head_and_four_have_equally_many_parameters_and_bare_fewer():
    bare, one, four = (parameter_count(ladder.signal_counter(3, 10, 11, n_heads=n)) for n in (None, 1, 4))
    assert bare < one == four


def test_what_is_bare_stays_bare_in_training():
    model = seeded(lambda: ladder.signal_counter(1, 3, 4, n_heads=None), 1)
    draw = ladder.signals(1, 3)
    before = model.output_proj.weight.detach().clone()
    run = trained(model, ArrayTask(draw, draw(np.random.default_rng(9), 50), 20), 5, 1e-2, 1)
    assert torch.equal(model.cross_attention.q_proj.weight, torch.eye(64))
    assert not torch.equal(model.output_proj.weight, before)
    assert np.isfinite(run.losses).all()


@pytest.mark.full
def test_the_marked_counter_learns():
    draw = ladder.counting([3], begin=True)
    task = ArrayTask(draw, draw(np.random.default_rng(9), 300), 100)
    run = trained(seeded(lambda: ladder.one_hot_counter(5, range(1, 4), 4), 1), task, 200, 1e-2, 1)
    assert run.measures["exact"] > 0.95


def test_the_lesson_shows_tables_curves_and_maps_in_both_languages(monkeypatch):
    monkeypatch.setattr(ladder, "TEST_ROWS", 40)
    pieces = list(ladder.LESSON.teach(Options(seeds=1, effort=0.001)))
    tables = {piece.name: piece for piece in pieces if isinstance(piece, Table)}
    assert list(tables) == ["counting", "difference", "signal", "signals"]
    assert [len(table.rows) for table in tables.values()] == [7, 3, 4, 4]
    assert {piece.kind for piece in pieces if isinstance(piece, Picture)} == {"curves", "matrix"}
    texts = [piece.words if isinstance(piece, Conclusion) else piece for piece in pieces]
    texts = [text for text in texts if isinstance(text, Localized)]
    assert len(texts) == 8
    assert all("nan" not in words.en and words.ja != words.en for words in texts)
    weights = next(p for p in pieces if isinstance(p, Picture) and p.rows == ("A", "B", "C", "|A-B|")).values
    assert weights.sum(1) == pytest.approx(1.0)
