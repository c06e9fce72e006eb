"""C25: the other exercises of Bishop & Bishop 2024, chapter 12, each a few lines."""

from __future__ import annotations

import math

import numpy as np
import torch

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.nn.attention import attention, attention_weights
from attendo_course.claims.bishop_models import (
    bag_of_words_counts,
    bert_large_counts,
    greedy_is_not_best,
    n_gram_from_counts,
    recurrent_inference,
    tables_explode,
)
from attendo_course.claims.claim import Check, Claim, Finding, above, below, equals
from attendo_course.claims.positions import only_distance_counts, shifting_rotates, sines_alone_lose_it
from attendo_course.claims.samples import largest, normal


def weights_are_at_most_one(n: int = 50) -> tuple[Check, ...]:
    """12.1: a ≥ 0 and Σa = 1 give a ≤ 1.

    >>> all(check.holds for check in weights_are_at_most_one())
    True
    """
    weights = attention_weights(5.0 * normal(0, n, 4), 5.0 * normal(1, n, 4))
    return (
        above(Localized("12.1 smallest weight", "12.1 最小の重み"), float(weights.min()), -1e-15),
        below(Localized("12.1 largest weight", "12.1 最大の重み"), float(weights.max()), 1.0 + 1e-12),
    )


def orthogonal_inputs(n: int = 4, long: float = 10.0) -> tuple[Check, ...]:
    """12.3: for orthogonal x_n, y_n = softmax(XXᵀ)X goes to x_n as their length grows; at length 1 it does not.

    >>> all(check.holds for check in orthogonal_inputs())
    True
    """
    unit = torch.eye(n, dtype=torch.float64)
    weights = attention_weights(unit, unit, scale=1.0)
    far = attention(long * unit, long * unit, long * unit, scale=1.0)
    near = attention(unit, unit, unit, scale=1.0)
    return (
        equals(
            Localized("12.3 unit length: weight of itself", "12.3 長さ 1：自身への重み"),
            weights[0, 0].item(),
            0.475,
            5e-4,
        ),
        equals(
            Localized("12.3 unit length: of each other", "12.3 長さ 1：他への重み"),
            weights[0, 1].item(),
            0.175,
            5e-4,
        ),
        above(
            Localized("12.3 unit length: |y - x|", "12.3 長さ 1：|y − x|"),
            largest(near - unit),
            0.5,
            counterexample=True,
        ),
        below(
            Localized("12.3 length 10: |y - x|", "12.3 長さ 10：|y − x|"), largest(far - long * unit), 1e-10
        ),
    )


def one_large_sparse_matrix(n: int = 4, d: int = 3) -> tuple[Check, ...]:
    """12.6: AXW is (A ⊗ Wᵀ) on the stacked tokens: n²d² entries, but only n² + d² different numbers.

    >>> all(check.holds for check in one_large_sparse_matrix())
    True
    """
    x, w = normal(0, n, d), normal(1, d, d)
    a = attention_weights(x, x)
    large = torch.kron(a, w.T.contiguous())
    direct = attention(x, x, x @ w)
    return (
        equals(
            Localized("12.6 (A⊗Wᵀ)vec(X) - AXW", "12.6 (A⊗Wᵀ)vec(X) と AXW の差"),
            largest(large @ x.flatten() - direct.flatten()),
            0.0,
        ),
        equals(Localized("12.6 entries of the matrix", "12.6 行列の成分"), large.numel(), (n * d) ** 2),
        below(
            Localized("12.6 numbers behind them", "12.6 もとになる数"), a.numel() + w.numel(), large.numel()
        ),
    )


def random_directions_are_nearly_orthogonal(low: int = 3, high: int = 1000) -> tuple[Check, ...]:
    """12.8: the cosine of two random unit vectors has mean 0 and standard deviation 1/√D.

    >>> all(check.holds for check in random_directions_are_nearly_orthogonal())
    True
    """
    checks = []
    for d in (low, high):
        a, b = (torch.nn.functional.normalize(normal(seed, 2000, d), dim=-1) for seed in (0, 1))
        spread = float((a * b).sum(-1).square().mean().sqrt())
        name = Localized(f"12.8 D = {d}: spread of the cosine times √D", f"12.8 D = {d}：余弦の広がり × √D")
        checks.append(equals(name, spread * math.sqrt(d), 1.0, 0.08))
    a, b = (torch.nn.functional.normalize(normal(seed, 2000, low), dim=-1) for seed in (0, 1))
    name = Localized(f"12.8 D = {low}: largest |cosine|", f"12.8 D = {low}：|余弦| の最大")
    return (*checks, above(name, float((a * b).sum(-1).abs().max()), 0.9, counterexample=True))


