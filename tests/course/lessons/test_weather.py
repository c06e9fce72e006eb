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

from attendo.display.i18n import Localized
from attendo.display.width import columns
from attendo.models import parameter_count
from attendo.nn.attention import attention
from attendo_course import weather_chain as weather
from attendo_course.lessons import find_lesson, weather_draft, weather_models
from attendo_course.lessons import weather as lesson
from attendo_course.lessons.arrays import T_95, seeded
from attendo_course.lessons.lesson import Conclusion, Options, Table
from attendo_course.lessons.weather import DEEP, VARIANTS, effect_of, effects
from attendo_course.pictures import Picture, picture_lines
from attendo_course.presets import one_hot_embedding, weather_blog

SRC = torch.tensor([[0, 1, 2, 2, 1, 0, 0, 1, 2, 1]])
DAYS = st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def small_tests():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weather_models, "TEST_ROWS", 4000)
        yield


@pytest.fixture(scope="module")
def markov(small_tests):
    task = weather_models.tasks(1)["markov"]
    return task, task.data(1)


@pytest.fixture(scope="module")
def decoder():
    test = weather_models.fresh_chain(21)(np.random.default_rng(1), 500)
    return weather_models.trained_on_chain(weather_models.fresh_chain(21), test, 150, 1), test


def test_the_lessons_models_are_the_posts():
    model, post = seeded(weather_models.SingleQueryAttention, 1), weather_blog()
    days = one_hot_embedding()(SRC)
    post.q_proj, post.k_proj, post.v_proj = model.q_proj, model.k_proj, model.output_proj
    assert torch.allclose(model.output_proj(model.hidden(SRC)), post(days[:, -1:], days)[:, 0], atol=1e-6)
    assert [parameter_count(contender.build()) for contender in (weather_models.LINEAR, weather_models.ATTENTION)] == [
        123,
        75,
    ]


def test_several_heads_are_the_sum_of_one_head_each():
    model = seeded(lambda: weather_models.SingleQueryAttention(n_heads=2), 1)
    days = one_hot_embedding()(SRC)
    query, key = (p(days).unflatten(-1, (2, 6)).transpose(1, 2) for p in (model.q_proj, model.k_proj))
    mixed = attention(query[:, :, -1:], key, days[:, None].expand(-1, 2, -1, -1))
    assert torch.allclose(model.hidden(SRC), mixed.flatten(1), atol=1e-6)


def test_a_model_without_norms_has_none_and_still_learns():
    bare = weather_models.transformer(2, norm=False)
    assert not [module for module in bare.modules() if isinstance(module, nn.LayerNorm)]
    assert len([module for module in weather_models.transformer(2).modules() if isinstance(module, nn.LayerNorm)]) == 5
    bare(torch.zeros(1, 10, dtype=torch.int64)).sum().backward()
    assert all(parameter.grad is not None for parameter in bare.parameters())


@pytest.mark.full
def test_the_linear_model_is_a_logistic_regression(markov):
    task, data = markov
    run = weather_models.LINEAR.trained(task, data, 1)
    one_hot = [np.eye(3)[part.inputs["src"].numpy()].reshape(-1, 30) for part in (data.train, data.test)]
    oracle = LogisticRegression(C=np.inf, max_iter=1000).fit(one_hot[0], data.train.targets.numpy())
    assert run.measures["accuracy"] == pytest.approx(oracle.score(one_hot[1], data.test.targets.numpy()), abs=0.015)
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
    task = weather_models.tasks(1)[name]
    assert DEEP.trained(task, task.data(1), 1).measures["accuracy"] >= 0.9


@pytest.mark.full
def test_a_deep_transformer_learns_a_random_table(small_tests):
    task = weather_models.tasks(1)["1-4-8"]
    found = DEEP.trained(task, task.data(1), 1).measures["accuracy"]
    assert found == pytest.approx(task.limit.accuracy, abs=0.03)


