"""The experiment of the weather post's draft: each day as one number, attention of the last day, squared error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attendo.display.formats import plural
from attendo.models import parameter_count
from attendo.nn.attention import Attention
from attendo.nn.layers import initialize
from attendo_course import weather_chain as weather
from attendo_course.book import passage, translated
from attendo_course.lessons.arrays import CHUNK, mean_and_deviation, seeded
from attendo_course.lessons.lesson import Cell, Conclusion, Options, Piece, Table
from attendo_course.presets import one_hot_embedding, scalar_embedding, weather_blog

N_SEEN = 10
NUMBERS = np.array([-1.0, 0.0, 1.0])
"""The number of rain, cloud and sun, both in the input and as the target."""
SEEDS, STEPS, BATCH_ROWS, RATE = 3, 1000, 500, 0.01
SHARPNESS = np.linspace(-4.0, 4.0, 81)
"""The tried factors of the softmax in `least_error`."""

Embed = Callable[[Int[Tensor, "rows len"]], Float[Tensor, "rows len d_in"]]


@cache
def ten_days() -> tuple[Int[np.ndarray, "59049 10"], Float[np.ndarray, " 59049"]]:
    """Return all 3¹⁰ = 59,049 rows of ten days, and the probability of each row under the chain.

    >>> days, shares = ten_days()
    >>> days[5].tolist(), round(float(shares.sum()), 9)
    ([0, 0, 0, 0, 0, 0, 0, 0, 1, 2], 1.0)
    """
    days = np.indices((len(NUMBERS),) * N_SEEN).reshape(N_SEEN, -1).T.copy()
    steps = weather.transition_matrix()[days[:, :-1], days[:, 1:]]
    return days, np.array(weather.INITIAL)[days[:, 0]] * steps.prod(axis=1)


def exact_error(predicted: Float[np.ndarray, " 59049"]) -> float:
    """Return the exact mean squared error of predictions of day 11, one for each row of `ten_days`.

    The error is the variance of day 11 given day 10, plus the squared distance to the expected number.

    >>> days, shares = ten_days()
    >>> expected = (weather.transition_matrix() @ NUMBERS)[days[:, -1]]
    >>> [round(exact_error(guess), 4) for guess in (expected, np.full(len(days), shares @ expected))]
    [0.5444, 0.6543]
    """
    days, shares = ten_days()
    transition = weather.transition_matrix()
    expected, squares = (transition @ NUMBERS)[days[:, -1]], (transition @ NUMBERS**2)[days[:, -1]]
    return float(shares @ (squares - expected**2 + (predicted - expected) ** 2))


def line_error(x: Float[np.ndarray, " 59049"]) -> float:
    """Return the least exact error of a line a·x + c, where x is a number for each row of `ten_days`.

    >>> round(line_error(NUMBERS[ten_days()[0][:, -1]]), 4)  # today's number
    0.5466
    """
    days, shares = ten_days()
    expected = (weather.transition_matrix() @ NUMBERS)[days[:, -1]]
    x, centered = x - shares @ x, expected - shares @ expected
    slope = (shares @ (x * centered)) / (shares @ x**2)
    return exact_error(slope * x + shares @ expected)


def least_error(e: Float[np.ndarray, "59049 10"]) -> float:
    """Return the least exact error that single-query attention can reach if each day is one number e_t.

    The score of day t is (A·e_10 + B)·e_t up to a constant, and the output is a line of Σ α_t e_t. Four numbers thus
    describe the model for any d_attn. In the best weights (the tests search them), A and -B are so large that the
    output depends on the smallest number if today is rain, and on the largest if today is sun. Only if today is cloud,
    the mean is soft. Its sharpness is searched here.

    >>> days, _ = ten_days()
    >>> round(least_error(NUMBERS[days] + np.arange(1, 11) / 10), 4)
    0.5501
    """
    today = ten_days()[0][:, -1]
    mixed, cloudy = np.where(today == 0, e.min(axis=1), e.max(axis=1)), e[today == 1]
    errors = []
    for sharpness in SHARPNESS:
        weights = np.exp(sharpness * cloudy)
        mixed[today == 1] = (weights * cloudy).sum(axis=1) / weights.sum(axis=1)
        errors.append(line_error(mixed))
    return min(errors)


def side_by_side(days: Int[Tensor, "rows len"]) -> Float[Tensor, "rows len 2"]:
    """Return the weather -1, 0, 1 and t/L of each day as two numbers instead of their sum.

    >>> side_by_side(torch.tensor([[0, 2]]))
    tensor([[[-1.0000,  0.1000],
             [ 1.0000,  0.2000]]])
    """
    numbers = torch.arange(1, days.shape[1] + 1) / N_SEEN
    return torch.stack([days - 1.0, numbers.expand(days.shape)], dim=-1)


def trained_by_squares(embed: Embed, seed: int, steps: int) -> tuple[Attention, float]:
    """Train the post's attention with one output by Adam on the squared error, and return it with its exact error.

    Each batch contains new weather.
    """
    days, shares = ten_days()
    embedded, bounds = embed(torch.from_numpy(days)), shares.cumsum()

    def build() -> Attention:
        layer = weather_blog(d_in=embedded.shape[-1], d_out=1)
        initialize(layer, "xavier")
        return layer

    model, rng = seeded(build, seed), np.random.default_rng(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    thresholds = weather.transition_matrix().cumsum(axis=1)[:, :-1]
    for _ in range(steps):
        rows = np.searchsorted(bounds, bounds[-1] * rng.random(BATCH_ROWS))
        tomorrow = (thresholds[days[rows, -1]] <= rng.random((BATCH_ROWS, 1))).sum(axis=1)
        x, target = embedded[torch.from_numpy(rows)], torch.from_numpy(NUMBERS[tomorrow]).float()
        optimizer.zero_grad()
        F.mse_loss(model(x[:, -1:], x).flatten(), target).backward()
        optimizer.step()
    with torch.inference_mode():
        predicted = torch.cat([model(x[:, -1:], x) for x in embedded.split(CHUNK)])
    return model, exact_error(predicted.flatten().double().numpy())


def draft_step(options: Options) -> Iterator[Piece]:
    """Yield the draft's experiment: two ways to write a day as one number, beside two ways with more numbers."""
    n_seeds = options.seeds or SEEDS
    yield passage("weather_draft.draft_step", rate=RATE, n_steps=options.steps(STEPS), rows=BATCH_ROWS)
    days, shares = ten_days()
    law = (weather.transition_matrix() @ NUMBERS)[days[:, -1]]
    embeddings: dict[str, Embed] = {
        "1 number: w + t/10": scalar_embedding("ramp"),
        "1 number: w + 1/t": scalar_embedding("inverse"),
        "2 numbers: w, t/10": side_by_side,
        "4: one-hot, t/10": one_hot_embedding(N_SEEN),
    }
    rows: list[tuple[Cell, ...]] = [
        (translated("limit: the law"), "", f"{exact_error(law):.4f}", "", ""),
        (translated("line through today"), "", f"{line_error(NUMBERS[days[:, -1]]):.4f}", "", ""),
        (translated("always the mean"), "", f"{exact_error(np.full(len(days), shares @ law)):.4f}", "", ""),
    ]
    errors: list[list[float]] = []
    least = []
    for name, embed in embeddings.items():
        runs = [trained_by_squares(embed, seed, options.steps(STEPS)) for seed in range(1, n_seeds + 1)]
        errors.append([error for _, error in runs])
        e = embed(torch.from_numpy(days)).double().numpy()
        if e.shape[-1] == 1:
            least.append(least_error(e[..., 0]))
        best, floor = f"{min(errors[-1]):.4f}", f"{least[-1]:.4f}" if e.shape[-1] == 1 else ""
        size, mean = parameter_count(runs[0][0]), mean_and_deviation(errors[-1], ".4f")
        rows.append((translated(name), size, mean, best, floor))
    columns = ("each day as", "parameters", "squared error", "best seed", "best weights")
    title = passage("weather_draft.table", seeds=plural(n_seeds, "seed"), seeds_ja=n_seeds)
    yield Table("draft", title, tuple(map(translated, columns)), tuple(rows))
    yield Conclusion(passage("weather_draft.why", least=least, one=min(errors[0]), two=min(errors[2])))
