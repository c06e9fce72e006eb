"""The weather lesson's contenders, from a linear layer to a deep Transformer, and how each is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.data import weather
from attendo.decoding.sampling import drawn
from attendo.display.i18n import Localized
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM, EncoderClassifier
from attendo.nn.attention import Attention
from attendo.nn.layers import initialize
from attendo_course.book import translated
from attendo_course.lessons.arrays import (
    NO_TARGET,
    ArrayTask,
    Draw,
    Examples,
    Training,
    measures,
    seeded,
    trained,
)

N_SEEN = 10
"""Days that are seen."""
N_STATES = len(weather.STATES)
BETA = (0, 1, 2, 3, 2, 1, 0, 1, 2, 3)
"""What each of the ten days counts in the sum modulo 3, as far as it counts at all."""
SURE, ELSE = 0.96, 0.02
"""The probabilities of the state that the sum names, and of each other."""
TABLE_DAYS = (1, 4, 8)
"""The days that the random table asks for, counted from 1."""
SETTLED = 200
"""Days after which weather that follows a rule has forgotten how it began."""

TEST_ROWS = 20_000
"""Fresh sequences that every model is measured on."""

DrawDays = Callable[[np.random.Generator, int], Int[np.ndarray, "n 11"]]
Law = Callable[[Int[np.ndarray, "n 10"]], Float[np.ndarray, "n 3"]]


@dataclass(frozen=True)
class Limit:
    """The best accuracy and the least mean loss in nats that any model of the seen days can have."""

    accuracy: float
    loss: float


@dataclass(frozen=True, eq=False)
class Data:
    """The training and test data of a run; true_loss is that of the true law on the test rows, in nats."""

    train: Examples
    test: Examples
    true_loss: float


@dataclass(frozen=True, eq=False)
class NextDay:
    """To tell the eleventh day from ten.

    draw: eleven days a row. law: the probabilities of the eleventh, given the ten. limit: what follows from it, exact.
    n_train: sequences to learn from, as in the blog. steps, weight_decay: how long its Transformers learn, and how
    hard they are held back (fewer data and softer laws want less of the first and more of the second).
    """

    name: str
    title: Localized
    draw: DrawDays
    law: Law
    limit: Limit
    n_train: int
    steps: int
    weight_decay: float = 1.0

    def examples(self, rng: np.random.Generator, n: int) -> Examples:
        """`src` [n, 10]: the days seen; targets [n]: the eleventh."""
        days = torch.from_numpy(self.draw(rng, n).astype(np.int64))
        return Examples({"src": days[:, :N_SEEN]}, days[:, N_SEEN])

    def data(self, seed: int) -> Data:
        """`n_train` sequences and `TEST_ROWS` others, drawn from the seed."""
        rng = np.random.default_rng((seed, 7))
        test = self.examples(rng, TEST_ROWS)
        return Data(self.examples(rng, self.n_train), test, self.true_loss(test))

    def true_loss(self, examples: Examples) -> float:
        """The mean loss of the law itself on these rows, in nats: what a model's loss is compared with."""
        probabilities = self.law(examples.inputs["src"].numpy())
        return float(-np.log(probabilities[np.arange(len(examples)), examples.targets.numpy()]).mean())


def limit_of(shares: Float[np.ndarray, " cases"], law: Float[np.ndarray, "cases 3"]) -> Limit:
    """Σ p max_w law(w) and Σ p H(law) over cases of probability p.

    >>> limit_of(np.array([0.5, 0.5]), np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])).accuracy
    0.75
    """
    return Limit(float(shares @ law.max(axis=1)), float(shares @ weather.entropy(law)))


