"""`attendo lesson weather`: the weather chain, the tasks built on it, its limits, and weather made by a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int

from attendo.data import weather
from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.inspecting.recording import recording
from attendo.models import DecoderLM
from attendo_course.lessons.arrays import Training
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table
from attendo_course.lessons.weather_ablation import ablation_step
from attendo_course.lessons.weather_contest import label, task_steps
from attendo_course.lessons.weather_models import (
    LONGEST,
    fresh_chain,
    generated,
    trained_on_chain,
    transition_counts,
)
from attendo_course.lessons.weather_tasks import N_STATES

FIRST_SEED = 11111
"""The blog's."""
FRESH_DAYS = 100_000
ROW = 20
"""Days that follow a first one."""
SAMPLES = 2000
"""Rows of generated weather."""
CLOUD = weather.STATES.index("cloud")
NAMES = tuple(Localized(*names) for names in zip(weather.STATES, ("雨", "曇り", "晴れ"), strict=True))
DEGREES = N_STATES * (N_STATES - 1)
RARELY = 12.59
"""Exceeded by 5 % of χ² with 6 degrees of freedom."""


def teach(options: Options) -> Iterator[Piece]:
    """The chain, the tasks with all contenders, what parts help, and a model that makes weather."""
    yield from chain_step()
    yield from task_steps(options)
    yield from ablation_step(options)
    yield from generation_step(options)


def squared_error_floor() -> tuple[float, float]:
    """The least mean squared error of tomorrow's number (-1, 0, 1), given today; and its variance.

    >>> [round(value, 4) for value in squared_error_floor()]
    [0.5444, 0.6543]
    """
    numbers, stationary = np.arange(N_STATES) - 1.0, weather.stationary_distribution()
    transition = weather.transition_matrix()
    floor = stationary @ (transition @ numbers**2 - (transition @ numbers) ** 2)
    return float(floor), float(stationary @ numbers**2 - (stationary @ numbers) ** 2)


def symbols(states: Int[np.ndarray, " n"]) -> str:
    """The weather of some days.

    >>> symbols(np.array([0, 2]))
    '🌧️ ☀️'
    """
    return " ".join(weather.SYMBOLS[state] for state in states)


def chain_step() -> Iterator[Piece]:
    """The chain, and what can be known of it before anything is trained."""
    first = weather.generate(20, np.random.Generator(np.random.PCG64(FIRST_SEED)))
    yield Localized(
        f"Tomorrow's weather depends on today's alone. The first 20 days of seed {FIRST_SEED}:\n{symbols(first)}",
        f"明日の天気は今日の天気だけで決まる。シード {FIRST_SEED} の最初の 20 日間：\n{symbols(first)}",
    )
    floor, variance = squared_error_floor()
    stationary = weather.stationary_distribution()
    rows: list[tuple[Cell, ...]] = [
        (
            Localized("share of rain, cloud, sun", "雨、曇り、晴れの割合"),
            " ".join(f"{p:.4f}" for p in stationary),
        ),
        (
            Localized("loss, today known (nats)", "今日がわかるときの損失（ナット）"),
            f"{weather.entropy_rate():.5f}",
        ),
        (
            Localized("loss, nothing known (nats)", "何もわからないときの損失（ナット）"),
            f"{float(weather.entropy(stationary)):.5f}",
        ),
        (Localized("accuracy, today known", "今日がわかるときの正答率"), f"{weather.bayes_accuracy():.4f}"),
        (
            Localized("accuracy, always the same", "いつも同じ答えの正答率"),
            f"{weather.majority_accuracy():.4f}",
        ),
        (
            Localized("squared error of -1, 0, 1, today known", "-1、0、1 の二乗誤差、今日がわかるとき"),
            f"{floor:.4f}",
        ),
        (Localized("squared error, nothing known", "二乗誤差、何もわからないとき"), f"{variance:.4f}"),
    ]
    columns = (Localized("the best that is possible", "到達できる最良の値"), Localized("exact", "厳密値"))
    yield Table("chain", Localized("The chain's limits", "マルコフ連鎖の限界"), columns, tuple(rows))


