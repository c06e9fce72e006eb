"""The models of the weather lesson, from a linear layer to a deep Transformer, their tasks and their training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.decoding.sampling import drawn
from attendo.display.i18n import Localized
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM, EncoderClassifier
from attendo.nn.attention import attention_weights
from attendo.nn.layers import initialize
from attendo_course import weather_chain as weather
from attendo_course.book import passage, translated
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
from attendo_course.presets import one_hot_embedding

N_SEEN = 10
"""The number of days that a model sees."""
N_STATES = len(weather.STATES)
D_DAY = N_STATES + 1
"""The width of an embedded day: a one-hot vector and the number of the day."""
BETA = (0, 1, 2, 3, 2, 1, 0, 1, 2, 3)
"""The coefficient of each of the ten days in the sum modulo 3."""
SURE, ELSE = 0.96, 0.02
"""The probability of the state that the sum selects, and the probability of each other state."""
TABLE_DAYS = (1, 4, 8)
"""The days that determine the row of the random table, counted from 1."""
SETTLED = 200
"""The number of days after which the weather of a rule no longer depends on its first days."""

TEST_ROWS = 20_000
"""The number of newly drawn test sequences for each model."""

DrawDays = Callable[[np.random.Generator, int], Int[np.ndarray, "n 11"]]
Law = Callable[[Int[np.ndarray, "n 10"]], Float[np.ndarray, "n 3"]]


@dataclass(frozen=True)
class Limit:
    """The highest accuracy and the lowest mean loss in nats that a model can reach if it sees only these days."""

    accuracy: float
    loss: float


@dataclass(frozen=True, eq=False)
class Data:
    """The training and test data of a run. `true_loss` is the loss of the true law on the test rows in nats."""

    train: Examples
    test: Examples
    true_loss: float


@dataclass(frozen=True, eq=False)
class NextDay:
    """The task of predicting the eleventh day from ten days.

    Attributes:
        rule: How day 11 follows from the days before, in words.
        draw: A function that draws rows of eleven days.
        law: A function that returns the probabilities of the eleventh day, given ten days.
        limit: The exact limit that follows from the law.
        n_train: The number of training sequences, as in the post.
        steps: The number of training steps of a Transformer, fewer for small data and for uncertain laws.
        weight_decay: The weight decay of a Transformer, higher for small data and for uncertain laws.
    """

    name: str
    rule: Localized
    draw: DrawDays
    law: Law
    limit: Limit
    n_train: int
    steps: int
    weight_decay: float = 1.0

    def examples(self, rng: np.random.Generator, n: int) -> Examples:
        """Draw examples: the seen days `src` [n, 10], and the eleventh day as the target [n]."""
        days = torch.from_numpy(self.draw(rng, n).astype(np.int64))
        return Examples({"src": days[:, :N_SEEN]}, days[:, N_SEEN])

    def data(self, seed: int) -> Data:
        """Draw `n_train` training sequences and `TEST_ROWS` test sequences from the seed."""
        rng = np.random.default_rng((seed, 7))
        test = self.examples(rng, TEST_ROWS)
        return Data(self.examples(rng, self.n_train), test, self.true_loss(test))

    def true_loss(self, examples: Examples) -> float:
        """Return the mean loss of the law itself on these rows in nats, for comparison with the loss of a model."""
        probabilities = self.law(examples.inputs["src"].numpy())
        return float(-np.log(probabilities[np.arange(len(examples)), examples.targets.numpy()]).mean())


def limit_of(shares: Float[np.ndarray, " cases"], law: Float[np.ndarray, "cases 3"]) -> Limit:
    """Return the limit Σ p max_w law(w) and Σ p H(law) over cases with probability p.

    >>> limit_of(np.array([0.5, 0.5]), np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])).accuracy
    0.75
    """
    return Limit(float(shares @ law.max(axis=1)), float(shares @ weather.entropy(law)))


def drawn_from(law: Float[np.ndarray, "n 3"], rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """Draw a state from each row of probabilities.

    >>> drawn_from(np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), np.random.default_rng(0)).tolist()
    [1, 2]
    """
    below = law.cumsum(axis=1)[:, :-1] <= rng.random(len(law))[:, None]
    return below.sum(axis=1)


def _followed(days: Int[np.ndarray, "n 10"], law: Law, rng: np.random.Generator) -> Int[np.ndarray, "n 11"]:
    return np.column_stack([days, drawn_from(law(days), rng)])


# T07a: the chain


def chain_days(rng: np.random.Generator, n: int, length: int = N_SEEN + 1) -> Int[np.ndarray, "n length"]:
    """Draw rows of the weather chain, each from its first day."""
    return np.stack([weather.generate(length, rng) for _ in range(n)])


def chain_law(days: Int[np.ndarray, "n 10"]) -> Float[np.ndarray, "n 3"]:
    """Return the row of the transition matrix for the last seen day."""
    return weather.transition_matrix()[days[:, -1]]


def chain_limit() -> Limit:
    """Return the limit for day 11 of the chain, which almost equals the long-run limit of the chain.

    >>> round(chain_limit().loss, 3), round(chain_limit().accuracy, 4)
    (0.998, 0.5056)
    """
    transition = weather.transition_matrix()
    last_seen = np.array(weather.INITIAL) @ np.linalg.matrix_power(transition, N_SEEN - 1)
    return limit_of(last_seen, transition)


# The chain of second order that the draft names _MARKOV2

PAIR_TRANSITION = (  # yesterday, today, tomorrow, all in the order of weather.STATES
    ((0.75, 0.20, 0.05), (0.20, 0.20, 0.60), (0.30, 0.40, 0.30)),
    ((0.50, 0.45, 0.05), (0.20, 0.70, 0.10), (0.30, 0.40, 0.30)),
    ((0.15, 0.45, 0.40), (0.60, 0.20, 0.20), (0.10, 0.20, 0.70)),
)
"""Chosen so that the mean over yesterday is `weather.TRANSITION`: today alone tells as much as in the first chain."""


def pair_law(days: Int[np.ndarray, "n seen"]) -> Float[np.ndarray, "n 3"]:
    """Return the probabilities of the next day, which depend on the last two seen days.

    >>> pair_law(np.array([[0, 1], [2, 1]])).tolist()
    [[0.2, 0.2, 0.6], [0.6, 0.2, 0.2]]
    """
    return np.array(PAIR_TRANSITION)[days[:, -2], days[:, -1]]


def pair_shares() -> Float[np.ndarray, "3 3"]:
    """Return the stationary distribution over pairs of days (yesterday, today), as the limit of many days.

    >>> (pair_shares() * 180).round(6).tolist()
    [[42.0, 21.0, 7.0], [18.0, 24.0, 18.0], [10.0, 15.0, 25.0]]
    """
    shares = np.full((N_STATES, N_STATES), 1 / N_STATES**2)
    for _ in range(SETTLED):
        shares = np.einsum("yt,ytn->tn", shares, np.array(PAIR_TRANSITION))
    return shares


def pair_limit() -> Limit:
    """Return the limit of the chain of second order: its Bayes accuracy and its entropy rate.

    >>> round(pair_limit().accuracy, 4), round(pair_limit().loss, 4)
    (0.6161, 0.8617)
    """
    return limit_of(pair_shares().ravel(), np.array(PAIR_TRANSITION).reshape(-1, N_STATES))


def pair_days(rng: np.random.Generator, n: int) -> Int[np.ndarray, "n 11"]:
    """Draw rows of the chain of second order, each from a stationary pair of days."""
    first = rng.choice(N_STATES**2, n, p=pair_shares().ravel())
    days = np.column_stack(np.divmod(first, N_STATES))
    while days.shape[1] <= N_SEEN:
        days = _followed(days, pair_law, rng)
    return days


# T07b: a table of days 1, 4 and 8


def random_table(rng: np.random.Generator) -> Float[np.ndarray, "3 3 3 3"]:
    """Draw the probabilities of day 11 for each weather of days 1, 4 and 8.

    The probabilities are positive multiples of 1/10, and all possible triples of probabilities are equally likely.

    >>> table = random_table(np.random.default_rng(0))
    >>> table.shape, float(table.sum(axis=-1).round(12).min()), float(table.min())
    ((3, 3, 3, 3), 1.0, 0.1)
    """
    triples = np.array([(a, b, 10 - a - b) for a in range(1, 9) for b in range(1, 10 - a)])
    return triples[rng.integers(len(triples), size=(N_STATES,) * len(TABLE_DAYS))] / 10


def table_law(table: Float[np.ndarray, "3 3 3 3"], days: Int[np.ndarray, "n 10"]) -> Float[np.ndarray, "n 3"]:
    """Return the row of the table for days 1, 4 and 8."""
    first, fourth, eighth = (days[:, day - 1] for day in TABLE_DAYS)
    return table[first, fourth, eighth]


def table_limit(table: Float[np.ndarray, "3 3 3 3"]) -> Limit:
    """Return the limit of one table, whose 27 rows are equally frequent."""
    rows = table.reshape(-1, N_STATES)
    return limit_of(np.full(len(rows), 1 / len(rows)), rows)


def any_days(rng: np.random.Generator, n: int) -> Int[np.ndarray, "n 10"]:
    """Draw rows of ten days. Each state is equally probable and independent of the other days."""
    return rng.integers(0, N_STATES, (n, N_SEEN))


# T07c: days that balance out


def urn_days(balls: int, rng: np.random.Generator, n: int) -> Int[np.ndarray, "n 11"]:
    """Draw the last eleven days of weather with P(w) = (m - count of w in the last m days) / 2m, where m = `balls`.

    In the long run, the last m days are m balls drawn without replacement from an urn with m balls of each state. A
    new day is one more draw, after which the oldest of the m balls is put back. Therefore, m + 1 draws from the urn
    are m + 1 days of such weather. With m = 15, a model does not see five of the days on which day 11 depends.
    """
    urn = np.tile(np.repeat(np.arange(N_STATES), balls), (n, 1))
    return rng.permuted(urn, axis=1)[:, balls - N_SEEN : balls + 1]


def urn_law(balls: int, days: Int[np.ndarray, "n seen"]) -> Float[np.ndarray, "n 3"]:
    """Return the contents of the urn after the seen days: (m - count of w) / (3m - number of seen days).

    >>> urn_law(10, np.array([[0] * 4 + [1] * 3 + [2] * 3])).tolist()
    [[0.3, 0.35, 0.35]]
    """
    counts = np.stack([(days == state).sum(axis=1) for state in range(N_STATES)], axis=1)
    return (balls - counts) / (N_STATES * balls - days.shape[1])


def urn_limit(balls: int, seen: int = N_SEEN) -> Limit:
    """Return the limit if the last `seen` days are known: a sum over their hypergeometric counts.

    >>> [round(x, 3) for x in (urn_limit(10).accuracy, urn_limit(10).loss)]
    [0.395, 1.081]
    """
    cases = list(_compositions(seen, balls))
    ways = [math.prod(math.comb(balls, count) for count in counts) for counts in cases]
    shares = np.array(ways) / math.comb(N_STATES * balls, seen)
    return limit_of(shares, (balls - np.array(cases)) / (N_STATES * balls - seen))


def _compositions(total: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield all splits of `total` days among the states, with at most `most` days per state."""
    for rain in range(min(total, most) + 1):
        for cloud in range(min(total - rain, most) + 1):
            if total - rain - cloud <= most:
                yield rain, cloud, total - rain - cloud


