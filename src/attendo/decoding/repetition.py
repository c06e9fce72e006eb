"""Texts that run away: a search that says the same again and again, or comes to no end."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attendo.data.tokenizers import Kind
from attendo.decoding.options import DecodingConfig
from attendo.decoding.step import Hypothesis

LEAST_REPEATED = 12
"""Tokens that a repetition has at least, all its times together: shorter ones are found in good texts."""

MOST_RATIO, MOST_EXTRA = 2.0, 30
"""A text without an end is suspect from so many times its source, and so many tokens more."""

NO_REPEAT: dict[Kind, int] = {"character": 12, "byte": 24}
"""The n-grams that a second search does not repeat, where a token is no piece: about as much text as 4 pieces."""


def runs_away(source: Sequence[int], found: Hypothesis) -> bool:
    """Whether a text repeats itself (`repeats`) where its source does not, or has not ended where it should have.

    That is: it met its length limit, and has more than twice the tokens of its source and 30.
    """
    n_tokens = len(found.token_ids)
    endless = not found.finished and n_tokens > MOST_RATIO * len(source) + MOST_EXTRA
    return endless or (repeats(found.token_ids) and not repeats(source))


def without_repetition(config: DecodingConfig, kind: Kind) -> DecodingConfig | None:
    """How a text that runs away is searched once more; None where it was searched so already.

    >>> without_repetition(DecodingConfig(), "bpe").no_repeat_ngram
    4
    >>> without_repetition(DecodingConfig(no_repeat_ngram=3), "bpe")
    """
    n_gram = NO_REPEAT.get(kind, 4)
    return None if 0 < config.no_repeat_ngram <= n_gram else replace(config, no_repeat_ngram=n_gram)


def repeats(token_ids: Sequence[int]) -> bool:
    """Whether the same tokens stand there three times in a row or more, together 12 tokens or more.

    >>> repeats([5, 6, 7, 8] * 3), repeats([5, 6, 7, 8] * 2 + [5, 6, 7, 9]), repeats([5] * 11), repeats([5] * 12)
    (True, False, False, True)
    """
    if len(token_ids) - len(set(token_ids)) < LEAST_REPEATED * 2 // 3:
        return False
    row = np.asarray(token_ids)
    for period in range(1, len(row) // 3 + 1):
        different = np.flatnonzero(row[period:] != row[:-period])
        equal = np.diff(different, prepend=-1, append=len(row) - period).max() - 1
        if equal >= max(3 * period, LEAST_REPEATED) - period:
            return True
    return False