def concatenation_is_a_sum(n: int = 5, d: int = 4, d_p: int = 3) -> tuple[Check, ...]:
    """12.9: [x; r]W = xW_x + rW_r: concatenating positions before a linear map adds two linear maps.

    >>> all(check.holds for check in concatenation_is_a_sum())
    True
    """
    x, r, w = normal(0, n, d), normal(1, n, d_p), normal(2, d + d_p, d)
    difference = torch.cat([x, r], -1) @ w - (x @ w[:d] + r @ w[d:])
    return (
        equals(
            Localized("12.9 [x; r]W - (xW_x + rW_r)", "12.9 [x; r]W と xW_x + rW_r の差"),
            largest(difference),
            0.0,
        ),
    )


def positions_by_relation() -> tuple[Check, ...]:
    """12.10: sines with cosines shift by a matrix (C01, C02); sines alone do not (C03).

    >>> all(check.holds for check in positions_by_relation())
    True
    """
    held = [shifting_rotates().holds, only_distance_counts().holds, sines_alone_lose_it().holds]
    return (
        equals(Localized("12.10 C01, C02 and C03 that hold", "12.10 成立する C01・C02・C03"), sum(held), 3),
    )


EXERCISES = (
    weights_are_at_most_one,
    orthogonal_inputs,
    one_large_sparse_matrix,
    random_directions_are_nearly_orthogonal,
    concatenation_is_a_sum,
    positions_by_relation,
    bag_of_words_counts,
    tables_explode,
    n_gram_from_counts,
    recurrent_inference,
    greedy_is_not_best,
    bert_large_counts,
)


def other_exercises() -> Finding:
    """12.1, 12.3, 12.6 and 12.8 to 12.16, one after the other.

    >>> other_exercises().holds
    True
    """
    lengths = np.linspace(0.0, 4.0, 41)
    own = np.exp(lengths**2) / (np.exp(lengths**2) + 3.0)
    title = Localized(
        "12.3: weight of itself among four orthogonal vectors, by length",
        "12.3：直交する 4 本の長さと、自身への重み",
    )
    labels = tuple(f"|x| = {length:g}" for length in lengths)
    checks = tuple(check for exercise in EXERCISES for check in exercise())
    return Finding(checks, Picture("curves", title, own[None], ("a",), labels))


CLAIMS = (
    Claim(
        "C25",
        "Bishop & Bishop 2024, exercises 12.1, 12.3, 12.6, 12.8 to 12.16",
        Localized(
            "Weights lie between 0 and 1; orthogonal inputs come out as they went in; attention is one large sparse"
            " matrix; random vectors are nearly orthogonal; concatenated positions are added ones; counts are the best"
            " tables, which grow as V^N; greedy search misses the best text; BERT-large has"
            " some 340 million parameters.",
            "重みは 0 と 1 の間にある。直交する入力はそのまま出てくる。アテンションは一つの大きな疎行列である。"
            "乱数のベクトルはほぼ直交する。"
            "連結した位置は足した位置に等しい。度数が最良の表であり、表は V^N で増える。貪欲法は最良の文を逃す。"
            "BERT-large のパラメータは約 3.4 億である。",
        ),
        Localized(
            "12.1: Σa = 1 with no negative term: no term exceeds 1.\n"
            "12.3: x_n·x_m = ‖x‖²δ_nm, so a_nn = e^{‖x‖²}/(e^{‖x‖²} + N - 1), which goes to 1 only as ‖x‖ grows.\n"
            "12.6: vec(AXW) = (A ⊗ Wᵀ)vec(X), by rows.\n"
            "12.8: aᵀb of unit vectors has mean 0 and variance 1/D.\n"
            "12.9: the rows of W fall into those for x and those for r.\n"
            "12.11, 12.13: Σ f ln p is largest at p = f, as KL(f‖p) ≥ 0.\n"
            "12.12: one row for each of V^{n-1} contexts.\n"
            "12.15: the best first token may have no good second one.\n"
            "12.16: 12·d²·24 + (V + L)·d numbers in matrices.",
            "12.1：負の項がなく Σa = 1 なら、どの項も 1 を超えない。\n"
            "12.3：x_n·x_m = ‖x‖²δ_nm なので a_nn = e^{‖x‖²}/(e^{‖x‖²} + N − 1) であり、"
            "‖x‖ が大きいときだけ 1 に近づく。\n"
            "12.6：行ごとに並べて vec(AXW) = (A ⊗ Wᵀ)vec(X) である。\n"
            "12.8：単位ベクトルの aᵀb は平均 0、分散 1/D である。\n"
            "12.9：W の行は x の分と r の分に分かれる。\n"
            "12.11、12.13：KL(f‖p) ≥ 0 なので Σ f ln p は p = f で最大になる。\n"
            "12.12：V^{n-1} 通りの文脈ごとに一行がいる。\n"
            "12.15：最良の一文字目の後に良い二文字目があるとは限らない。\n"
            "12.16：行列の数は 12·d²·24 + (V + L)·d 個である。",
        ),
        other_exercises,
        Localized(
            "12.3 holds in the limit of long vectors, 12.8 in high dimension.",
            "12.3 はベクトルが長い極限で、12.8 は高次元で成り立つ。",
        ),
    ),
)