@pytest.mark.full
def test_the_decoder_comes_near_the_chain_day_by_day(decoder):
    done, test = decoder
    assert done.measures["excess"] == pytest.approx(done.measures["loss"] - weather_models.chain_loss(test))
    assert abs(done.measures["excess"]) < 0.01
    assert weather_models.chain_loss(test) == pytest.approx(weather.entropy_rate(), abs=0.03)


@pytest.mark.full
def test_the_decoder_on_day_11_alone(markov, decoder):
    _, data = markov
    found = weather_models.last_day(decoder[0].model, data)
    assert found["accuracy"] == found["exact"]  # one target a row
    assert abs(found["excess"]) < 0.02


@pytest.mark.full
def test_generated_weather_has_the_chains_transitions(decoder):
    model = decoder[0].model
    days = weather_models.generated(model, lesson.CLOUD, 20, 1500, seed=1)
    assert days.shape == (1500, 20)
    assert np.array_equal(days, weather_models.generated(model, lesson.CLOUD, 20, 1500, seed=1))
    assert not np.array_equal(days, weather_models.generated(model, lesson.CLOUD, 20, 1500, seed=2))
    counts = weather_models.transition_counts(days)
    assert counts / counts.sum(axis=1, keepdims=True) == pytest.approx(weather.transition_matrix(), abs=0.05)
    first = np.bincount(days[:, 0], minlength=3) / len(days)
    assert first == pytest.approx(weather.TRANSITION[lesson.CLOUD], abs=0.08)


def test_generated_days_see_all_days_before():
    model = seeded(weather_models.chain_decoder, 1)
    with torch.no_grad():
        model.output_proj.weight *= 200  # nearly sure of each day, so that the draw is its choice
    days = weather_models.generated(model, 1, 12, 1, seed=1)[0]
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
    assert np.array_equal(weather_models.transition_counts(np.array(rows)), counts)


@given(DAYS)
def test_shifted_days_are_the_same_days(rows):
    days = np.array(rows)
    examples = weather_models.shifted(days)
    assert np.array_equal(examples.inputs["token_ids"].numpy()[:, 1:], examples.targets.numpy()[:, :-1])
    assert np.array_equal(examples.targets.numpy(), days[:, 1:])


def test_all_days_are_those_that_were_drawn(markov):
    task, data = markov
    days = weather_models.all_days(data.train)
    assert days.shape == (task.n_train, 11)
    assert np.array_equal(days[:, 10], data.train.targets.numpy())


@given(arrays(np.int64, (3, 3), elements=st.integers(1, 500)))
def test_chi_square_is_pearsons(counts):
    expected = [
        stats.chisquare(row, row.sum() * p)[0] for row, p in zip(counts, weather.transition_matrix(), strict=True)
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
    accuracy = [[x, x + 0.001] for x in (0.1, 0.2, 0.4, 0.5, 0.7, 0.9, 0.3, 0.5)]
    assert len(accuracy) == len(VARIANTS)
    found = {e.name.en: e.difference for e in effects(accuracy)}
    assert found == pytest.approx(
        {
            "4 heads in bare attention": 0.1,
            "the rest of the block": 0.3,
            "4 heads in 1 layer": 0.1,
            "4 heads in 2 layers": 0.2,
            "a second layer": 0.35,
            "the norms": 0.3,
        }
    )


def test_one_seed_shows_no_effect():
    assert effect_of(Localized("a", "a"), [[0.9]], [[0.1]]).verdict == 0


@pytest.fixture(scope="module")
def pieces(small_tests):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weather_models, "TEST_ROWS", 300)
        patch.setattr(weather_models, "SETTLED", 20)
        patch.setattr(lesson, "FRESH_DAYS", 2000)
        patch.setattr(lesson, "SAMPLES", 50)
        patch.setattr(weather_draft, "BATCH_ROWS", 50)
        return list(find_lesson("weather").teach(Options(seeds=1, effort=0.004)))