# T07d: a sum modulo 3


def weighted_sum(days: Int[np.ndarray, "n 10"]) -> Int[np.ndarray, " n"]:
    """Return Σ_i β_i y_i (2 - y_i) mod 3 with y = 1, 2, 3 for rain, cloud, sun.

    y (2 - y) is 1, 0 and -3. Therefore, only rain contributes. Modulo 3, the weights of the days are 0 1 2 0 2 1 0 1
    2 0.

    >>> weighted_sum(np.array([[1, 0, 0, 2, 0, 1, 2, 2, 1, 0]])).tolist()
    [2]
    """
    y = days + 1
    return (y * (2 - y)) @ np.array(BETA) % N_STATES


def sum_law(days: Int[np.ndarray, "n 10"]) -> Float[np.ndarray, "n 3"]:
    """Return the probability .96 for the state that the sum selects, and .02 for each other state."""
    return np.where(weighted_sum(days)[:, None] == np.arange(N_STATES), SURE, ELSE)


def sum_limit() -> Limit:
    """Return the limit of the sum, which does not depend on the days.

    >>> round(sum_limit().loss, 3)
    0.196
    """
    return limit_of(np.ones(1), np.array([[SURE, ELSE, ELSE]]))


def sum_days(rng: np.random.Generator, n: int) -> Int[np.ndarray, "n 11"]:
    """Draw rows of days in which a weighted sum of the previous ten days determines the probable next day. Each row
    is drawn independently.

    After many repetitions of the rule, most rows are among a few of the 59,049 possible sequences of ten days.
    """
    days = any_days(rng, n)
    for _ in range(SETTLED):
        days = _followed(days, sum_law, rng)[:, 1:]
    return _followed(days, sum_law, rng)


