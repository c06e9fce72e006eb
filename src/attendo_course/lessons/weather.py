"""The lesson `attendo lesson weather`: the weather chain, tasks based on it, their limits, and generated weather."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import cast

import numpy as np
from jaxtyping import Float, Int
from torch import nn

from attendo.display.formats import plural
from attendo.display.i18n import Localized
from attendo.models import DecoderLM, parameter_count
from attendo_course import weather_chain as weather
from attendo_course.book import passage, translated
from attendo_course.lessons import weather_models as models
from attendo_course.lessons.arrays import (
    Examples,
    Training,
    logits_of,
    loss_curves,
    margin,
    mean_and_deviation,
    recorded_weights,
)
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table
from attendo_course.lessons.weather_draft import draft_step
from attendo_course.lessons.weather_models import tasks
from attendo_course.pictures import Picture

ONE_LAYER, DEEP = models.transformer_contender(1, 4), models.transformer_contender(2, 4)
CONTENDERS = (models.LINEAR, models.ATTENTION, ONE_LAYER, DEEP)
TASKS = ("markov", "markov2", "1-4-8", "10-day", "15-day", "dotmod")

MODEL = translated("model")
ACCURACY = translated("accuracy")
EXCESS = translated("excess loss")
PARAMETERS = translated("parameters")
WORST = translated("worst")
LIMIT = translated("limit (Bayes, exact)")
TODAY_ALONE = translated("limit, only today seen")
DAY_FORMS = (", ", "day {}"), ("、", "{} 日目")
EVERY_DAY = translated("decoder, every day")


@dataclass(frozen=True, eq=False)
class Contest:
    """The runs of each model by seed, with the tasks and the data of each seed."""

    tasks: list[models.NextDay]
    data: list[models.Data]
    contenders: Sequence[models.Contender]
    runs: list[list[Training]]

    def values(self, contender: int, measure: str) -> list[float]:
        """Return a measure of one model for each seed."""
        return [run.measures[measure] for run in self.runs[contender]]


def contest(name: str, contenders: Sequence[models.Contender], seeds: int, steps: Callable[[int], int]) -> Contest:
    """Train all models on a task with seeds 1, 2, ... All models use the same data for a seed."""
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
    """Yield each task with its rule and its results, the attention for the table of days, and curves for the sum."""
    yield passage("weather.task_steps", TEST_ROWS=models.TEST_ROWS)
    for name in TASKS:
        yield from rule(tasks(1)[name])
        held = contest(name, CONTENDERS, options.seeds or (5 if name == "dotmod" else 3), options.steps)
        extra: list[tuple[Cell, ...]] = [_decoder_row(held, options)] if name == "markov" else []
        if name == "markov2":
            alone, both = models.chain_limit(), held.tasks[0].limit
            extra = [(TODAY_ALONE, "", f"{alone.accuracy:.3f}", f"{alone.loss - both.loss:.3f}", "")]
        yield task_table(held, name, extra)
        yield Conclusion(nearest(held))
        if name == "1-4-8":
            yield from table_map(held)
        if name == "dotmod":
            yield curves(held)
            yield Conclusion(unseen(held))


def rule(task: models.NextDay) -> Iterator[Piece]:
    """Yield the rule by which day 11 follows from the days before, with the table of probabilities if it has one."""
    yield task.rule
    if task.name not in ("markov2", "1-4-8"):
        return
    states, earlier = range(models.N_STATES), np.zeros(models.N_SEEN, dtype=np.int64)
    days = (models.N_SEEN - 1, models.N_SEEN) if task.name == "markov2" else models.TABLE_DAYS
    rows: list[tuple[Cell, ...]] = []
    for first in product(states, repeat=len(days) - 1):
        cells: list[Cell] = [" ".join(weather.SYMBOLS[state] for state in first)]
        for last in states:
            earlier[[day - 1 for day in days]] = *first, last
            cells.append(" ".join(f"{p:.2f}".lstrip("0") for p in task.law(earlier[None])[0]))
        rows.append(tuple(cells))
    before = Localized(*(join.join(form.format(day) for day in days[:-1]) for join, form in DAY_FORMS))
    last_day = [translated("day {day}: {symbol}", day=days[-1], symbol=symbol) for symbol in weather.SYMBOLS]
    title = translated("Probabilities that day 11 is rain, cloud or sun")
    yield Table(f"rule of {task.name}", title, (before, *last_day), tuple(rows))


def task_table(held: Contest, name: str, extra: Sequence[tuple[Cell, ...]] = ()) -> Table:
    """Return the accuracy and the excess loss of each model, and its worst seed, below the limit of the task.

    If each seed has another random table, the limit is the mean over seeds.
    """
    limits = [task.limit for task in held.tasks]
    accuracy = statistics.fmean(limit.accuracy for limit in limits)
    rows: list[tuple[Cell, ...]] = [(LIMIT, "", f"{accuracy:.3f}", "0", "")]
    for i, contender in enumerate(held.contenders):
        cells = (mean_and_deviation(held.values(i, "accuracy")), mean_and_deviation(held.values(i, "excess")))
        size = parameter_count(held.runs[i][0].model)
        rows.append((contender.name, size, *cells, f"{min(held.values(i, 'accuracy')):.3f}"))
    loss, n = statistics.fmean(limit.loss for limit in limits), len(limits)
    facts = {"n_train": held.tasks[0].n_train, "seeds": plural(n, "seed"), "seeds_ja": n, "loss": loss}
    said = passage("weather.task_table", name=name, **facts)
    return Table(name, said, (MODEL, PARAMETERS, ACCURACY, EXCESS, WORST), (*rows, *extra))


def _decoder_row(held: Contest, options: Options) -> tuple[Cell, ...]:
    """Return the row of the decoder, which trains on the same data but predicts each day."""
    found: list[dict[str, float]] = []
    size = 0
    for seed, data in enumerate(held.data, 1):
        train = models.shifted(models.all_days(data.train))
        model = models.trained_on_chain(train, train, options.steps(200), seed).model
        found.append(models.last_day(model, data))
        size = parameter_count(model)
    accuracy, excess = ([measured[name] for measured in found] for name in ("accuracy", "excess"))
    cells = (mean_and_deviation(accuracy), mean_and_deviation(excess), f"{min(accuracy):.3f}")
    return (EVERY_DAY, size, *cells)


def nearest(held: Contest) -> Localized:
    """Return a text that names the model with the smallest loss and compares it with the linear model."""
    means = [statistics.fmean(held.values(i, "excess")) for i in range(len(held.contenders))]
    best = held.contenders[int(np.argmin(means))].name
    return passage("weather.nearest", best=best, least=min(means), means=means)


def curves(held: Contest) -> Picture:
    """Return the training loss of each model, as a mean over its runs."""
    names = [contender.name.en for contender in held.contenders]
    title = translated("Training loss, from the first step to the last")
    return loss_curves(title, dict(zip(names, held.runs, strict=True)))


def unseen(held: Contest) -> Localized:
    """Return the overlap of test and training data, and the accuracy on the remaining test rows, for the first seed."""
    data = held.data[0]
    known = {tuple(row) for row in data.train.inputs["src"].tolist()}
    new = np.array([tuple(row) not in known for row in data.test.inputs["src"].tolist()])
    rest = data.test.rows(np.flatnonzero(new))
    linear, deep = (_accuracy(runs[0].model, rest) for runs in (held.runs[0], held.runs[-1]))
    return passage("weather.unseen", share=1 - new.mean(), n_rest=len(rest), deep=deep, linear=linear)


def _accuracy(model: nn.Module, examples: Examples) -> float:
    if not len(examples):
        return math.nan
    return float((logits_of(model, examples).argmax(-1) == examples.targets).double().mean())


def label(number: int, state: int) -> str:
    """Return the label of a day in a picture: its weather and its number.

    >>> label(4, 2)
    '☀️  4'
    """
    return f"{weather.SYMBOLS[state]} {number:2d}"


def table_map(held: Contest) -> Iterator[Piece]:
    """Yield the attention of the heads of the one-layer model, which must find days 1, 4 and 8."""
    model = held.runs[held.contenders.index(ONE_LAYER)][0].model
    src = held.data[0].test.inputs["src"][:1000]
    each = recorded_weights(model, "encoder.blocks.0.self_attention", src=src)
    weights = each[:, :, 0].double().numpy()  # [rows, heads, days] of the state that is read
    rows = tuple(label(day, state) for day, state in enumerate(src[0].tolist(), 1))
    heads = tuple(str(head) for head in range(1, weights.shape[1] + 1))
    title = passage("weather.table_map", ONE_LAYER=ONE_LAYER)
    yield Picture("matrix", title, weights[0].T, rows, heads)
    share = shares_of_days(weights)
    yield passage("weather.table_map-2", share=share, expected=len(models.TABLE_DAYS) / models.N_SEEN)


def shares_of_days(weights: Float[np.ndarray, "rows heads days"]) -> float:
    """Return the mean share of attention on days 1, 4 and 8.

    >>> round(shares_of_days(np.full((1, 1, 10), 0.1)), 6)
    0.3
    """
    return float(weights[:, :, [day - 1 for day in models.TABLE_DAYS]].sum(-1).mean())


VARIANTS = (
    models.ATTENTION,
    models.HEADS,
    models.transformer_contender(1, 1),
    ONE_LAYER,
    models.transformer_contender(2, 1),
    DEEP,
    models.transformer_contender(1, 4, norm=False),
    models.transformer_contender(2, 4, norm=False),
)


@dataclass(frozen=True)
class Effect:
    """The effect of a model part: the mean difference over seeds, and its margin (95 % confidence)."""

    name: Localized
    difference: float
    margin: float

    @property
    def verdict(self) -> int:
        """1 if the part helps, -1 if it harms, and 0 if these seeds show neither."""
        return 0 if not abs(self.difference) > self.margin else (1 if self.difference > 0 else -1)


def effect_of(name: Localized, with_it: Sequence[Sequence[float]], without: Sequence[Sequence[float]]) -> Effect:
    """Compare the accuracy of models with and without a part, for each pair of models and each seed.

    The margin is that of Student's confidence interval over the seeds. For one seed, the margin is infinite.

    >>> found = effect_of(Localized("norm", "正規化"), [[0.9, 0.8]], [[0.5, 0.6]])
    >>> round(found.difference, 6), round(found.margin, 4), found.verdict
    (0.3, 1.2706, 0)
    """
    by_seed = np.mean(np.array(with_it) - np.array(without), axis=0)
    return Effect(name, float(by_seed.mean()), margin(by_seed.tolist()))


def ablation_step(options: Options) -> Iterator[Piece]:
    """Yield the results of models with one part added or removed, on the sum of any ten days."""
    yield passage("weather.ablation_step")
    yield from rule(tasks(1)["dotmod-any"])
    held = contest("dotmod-any", (models.LINEAR, *VARIANTS), options.seeds or 5, options.steps)
    yield task_table(held, "dotmod-any")
    accuracy = {contender.name: held.values(i, "accuracy") for i, contender in enumerate(held.contenders) if i}
    yield effects_table(effects([accuracy[variant.name] for variant in VARIANTS]))


def effects(accuracy: Sequence[Sequence[float]]) -> list[Effect]:
    """Return the effect of each model part. `accuracy` is ordered by variant, as in VARIANTS, and by seed."""
    attention, heads_alone, one_one, one_four, two_one, two_four, bare_one, bare_two = accuracy
    return [
        effect_of(translated("4 heads in bare attention"), [heads_alone], [attention]),
        effect_of(translated("the rest of the block"), [one_one, one_four], [attention, heads_alone]),
        effect_of(translated("4 heads in 1 layer"), [one_four], [one_one]),
        effect_of(translated("4 heads in 2 layers"), [two_four], [two_one]),
        effect_of(translated("a second layer"), [two_one, two_four], [one_one, one_four]),
        effect_of(translated("the norms"), [one_four, two_four], [bare_one, bare_two]),
    ]


def effects_table(found: Sequence[Effect]) -> Table:
    """Return a table with one row per part."""
    said = {1: translated("helps"), -1: translated("harms"), 0: translated("not shown")}
    return Table(
        "effects",
        translated("Change of the accuracy by each part, with its 95% interval, for this sum and width"),
        (translated("part"), translated("difference"), translated("interval"), translated("verdict")),
        tuple(
            (
                e.name,
                f"{e.difference:+.3f}",
                "" if math.isinf(e.margin) else f"± {e.margin:.3f}",
                said[e.verdict],
            )
            for e in found
        ),
    )


FIRST_SEED = 11111
"""The seed of the post."""
FRESH_DAYS = 100_000
ROW = 20
"""The number of generated days after a first day."""
SAMPLES = 2000
"""The number of rows of generated weather."""
CLOUD = weather.STATES.index("cloud")
NAMES = tuple(Localized(*names) for names in zip(weather.STATES, ("雨", "曇り", "晴れ"), strict=True))
DEGREES = models.N_STATES * (models.N_STATES - 1)
RARELY = 12.59
"""The value that χ² with 6 degrees of freedom exceeds with a probability of 5 %."""


def teach(options: Options) -> Iterator[Piece]:
    """Yield the chain, the draft's experiment, the tasks, the parts that help, and weather that a model generates."""
    yield from chain_step()
    yield from draft_step(options)
    yield from task_steps(options)
    yield from ablation_step(options)
    yield from generation_step(options)