def drawn_from(law: Float[np.ndarray, "n 3"], rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """A state from each row of probabilities.

    >>> drawn_from(np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), np.random.default_rng(0)).tolist()
    [1, 2]
    """
    below = law.cumsum(axis=1)[:, :-1] <= rng.random(len(law))[:, None]
    return below.sum(axis=1)


def _followed(days: Int[np.ndarray, "n 10"], law: Law, rng: np.random.Generator) -> Int[np.ndarray, "n 11"]:
    return np.column_stack([days, drawn_from(law(days), rng)])


# T07a: the chain


def chain_days(rng: np.random.Generator, n: int, length: int = N_SEEN + 1) -> Int[np.ndarray, "n length"]:
    """Rows of the weather chain, each from its beginning."""
    return np.stack([weather.generate(length, rng) for _ in range(n)])


def chain_law(days: Int[np.ndarray, "n 10"]) -> Float[np.ndarray, "n 3"]:
    """The row of the transition matrix for the last day seen."""
    return weather.transition_matrix()[days[:, -1]]


def chain_limit() -> Limit:
    """The limit for day 11 of the chain: nearly that of its long run.

    >>> round(chain_limit().loss, 3), round(chain_limit().accuracy, 4)
    (0.998, 0.5056)
    """
    transition = weather.transition_matrix()
    last_seen = np.array(weather.INITIAL) @ np.linalg.matrix_power(transition, N_SEEN - 1)
    return limit_of(last_seen, transition)


# T07b: a table of days 1, 4 and 8


def random_table(rng: np.random.Generator) -> Float[np.ndarray, "3 3 3 3"]:
    """Probabilities of day 11 for each weather of days 1, 4 and 8: tenths, none of them 0, all such triples alike.

    >>> table = random_table(np.random.default_rng(0))
    >>> table.shape, float(table.sum(axis=-1).round(12).min()), float(table.min())
    ((3, 3, 3, 3), 1.0, 0.1)
    """
    triples = np.array([(a, b, 10 - a - b) for a in range(1, 9) for b in range(1, 10 - a)])
    return triples[rng.integers(len(triples), size=(N_STATES,) * len(TABLE_DAYS))] / 10


def table_law(table: Float[np.ndarray, "3 3 3 3"], days: Int[np.ndarray, "n 10"]) -> Float[np.ndarray, "n 3"]:
    """The table's row for days 1, 4 and 8."""
    first, fourth, eighth = (days[:, day - 1] for day in TABLE_DAYS)
    return table[first, fourth, eighth]


def table_limit(table: Float[np.ndarray, "3 3 3 3"]) -> Limit:
    """The limit of one table, whose 27 rows are asked for equally often."""
    rows = table.reshape(-1, N_STATES)
    return limit_of(np.full(len(rows), 1 / len(rows)), rows)


def any_days(rng: np.random.Generator, n: int) -> Int[np.ndarray, "n 10"]:
    """Ten days a row, each state equally probable, whatever was before."""
    return rng.integers(0, N_STATES, (n, N_SEEN))


# T07c: days that balance out


def urn_days(balls: int, rng: np.random.Generator, n: int) -> Int[np.ndarray, "n 11"]:
    """The last eleven of weather where each day has P(w) = (m - times of w in the m days before) / 2m, m = `balls`.

    In the long run the m days before are m balls drawn, and not put back, from an urn with m of each state: a day is
    one more draw, and the oldest of the m goes back. So m + 1 draws are a stretch of such weather. With m = 15, five
    of the days that matter come before those that are seen.
    """
    urn = np.tile(np.repeat(np.arange(N_STATES), balls), (n, 1))
    return rng.permuted(urn, axis=1)[:, balls - N_SEEN : balls + 1]


def urn_law(balls: int, days: Int[np.ndarray, "n seen"]) -> Float[np.ndarray, "n 3"]:
    """The contents of the urn after the days seen: (m - count of w) / (3m - days seen).

    >>> urn_law(10, np.array([[0] * 4 + [1] * 3 + [2] * 3])).tolist()
    [[0.3, 0.35, 0.35]]
    """
    counts = np.stack([(days == state).sum(axis=1) for state in range(N_STATES)], axis=1)
    return (balls - counts) / (N_STATES * balls - days.shape[1])


def urn_limit(balls: int, seen: int = N_SEEN) -> Limit:
    """The limit when the last `seen` days are known: a sum over their counts, which are hypergeometric.

    >>> [round(x, 3) for x in (urn_limit(10).accuracy, urn_limit(10).loss)]
    [0.395, 1.081]
    """
    cases = list(_compositions(seen, balls))
    ways = [math.prod(math.comb(balls, count) for count in counts) for counts in cases]
    shares = np.array(ways) / math.comb(N_STATES * balls, seen)
    return limit_of(shares, (balls - np.array(cases)) / (N_STATES * balls - seen))


def _compositions(total: int, most: int) -> Iterator[tuple[int, int, int]]:
    """All splits of `total` days among the states, at most `most` each."""
    for rain in range(min(total, most) + 1):
        for cloud in range(min(total - rain, most) + 1):
            if total - rain - cloud <= most:
                yield rain, cloud, total - rain - cloud


# T07d: a sum modulo 3


def weighted_sum(days: Int[np.ndarray, "n 10"]) -> Int[np.ndarray, " n"]:
    """Σ_i β_i y_i (2 - y_i) mod 3 with y = 1, 2, 3 for rain, cloud, sun.

    y (2 - y) is 1, 0 and -3: only rain counts, and modulo 3 the days weigh 0 1 2 0 2 1 0 1 2 0.

    >>> weighted_sum(np.array([[1, 0, 0, 2, 0, 1, 2, 2, 1, 0]])).tolist()
    [2]
    """
    y = days + 1
    return (y * (2 - y)) @ np.array(BETA) % N_STATES


def sum_law(days: Int[np.ndarray, "n 10"]) -> Float[np.ndarray, "n 3"]:
    """.96 for the state that the sum names, .02 for either other."""
    return np.where(weighted_sum(days)[:, None] == np.arange(N_STATES), SURE, ELSE)


def sum_limit() -> Limit:
    """The limit of the sum, whatever the days.

    >>> round(sum_limit().loss, 3)
    0.196
    """
    return limit_of(np.ones(1), np.array([[SURE, ELSE, ELSE]]))


def sum_days(rng: np.random.Generator, n: int) -> Int[np.ndarray, "n 11"]:
    """Weather in which every day follows the sum of the ten before it, each row from a stretch of its own.

    The rule brings some sequences back often: it settles on few of the 59,049 that there are.
    """
    days = any_days(rng, n)
    for _ in range(SETTLED):
        days = _followed(days, sum_law, rng)[:, 1:]
    return _followed(days, sum_law, rng)


def tasks(seed: int) -> dict[str, NextDay]:
    """The tasks by name; seed: of the random table."""
    table = random_table(np.random.default_rng((seed, 148)))

    def from_table(days: Int[np.ndarray, "n 10"]) -> Float[np.ndarray, "n 3"]:
        return table_law(table, days)

    def urn(balls: int) -> tuple[DrawDays, Law, Limit]:
        return (lambda rng, n: urn_days(balls, rng, n), lambda days: urn_law(balls, days), urn_limit(balls))

    def of_any_days(law: Law) -> DrawDays:
        return lambda rng, n: _followed(any_days(rng, n), law, rng)

    chain = translated("Markov: day 11 follows day 10")
    by_table = translated("1-4-8: a random table of days 1, 4 and 8")
    balance = translated("10-day: what was frequent gets rare")
    hidden = translated("15-day: the same, five days unseen")
    itself = translated("dotmod: a sum mod 3, weather made by it")
    any_ten = translated("dotmod: the same sum of any ten days")
    found = [
        NextDay("markov", chain, chain_days, chain_law, chain_limit(), 1000, 200, 3.0),
        NextDay("1-4-8", by_table, of_any_days(from_table), from_table, table_limit(table), 5000, 700, 0.5),
        NextDay("10-day", balance, *urn(10), 5000, 200, 3.0),
        NextDay("15-day", hidden, *urn(15), 5000, 200, 3.0),
        NextDay("dotmod", itself, sum_days, sum_law, sum_limit(), 5000, 700),
        NextDay("dotmod-any", any_ten, of_any_days(sum_law), sum_law, sum_limit(), 5000, 700),
    ]
    return {task.name: task for task in found}


BATCH_ROWS = 100
LONGEST = 32
"""Days that the generating model can look back at."""
_SIZES: dict[str, Any] = {
    "vocab_size": N_STATES,
    "d_model": 16,
    "d_ff": 64,
    "dropout": 0.0,
    "norm_first": True,
    "positions": "learned",
    "tie": "none",
}


class LinearOnDays(nn.Module):
    """The linear baseline: a weight for each weather on each of the ten days."""

    def __init__(self):
        super().__init__()
        self.output_proj = nn.Linear(N_SEEN * N_STATES, N_STATES)
        initialize(self, "xavier")

    def hidden(self, src: Int[Tensor, "batch len"]) -> Float[Tensor, "batch len_times_states"]:
        """The days as one-hot vectors, one behind the other."""
        return F.one_hot(src, N_STATES).flatten(1).float()


class SingleQueryAttention(nn.Module):
    """The blog's attention: the last day asks, all ten answer; no residual, no norm, no feed-forward net.

    A day is a one-hot vector and its number / 20. Phuong & Hutter 2022, algorithm 3, with `n_heads` heads of width 6
    side by side. The blog masks the past where the future was meant; the last day sees all ten either way.
    """

    def __init__(self, n_heads: int = 1, head_dim: int = 6):
        super().__init__()
        self.attention = Attention(N_STATES + 1, n_heads, head_dim=head_dim, out_proj=nn.Identity())
        self.output_proj = nn.Linear(n_heads * head_dim, N_STATES)
        initialize(self, "xavier")

    def hidden(self, src: Int[Tensor, "batch len"]) -> Float[Tensor, "batch heads_times_dim"]:
        """The values of the days, as the last one mixes them."""
        numbers = torch.arange(1, src.shape[1] + 1, device=src.device).expand(src.shape) / 20
        days = torch.cat([F.one_hot(src, N_STATES).float(), numbers[..., None]], dim=-1)
        return self.attention(days[:, -1:], days)[:, 0]


def transformer(n_layers: int, n_heads: int = 4, *, norm: bool = True) -> EncoderClassifier:
    """An encoder of width 16 with trained positions, read at the first day.

    norm: without it, every normalization is taken out.
    """
    config = ModelConfig(
        architecture="classifier",
        n_classes=N_STATES,
        n_heads=n_heads,
        n_encoder_layers=n_layers,
        n_decoder_layers=0,
        max_len=N_SEEN,
        pooling="first",
        **_SIZES,
    )
    model = EncoderClassifier(config)
    return model if norm else without_norms(model)


def without_norms(model: EncoderClassifier) -> EncoderClassifier:
    """The model, every LayerNorm in it replaced by nothing, in place."""
    for path in [path for path, module in model.named_modules() if isinstance(module, nn.LayerNorm)]:
        model.set_submodule(path, nn.Identity())
    return model


def chain_decoder() -> DecoderLM:
    """A decoder of width 16, one layer and one head, that gives the next day after each day."""
    config = ModelConfig(
        architecture="decoder",
        n_heads=1,
        n_encoder_layers=0,
        n_decoder_layers=1,
        max_len=LONGEST,
        **_SIZES,
    )
    return DecoderLM(config)


@dataclass(frozen=True)
class Recipe:
    """The training of a contender by Adam (AdamW with weight_decay); None uses the task's own value."""

    learning_rate: float
    batch_rows: int
    steps: int | None = None
    weight_decay: float | None = None
    warmup_steps: int = 1
    decay_share: float = 0.0
    clip_norm: float = 0.0

    def run(
        self, build: Callable[[], nn.Module], task: ArrayTask, steps: int, weight_decay: float, seed: int
    ) -> Training:
        """A model, built and trained from the seed."""
        return trained(
            seeded(build, seed),
            task,
            steps,
            self.learning_rate,
            seed,
            warmup_steps=self.warmup_steps,
            decay_share=self.decay_share,
            clip_norm=self.clip_norm,
            weight_decay=weight_decay,
        )


BLOG = Recipe(1e-2, 500, steps=500, weight_decay=0.0)
OURS = Recipe(5e-3, BATCH_ROWS, warmup_steps=50, decay_share=0.5, clip_norm=1.0)


@dataclass(frozen=True, eq=False)
class Contender:
    """A model of ten days."""

    name: Localized
    build: Callable[[], nn.Module]
    recipe: Recipe = OURS

    def trained(self, task: NextDay, data: Data, seed: int, steps: Callable[[int], int] = int) -> Training:
        """A run on the task's data; its start and its batches are those of `seed`. steps: cuts their number.

        Measured: "loss", "accuracy", "exact", and "excess", the loss above that of the true law on the same rows.
        """
        recipe = self.recipe
        weight_decay = task.weight_decay if recipe.weight_decay is None else recipe.weight_decay
        n_steps = steps(recipe.steps or task.steps)
        array_task = ArrayTask(data.train, data.test, recipe.batch_rows)
        return _above(data.true_loss, recipe.run(self.build, array_task, n_steps, weight_decay, seed))


def _above(true_loss: float, done: Training) -> Training:
    excess = {"excess": done.measures["loss"] - true_loss}
    return replace(done, measures=done.measures | excess)


LINEAR = Contender(translated("linear"), LinearOnDays, BLOG)
BLOG_ATTENTION = Contender(translated("attention, 1 head"), SingleQueryAttention, BLOG)
BLOG_HEADS = Contender(translated("attention, 4 heads"), lambda: SingleQueryAttention(4), BLOG)


def transformer_contender(n_layers: int, n_heads: int, *, norm: bool = True) -> Contender:
    """A Transformer with this number of layers and heads."""
    return Contender(
        Localized(
            f"{n_layers} layer{'s' * (n_layers > 1)}, {n_heads} head{'s' * (n_heads > 1)}"
            f"{'' if norm else ', no norm'}",
            f"{n_layers} 層、{n_heads} ヘッド{'' if norm else '、正規化なし'}",
        ),
        lambda: transformer(n_layers, n_heads, norm=norm),
    )


# The chain, learned day by day


def shifted(days: Int[np.ndarray, "n length"]) -> Examples:
    """`token_ids`: all days but the last; targets: the day after each.

    >>> shifted(np.array([[0, 1, 2]])).targets
    tensor([[1, 2]])
    """
    ids = torch.from_numpy(days)
    return Examples({"token_ids": ids[:, :-1]}, ids[:, 1:])


def chain_loss(examples: Examples) -> float:
    """The mean loss in nats of the true transition matrix on the days of `shifted`."""
    today, tomorrow = examples.inputs["token_ids"].numpy(), examples.targets.numpy()
    return float(-np.log(weather.transition_matrix()[today, tomorrow]).mean())


def trained_on_chain(train: Examples | Draw, test: Examples, steps: int, seed: int) -> Training:
    """The decoder, trained on the next day after each day; "excess": its loss above the true chain's on the test."""
    done = OURS.run(chain_decoder, ArrayTask(train, test, BATCH_ROWS), steps, 0.1, seed)
    return _above(chain_loss(test), done)


def fresh_chain(length: int) -> Draw:
    """Fresh rows of the chain, to be predicted day by day."""
    return lambda rng, n: shifted(chain_days(rng, n, length))


def last_day(model: nn.Module, data: Data) -> dict[str, float]:
    """A decoder's "loss", "accuracy", "exact" and "excess" on day 11 of a task's test rows."""
    seen = data.test.inputs["src"]
    targets = torch.full_like(seen, NO_TARGET)
    targets[:, -1] = data.test.targets
    found = measures(model, Examples({"token_ids": seen}, targets))
    return found | {"excess": found["loss"] - data.true_loss}


def all_days(examples: Examples) -> Int[np.ndarray, "n 11"]:
    """The eleven days of a task's rows."""
    return torch.cat([examples.inputs["src"], examples.targets[:, None]], dim=1).numpy()


@torch.inference_mode()
def generated(model: DecoderLM, start: int, n: int, rows: int, seed: int) -> Int[np.ndarray, "rows n"]:
    """`n` days a row after a first day, drawn from the model day by day."""
    generator = torch.Generator().manual_seed(seed)
    cache, days = model.eval().start(rows, capacity=n), []
    last = torch.full((rows,), start)
    for _ in range(n):
        last = drawn(model.step(last[:, None], cache)[:, -1], torch.rand(rows, generator=generator))
        days.append(last)
    return torch.stack(days, dim=1).numpy()


def transition_counts(days: Int[np.ndarray, "rows n"]) -> Int[np.ndarray, "3 3"]:
    """The number of transitions to each state (column) from each (row).

    >>> transition_counts(np.array([[0, 0, 2], [1, 0, 0]])).tolist()
    [[2, 0, 1], [1, 0, 0], [0, 0, 0]]
    """
    pairs = days[:, :-1] * N_STATES + days[:, 1:]
    return np.bincount(pairs.ravel(), minlength=N_STATES**2).reshape(N_STATES, N_STATES)