def tasks(seed: int) -> dict[str, NextDay]:
    """Return the tasks by name. `seed` determines the random table."""
    table = random_table(np.random.default_rng((seed, 148)))

    def from_table(days: Int[np.ndarray, "n 10"]) -> Float[np.ndarray, "n 3"]:
        return table_law(table, days)

    def urn(balls: int) -> tuple[DrawDays, Law, Limit]:
        return (lambda rng, n: urn_days(balls, rng, n), lambda days: urn_law(balls, days), urn_limit(balls))

    def of_any_days(law: Law) -> DrawDays:
        return lambda rng, n: _followed(any_days(rng, n), law, rng)

    found = [
        NextDay("markov", passage("weather.rule_markov"), chain_days, chain_law, chain_limit(), 1000, 200, 3.0),
        NextDay("markov2", passage("weather.rule_markov2"), pair_days, pair_law, pair_limit(), 5000, 400),
        NextDay(
            "1-4-8",
            passage("weather.rule_1-4-8"),
            of_any_days(from_table),
            from_table,
            table_limit(table),
            5000,
            700,
            0.5,
        ),
        NextDay("10-day", passage("weather.rule_10-day"), *urn(10), 5000, 200, 3.0),
        NextDay("15-day", passage("weather.rule_15-day"), *urn(15), 5000, 200, 3.0),
        NextDay("dotmod", passage("weather.rule_dotmod"), sum_days, sum_law, sum_limit(), 5000, 700),
        NextDay(
            "dotmod-any",
            passage("weather.rule_dotmod-any"),
            of_any_days(sum_law),
            sum_law,
            sum_limit(),
            5000,
            700,
        ),
    ]
    return {task.name: task for task in found}


