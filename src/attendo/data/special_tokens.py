"""The ids that stand for no text, and where a model wants them: around what it reads and before what it writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Around = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids before a text, and those behind it."""


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The special ids of a tokenizer; unless given, those of attendo's own.

    unk_id, mask_id: -1 where there is none. bos_id: where before_prompt is empty, the first id of an empty prompt and
    of a whole document.
    no_target: stands in a batch's targets where nothing is to be predicted; no id of a text. around_source: of what a
    translator's encoder reads; around_text: of what an encoder that stands alone reads. begin: what a translator's
    decoder starts with, the last of them the first that is followed by text. before_prompt: what the tokenizer puts
    before a language model's prompt; nothing for GPT-2, SmolLM and Qwen.

    >>> OWN.source([7, 8]), OWN.text([7, 8]), OWN.prompt([7, 8])
    ([7, 8, 3], [2, 7, 8], [2, 7, 8])
    """

    pad_id: int = 0
    unk_id: int = 1
    bos_id: int = 2
    eos_id: int = 3
    mask_id: int = 1
    no_target: int = 0
    around_source: Around = ((), (3,))
    around_text: Around = ((2,), ())
    begin: tuple[int, ...] = (2,)
    before_prompt: tuple[int, ...] = (2,)

    def source(self, ids: Sequence[int]) -> list[int]:
        """A text as a translator's encoder reads it."""
        before, behind = self.around_source
        return [*before, *ids, *behind]

    def text(self, ids: Sequence[int]) -> list[int]:
        """A text as an encoder that stands alone reads it."""
        before, behind = self.around_text
        return [*before, *ids, *behind]

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """A text as a language model reads it, which needs one id at least.

        >>> SpecialTokens(bos_id=9, before_prompt=()).prompt([]), SpecialTokens(before_prompt=()).prompt([7])
        ([9], [7])
        """
        return [*self.before_prompt, *ids] or [self.bos_id]

    @property
    def opening(self) -> int:
        """The id before a whole document in training and scoring, so that its first token has a probability, too."""
        return self.prompt(())[-1]

    @property
    def n_around_source(self) -> int:
        """Ids around a source."""
        return sum(map(len, self.around_source))

    @property
    def n_around_text(self) -> int:
        """Ids around a text."""
        return sum(map(len, self.around_text))

    @property
    def n_reserved(self) -> int:
        """The most places of a translator's positions that its texts can't have, on either side."""
        return max(self.n_around_source, len(self.begin))


OWN: Final = SpecialTokens()
