"""Tokens to text as they are drawn: whole characters only, and nothing that a stop text might still take back."""

import codecs
from collections.abc import Sequence

from attendo.data.tokenizers import Tokenizer


class Spelling:
    """Token ids to text as they come, whole characters only: the pieces together are `decode` of all ids.

    going_on: they go on from a text, so that a space before the first word is one.
    """

    def __init__(self, tokenizer: Tokenizer, going_on: bool) -> None:
        self._bytes_of = tokenizer.bytes_of
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = not going_on and tokenizer.drops_space

    def add(self, token_id: int) -> str:
        """The characters that this token completes, perhaps none."""
        data = self._bytes_of(token_id)
        if data and self._drops_space:
            self._drops_space, data = False, data.removeprefix(b" ")
        return self._characters.decode(data)

    def end(self) -> str:
        """U+FFFD where the text broke off inside of a character, else nothing."""
        return self._characters.decode(b"", final=True)


class Stops:
    """Lets a text through up to the first stop text in it, and holds back what may be the beginning of one.

    The first is the one that is complete first; of those complete at the same character, the longest. How the text is
    cut into pieces changes nothing.

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
        """What may be shown once this piece has come."""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.found, self._held = True, ""
            return text[: min(found)[1]]
        lengths = range(min(len(text), self._longest - 1), 0, -1)
        n_held = next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
        shown = len(text) - n_held
        self._held = text[shown:]
        return text[:shown]

    def end(self) -> str:
        """What was held back, now that no more comes."""
        held, self._held = self._held, ""
        return held