BATCH_ROWS = 100
LONGEST = 32
"""The number of previous days that the generating model sees."""
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
    """The linear baseline of the post: one weight per state and output for each of the ten embedded days.

    The days are embedded as for attention, so (4 · 10 + 1) · 3 = 123 parameters.
    """

    def __init__(self):
        super().__init__()
        self.embedding = one_hot_embedding()
        self.output_proj = nn.Linear(N_SEEN * D_DAY, N_STATES)
        initialize(self.output_proj, "xavier")

    def hidden(self, src: Int[Tensor, "batch len"]) -> Float[Tensor, "batch len_times_d_in"]:
        """Return the vectors of the days, concatenated."""
        return self.embedding(src).flatten(1)


class SingleQueryAttention(nn.Module):
    """The attention of the post, from the last day to all ten days, without residual, norm or feed-forward network.

    Each day is a one-hot vector, followed by the number of the day divided by 20. With one head, the model is
    `presets.weather_blog` with 75 parameters: W_v and b_v are the output layer, which is applied after the weighted
    mean instead of before it. The logits are equal, because the weights sum to 1. The logits of several heads are
    added. The source is algorithm 3 of Phuong & Hutter 2022.
    """

    def __init__(self, n_heads: int = 1, head_dim: int = 6):
        super().__init__()
        self.n_heads = n_heads
        self.embedding = one_hot_embedding()
        self.q_proj = nn.Linear(D_DAY, n_heads * head_dim)
        self.k_proj = nn.Linear(D_DAY, n_heads * head_dim)
        self.output_proj = nn.Linear(n_heads * D_DAY, N_STATES)
        for layer in (self.q_proj, self.k_proj, self.output_proj):
            initialize(layer, "xavier")

    def hidden(self, src: Int[Tensor, "batch len"]) -> Float[Tensor, "batch heads_times_d_in"]:
        """Return the vectors of the days, averaged with the attention weights of the last day for each head."""
        days = self.embedding(src)
        query, key = self.q_proj(days[:, -1:]), self.k_proj(days)
        split = (self.n_heads, -1)
        weights = attention_weights(*(x.unflatten(-1, split).transpose(1, 2) for x in (query, key)))
        return (weights @ days[:, None]).flatten(1)


