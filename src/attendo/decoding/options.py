"""The settings of beam search (the `[decoding]` table of `config.toml`), and the special token ids."""

from dataclasses import dataclass
from typing import Literal

LengthNorm = Literal["gnmt", "plain"]
Bits = Literal[32, 16, 8, 4]
"""The bits of each weight: 32 (float32), 16 (bfloat16), or 8 or 4 (integers with scales)."""
CacheBits = Literal[32, 16, 8]
"""The bits of each key and value in the cache: 32 (float32), 16 (bfloat16) or 8 (integers with scales)."""
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
"""The smallest and the largest valid value of each option. Larger values have no effect or require too much memory."""


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """The settings of beam search.

    An output has at most `source length * max_length_ratio + max_length_extra` tokens, including the end token. The
    number of positions of the model also limits the output.

    Attributes:
        beam: Beam size: the number of hypotheses that are kept at each step. A beam size of 1 is greedy search.
        length_penalty: Exponent α of the length normalization. 0 disables the normalization.
        n_best: Number of hypotheses that are returned per text, at most the beam size.
        max_length_ratio: Largest number of output tokens per source token, before `max_length_extra` is added.
        max_length_extra: Number of output tokens that are allowed in addition to `source length * max_length_ratio`.
        batch_tokens: Largest product of the beam size and the number of source tokens in a batch, including padding.
        length_norm: Divisor of the log-probability: `((5 + length) / 6)^α` for "gnmt" (Wu et al. 2016, eq. 14), and
            `length^α` for "plain".
        coverage_penalty: Weight β of the coverage penalty (Wu et al. 2016, eq. 14). 0 disables the penalty.
        min_length: Smallest number of output tokens, including the end token.
        no_repeat_ngram: Length n of the n-grams that must not be repeated in an output. 0 allows all repetitions.
        beam_groups: Number of groups in diverse beam search (Vijayakumar et al. 2016), a divisor of the beam size.
        diversity_penalty: Amount subtracted from a candidate's log-probability in the ranking, for each hypothesis of
            an earlier group that continues with the same token.
        refill: Whether the next best candidate takes the beam slot of a finished hypothesis, as in CTranslate2.
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
        """Return the length limit of an output in tokens, including the end token.

        Args:
            source_length: Number of source tokens.
            capacity: Number of positions of the model.

        >>> DecodingConfig().max_length(10, capacity=512)
        70
        """
        return min(capacity, int(source_length * self.max_length_ratio) + self.max_length_extra)


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """The token ids with a special role in decoding.

    Attributes:
        bos_id: Token id that the decoder reads first.
        eos_id: Token id that ends a text.
        banned_ids: Token ids that are never generated.
    """

    bos_id: int
    eos_id: int
    banned_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.eos_id in self.banned_ids:
            raise ValueError(f"banned_ids contains eos_id {self.eos_id}, so no text could end. Remove it")