def symbols(states: Int[np.ndarray, " n"]) -> str:
    """Return the weather of some days as symbols.

    >>> symbols(np.array([0, 2]))
    '🌧️ ☀️'
    """
    return " ".join(weather.SYMBOLS[state] for state in states)


def chain_step() -> Iterator[Piece]:
    """Yield the chain and its exact properties, before any training."""
    first = weather.generate(20, np.random.Generator(np.random.PCG64(FIRST_SEED)))
    yield passage("weather.chain_step", FIRST_SEED=FIRST_SEED, days=symbols(first))
    stationary = weather.stationary_distribution()
    rows: list[tuple[Cell, ...]] = [
        (translated("share of rain, cloud, sun"), " ".join(f"{p:.4f}" for p in stationary)),
        (translated("loss, today known (nats)"), f"{weather.entropy_rate():.5f}"),
        (translated("loss, nothing known (nats)"), f"{float(weather.entropy(stationary)):.5f}"),
        (translated("accuracy, today known"), f"{weather.bayes_accuracy():.4f}"),
        (translated("accuracy, always the same"), f"{weather.majority_accuracy():.4f}"),
    ]
    columns = (translated("the best that is possible"), Localized("exact", "厳密値"))
    yield Table("chain", translated("The chain's limits"), columns, tuple(rows))


