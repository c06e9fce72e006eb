"""`attendo lesson weather`: its contenders, what it makes of their numbers, and all of it in small."""

import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from sklearn.linear_model import LogisticRegression
from torch import nn

from attendo.data import weather
from attendo.display.charts import Picture, picture_lines
from attendo.display.i18n import Localized
from attendo.display.width import columns
from attendo.models import parameter_count
from attendo.nn.attention import attention
from attendo_course.lessons import find_lesson, weather_models
from attendo_course.lessons import weather as lesson
from attendo_course.lessons.arrays import T_95, seeded
from attendo_course.lessons.lesson import Conclusion, Options, Table
from attendo_course.lessons.weather import DEEP, VARIANTS, Effect, answer, effect_of, effects
from attendo_course.lessons.weather_models import (
    LINEAR,
    SingleQueryAttention,
    all_days,
    chain_decoder,
    chain_loss,
    fresh_chain,
    generated,
    last_day,
    shifted,
    tasks,
    trained_on_chain,
    transformer,
    transition_counts,
)

DAYS = st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def small_tests():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weather_models, "TEST_ROWS", 4000)
        yield


@pytest.fixture(scope="module")
def markov(small_tests):
    task = tasks(1)["markov"]
    return task, task.data(1)


@pytest.fixture(scope="module")
def decoder():
    test = fresh_chain(21)(np.random.default_rng(1), 500)
    return trained_on_chain(fresh_chain(21), test, 150, 1), test


def test_the_blogs_attention_is_the_formula():
    model = seeded(lambda: SingleQueryAttention(n_heads=2), 1)
    src = torch.tensor([[0, 1, 2, 2, 1, 0, 0, 1, 2, 1]])
    days = torch.cat([torch.eye(3)[src[0]], torch.arange(1, 11)[:, None] / 20], dim=1)
    projections = (model.attention.q_proj, model.attention.k_proj, model.attention.v_proj)
    query, key, value = (p(days).unflatten(-1, (2, 6)).transpose(0, 1) for p in projections)
    mixed = attention(query[:, -1:], key, value)  # [heads, 1, 6]
    assert torch.allclose(model.hidden(src)[0], mixed[:, 0].flatten(), atol=1e-6)


def test_heads_share_the_same_parameters():
    assert parameter_count(transformer(2, 1)) == parameter_count(transformer(2, 4))


def test_a_model_without_norms_has_none_and_still_learns():
    bare = transformer(2, norm=False)
    assert not [module for module in bare.modules() if isinstance(module, nn.LayerNorm)]
    assert len([module for module in transformer(2).modules() if isinstance(module, nn.LayerNorm)]) == 5
    bare(torch.zeros(1, 10, dtype=torch.int64)).sum().backward()
    assert all(parameter.grad is not None for parameter in bare.parameters())


def test_the_linear_model_is_a_logistic_regression(markov):
    task, data = markov
    run = LINEAR.trained(task, data, 1)
    one_hot = [np.eye(3)[part.inputs["src"].numpy()].reshape(-1, 30) for part in (data.train, data.test)]
    oracle = LogisticRegression(C=np.inf, max_iter=1000).fit(one_hot[0], data.train.targets.numpy())
    assert run.measures["accuracy"] == pytest.approx(
        oracle.score(one_hot[1], data.test.targets.numpy()), abs=0.015
    )
    loss = -oracle.predict_log_proba(one_hot[1])[np.arange(len(data.test)), data.test.targets.numpy()].mean()
    assert run.measures["loss"] == pytest.approx(loss, abs=0.01)
    assert run.measures["excess"] == pytest.approx(run.measures["loss"] - data.true_loss)


