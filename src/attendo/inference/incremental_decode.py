"""Incremental conversion of tokens to text, in whole characters and without the beginning of a stop text."""

import codecs
from collections.abc import Iterable, Iterator, Sequence

from attendo.data.segments import Segments
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.searcher import Found


class TextAsFound:
    """A translation in progress. The concatenated results of `add` equal `segments.joined` of all parts.

    Unless both languages use spaces, the separator of two sentences depends on the script of the whole translation. The
    text after an undecided separator is held back until all parts have ended.
    """

    def __init__(self, segments: Segments, tokenizer: Tokenizer) -> None:
        n = len(segments.pieces)
        self._segments = segments
        self._spellings = [Spelling(tokenizer, going_on=False) for _ in range(n)]
        self._texts = [""] * n
        self._ended = [False] * n
        self._gaps, self._n_sure = _sure_gaps(segments)
        self._current = 0
        self._n_in_current = 0
        self._n_shown = 0

    def add(self, part: int, token_ids: Sequence[int], ends: bool) -> str:
        """Add tokens of a part, and return the new text that can be shown. `ends` marks the last tokens of the part."""
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
            self._current = self._current + 1
            self._n_in_current = 0
            piece += self._gaps[self._current]


def text_as_found(found: Iterable[Found], segments: Segments, tokenizer: Tokenizer) -> Iterator[str]:
    """Return an iterator over the non-empty results of `TextAsFound.add`. Tokens of different parts can alternate."""
    text = TextAsFound(segments, tokenizer)
    return filter(None, (text.add(*tokens) for tokens in found))


def _sure_gaps(segments: Segments) -> tuple[list[str], int]:
    """Return the separators, and the number of leading separators that do not depend on the translation."""
    marks = ["\0"] * len(segments.pieces)  # neither letters nor white space
    kinds = [segments.joined(marks, spaced).split("\0") for spaced in (None, True, False)]
    sure = [len(set(found)) == 1 for found in zip(*kinds, strict=True)]
    return kinds[0], sure.index(False) if False in sure else len(sure)


class Spelling:
    """An incremental converter of token ids to whole characters. All results together equal `decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer, going_on: bool) -> None:
        self._bytes_of = tokenizer.bytes_of
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = not going_on and tokenizer.drops_space

    def add(self, token_id: int) -> str:
        """Add a token, and return the characters that the token completes, possibly none."""
        data = self._bytes_of(token_id)
        if data and self._drops_space:
            self._drops_space = False
            data = data.removeprefix(b" ")
        return self._characters.decode(data)

    def end(self) -> str:
        """Return U+FFFD if the text ends within a character, otherwise an empty string."""
        return self._characters.decode(b"", final=True)


class Stops:
    """A filter that ends a text before its first stop text, and holds back possible beginnings of a stop text.

    The stop text that is completed first ends the output. If several stop texts are completed at the same character,
    the longest is removed. The result does not depend on how the text is split into pieces.

    >>> stops = Stops(("END",))
    >>> stops.add("the E"), stops.add("N"), stops.add("V"), stops.add("ENDs"), stops.found
    ('the ', '', 'ENV', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=1)
        self._held = ""
        self.found = False

    def add(self, piece: str) -> str:
        """Add a piece of text, and return the new text that can be shown."""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.found = True
            self._held = ""
            return text[: min(found)[1]]
        lengths = range(min(len(text), self._longest - 1), 0, -1)
        n_held = next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
        shown = len(text) - n_held
        self._held = text[shown:]
        return text[:shown]

    def end(self) -> str:
        """End the text, and return the text that was held back."""
        held = self._held
        self._held = ""
        return held
