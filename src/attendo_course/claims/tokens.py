"""Claims about the input of attention: the sum of token and position (C42), and continuous tokens (C43)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attendo.nn.attention import attention, attention_weights
from attendo_course.book import translated
from attendo_course.claims.claim import Finding, above, below, equals
from attendo_course.claims.samples import largest, normal
from attendo_course.pictures import Picture
from attendo_course.presets import distinct_sums, scalar_embedding

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function from queries, keys and values to outputs, with the scale 1/√d."""
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
TEXTS = ("12.5 mm", "☂ 雨のち晴れ", "Donaudampfschifffahrt", "\U0001f327\ufe0f→\u2601\ufe0f")


def separation(tokens: Float[Tensor, "n_tokens d"], positions: Float[Tensor, "n_positions d"]) -> Float[Tensor, "d d"]:
    """Return the matrix M that best keeps all differences of tokens and removes all differences of positions.

    M is exact if the differences of tokens and of positions span subspaces that meet only in 0.

    >>> m = separation(torch.eye(4)[:2], torch.eye(4)[2:])
    >>> ((torch.eye(4)[0] - torch.eye(4)[1]) @ m).round(decimals=4).abs()
    tensor([1., 1., 0., 0.])
    """
    of_tokens, of_positions = (rows[1:] - rows[0] for rows in (tokens, positions))
    wanted = torch.cat([of_tokens, torch.zeros_like(of_positions)])
    return torch.linalg.pinv(torch.cat([of_tokens, of_positions])) @ wanted


def share_read(d: int, n_tokens: int = 200, n_positions: int = 50) -> float:
    """Return the share of sums of random vectors in d dimensions from which token and position are both read.

    The token is the nearest one to the sum, and the position is the nearest one to the rest.

    >>> share_read(128)
    1.0
    """
    tokens, positions = normal(0, n_tokens, d), normal(1, n_positions, d)
    sums = (tokens[:, None] + positions).flatten(0, 1)
    found = torch.cdist(sums, tokens).argmin(-1)
    places = torch.cdist(sums - tokens[found], positions).argmin(-1)
    pairs = torch.arange(len(sums))
    return float((found * n_positions + places == pairs).double().mean())


def sums_can_be_taken_apart(d: int = 48, n_tokens: int = 20, n_positions: int = 30) -> Finding:
    """Check when e + p still contains the token e and the position p, for random vectors in d dimensions.

    Matrices need d ≥ (n_tokens - 1) + (n_positions - 1) dimensions.

    >>> sums_can_be_taken_apart().holds
    True
    >>> sums_can_be_taken_apart(16).holds
    False
    """
    tokens, positions = normal(0, n_tokens, d), normal(1, n_positions, d)
    m = separation(tokens, positions)
    sums = tokens[:, None] + positions
    kept = (sums - sums[0, 0]) @ m - (tokens - tokens[0])[:, None]
    places = torch.arange(n_positions)
    row, rest = sums[places % n_tokens, places], torch.eye(d, dtype=m.dtype) - m
    mixed, alone = ((x - tokens[0]) @ rest for x in (row, positions + tokens[0]))
    fewer = separation(tokens[:, 1:], positions[:, 1:])
    lost = (tokens - tokens[0])[:, 1:] @ fewer - (tokens - tokens[0])[:, 1:]
    shares = [share_read(width) for width in WIDTHS]
    differences = largest(attention_weights(mixed, mixed) - attention_weights(alone, alone))
    less = translated("d = {d}: best matrix, error of the token", d=d - 1)
    days = distinct_sums(scalar_embedding("ramp"), 20)
    checks = (
        equals(translated("d = {d}: |M(e + p) - e| up to a constant", d=d), largest(kept), 0.0),
        equals(translated("d = {d}: |weights from e + p - weights from p|", d=d), differences, 0.0),
        equals("200 tokens, 50 positions, d = 128: share of sums read", shares[-1], 1.0),
        above(less, largest(lost), 0.01, counterexample=True),
        equals("d = 1, weather + t/10: different sums of 60", days, 40, counterexample=True),
    )
    title = translated("share of 10,000 sums from which token and position are read, by d")
    labels = tuple(map(str, WIDTHS))
    return Finding(checks, Picture("curves", title, np.array([shares]), ("e + p",), labels))


def tokens_may_be_numbers(attend: Attend = attention, beta: float = 2000.0) -> Finding:
    """Check that attention takes numbers as tokens, and that bytes cover infinitely many texts.

    `attend` must compute softmax(QKᵀ/√d)V.

    >>> tokens_may_be_numbers().holds
    True
    >>> tokens_may_be_numbers(lambda query, key, value: query @ key.mT @ value).holds
    False
    """
    table, ids = normal(0, 7, 5), torch.tensor([3, 0, 6])
    one_hot = F.one_hot(ids, len(table)).double()
    known = torch.linspace(0, 1, 50, dtype=torch.float64)
    x = torch.linspace(0.1, 0.9, 41, dtype=torch.float64)
    y, true = ((2 * math.pi * at).sin() for at in (known, x))
    # The score (x, 1)·(2βx_t, -βx_t²) is -β(x - x_t)² up to a constant of the row; √2 undoes the scale.
    query = math.sqrt(2) * torch.stack([x, torch.ones_like(x)], -1)
    key = beta * torch.stack([2 * known, -(known**2)], -1)
    found = attend(query, key, y[:, None])[:, 0]
    kernel = (-beta * (x[:, None] - known) ** 2).exp()  # Nadaraya 1964, Watson 1964
    difference = largest(found - kernel @ y / kernel.sum(-1))
    codes = [text.encode() for text in TEXTS]
    restored = sum(bytes(list(code)).decode() == text for code, text in zip(codes, TEXTS, strict=True))
    checks = (
        equals("|table look-up - linear map of a one-hot vector|", largest(table[ids] - one_hot @ table), 0.0),
        below("50 numbers: |attention - kernel regression|", difference, 1e-10, counterexample=True),
        below("sin 2πx from 50 numbers: largest error", largest(found - true), 0.01, counterexample=True),
        equals("texts restored from bytes, of 4", restored, len(TEXTS)),
        below("largest id of a byte", max(map(max, codes)), 256),
    )
    title = translated("sin 2πx by attention to 50 numbers, x from 0.1 to 0.9")
    labels = tuple(f"{value:.2f}" for value in x.tolist())
    return Finding(checks, Picture("curves", title, found[None].numpy(), ("sin",), labels))


CLAIMS = {"C42": sums_can_be_taken_apart, "C43": tokens_may_be_numbers}
