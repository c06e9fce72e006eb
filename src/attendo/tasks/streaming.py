"""A translation as it is written: pieces of text, while the tokens of its parts are still being found."""

from collections.abc import Iterable, Iterator

from attendo.data.segments import Segments
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.streaming import Found
from attendo.tasks.spelling import Spelling


def text_as_found(found: Iterable[Found], segments: Segments, tokenizer: Tokenizer) -> Iterator[str]:
    """Pieces of whole characters, none empty, as soon as they are sure; together they are `segments.joined`.

    found: the tokens of the parts, which may come side by side; a part is shown when those before it have ended. What
    stands between two sentences depends on the script of the whole translation, if source and translation do not both
    put spaces between words; where it does, what follows comes when all parts have ended. A line break never does.
    """
    n = len(segments.pieces)
    spellings, texts, ended = [Spelling(tokenizer, going_on=False) for _ in range(n)], [""] * n, [False] * n
    gaps, n_sure = _sure_gaps(segments)
    current, n_in_current, n_shown = 0, 0, 0
    for number, token_ids, ends in found:
        spelling = spellings[number]
        texts[number] += "".join(map(spelling.add, token_ids))
        if ends:
            texts[number] += spelling.end()
            ended[number] = True
        if all(ended):
            piece = segments.joined(texts)[n_shown:]
        else:
            piece = "" if n_shown else gaps[0]
            while True:
                piece += texts[current][n_in_current:]
                n_in_current = len(texts[current])
                if not ended[current] or current + 1 >= n_sure:
                    break
                current, n_in_current = current + 1, 0
                piece += gaps[current]
        n_shown += len(piece)
        if piece:
            yield piece


def _sure_gaps(segments: Segments) -> tuple[list[str], int]:
    """What stands around the parts, and how many of these from the first do not depend on the translation."""
    marks = ["\0"] * len(segments.pieces)  # no letters, and no white space
    kinds = [segments.joined(marks, spaced).split("\0") for spaced in (None, True, False)]
    sure = [len(set(found)) == 1 for found in zip(*kinds, strict=True)]
    return kinds[0], sure.index(False) if False in sure else len(sure)
