"""What the softmax makes of four scores, and what no softmax can make of them (C17)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.nn.attention import masked_softmax
from attendo_course.claims.claim import Claim, Finding, above, below, equals

SCORES = (12.0, 8.0, -1.0, 19.0)
SLIDE = (0.3, 0.2, 0.01, 0.49)
"""What the slides print beside these scores."""
WEIGHTS = ((9.1e-4, 5e-6), (1.7e-5, 5e-7), (2.1e-9, 5e-11), (0.99907, 5e-6))
"""What the softmax of the scores is, and half a unit of the last digit."""


def softmax_at(temperature: float, scores: Sequence[float] = SCORES) -> np.ndarray:
    """softmax(s/T) by the core's `masked_softmax`; T > 0.

    >>> softmax_at(1.0, (0.0, 0.0)).tolist()
    [0.5, 0.5]
    """
    row = torch.tensor([list(scores)], dtype=torch.float64)
    return masked_softmax(row, inverse_temperature=1.0 / temperature)[0].numpy()


def implied_temperatures(weights: Sequence[float], scores: Sequence[float] = SCORES) -> list[float]:
    """T = (s_i - s_j) / ln(a_i/a_j) of each pair; the weights are softmax(s/T) only if all are one number.

    Infinite where two weights are equal and the scores are not.

    >>> implied_temperatures(softmax_at(2.0, (1.0, 3.0)), (1.0, 3.0))
    [2.0]
    """
    pairs = [(i, j) for i in range(len(scores)) for j in range(i)]
    logs = [math.log(weights[i] / weights[j]) for i, j in pairs]
    return [
        (scores[i] - scores[j]) / ratio if ratio else math.inf
        for (i, j), ratio in zip(pairs, logs, strict=True)
    ]


def nearest_temperature(weights: Sequence[float], scores: Sequence[float] = SCORES) -> float:
    """The T in (.01, 1000) whose softmax(s/T) has the least largest difference from these weights.

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
    """softmax(12, 8, -1, 19) sums to 1, and is not what the slides print; nor is it at another temperature.

    printed: what is to be told from every softmax of these scores.

    >>> slides_numbers_are_no_softmax().holds
    True
    >>> slides_numbers_are_no_softmax(tuple(softmax_at(9.0))).holds
    False
    """
    found, temperatures = softmax_at(1.0), implied_temperatures(printed)
    nearest = nearest_temperature(printed)
    near = softmax_at(nearest)
    checks = [equals(Localized("sum of the softmax", "softmax の和"), found.sum(), 1.0)]
    for score, value, (expected, digits) in zip(SCORES, found, WEIGHTS, strict=True):
        name = Localized(f"weight of the score {score:g}", f"スコア {score:g} の重み")
        checks.append(equals(name, value, expected, digits))
    total = Localized("slides: sum of the numbers", "スライド：数の和")
    far = Localized("slides: largest difference from the softmax", "スライド：softmax との差の最大")
    pairs = Localized(
        "slides: temperatures that pairs imply, largest / least", "スライド：組から求めた温度の最大 / 最小"
    )
    temperature = Localized("nearest temperature", "最も近い温度")
    distance = Localized("its largest difference from the slides", "その温度での差の最大")
    checks += [
        equals(total, sum(printed), 1.0),
        above(far, np.abs(found - printed).max(), 0.5, counterexample=True),
        above(pairs, max(temperatures) / min(temperatures), 4.0, counterexample=True),
        equals(temperature, nearest, 9.3, 0.05),
        above(distance, np.abs(near - printed).max(), 0.05, counterexample=True),
    ]
    for score, value, expected in zip(SCORES, near, (0.249, 0.162, 0.061, 0.528), strict=True):
        name = Localized(
            f"nearest temperature: weight of the score {score:g}", f"最も近い温度：スコア {score:g} の重み"
        )
        checks.append(equals(name, value, expected, 5e-4))
    falling = np.diff([softmax_at(t)[3] for t in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)])
    hotter = Localized(
        "largest change of the top weight as T doubles", "T を 2 倍にしたときの最大の重みの変化の最大"
    )
    checks.append(below(hotter, falling.max(), 0.0))
    title = Localized("T = 1; the nearest temperature; the slides", "T = 1、最も近い温度、スライド")
    rows = ("T = 1", f"T = {nearest:.1f}", "slides")
    values = np.stack([found, near, np.asarray(printed)])
    return Finding(tuple(checks), Picture("matrix", title, values, rows, tuple(f"{s:g}" for s in SCORES)))


CLAIMS = (
    Claim(
        id="C17",
        source="Slides on the Transformer",
        statement=Localized(
            "The softmax turns scores, such as (12, 8, -1, 19), into weights that sum to 1.",
            "softmax は (12, 8, -1, 19) のようなスコアを、和が 1 の重みに変える。",
        ),
        derivation=Localized(
            "a_i = exp(s_i) / Σ_j exp(s_j): the sum is 1 by construction, whatever the scores.\n"
            "Two weights compare as a_i/a_j = exp(s_i - s_j): a lead of 7, as 19 has over 12, is a factor of 1097.\n"
            "So almost everything goes to 19: (9.1e-4, 1.7e-5, 2.1e-9, .99907).\n"
            "At a temperature T it is a_i/a_j = exp((s_i - s_j)/T), so that T = (s_i - s_j) / ln(a_i/a_j), for each"
            " pair the same T.\n"
            "The slides' numbers give T = 4/ln(.3/.2) = 9.9 from 12 and 8, but 9/ln(.2/.01) = 3.0 from 8 and -1, and"
            " 7/ln(.49/.3) = 14.3 from 19 and 12: no temperature fits.\n"
            "Nearest by the largest difference is T = 9.3 with (.249, .162, .061, .528), off by .051.\n"
            "Their sum is 1, but a sum of 1 alone makes no softmax.",
            "a_i = exp(s_i) / Σ_j exp(s_j) なので、どんなスコアでも和は定義から 1 である。\n"
            "二つの重みの比は a_i/a_j = exp(s_i - s_j) である。19 と 12 の差 7 は 1097 倍の違いになる。\n"
            "したがってほぼすべてが 19 に集まる：(9.1e-4, 1.7e-5, 2.1e-9, 0.99907)。\n"
            "温度 T では a_i/a_j = exp((s_i - s_j)/T) なので、T = (s_i - s_j) / ln(a_i/a_j) がどの組でも等しくなければ"
            "ならない。\n"
            "スライドの数からは、12 と 8 で T = 4/ln(0.3/0.2) = 9.9、8 と -1 で 9/ln(0.2/0.01) = 3.0、19 と 12 で"
            " 7/ln(0.49/0.3) = 14.3 となり、合う温度は存在しない。\n"
            "差の最大が最も小さいのは T = 9.3 の (0.249, 0.162, 0.061, 0.528) で、それでも 0.051 ずれる。\n"
            "スライドの数の和は 1 だが、和が 1 であるだけでは softmax ではない。",
        ),
        condition=Localized(
            "A sum of 1 is not enough: the weights printed beside these scores, (.3, .2, .01, .49), are no softmax"
            " of them, at any temperature.",
            "和が 1 であるだけでは足りない。これらのスコアの横に示された (0.3, 0.2, 0.01, 0.49) は、どの温度でも、それ"
            "らの softmax ではない。",
        ),
        compute=slides_numbers_are_no_softmax,
    ),
)
