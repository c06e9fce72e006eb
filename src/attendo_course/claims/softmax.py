"""Claims about the softmax of edit distances (C27), and four numbers that are not the softmax of their scores (C17)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attendo.display.i18n import Localized
from attendo.nn.attention import masked_softmax
from attendo_course.book import translated
from attendo_course.claims.claim import Finding, above, below, equals
from attendo_course.claims.samples import largest
from attendo_course.lookup import edit_weights, levenshtein
from attendo_course.pictures import Picture

EditWeights = Callable[[Sequence[str], Sequence[str], float], Float[Tensor, "queries keys"]]
"""A function from queries, keys and an inverse temperature to weights."""

DICTIONARY = {
    "迷えば、敗れる": 1.0,
    "迷えば、遅れる": 10.0,
    "学べば、分かる": 100.0,
    "休めば、治る": 1000.0,
    "rain": 10_000.0,
    "train": 100_000.0,
}
"""Keys and values. The first two keys, and the last two keys, differ by one edit."""
MISSPELT = "迷えば敗れる"
"""A query one edit (the comma) away from the first key, and two edits away from the second key."""
BETWEEN = "迷えば、破れる"
"""A query one edit away from the first key and from the second key. No key is nearest."""
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


def edit_distance_look_up(weights_of: EditWeights = edit_weights) -> Finding:
    """Check that softmax(-β · Levenshtein distance) is uniform at β = 0 and finds the dictionary's value at β = ∞.

    `weights_of` is the tested function. The source is Kikuta 2025, exercise 3.3. Only the topic of its solution is
    known.

    >>> edit_distance_look_up().holds
    True
    >>> edit_distance_look_up(lambda queries, keys, beta: edit_weights(queries, keys, beta / 2)).holds
    False
    """
    keys = list(DICTIONARY)
    distances = torch.tensor([float(levenshtein(MISSPELT, key)) for key in keys], dtype=torch.float64)
    weights = weights_of([MISSPELT], keys, 2.0)[0]
    odds = weights.log()[:, None] - weights.log()  # ln(a_i/a_j) must be β(d_j - d_i)
    values = torch.tensor(list(DICTIONARY.values()), dtype=torch.float64)
    found = (weights_of(keys, keys, math.inf) @ values == values).sum()
    curves = torch.cat([weights_of([MISSPELT], keys, beta) for beta in BETAS])
    uniform = weights_of([MISSPELT], keys, 0.0)
    first = translated("weight of {keys[0]} for {MISSPELT}, β = 2", keys=keys, MISSPELT=MISSPELT)
    tied = translated("largest weight for {BETWEEN}, β = 1000", BETWEEN=BETWEEN)
    even = translated("β = 0: distance from 1/{n_keys}", n_keys=len(keys))
    log_odds = 2.0 * (distances - distances[:, None])
    cold = weights_of([MISSPELT], keys, 40.0)[0, 0]
    half = weights_of([BETWEEN], keys, 1000.0).max()
    checks = (
        equals("sum of the weights", float(weights.sum()), 1.0),
        below("|ln(a_i/a_j) - β(d_j - d_i)| at most", largest(odds - log_odds), 1e-10),
        equals("keys found exactly at β = ∞", float(found), len(keys), 0.0),
        below(even, largest(uniform - 1 / len(keys)), 1e-12),
        above(first, float(weights[0]), 0.8),
        below("its distance from 1 at β = 40", 1.0 - float(cold), 1e-12),
        equals(tied, float(half), 0.5, counterexample=True),
    )
    picture = Picture(
        "curves",
        translated("Weights for the query {MISSPELT} as β grows", MISSPELT=MISSPELT),
        np.ascontiguousarray(curves.T.numpy()),
        tuple(keys),
        tuple(f"β={beta:g}" for beta in BETAS),
    )
    return Finding(checks, picture)


SCORES = (12.0, 8.0, -1.0, 19.0)
SLIDE = (0.3, 0.2, 0.01, 0.49)
"""The weights that the slides print for these scores."""
WEIGHTS = ((9.1e-4, 5e-6), (1.7e-5, 5e-7), (2.1e-9, 5e-11), (0.99907, 5e-6))
"""The softmax of the scores, and half a unit of its last digit."""


def softmax_at(temperature: float, scores: Sequence[float] = SCORES) -> np.ndarray:
    """Return softmax(s/T) for T > 0, computed with `masked_softmax` of `attendo.nn`.

    >>> softmax_at(1.0, (0.0, 0.0)).tolist()
    [0.5, 0.5]
    """
    row = torch.tensor([list(scores)], dtype=torch.float64)
    return masked_softmax(row, inverse_temperature=1.0 / temperature)[0].numpy()


def implied_temperatures(weights: Sequence[float], scores: Sequence[float] = SCORES) -> list[float]:
    """Return T = (s_i - s_j) / ln(a_i/a_j) for each pair; the weights are softmax(s/T) only if all T are equal.

    T is infinite if two weights are equal and their scores differ.

    >>> implied_temperatures(softmax_at(2.0, (1.0, 3.0)), (1.0, 3.0))
    [2.0]
    """
    pairs = [(i, j) for i in range(len(scores)) for j in range(i)]
    logs = [math.log(weights[i] / weights[j]) for i, j in pairs]
    return [(scores[i] - scores[j]) / ratio if ratio else math.inf for (i, j), ratio in zip(pairs, logs, strict=True)]


def nearest_temperature(weights: Sequence[float], scores: Sequence[float] = SCORES) -> float:
    """Return the T in (.01, 1000) that minimizes the largest difference of softmax(s/T) from these weights.

    >>> round(nearest_temperature(softmax_at(3.0)), 3)
    3.0
    """
    low, found, high = 0.01, math.nan, 1000.0
    for _ in range(6):  # each grid lies around the best of the one before and is 60 times as fine
        grid = np.geomspace(low, high, 121).tolist()
        far = [np.abs(softmax_at(temperature, scores) - weights).max() for temperature in grid]
        best = int(np.argmin(far))
        low, found, high = grid[max(best - 1, 0)], grid[best], grid[min(best + 1, 120)]
    return found


def slides_numbers_are_no_softmax(printed: Sequence[float] = SLIDE) -> Finding:
    """Check that softmax(12, 8, -1, 19) sums to 1 and differs from the numbers in the slides at every temperature.

    `printed` contains the numbers that must differ from every softmax of these scores.

    >>> slides_numbers_are_no_softmax().holds
    True
    >>> slides_numbers_are_no_softmax(tuple(softmax_at(9.0))).holds
    False
    """
    found, temperatures = softmax_at(1.0), implied_temperatures(printed)
    nearest = nearest_temperature(printed)
    near = softmax_at(nearest)
    checks = [equals("sum of the softmax", found.sum(), 1.0)]
    for score, value, (expected, digits) in zip(SCORES, found, WEIGHTS, strict=True):
        name = translated("weight of the score {score:g}", score=score)
        checks.append(equals(name, value, expected, digits))
    far = translated("slides: largest difference from the softmax")
    pairs = translated("slides: temperatures that pairs imply, largest / least")
    distance = translated("its largest difference from the slides")
    checks += [
        equals("slides: sum of the numbers", sum(printed), 1.0),
        above(far, np.abs(found - printed).max(), 0.5, counterexample=True),
        above(pairs, max(temperatures) / min(temperatures), 4.0, counterexample=True),
        equals("nearest temperature", nearest, 9.3, 0.05),
        above(distance, np.abs(near - printed).max(), 0.05, counterexample=True),
    ]
    for score, value, expected in zip(SCORES, near, (0.249, 0.162, 0.061, 0.528), strict=True):
        name = translated("nearest temperature: weight of the score {score:g}", score=score)
        checks.append(equals(name, value, expected, 5e-4))
    falling = np.diff([softmax_at(t)[3] for t in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)])
    checks.append(below("largest change of the top weight as T doubles", falling.max(), 0.0))
    title = translated("T = 1; the nearest temperature; the slides")
    rows = ("T = 1", f"T = {nearest:.1f}", Localized("slides", "スライド"))
    values = np.stack([found, near, np.asarray(printed)])
    return Finding(tuple(checks), Picture("matrix", title, values, rows, tuple(f"{s:g}" for s in SCORES)))


CLAIMS = {"C27": edit_distance_look_up, "C17": slides_numbers_are_no_softmax}