def test_a_run_is_a_pure_function_of_its_seed(markov):
    task, data = markov
    a, b, c = (DEEP.trained(task, data, seed, lambda n: n // 20) for seed in (1, 1, 2))
    assert a.losses == b.losses != c.losses
    assert len(a.losses) == 10
    assert a.measures == b.measures


@pytest.mark.full
@pytest.mark.parametrize("name", ["dotmod", "dotmod-any"])
def test_a_deep_transformer_learns_the_sum(small_tests, name):
    task = tasks(1)[name]
    assert DEEP.trained(task, task.data(1), 1).measures["accuracy"] >= 0.9


@pytest.mark.full
def test_a_deep_transformer_learns_a_random_table(small_tests):
    task = tasks(1)["1-4-8"]
    found = DEEP.trained(task, task.data(1), 1).measures["accuracy"]
    assert found == pytest.approx(task.limit.accuracy, abs=0.03)


def test_the_decoder_comes_near_the_chain_day_by_day(decoder):
    done, test = decoder
    assert done.measures["excess"] == pytest.approx(done.measures["loss"] - chain_loss(test))
    assert abs(done.measures["excess"]) < 0.01
    assert chain_loss(test) == pytest.approx(weather.entropy_rate(), abs=0.03)


def test_the_decoder_on_day_11_alone(markov, decoder):
    _, data = markov
    found = last_day(decoder[0].model, data)
    assert found["accuracy"] == found["exact"]  # one target a row
    assert abs(found["excess"]) < 0.02


def test_generated_weather_has_the_chains_transitions(decoder):
    model = decoder[0].model
    days = generated(model, lesson.CLOUD, 20, 1500, seed=1)
    assert days.shape == (1500, 20)
    assert np.array_equal(days, generated(model, lesson.CLOUD, 20, 1500, seed=1))
    assert not np.array_equal(days, generated(model, lesson.CLOUD, 20, 1500, seed=2))
    counts = transition_counts(days)
    assert counts / counts.sum(axis=1, keepdims=True) == pytest.approx(weather.transition_matrix(), abs=0.05)
    first = np.bincount(days[:, 0], minlength=3) / len(days)
    assert first == pytest.approx(weather.TRANSITION[lesson.CLOUD], abs=0.08)


def test_generated_days_see_all_days_before():
    model = seeded(chain_decoder, 1)
    with torch.no_grad():
        model.output_proj.weight *= 200  # nearly sure of each day, so that the draw is its choice
    days = generated(model, 1, 12, 1, seed=1)[0]
    seen = [1]
    for day in days.tolist():
        assert day == int(model(torch.tensor([seen]))[0, -1].argmax())
        seen.append(day)


@given(DAYS)
def test_transitions_are_counted_pair_by_pair(rows):
    counts = np.zeros((3, 3), int)
    for row in rows:
        for today, tomorrow in pairwise(row):
            counts[today, tomorrow] += 1
    assert np.array_equal(transition_counts(np.array(rows)), counts)


@given(DAYS)
def test_shifted_days_are_the_same_days(rows):
    days = np.array(rows)
    examples = shifted(days)
    assert np.array_equal(examples.inputs["token_ids"].numpy()[:, 1:], examples.targets.numpy()[:, :-1])
    assert np.array_equal(examples.targets.numpy(), days[:, 1:])


def test_all_days_are_those_that_were_drawn(markov):
    task, data = markov
    days = all_days(data.train)
    assert days.shape == (task.n_train, 11)
    assert np.array_equal(days[:, 10], data.train.targets.numpy())


@given(arrays(np.int64, (3, 3), elements=st.integers(1, 500)))
def test_chi_square_is_pearsons(counts):
    expected = [
        stats.chisquare(row, row.sum() * p)[0]
        for row, p in zip(counts, weather.transition_matrix(), strict=True)
    ]
    assert lesson.chi_square(counts) == pytest.approx(sum(expected), rel=1e-6, abs=1e-6)


def test_the_quantiles_are_right():
    assert stats.chi2.ppf(0.95, lesson.DEGREES) == pytest.approx(lesson.RARELY, abs=0.005)
    assert stats.t.ppf(0.975, range(1, 10)) == pytest.approx(T_95, abs=5e-4)


@given(arrays(np.float64, (2, 5), elements=st.floats(0, 1).map(lambda x: round(x, 3))))
def test_an_effects_interval_is_that_of_the_paired_t_test(values):
    found = effect_of(Localized("a", "a"), [list(values[0])], [list(values[1])])
    assert found.difference == pytest.approx((values[0] - values[1]).mean())
    if np.ptp(values[0] - values[1]) > 1e-9:
        interval = stats.ttest_rel(values[0], values[1]).confidence_interval(0.95)
        assert found.margin == pytest.approx((interval.high - interval.low) / 2, rel=1e-3, abs=1e-6)


def test_effects_compare_the_right_variants():
    accuracy = [[x, x + 0.001] for x in (0.1, 0.2, 0.4, 0.5, 0.7, 0.9, 0.95, 0.3, 0.5)]
    assert len(accuracy) == len(VARIANTS)
    found = {e.name.en: e.difference for e in effects(accuracy)}
    assert found == pytest.approx(
        {
            "4 heads in bare attention": 0.1,
            "the rest of the block": 0.3,
            "4 heads in 1 layer": 0.1,
            "4 heads in 2 layers": 0.2,
            "a second layer": 0.35,
            "a third layer": 0.05,
            "the norms": 0.3,
        }
    )


def test_the_answer_says_what_the_numbers_show():
    def one(name, difference):
        return Effect(Localized(name, name), difference, 0.1)

    said = answer([one("up", 0.2), one("down", -0.2), one("level", 0.1)], 5)
    assert said.en.startswith("Helpful: up. Harmful: down. No difference shown: level (")
    assert "役に立つもの：「up」" in said.ja
    assert effect_of(Localized("a", "a"), [[0.9]], [[0.1]]).verdict == 0  # one seed shows nothing


@pytest.fixture(scope="module")
def pieces(small_tests):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weather_models, "TEST_ROWS", 300)
        patch.setattr(weather_models, "SETTLED", 20)
        patch.setattr(lesson, "FRESH_DAYS", 2000)
        patch.setattr(lesson, "SAMPLES", 50)
        return list(find_lesson("weather").teach(Options(seeds=1, effort=0.004)))


def test_the_lesson_gives_its_tables_in_order(pieces):
    tables = {piece.name: piece for piece in pieces if isinstance(piece, Table)}
    assert list(tables) == ["chain", *weather_models.tasks(1), "effects", "transitions"]
    assert [row[1] for row in tables["chain"].rows] == [
        "0.3889 0.3333 0.2778",
        "0.99818",
        "1.08931",
        "0.5056",
        "0.3889",
        "0.5444",
        "0.6543",
    ]
    assert len(tables["dotmod-any"].rows) == 2 + len(VARIANTS)
    assert tables["dotmod"].rows[0][2] == "0.960"
    assert [row[-1] for row in tables["dotmod"].rows[1:3]] == [".699", ".448"]
    assert sum(int(str(row[-1])) for row in tables["transitions"].rows) == 50 * lesson.ROW


def test_its_words_are_in_two_languages(pieces):
    pieces = [piece.words if isinstance(piece, Conclusion) else piece for piece in pieces]
    words = [piece for piece in pieces if isinstance(piece, Localized)]
    words += [piece.title for piece in pieces if not isinstance(piece, Localized)]
    assert all(re.search("[぀-ヿ一-鿿]", said.ja) for said in words)
    assert not any(re.search("[぀-ヿ一-鿿]", said.en) for said in words)


def test_its_maps_are_labelled_with_the_weather(pieces):
    maps = [piece for piece in pieces if isinstance(piece, Picture) and piece.kind == "matrix"]
    assert len(maps) == 2
    for found in maps:
        assert len(found.rows) == len(found.values) == 10
        assert len({columns(row) for row in found.rows}) == 1
        assert all(row.split()[0] in weather.SYMBOLS for row in found.rows)
        assert all(columns(line) <= 79 for line in picture_lines(found))
    assert maps[0].values.sum(axis=0) == pytest.approx(1, abs=1e-5)  # heads are columns there
    assert maps[1].values.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert np.triu(maps[1].values, 1).max() == 0  # no day sees those to come


def test_curves_are_one_for_each_contender(pieces):
    [found] = [piece for piece in pieces if isinstance(piece, Picture) and piece.kind == "curves"]
    assert found.rows == tuple(c.name.en for c in lesson.CONTENDERS)
    assert np.isfinite(found.values).all()
