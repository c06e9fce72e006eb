"""The weather lesson's contests: every task with every contender, their tables and pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from attendo.data import weather
from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.inspecting.recording import recording
from attendo.models import EncoderClassifier, parameter_count
from attendo_course.lessons.arrays import Examples, Training, curve, logits_of, mean_and_deviation
from attendo_course.lessons.lesson import Cell, Conclusion, Options, Piece, Table
from attendo_course.lessons.weather_models import (
    BLOG_ATTENTION,
    LINEAR,
    Contender,
    all_days,
    last_day,
    shifted,
    trained_on_chain,
    transformer_contender,
)
from attendo_course.lessons.weather_tasks import N_SEEN, TABLE_DAYS, TEST_ROWS, Data, NextDay, tasks

ONE_LAYER, DEEP = transformer_contender(1, 4), transformer_contender(2, 4)
CONTENDERS = (LINEAR, BLOG_ATTENTION, ONE_LAYER, DEEP)
IN_THE_BLOG = {  # accuracy: of the linear model and of attention
    "markov": ("", ".498"),
    "1-4-8": (".423", ".389"),
    "10-day": (".376", ".332"),
    "15-day": (".369", ".314"),
    "dotmod": (".699", ".448"),
}

MODEL = Localized("model", "モデル")
ACCURACY = Localized("accuracy", "正答率")
EXCESS = Localized("nats above law", "法則との差（ナット）")
PARAMETERS = Localized("parameters", "パラメータ数")
BLOG_SAYS = Localized("blog", "ブログ")
WORST = Localized("worst", "最低")
LIMIT = Localized("limit (Bayes, exact)", "限界（ベイズ、厳密値）")
EVERY_DAY = Localized("decoder, told every day", "デコーダ、毎日を学習")


@dataclass(frozen=True, eq=False)
class Contest:
    """The runs of each contender, by seed, and what they were measured on."""

    tasks: list[NextDay]
    data: list[Data]
    contenders: Sequence[Contender]
    runs: list[list[Training]]

    def values(self, contender: int, measure: str) -> list[float]:
        """One number a seed."""
        return [run.measures[measure] for run in self.runs[contender]]


def contest(name: str, contenders: Sequence[Contender], seeds: int, steps: Callable[[int], int]) -> Contest:
    """Every contender on the task, with seeds 1, 2, ...; all see the same data of a seed."""
    chosen = [tasks(seed)[name] for seed in range(1, seeds + 1)]
    data = [task.data(seed) for seed, task in enumerate(chosen, 1)]
    runs = [
        [
            contender.trained(task, found, seed, steps)
            for seed, (task, found) in enumerate(zip(chosen, data, strict=True), 1)
        ]
        for contender in contenders
    ]
    return Contest(chosen, data, contenders, runs)


def task_steps(options: Options) -> Iterator[Piece]:
    """T07a to T07d, each a table; for the table of days also what the heads look at, for the sum the curves."""
    yield Localized(
        f"Now ten days are seen and the eleventh is asked for, in {TEST_ROWS:,} fresh sequences. Accuracy and loss are"
        " means over seeds with their deviation; a loss is given as what it is above that of the true law on the same"
        " sequences. The linear model and attention learn nearly as in the blog (Adam, rate .01, 500 steps), attention"
        " without its mask, which hid the past. Transformers: width 16, trained positions, norm first.",
        f"次に、10 日間を見て 11 日目を当てる。測定には新しい系列 {TEST_ROWS:,} 本を使う。正答率と損失はシードにわたる"
        "平均と標準偏差で、損失は同じ系列での真の法則の損失との差で表す。線形モデルとアテンションの学習はほぼブログどおり"
        "（Adam、学習率 0.01、500 ステップ）だが、アテンションには過去を隠していたマスクを使わない。Transformer は"
        "幅 16 で、学習する位置埋め込みと前置の正規化をもつ。",
    )
    for name in IN_THE_BLOG:
        seeds = options.seeds or (5 if name == "dotmod" else 3)
        held = contest(name, CONTENDERS, seeds, options.steps)
        extra = [_decoder_row(held, options)] if name == "markov" else []
        yield task_table(held, name, extra)
        yield Conclusion(nearest(held))
        if name == "1-4-8":
            yield from table_map(held)
        if name == "dotmod":
            yield curves(held)
            yield Conclusion(unseen(held))


def task_table(held: Contest, name: str, extra: Sequence[tuple[Cell, ...]] = ()) -> Table:
    """Accuracy and excess of each contender, the limit above them; where a seed is a random table, its mean limit.

    Last column: the accuracy that the blog reports, or, for what it does not have, that of the worst seed.
    """
    limits = [task.limit for task in held.tasks]
    accuracy = statistics.fmean(limit.accuracy for limit in limits)
    blog = dict(zip((LINEAR.name, BLOG_ATTENTION.name), IN_THE_BLOG.get(name, ("", "")), strict=True))
    rows: list[tuple[Cell, ...]] = [(LIMIT, "", f"{accuracy:.3f}", "0", "")]
    last = BLOG_SAYS if name in IN_THE_BLOG else WORST
    for i, contender in enumerate(held.contenders):
        cells = (mean_and_deviation(held.values(i, "accuracy")), mean_and_deviation(held.values(i, "excess")))
        size = parameter_count(held.runs[i][0].model)
        worst = f"{min(held.values(i, 'accuracy')):.3f}"
        rows.append((contender.name, size, *cells, worst if last is WORST else blog.get(contender.name, "")))
    title, n_train = held.tasks[0].title, held.tasks[0].n_train
    loss = statistics.fmean(limit.loss for limit in limits)
    return Table(
        name,
        Localized(
            f"{title.en}. {n_train:,} sequences to learn from, {len(limits)} seed{'s' * (len(limits) > 1)};"
            f" the law's own loss is {loss:.3f} nats.",
            f"{title.ja}。学習用の系列 {n_train:,} 本、シード {len(limits)} 個。真の法則の損失は {loss:.3f} ナット。",
        ),
        (MODEL, PARAMETERS, ACCURACY, EXCESS, last),
        (*rows, *extra),
    )


def _decoder_row(held: Contest, options: Options) -> tuple[Cell, ...]:
    """The decoder learns from the same rows, but from each of their days."""
    found: list[dict[str, float]] = []
    size = 0
    for seed, data in enumerate(held.data, 1):
        train = shifted(all_days(data.train))
        model = trained_on_chain(train, train, options.steps(200), seed).model
        found.append(last_day(model, data))
        size = parameter_count(model)
    cells = (mean_and_deviation([measured[name] for measured in found]) for name in ("accuracy", "excess"))
    return (EVERY_DAY, size, *cells, "")


def nearest(held: Contest) -> Localized:
    """Which contender's loss is the least, and how the linear model compares."""
    means = [statistics.fmean(held.values(i, "excess")) for i in range(len(held.contenders))]
    best = held.contenders[int(np.argmin(means))].name
    return Localized(
        f"Nearest to the law: {best.en}, {min(means):.3f} nats above it. The linear model: {means[0]:.3f}.",
        f"真の法則に最も近いのは「{best.ja}」で、その差は {min(means):.3f} ナットである。線形モデルは {means[0]:.3f}。",
    )


