"""The attention ladder's data: letters to be counted, drawn from a generator, and exact limits of what can be known.

After the counting tasks of "attention-primer" (Greenfrapp 2018) and of Shumi-Note.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attendo.data.weather import entropy
from attendo_course.lessons.arrays import Draw, Examples

SYMBOLS = " ABC^"
"""Blank, the letters, and the mark of the begin; a symbol's id is its place."""
N_LETTERS = 3
BEGIN = 4


def one_hot(ids: Int[np.ndarray, "*batch"], n_symbols: int) -> Float[Tensor, "*batch symbols"]:
    """A vector for each id: 1 at its place, 0 elsewhere.

    >>> one_hot(np.array([1]), 3)
    tensor([[0., 1., 0.]])
    """
    return F.one_hot(torch.from_numpy(ids), n_symbols).float()


def letter_counts(ids: Int[np.ndarray, "rows length"]) -> Int[np.ndarray, "rows 3"]:
    """How often A, B and C stand in each row.

    >>> letter_counts(np.array([[1, 0, 1, 3]])).tolist()
    [[2, 0, 1]]
    """
    return np.stack([(ids == letter).sum(1) for letter in range(1, N_LETTERS + 1)], axis=1)


def counting(lengths: Sequence[int], *, begin: bool, difference: bool = False) -> Draw:
    """Tasks T06a and T06b: x, letters or blanks as one-hot vectors `[rows, length, 4]`; targets, the counts of A, B, C.

    lengths: of which one is drawn for all rows. begin: a mark stands before the first letter, and vectors have 5
    entries. difference: a fourth target, |count of A - count of B|.
    """

    def draw(rng: np.random.Generator, n: int) -> Examples:
        length = int(rng.choice(np.asarray(lengths)))
        ids = rng.integers(0, N_LETTERS + 1, (n, length))
        targets = letter_counts(ids)
        if difference:
            targets = np.column_stack([targets, np.abs(targets[:, 0] - targets[:, 1])])
        if begin:
            ids = np.column_stack([np.full(n, BEGIN), ids])
        x = one_hot(ids, len(SYMBOLS) if begin else BEGIN)
        return Examples({"x": x}, torch.from_numpy(targets))

    return draw


def signals(n_signals: int, length: int) -> Draw:
    """Tasks T06c and T06d: the first letters tell which letter to count in the others.

    x: `[rows, n_signals + length, 3]`, no blanks; targets `[rows, n_signals]`, a count for each signal.
    """

    def draw(rng: np.random.Generator, n: int) -> Examples:
        ids = rng.integers(0, N_LETTERS, (n, n_signals + length))
        targets = (ids[:, :n_signals, None] == ids[:, None, n_signals:]).sum(-1)
        return Examples({"x": one_hot(ids, N_LETTERS)}, torch.from_numpy(targets))

    return draw


def text(x: Float[Tensor, "length symbols"]) -> str:
    """The letters of one row; signals have no blank, so theirs start with A.

    >>> text(one_hot(np.array([4, 1, 0]), 5)), text(one_hot(np.array([0, 2]), 3))
    ('^A ', 'AC')
    """
    first = 1 if x.shape[-1] == N_LETTERS else 0
    return "".join(SYMBOLS[first + int(i)] for i in x.argmax(-1))


def count_distribution(length: int, share: float) -> Float[np.ndarray, " counts"]:
    """P(n = 0..length): how often a letter stands among `length` letters that each are it with P = share (binomial).

    >>> p = count_distribution(10, 1 / 4)
    >>> float(entropy(p).round(3)), round(float(p.max()), 3), float(entropy(count_distribution(5, 1 / 4)).round(3))
    (1.714, 0.282, 1.342)
    """
    return np.array(
        [math.comb(length, n) * share**n * (1 - share) ** (length - n) for n in range(length + 1)]
    )


def difference_distribution(length: int) -> Float[np.ndarray, " counts"]:
    """P(|count of A - count of B| = 0..length) where A, B, C and blank are equally likely.

    >>> difference_distribution(1).tolist()
    [0.5, 0.5]
    """
    probs = np.zeros(length + 1)
    for (a, b, _), p in _compositions(length, (0.25, 0.25, 0.5)):
        probs[abs(a - b)] += p
    return probs


def unordered_signal_limit(length: int) -> tuple[float, float]:
    """(loss, accuracy) of the best guess in task T06c by one who sees the letters but not their order.

    Of 1 + length letters any may have been the first: given k_l of each, letter l was the signal with P =
    k_l / (1 + length), and then the answer is k_l - 1.

    >>> [round(value, 4) for value in unordered_signal_limit(1)]
    [0.0, 1.0]
    """
    loss = accuracy = 0.0
    for counts, p in _compositions(length + 1, (1 / 3, 1 / 3, 1 / 3)):
        answers = np.zeros(length + 1)
        for count in counts:
            if count:
                answers[count - 1] += count / (length + 1)
        loss += p * float(entropy(answers))
        accuracy += p * float(answers.max())
    return loss, accuracy


def _compositions(
    total: int, shares: tuple[float, float, float]
) -> Iterator[tuple[tuple[int, int, int], float]]:
    """Every way to have three counts of this sum, and its probability (multinomial)."""
    for a in range(total + 1):
        for b in range(total + 1 - a):
            c = total - a - b
            ways = math.comb(total, a) * math.comb(total - a, b)
            yield (a, b, c), ways * shares[0] ** a * shares[1] ** b * shares[2] ** c
