"""A translation as it is written: pieces of text, while the tokens of its parts are still being found."""

from collections.abc import Iterable, Iterator, Sequence

from attendo.data.segments import Segments
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.searcher import Found
from attendo.inference.incremental_decode import Spelling


class TextAsFound:
    """A translation while it is written: `add` gives the next piece of whole characters as soon as it is sure.

    Together the pieces are `segments.joined`. A part is shown when those before it have ended. What stands between two
    sentences depends on the script of the whole translation, if source and translation do not both put spaces between
    words; where it does, what follows comes when all parts have ended. A line break never does.
    """

    def __init__(self, segments: Segments, tokenizer: Tokenizer) -> None:
        n = len(segments.pieces)
        self._segments = segments
        self._spellings = [Spelling(tokenizer, going_on=False) for _ in range(n)]
        self._texts, self._ended = [""] * n, [False] * n
        self._gaps, self._n_sure = _sure_gaps(segments)
        self._current, self._n_in_current, self._n_shown = 0, 0, 0

    def add(self, part: int, token_ids: Sequence[int], ends: bool) -> str:
        """What may be shown, perhaps nothing, once a part has these tokens more, and has come to its end with them."""
        spelling = self._spellings[part]
        self._texts[part] += "".join(map(spelling.add, token_ids))
        if ends:
            self._texts[part] += spelling.end()
            self._ended[part] = True
        piece = self._segments.joined(self._texts)[self._n_shown :] if all(self._ended) else self._sure()
        self._n_shown += len(piece)
        return piece

    def _sure(self) -> str:
        piece = "" if self._n_shown else self._gaps[0]
        while True:
            text = self._texts[self._current]
            piece += text[self._n_in_current :]
            self._n_in_current = len(text)
            if not self._ended[self._current] or self._current + 1 >= self._n_sure:
                return piece
            self._current, self._n_in_current = self._current + 1, 0
            piece += self._gaps[self._current]


def text_as_found(found: Iterable[Found], segments: Segments, tokenizer: Tokenizer) -> Iterator[str]:
    """The pieces of `TextAsFound`, none empty. found: the tokens of the parts, which may come side by side."""
    text = TextAsFound(segments, tokenizer)
    return filter(None, (text.add(*tokens) for tokens in found))


def _sure_gaps(segments: Segments) -> tuple[list[str], int]:
    """What stands around the parts, and how many of these from the first do not depend on the translation."""
    marks = ["\0"] * len(segments.pieces)  # no letters, and no white space
    kinds = [segments.joined(marks, spaced).split("\0") for spaced in (None, True, False)]
    sure = [len(set(found)) == 1 for found in zip(*kinds, strict=True)]
    return kinds[0], sure.index(False) if False in sure else len(sure)