def curves(held: Contest) -> Picture:
    """The loss of each contender while it learned, mean over its runs."""
    values = [np.mean([curve(run.losses) for run in runs], axis=0) for runs in held.runs]
    n = min(map(len, values))
    return Picture(
        "curves",
        Localized(
            "Training loss, from the first step to the last", "学習時の損失（最初から最後のステップまで）"
        ),
        np.stack([value[:n] for value in values]),
        tuple(contender.name.en for contender in held.contenders),
    )


def unseen(held: Contest) -> Localized:
    """How much of the test is in the training data, and how it goes with the rest of it, in the first seed."""
    data = held.data[0]
    known = {tuple(row) for row in data.train.inputs["src"].tolist()}
    new = np.array([tuple(row) not in known for row in data.test.inputs["src"].tolist()])
    rest = data.test.rows(np.flatnonzero(new))
    linear, deep = (_accuracy(runs[0].model, rest) for runs in (held.runs[0], held.runs[-1]))
    return Localized(
        f"A rule that makes its own weather comes back to the same days: {1 - new.mean():.0%} of the test sequences of"
        f" seed 1 stand in its training data, too. On the other {len(rest):,} the deep model is right in {deep:.1%},"
        f" the linear one in {linear:.1%}.",
        f"自分の規則で作られる天気は同じ並びに戻ってくる。シード 1 のテスト系列の {1 - new.mean():.0%} は学習データにも"
        f"現れる。残りの {len(rest):,} 本に限ると、正答率は深いモデルで {deep:.1%}、線形モデルで {linear:.1%} である。",
    )


def _accuracy(model: nn.Module, examples: Examples) -> float:
    if not len(examples):
        return math.nan
    return float((logits_of(model, examples).argmax(-1) == examples.targets).double().mean())


def label(number: int, state: int) -> str:
    """A day in a picture: its weather and its number.

    >>> label(4, 2)
    '☀️  4'
    """
    return f"{weather.SYMBOLS[state]} {number:2d}"


@torch.no_grad()
def table_map(held: Contest) -> Iterator[Piece]:
    """What the heads of the one-layer model look at, which is to find days 1, 4 and 8."""
    model = cast(EncoderClassifier, held.runs[held.contenders.index(ONE_LAYER)][0].model)
    src = held.data[0].test.inputs["src"][:1000]
    path = "encoder.blocks.0.self_attention"
    with recording(model, f"{path}.weights") as record:
        record.model(src)
    weights = record[path].weights[:, :, 0].double().numpy()  # [rows, heads, days] of the state that is read
    rows = tuple(label(day, state) for day, state in enumerate(src[0].tolist(), 1))
    heads = tuple(str(head) for head in range(1, weights.shape[1] + 1))
    title = Localized(
        f"What the four heads of \"{ONE_LAYER.name.en}\" look at in one sequence of '1-4-8' (columns: heads)",
        f"「{ONE_LAYER.name.ja}」の 4 つのヘッドが 1-4-8 の系列の 1 つで見ている日（列はヘッド）",
    )
    yield Picture("matrix", title, weights[0].T, rows, heads)
    share = shares_of_days(weights)
    yield Localized(
        f"Days 1, 4 and 8 get {share:.0%} of the weight, mean of heads and 1,000 sequences; an even spread would give"
        f" them {len(TABLE_DAYS) / N_SEEN:.0%}.",
        f"1、4、8 日目は、ヘッドと 1,000 系列の平均で重みの {share:.0%} を受け取る。均等な配分なら"
        f" {len(TABLE_DAYS) / N_SEEN:.0%} である。",
    )


def shares_of_days(weights: Float[np.ndarray, "rows heads days"]) -> float:
    """The mean share of days 1, 4 and 8.

    >>> round(shares_of_days(np.full((1, 1, 10), 0.1)), 6)
    0.3
    """
    return float(weights[:, :, [day - 1 for day in TABLE_DAYS]].sum(-1).mean())