def generation_step(options: Options) -> Iterator[Piece]:
    """Train a decoder on the chain day by day, generate weather with it, and count its transitions."""
    yield passage("weather.generation_step", next_day=ROW + 1)
    draw, rng = models.fresh_chain(ROW + 1), np.random.default_rng(0)
    test = draw(rng, FRESH_DAYS // ROW)
    done = models.trained_on_chain(draw, test, options.steps(800), 1)
    yield fresh_days(done)
    model = cast(DecoderLM, done.model)
    days = models.generated(model, CLOUD, ROW, SAMPLES, seed=1)
    yield translated(
        "{ROW} days made by the model after {cloud}:\n{days}",
        ROW=ROW,
        cloud=weather.SYMBOLS[CLOUD],
        days=symbols(days[0]),
    )
    with_first = np.column_stack([np.full(SAMPLES, CLOUD), days])
    yield from transitions(models.transition_counts(with_first))


def fresh_days(done: Training) -> Localized:
    """Return a text that compares the losses of the model and of the true chain on the same new days."""
    loss, excess = done.measures["loss"], done.measures["excess"]
    return passage("weather.fresh_days", FRESH_DAYS=FRESH_DAYS, loss=loss, least=loss - excess, excess=excess)


def chi_square(counts: Int[np.ndarray, "3 3"]) -> float:
    """Return Σ (count - expected)² / expected (Pearson 1900), with the counts that the chain predicts as expected.

    >>> chi_square(np.array([[6, 3, 1], [3, 4, 3], [2, 3, 5]]))
    0.0
    """
    expected = counts.sum(axis=1, keepdims=True) * weather.transition_matrix()
    return round(float(((counts - expected) ** 2 / expected).sum()), 9)


def transitions(counts: Int[np.ndarray, "3 3"]) -> Iterator[Piece]:
    """Yield the frequency of each transition in the generated weather, with the probabilities of the chain."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    true = weather.transition_matrix()
    yield Table(
        "transitions",
        translated(
            "Transitions in {SAMPLES:,} samples of {ROW} days: share (true probability)",
            SAMPLES=SAMPLES,
            ROW=ROW,
        ),
        (translated("today"), *NAMES, translated("days")),
        tuple(
            (
                translated("{symbol} {name.en}", symbol=weather.SYMBOLS[i], name=name),
                *(f"{p:.3f} ({q:.1f})" for p, q in zip(shares[i], true[i], strict=True)),
                int(counts[i].sum()),
            )
            for i, name in enumerate(NAMES)
        ),
    )
    found, largest = chi_square(counts), float(np.abs(shares - true).max())
    facts = {"largest": largest, "found": found, "RARELY": RARELY, "DEGREES": DEGREES}
    if found <= RARELY:
        yield Conclusion(passage("weather.transitions", **facts))
    else:
        yield Conclusion(passage("weather.transitions-2", **facts))


LESSON = Lesson(
    name="weather",
    source="the weather post, draft and finished version; Phuong & Hutter 2022, algorithms 3 and 10",
    title=translated("Tomorrow's weather"),
    question=passage("weather.question"),
    cpu_minutes=4.6,
    teach=teach,
    seeds=(3, 3, 3, 3, 3, 3, 5, 5),
)
LESSONS = (LESSON,)