def generation_step(options: Options) -> Iterator[Piece]:
    """A decoder learns the chain day by day, then makes weather; its transitions are counted."""
    yield Localized(
        f"Now a decoder learns the chain, from fresh rows of {ROW + 1} days, each day from those before it.",
        f"次に、デコーダが {ROW + 1} 日間の新しい系列から、前の日々に続く 1 日を毎日学習する。",
    )
    draw, rng = fresh_chain(ROW + 1), np.random.default_rng(0)
    test = draw(rng, FRESH_DAYS // ROW)
    done = trained_on_chain(draw, test, options.steps(800), 1)
    yield fresh_days(done)
    model = cast(DecoderLM, done.model)
    days = generated(model, CLOUD, ROW, SAMPLES, seed=1)
    yield Localized(
        f"{ROW} days made by the model after {weather.SYMBOLS[CLOUD]}:\n{symbols(days[0])}",
        f"{weather.SYMBOLS[CLOUD]} に続けてモデルが作った {ROW} 日間：\n{symbols(days[0])}",
    )
    with_first = np.column_stack([np.full(SAMPLES, CLOUD), days])
    yield from transitions(transition_counts(with_first))
    yield from today_map(model, with_first[0, : ROW // 2])


def fresh_days(done: Training) -> Localized:
    """The model's loss beside the true chain's, on the same fresh days."""
    loss, excess = done.measures["loss"], done.measures["excess"]
    return Localized(
        f"On {FRESH_DAYS:,} fresh days its loss is {loss:.4f} nats, the true chain's {loss - excess:.4f}:"
        f" {excess:+.4f}.",
        f"新しい {FRESH_DAYS:,} 日間での損失は {loss:.4f} ナット、真の連鎖は {loss - excess:.4f} で、差は {excess:+.4f}"
        " である。",
    )


def chi_square(counts: Int[np.ndarray, "3 3"]) -> float:
    """Σ (count - expected)² / expected, expected: the row's sum times the chain's probability. Pearson 1900.

    >>> chi_square(np.array([[6, 3, 1], [3, 4, 3], [2, 3, 5]]))
    0.0
    """
    expected = counts.sum(axis=1, keepdims=True) * weather.transition_matrix()
    return round(float(((counts - expected) ** 2 / expected).sum()), 9)


def transitions(counts: Int[np.ndarray, "3 3"]) -> Iterator[Piece]:
    """How often each weather followed each in what the model made, beside the chain's probabilities."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    true = weather.transition_matrix()
    yield Table(
        "transitions",
        Localized(
            f"Transitions in {SAMPLES:,} samples of {ROW} days: share (true probability)",
            f"{ROW} 日間のサンプル {SAMPLES:,} 本での遷移：割合（真の確率）",
        ),
        (Localized("today", "今日"), *NAMES, Localized("days", "日数")),
        tuple(
            (
                Localized(f"{weather.SYMBOLS[i]} {name.en}", f"{weather.SYMBOLS[i]} {name.ja}"),
                *(f"{p:.3f} ({q:.1f})" for p, q in zip(shares[i], true[i], strict=True)),
                int(counts[i].sum()),
            )
            for i, name in enumerate(NAMES)
        ),
    )
    found, largest = chi_square(counts), float(np.abs(shares - true).max())
    usual = found <= RARELY
    said = Localized(
        f"The largest difference is {largest:.3f}. χ² is {found:.1f}; samples of the true chain exceed {RARELY} in 5 %"
        f" of all cases ({DEGREES} degrees of freedom): {'no' if usual else 'a'} difference to the chain is seen.",
        f"最大の差は {largest:.3f} である。χ² は {found:.1f} で、真の連鎖のサンプルが {RARELY} を超えるのは 5 % の"
        f"場合である（自由度 {DEGREES}）。連鎖との違いは{'認められない' if usual else '認められる'}。",
    )
    yield Conclusion(said)


@torch.no_grad()
def today_map(model: DecoderLM, days: Int[np.ndarray, " n"]) -> Iterator[Piece]:
    """What each day attends to among those before it."""
    assert len(days) <= LONGEST
    path = "decoder.blocks.0.self_attention"
    with recording(model, f"{path}.weights") as record:
        record.model(torch.from_numpy(days)[None])
    weights = record[path].weights[0, 0].double().numpy()
    numbers = tuple(str(day % 10) for day in range(1, len(days) + 1))
    title = Localized(
        "What each of these days (rows) looks at (columns)", "それぞれの日（行）がどの日（列）を見ているか"
    )
    yield Picture(
        "matrix", title, weights, tuple(label(day, int(state)) for day, state in enumerate(days, 1)), numbers
    )
    today, even = share_of_today(weights)
    yield Localized(
        f"A day gives itself {today:.0%} of the weight, on average; an even spread would give {even:.0%}. It need not:"
        " the residual connection carries today past the attention, and nothing else is worth knowing.",
        f"1 日が自分自身に向ける重みは平均 {today:.0%} で、均等な配分なら {even:.0%} である。ただし自分を見る必要は"
        "ない。今日の天気は残差接続がアテンションを迂回して運び、ほかに知る価値のあるものはないからである。",
    )


def share_of_today(weights: Float[np.ndarray, "n n"]) -> tuple[float, float]:
    """The mean weight on the diagonal, and what an even spread over the days so far would give.

    >>> share_of_today(np.array([[1.0, 0.0], [0.25, 0.75]]))
    (0.875, 0.75)
    """
    return float(np.diag(weights).mean()), float(np.mean(1 / np.arange(1, len(weights) + 1)))


LESSON = Lesson(
    name="weather",
    source="the weather blog, its finished version; Phuong & Hutter 2022, algorithms 3 and 10",
    title=Localized("Tomorrow's weather", "明日の天気"),
    question=Localized(
        "How near do a linear model, one attention and Transformers come to what can be known of tomorrow's weather,"
        " and do heads, depth and norm help?",
        "線形モデル、1 つのアテンション、Transformer は、明日の天気について知りうることにどこまで近づくか。また、"
        "ヘッド数、深さ、正規化は役に立つのか。",
    ),
    cpu_minutes=4.2,
    teach=teach,
    seeds=(3, 3, 3, 5, 5),
)
LESSONS = (LESSON,)
