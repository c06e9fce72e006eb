"""The weather tasks: what is drawn follows the laws that are claimed, and the limits are exact."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo_course import weather_chain as weather
from attendo_course.lessons import weather_models as wt

NAMES = ("markov", "markov2", "1-4-8", "10-day", "15-day", "dotmod", "dotmod-any")
ALL_TEN = np.array(list(product(range(3), repeat=10)))


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(3)
    return {name: (task, task.examples(rng, 20_000)) for name, task in wt.tasks(3).items()}


def surprise(task, law, examples):
    """How many standard errors the sample's loss under a law is above what the task's limit says."""
    law = law(examples.inputs["src"].numpy())
    losses = -np.log(law[np.arange(len(law)), examples.targets.numpy()])
    return (losses.mean() - task.limit.loss) / (losses.std() / len(losses) ** 0.5)


def test_the_tasks_of_the_lesson():
    assert tuple(wt.tasks(1)) == NAMES
    assert [task.n_train for task in wt.tasks(1).values()] == [1000, *[5000] * 6]


@pytest.mark.some(4)
@pytest.mark.parametrize("name", NAMES)
def test_the_eleventh_day_follows_the_law(drawn, name):
    task, examples = drawn[name]
    law = task.law(examples.inputs["src"].numpy())
    assert law.sum(axis=1) == pytest.approx(1)
    assert abs(surprise(task, task.law, examples)) < 4
    hit = np.eye(3)[examples.targets.numpy()]
    for row in np.unique(law, axis=0):  # every case of the law by itself
        of_row = (law == row).all(axis=1)
        error = np.sqrt(row * (1 - row) / of_row.sum())
        assert (np.abs(hit[of_row].mean(axis=0) - row) < 5 * error + 1 / of_row.sum()).all()


@pytest.mark.some(4)
@pytest.mark.parametrize("name", NAMES)
def test_another_law_is_told_from_it(drawn, name):
    task, examples = drawn[name]
    assert surprise(task, lambda days: task.law(days)[:, [1, 2, 0]], examples) > 6


@pytest.mark.some(4)
@pytest.mark.parametrize("name", NAMES)
def test_the_loss_of_the_law_and_its_accuracy_are_the_limits(drawn, name):
    task, examples = drawn[name]
    assert task.true_loss(examples) == pytest.approx(task.limit.loss, abs=0.02)
    guess = task.law(examples.inputs["src"].numpy()).argmax(axis=1)
    assert (guess == examples.targets.numpy()).mean() == pytest.approx(task.limit.accuracy, abs=0.015)


def test_the_limits_have_the_known_digits():
    assert wt.chain_limit().accuracy == pytest.approx(weather.bayes_accuracy(), abs=1e-4)
    assert wt.chain_limit().loss == pytest.approx(weather.entropy_rate(), abs=1e-4)
    ten, fifteen = wt.urn_limit(10), wt.urn_limit(15, seen=15)
    assert (ten.accuracy, fifteen.accuracy) == pytest.approx((0.395, 0.384), abs=5e-4)
    assert (ten.loss, fifteen.loss) == pytest.approx((1.080, 1.087), abs=1e-3)
    assert (wt.sum_limit().accuracy, wt.sum_limit().loss) == pytest.approx((0.96, 0.196), abs=5e-4)
    unseen = wt.urn_limit(15)
    assert unseen.accuracy < fifteen.accuracy and unseen.loss > fifteen.loss


@pytest.mark.full
def test_the_limits_of_random_tables():
    limits = [wt.tasks(seed)["1-4-8"].limit for seed in range(300)]
    accuracy, loss = [limit.accuracy for limit in limits], [limit.loss for limit in limits]
    assert (np.mean(accuracy), np.mean(loss)) == pytest.approx((0.569, 0.921), abs=0.006)
    assert (np.std(accuracy), np.std(loss)) == pytest.approx((0.024, 0.025), abs=0.003)


@given(seed=st.integers(0, 2**32))
def test_a_random_table_has_tenths_that_sum_to_one(seed):
    table = wt.random_table(np.random.default_rng(seed))
    assert table.shape == (3, 3, 3, 3)
    assert table.sum(axis=-1) == pytest.approx(1)
    assert table.min() >= 0.1
    assert table * 10 == pytest.approx(np.round(table * 10))


def test_a_table_asks_for_days_1_4_and_8_only():
    table = np.arange(81.0).reshape(3, 3, 3, 3)
    law = wt.table_law(table, ALL_TEN)
    code = ALL_TEN[:, 0] * 9 + ALL_TEN[:, 3] * 3 + ALL_TEN[:, 7]
    assert np.array_equal(law, table.reshape(27, 3)[code])


def by_the_rule(window, balls):
    """The n-day rule as it is given: P(w) = (n - count of w) / 2n."""
    return np.array([(balls - window.count(state)) / (2 * balls) for state in range(3)])


def urn_probability(days, balls):
    """Of a sequence drawn from the urn, ball after ball."""
    probability, left = 1.0, [balls] * 3
    for day in days:
        probability *= left[day] / sum(left)
        left[day] -= 1
    return probability


@pytest.mark.parametrize("balls", [2, 3, 4])
def test_the_urn_is_the_long_run_of_the_rule(balls):
    windows = list(product(range(3), repeat=balls))
    before = {window: urn_probability(window, balls) for window in windows}
    after = dict.fromkeys(windows, 0.0)
    for window in windows:
        for state, p in enumerate(by_the_rule(window, balls)):
            after[(*window[1:], state)] += before[window] * p
    assert sum(before.values()) == pytest.approx(1)
    assert after == pytest.approx(before, abs=1e-12)


@pytest.mark.parametrize(("balls", "seen"), [(3, 3), (4, 2), (4, 3)])
def test_the_urns_law_and_limit_add_up_the_days_that_are_not_seen(balls, seen):
    accuracy = loss = 0.0
    for visible in product(range(3), repeat=seen):
        joint = np.zeros(3)
        for hidden in product(range(3), repeat=balls - seen):
            joint += urn_probability((*hidden, *visible), balls) * by_the_rule((*hidden, *visible), balls)
        law = wt.urn_law(balls, np.array([visible]))[0]
        if joint.sum() > 0:
            assert joint / joint.sum() == pytest.approx(law)
        accuracy += joint.max()
        loss += joint.sum() * float(weather.entropy(law)) if joint.sum() > 0 else 0.0
    limit = wt.urn_limit(balls, seen)
    assert (limit.accuracy, limit.loss) == pytest.approx((accuracy, loss))


def test_only_rain_counts_in_the_sum():
    weights = np.array([0, 1, 2, 0, 2, 1, 0, 1, 2, 0])
    assert np.array_equal(wt.weighted_sum(ALL_TEN), (ALL_TEN == 0) @ weights % 3)


def test_weather_that_follows_the_sum_comes_back_to_few_sequences():
    tasks, rng = wt.tasks(1), np.random.default_rng(0)
    own, free = (len(np.unique(tasks[name].draw(rng, 3000)[:, :10], axis=0)) for name in ("dotmod", "dotmod-any"))
    assert own < 1500 < 2800 < free


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3).filter(any), min_size=1, max_size=20), st.integers(0, 99))
def test_a_state_of_probability_0_is_never_drawn(weights, seed):
    law = np.array(weights, float)
    law /= law.sum(axis=1, keepdims=True)
    states = wt.drawn_from(law, np.random.default_rng(seed))
    assert (law[np.arange(len(law)), states] > 0).all()


def test_data_are_a_pure_function_of_the_seed(monkeypatch):
    monkeypatch.setattr(wt, "TEST_ROWS", 500)
    task = wt.tasks(1)["dotmod-any"]
    a, b, other = task.data(1), task.data(1), task.data(2)
    assert a.train.inputs["src"].equal(b.train.inputs["src"]) and a.test.targets.equal(b.test.targets)
    assert not a.train.inputs["src"].equal(other.train.inputs["src"])
    assert not a.test.inputs["src"].equal(a.train.inputs["src"][:500])
    assert len(a.test) == 500 and a.true_loss == task.true_loss(a.test)


def test_the_chain_of_second_order_seen_by_today_alone_is_the_first_chain():
    pairs, shares = np.array(wt.PAIR_TRANSITION), wt.pair_shares()
    assert pairs.sum(axis=2) == pytest.approx(1)
    assert np.einsum("yt,ytn->tn", shares, pairs) == pytest.approx(shares)  # stationary
    assert shares == pytest.approx(weather.stationary_distribution()[:, None] * weather.transition_matrix())
    backward = shares / shares.sum(axis=0)  # of yesterday, given today
    assert np.einsum("yt,ytn->tn", backward, pairs) == pytest.approx(weather.transition_matrix())
    assert wt.pair_limit().accuracy > weather.bayes_accuracy() + 0.1
    assert wt.pair_limit().loss < weather.entropy_rate() - 0.1
