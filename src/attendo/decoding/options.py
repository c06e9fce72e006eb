"""Search settings: the `[decoding]` table of a translator, and the ids with a special role."""

from dataclasses import dataclass
from typing import Literal

LengthNorm = Literal["gnmt", "plain"]
_RANGES = {
    "beam": (1, 10_000),
    "length_penalty": (-20, 20),
    "max_length_ratio": (0, 10_000),
    "max_length_extra": (1, 1_000_000),
    "min_length": (0, 1_000_000),
    "no_repeat_ngram": (0, 1_000_000),
    "coverage_penalty": (0, 1_000_000),
    "diversity_penalty": (0, 1_000_000),
    "batch_tokens": (1, 1_000_000_000),
}
"""The least and the largest value of each option: beyond it nothing more is found, or no memory is enough."""


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """The settings of beam search.

    An output has at most `source length * max_length_ratio + max_length_extra` tokens, including the end token, and
    never more than the model has positions.

    Attributes:
        beam: Beam size: the number of hypotheses that are kept in each step. 1 is greedy search.
        length_penalty: Exponent α of the length normalization. 0 disables it.
        n_best: Number of outputs per text, at most the beam size.
        max_length_ratio: Largest output length, in tokens per source token.
        max_length_extra: Number of tokens that are added to the largest output length.
        batch_tokens: Largest number of source tokens in a batch, including padding, times the beam size.
        length_norm: Divisor of log-probabilities: `((5 + length) / 6)^α` (Wu et al. 2016), or `length^α` (`plain`).
        coverage_penalty: Weight β of the coverage penalty in the score (Wu et al. 2016, eq. 14). 0 disables it.
        min_length: Smallest number of output tokens, including the end token.
        no_repeat_ngram: Length of the n-grams that occur at most once in an output. 0 allows all repetitions.
        beam_groups: Number of groups in diverse beam search, which divides the beam size (Vijayakumar et al. 2016).
        diversity_penalty: Amount that a candidate's rank loses for each earlier group with the same token.
        refill: Whether the next best candidate replaces a finished hypothesis in the beam, as in CTranslate2.
    """

    beam: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    max_length_ratio: float = 2.0
    max_length_extra: int = 50
    batch_tokens: int = 8192
    length_norm: LengthNorm = "gnmt"
    coverage_penalty: float = 0.0
    min_length: int = 0
    no_repeat_ngram: int = 0
    beam_groups: int = 1
    diversity_penalty: float = 0.5
    refill: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise ValueError(f"{name}={str(value)[:40]} must be between {least:,} and {most:,}")
        if not 1 <= self.n_best <= self.beam:
            raise ValueError(f"n_best={self.n_best} must be between 1 and beam={self.beam}")
        if self.length_norm not in ("gnmt", "plain"):
            raise ValueError(f"length_norm={self.length_norm!r} must be gnmt or plain")
        if self.beam_groups < 1 or self.beam % self.beam_groups:
            raise ValueError(f"beam_groups={self.beam_groups} must be at least 1 and divide beam={self.beam}")
        if self.refill and self.beam_groups > 1:
            raise ValueError("refill cannot be used with beam_groups above 1. Remove one of them")

    def max_length(self, source_length: int, capacity: int) -> int:
        """Return the largest number of tokens, including the end token, of the output for a source.

        Args:
            source_length: Tokens of the source.
            capacity: Positions that the model has.

        >>> DecodingConfig().max_length(10, capacity=512)
        70
        """
        return min(capacity, int(source_length * self.max_length_ratio) + self.max_length_extra)


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """The id that is fed first, the id that ends a text, and the ids that are never generated."""

    bos_id: int
    eos_id: int
    banned_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.eos_id in self.banned_ids:
            raise ValueError(f"banned_ids contains eos_id {self.eos_id}, so no text could end. Remove it")