def test_the_lesson_gives_its_tables_in_order(pieces):
    tables = {piece.name: piece for piece in pieces if isinstance(piece, Table)}
    named = [title for name in weather_models.tasks(1) for title in (f"rule of {name}", name) if title in tables]
    assert list(tables) == ["chain", "draft", *named, "effects", "transitions"]
    assert [name for name in named if name.startswith("rule")] == ["rule of markov2", "rule of 1-4-8"]
    assert [row[1] for row in tables["chain"].rows] == [
        "0.3889 0.3333 0.2778",
        "0.99818",
        "1.08931",
        "0.5056",
        "0.3889",
    ]
    assert [row[2] for row in tables["draft"].rows[:3]] == ["0.5444", "0.5466", "0.6543"]
    assert [row[1] for row in tables["draft"].rows[3:]] == [26, 26, 39, 65]
    assert tables["rule of markov2"].rows[0] == ("🌧️", ".75 .20 .05", ".20 .20 .60", ".30 .40 .30")
    assert len(tables["rule of 1-4-8"].rows) == 9
    assert tables["markov2"].rows[-1][2:4] == ("0.506", "0.137")  # what today alone tells, exactly
    assert len(tables["dotmod-any"].rows) == 2 + len(VARIANTS)
    assert tables["dotmod"].rows[0][2] == "0.960"
    assert sum(int(str(row[-1])) for row in tables["transitions"].rows) == 50 * lesson.ROW


def test_its_words_are_in_two_languages(pieces):
    pieces = [piece.words if isinstance(piece, Conclusion) else piece for piece in pieces]
    words = [piece for piece in pieces if isinstance(piece, Localized)]
    words += [piece.title for piece in pieces if not isinstance(piece, Localized)]
    assert all(re.search("[぀-ヿ一-鿿]", said.ja) for said in words)
    assert not any(re.search("[぀-ヿ一-鿿]", said.en) for said in words)


def test_its_maps_are_labelled_with_the_weather(pieces):
    maps = [piece for piece in pieces if isinstance(piece, Picture) and piece.kind == "matrix"]
    assert len(maps) == 1
    for found in maps:
        assert len(found.rows) == len(found.values) == 10
        assert len({columns(row) for row in found.rows}) == 1
        assert all(row.split()[0] in weather.SYMBOLS for row in found.rows)
        assert all(columns(line) <= 79 for line in picture_lines(found))
    assert maps[0].values.sum(axis=0) == pytest.approx(1, abs=1e-5)  # heads are columns there


def test_curves_are_one_for_each_contender(pieces):
    [found] = [piece for piece in pieces if isinstance(piece, Picture) and piece.kind == "curves"]
    assert found.rows == tuple(c.name.en for c in lesson.CONTENDERS)
    assert np.isfinite(found.values).all()


# ---- the draft's experiment


def error_of_weights(e, a, b):
    """The error with the score (a·e_10 + b)·e_t and the best line of the weighted mean."""
    scores = (a * e[:, -1:] + b) * e
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weather_draft.line_error((weights * e).sum(axis=1) / weights.sum(axis=1))


@pytest.mark.parametrize("numbers", [np.arange(1, 11) / 10, 1 / np.arange(1, 11)])
def test_the_best_weights_for_one_number_are_steep_and_no_others_are_better(numbers):
    e = weather_draft.NUMBERS[weather_draft.ten_days()[0]] + numbers
    least = weather_draft.least_error(e)
    steep = [error_of_weights(e, 1000.0, sharp - 1000.0 * numbers[-1]) for sharp in (0.7, 1.3)]
    assert min(steep) == pytest.approx(least, abs=2e-4)
    rng = np.random.default_rng(0)
    assert min(error_of_weights(e, *rng.normal(0, spread, 2)) for spread in (1, 3, 10, 100)) > least


def test_the_drafts_training_is_a_pure_function_of_its_seed_and_nears_the_limit():
    runs = [weather_draft.trained_by_squares(weather_draft.side_by_side, seed, 60) for seed in (1, 1, 2)]
    a, b, c = (error for _, error in runs)
    assert a == b != c
    assert 0.5444 < a < 0.62  # the mean alone has .6543
