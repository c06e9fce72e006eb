"""The dictionary look-up by edit distance (C27), soft and hard."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo_course.claims.claim import Claim, Finding, above, below, equals
from attendo_course.lookup import edit_weights, levenshtein

EditWeights = Callable[[Sequence[str], Sequence[str], float], Float[Tensor, "queries keys"]]
"""From queries, keys and an inverse temperature to weights."""

DICTIONARY = {
    "迷えば、敗れる": 1.0,
    "迷えば、遅れる": 10.0,
    "学べば、分かる": 100.0,
    "休めば、治る": 1000.0,
    "rain": 10_000.0,
    "train": 100_000.0,
}
"""Keys and values; the two first keys, and the two last, are one edit apart."""
MISSPELT = "迷えば敗れる"
"""One edit (the comma) from the first key, two from the next."""
BETWEEN = "迷えば、破れる"
"""One edit from the first key and one from the second: no key is nearest."""
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


def edit_distance_look_up(weights_of: EditWeights = edit_weights) -> Finding:
    """softmax(-β · Levenshtein distance) as weights: uniform at β = 0, the dictionary's own answer at β = ∞.

    weights_of: the weights that are examined. Made for exercise 3.3 of Kikuta 2025, of which only the solution's
    topic is known.

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
    checks = (
        equals(Localized("sum of the weights", "重みの和"), float(weights.sum()), 1.0),
        below(
            Localized("|ln(a_i/a_j) - β(d_j - d_i)| at most", "|ln(a_i/a_j) - β(d_j - d_i)| の最大"),
            float((odds - 2.0 * (distances - distances[:, None])).abs().max()),
            1e-10,
        ),
        equals(
            Localized("keys found exactly at β = ∞", "β = ∞ で正しく引けたキーの数"),
            float(found),
            len(keys),
            0.0,
        ),
        below(
            Localized(f"β = 0: distance from 1/{len(keys)}", f"β = 0: 1/{len(keys)} との差"),
            float((uniform - 1 / len(keys)).abs().max()),
            1e-12,
        ),
        above(
            Localized(
                f"weight of {keys[0]} for {MISSPELT}, β = 2", f"{MISSPELT} に対する {keys[0]} の重み（β = 2）"
            ),
            float(weights[0]),
            0.8,
        ),
        below(
            Localized("its distance from 1 at β = 40", "同じ重みと 1 との差（β = 40）"),
            1.0 - float(weights_of([MISSPELT], keys, 40.0)[0, 0]),
            1e-12,
        ),
        equals(
            Localized(f"largest weight for {BETWEEN}, β = 1000", f"{BETWEEN} に対する最大の重み（β = 1000）"),
            float(weights_of([BETWEEN], keys, 1000.0).max()),
            0.5,
            counterexample=True,
        ),
    )
    picture = Picture(
        "curves",
        Localized(
            f"Weights for the query {MISSPELT} as β grows", f"β を大きくしたときの検索語「{MISSPELT}」の重み"
        ),
        np.ascontiguousarray(curves.T.numpy()),
        tuple(keys),
        tuple(f"β={beta:g}" for beta in BETAS),
    )
    return Finding(checks, picture)


C27 = Claim(
    id="C27",
    source="Kikuta 2025, exercise 3.3",
    statement=Localized(
        "A dictionary can be looked up softly: attention whose scores are minus the edit distance.",
        "辞書引きはアテンションで「ソフト」に一般化できる。編集距離の符号を変えたものをスコアとするアテンションがそれである。",
    ),
    derivation=Localized(
        "A dictionary compares a query with each key and answers with the value of the key that is equal. Replace"
        " equal or not by the Levenshtein distance d_i, the least number of characters to insert, delete or replace,"
        " and take a = softmax(-βd) as weights. They sum to 1, and two keys compare as a_i/a_j = exp(β(d_j - d_i)):"
        " each edit more divides the weight by exp(β). At β = 0 every key weighs the same; as β grows the weight moves"
        " to the nearest key, and at β = ∞ a query that is a key gets its own value, as in a dictionary. A misspelt"
        " query still finds its key. Only the score differs from attention on vectors, where it is qᵀk.",
        "辞書は検索語を各キーと比べ、一致したキーの値を返す。一致か否かをレーベンシュタイン距離 d_i"
        "（挿入・削除・置換する文字の最小数）に置き換え、a = softmax(-βd) を重みとする。重みの和は 1 であり、二つのキー"
        "の比は a_i/a_j = exp(β(d_j - d_i)) となるから、編集が一回増えるごとに重みは exp(β) 分の 1 になる。β = 0 では"
        "すべてのキーの重みが等しく、β が大きくなるにつれて重みは最も近いキーに集まり、β = ∞ ではキーと一致する検索語に"
        "そのキーの値が返る。これは通常の辞書と同じである。綴りを誤った検索語でも目的のキーが見つかる。ベクトルに対する"
        "アテンションとの違いは、スコアが qᵀk ではないことだけである。",
    ),
    compute=edit_distance_look_up,
    condition=Localized(
        "For a query that is no key, the weights become one-hot only if a single key is nearest; two keys at the same"
        " distance share the weight at every finite β.",
        "キーにない検索語では、最も近いキーがただ一つのときに限り重みが one-hot に近づく。同じ距離のキーが二つあれば、"
        "有限の β ではつねに重みを分け合う。",
    ),
)

CLAIMS = (C27,)
