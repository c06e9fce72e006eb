"""Texts longer than a model reads at once: cut, or read through windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Long = Literal["cut", "window"]


@dataclass(frozen=True, kw_only=True)
class LongTexts:
    """What becomes of a text of more than `max_tokens` tokens.

    long: "cut" keeps max_tokens of it, half from its start and half from its end, where its verdict often stands (as
    Sun et al. 2019, section 5.3.1). "window" reads all of it through windows of max_tokens tokens that overlap by a
    quarter or more, whose logits are averaged; in training each epoch sees one window of each text, drawn anew.
    """

    max_tokens: int = 256
    long: Long = "cut"

    def __post_init__(self) -> None:
        if self.max_tokens < 4:
            raise ValueError(f"max_tokens={self.max_tokens} must be at least 4")

    def is_long(self, n_tokens: int) -> bool:
        """Whether a text of so many tokens is longer than the model reads at once."""
        return n_tokens > self.max_tokens

    def parts(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """What the model reads of a text: the text itself, what is left of it, or its windows.

        >>> LongTexts(max_tokens=4).parts(range(10)), LongTexts(max_tokens=4, long="window").parts(range(6))
        ([[0, 1, 8, 9]], [range(0, 4), range(2, 6)])
        """
        if not self.is_long(len(ids)):
            return [ids]
        if self.long == "cut":
            return [[*ids[: self._n_head], *ids[len(ids) - self.max_tokens + self._n_head :]]]
        last = len(ids) - self.max_tokens
        n_windows = 1 - (-last // (self.max_tokens - self.max_tokens // 4))
        starts = [last * i // (n_windows - 1) for i in range(n_windows)]
        return [ids[start : start + self.max_tokens] for start in starts]

    def training_part(self, ids: NDArray[Any], draw: float) -> NDArray[Any]:
        """What training reads of a text: as `parts`, but one window, chosen by `draw` in [0, 1) from all there are."""
        if not self.is_long(len(ids)):
            return ids
        if self.long == "cut":
            return np.concatenate([ids[: self._n_head], ids[len(ids) - self.max_tokens + self._n_head :]])
        start = int(draw * (len(ids) - self.max_tokens + 1))
        return ids[start : start + self.max_tokens]

    def summary(self, n_long: int, n_texts: int) -> str:
        """How many texts are longer and what becomes of them, in words.

        >>> LongTexts(max_tokens=256).summary(1200, 25000)
        '1,200 of 25,000 texts have more than 256 tokens; their first 128 and last 128 are kept'
        """
        head, tail = self._n_head, self.max_tokens - self._n_head
        fate = {
            "cut": f"their first {head} and last {tail} are kept",
            "window": f"they are read through windows of {self.max_tokens}",
        }
        return f"{n_long:,} of {n_texts:,} texts have more than {self.max_tokens} tokens; {fate[self.long]}"

    @property
    def _n_head(self) -> int:
        return self.max_tokens // 2