def transformer(n_layers: int, n_heads: int = 4, *, norm: bool = True) -> EncoderClassifier:
    """Return an encoder of width 16 with trainable positions that classifies by the vector of the first day.

    Without `norm`, all normalization layers are removed.
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
    """Replace all LayerNorm modules of the model by the identity in place, and return the model."""
    for path in [path for path, module in model.named_modules() if isinstance(module, nn.LayerNorm)]:
        model.set_submodule(path, nn.Identity())
    return model


def chain_decoder() -> DecoderLM:
    """Return a decoder of width 16 with one layer and one head that predicts the next day after each day."""
    config = ModelConfig(
        architecture="decoder", n_heads=1, n_encoder_layers=0, n_decoder_layers=1, max_len=LONGEST, **_SIZES
    )
    return DecoderLM(config)


@dataclass(frozen=True)
class Recipe:
    """The training settings of a model with Adam or AdamW. A setting of None selects the value of the task."""

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
        """Build a model from the seed, train the model, and return the results."""
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


POST = Recipe(1e-2, 500, steps=500, weight_decay=0.0)
OURS = Recipe(5e-3, BATCH_ROWS, warmup_steps=50, decay_share=0.5, clip_norm=1.0)


@dataclass(frozen=True, eq=False)
class Contender:
    """A model that predicts a day from ten days, and its training settings."""

    name: Localized
    build: Callable[[], nn.Module]
    recipe: Recipe = OURS

    def trained(self, task: NextDay, data: Data, seed: int, steps: Callable[[int], int] = int) -> Training:
        """Train the model on the data of a task. The seed determines the initial weights and the batches.

        `steps` scales the number of steps. The measures are "loss", "accuracy", "exact" and "excess", the difference
        to the loss of the true law on the same rows.
        """
        recipe = self.recipe
        weight_decay = task.weight_decay if recipe.weight_decay is None else recipe.weight_decay
        n_steps = steps(recipe.steps or task.steps)
        array_task = ArrayTask(data.train, data.test, recipe.batch_rows)
        return _above(data.true_loss, recipe.run(self.build, array_task, n_steps, weight_decay, seed))


def _above(true_loss: float, done: Training) -> Training:
    excess = {"excess": done.measures["loss"] - true_loss}
    return replace(done, measures=done.measures | excess)


LINEAR = Contender(translated("linear"), LinearOnDays, POST)
ATTENTION = Contender(translated("attention, 1 head"), SingleQueryAttention, POST)
HEADS = Contender(translated("attention, 4 heads"), lambda: SingleQueryAttention(4), POST)


def transformer_contender(n_layers: int, n_heads: int, *, norm: bool = True) -> Contender:
    """Return a Transformer with this number of layers and heads."""
    return Contender(
        Localized(
            f"{n_layers} layer{'s' * (n_layers > 1)}, {n_heads} head{'s' * (n_heads > 1)}{'' if norm else ', no norm'}",
            f"{n_layers} 層、{n_heads} ヘッド{'' if norm else '、正規化なし'}",
        ),
        lambda: transformer(n_layers, n_heads, norm=norm),
    )


# The chain, learned day by day


def shifted(days: Int[np.ndarray, "n length"]) -> Examples:
    """Return examples for a decoder: `token_ids` are all days except the last, and the targets are the next days.

    >>> shifted(np.array([[0, 1, 2]])).targets
    tensor([[1, 2]])
    """
    ids = torch.from_numpy(days)
    return Examples({"token_ids": ids[:, :-1]}, ids[:, 1:])


def chain_loss(examples: Examples) -> float:
    """Return the mean loss in nats of the true transition matrix on examples of `shifted`."""
    today, tomorrow = examples.inputs["token_ids"].numpy(), examples.targets.numpy()
    return float(-np.log(weather.transition_matrix()[today, tomorrow]).mean())


def trained_on_chain(train: Examples | Draw, test: Examples, steps: int, seed: int) -> Training:
    """Train the decoder to predict the next day. "excess" is the test loss minus the true chain's loss."""
    done = OURS.run(chain_decoder, ArrayTask(train, test, BATCH_ROWS), steps, 0.1, seed)
    return _above(chain_loss(test), done)


def fresh_chain(length: int) -> Draw:
    """Return a function that draws new rows of the chain, with the next day after each day as the target."""
    return lambda rng, n: shifted(chain_days(rng, n, length))


def last_day(model: nn.Module, data: Data) -> dict[str, float]:
    """Return the decoder's "loss", "accuracy", "exact" and "excess" for day 11 of a task's test rows."""
    seen = data.test.inputs["src"]
    targets = torch.full_like(seen, NO_TARGET)
    targets[:, -1] = data.test.targets
    found = measures(model, Examples({"token_ids": seen}, targets))
    return found | {"excess": found["loss"] - data.true_loss}


def all_days(examples: Examples) -> Int[np.ndarray, "n 11"]:
    """Return the eleven days of a task's rows."""
    return torch.cat([examples.inputs["src"], examples.targets[:, None]], dim=1).numpy()


@torch.inference_mode()
def generated(model: DecoderLM, start: int, n: int, rows: int, seed: int) -> Int[np.ndarray, "rows n"]:
    """Generate `n` days per row after a first day, with one sample from the model per day."""
    generator = torch.Generator().manual_seed(seed)
    cache, days = model.eval().start(rows, capacity=n), []
    last = torch.full((rows,), start)
    for _ in range(n):
        last = drawn(model.step(last[:, None], cache)[:, -1], torch.rand(rows, generator=generator))
        days.append(last)
    return torch.stack(days, dim=1).numpy()


def transition_counts(days: Int[np.ndarray, "rows n"]) -> Int[np.ndarray, "3 3"]:
    """Return the number of transitions from each state (row) to each state (column).

    >>> transition_counts(np.array([[0, 0, 2], [1, 0, 0]])).tolist()
    [[2, 0, 1], [1, 0, 0], [0, 0, 0]]
    """
    pairs = days[:, :-1] * N_STATES + days[:, 1:]
    return np.bincount(pairs.ravel(), minlength=N_STATES**2).reshape(N_STATES, N_STATES)
