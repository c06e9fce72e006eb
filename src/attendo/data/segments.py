"""Splitting of long texts into sentences and clauses, and joining of translated parts with the original separators.

Punctuation and its context determine the end of a sentence, without a model and without a language code. An uncertain
sentence end is not used, for example after an abbreviation, inside brackets, or between a question and "he said".
Uncertain ends are only used if a long text must be cut. See docs/decisions/0012 for a comparison with libraries.
"""

import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendo.data.tokenizers import is_spaced

LEAST_TOKENS = 8
"""Shorter sources are not counted for the usual length of a translation."""

_LONGEST = 0.999  # quantiles, so single unusual rows have no effect
_FEWEST = 0.001
_MOST_TOKENS = 1 << 14
_MOST_RATIO = 10
_SHARE_OF_ROWS = 0.001  # minimum share of rows that begin with a word in `Usual.beginnings`
_LEAST_ROWS = 20
_SHARE_OF_USES = 0.99


class Usual(NamedTuple):
    """Typical lengths and sentence beginnings in the training pairs.

    Attributes:
        longest: The source length in tokens that only 1 in 1,000 pairs exceeds.
        fewest: The ratio of target tokens to source tokens that only 1 in 1,000 pairs falls below, for sources of 8 or
            more tokens.
        beginnings: Capitalized words that almost only occur at the beginning of source texts.
    """

    longest: int
    fewest: float = 0.0
    beginnings: tuple[str, ...] = ()


def usual_of(lengths: Iterable[tuple[NDArray[Any], NDArray[Any]]], sources: Iterable[str]) -> Usual:
    """Compute typical lengths from source and target lengths in tokens, and typical first words from source texts.

    >>> usual_of([(np.array([10, 20, 30]), np.array([9, 10, 33]))], ["A dog sees a cat", "In Rome"] * 20)
    Usual(longest=30, fewest=0.5, beginnings=('A', 'In'))
    """
    longest = np.zeros(_MOST_TOKENS + 1, np.int64)
    ratios = np.zeros(100 * _MOST_RATIO + 1, np.int64)
    for source, target in lengths:
        longest += np.bincount(np.minimum(source, _MOST_TOKENS), minlength=len(longest))
        long = source >= LEAST_TOKENS
        found = np.minimum(100 * target[long] // source[long], 100 * _MOST_RATIO)
        ratios += np.bincount(found, minlength=len(ratios))
    return Usual(_quantile(longest, _LONGEST), _quantile(ratios, _FEWEST) / 100, _beginnings(sources))


def _quantile(counts: NDArray[np.int64], share: float) -> int:
    """Return the smallest number at or below which the given share of all counted values is, or 0 without values."""
    return int(np.searchsorted(np.cumsum(counts), share * counts.sum())) if counts.any() else 0


def _beginnings(texts: Iterable[str]) -> tuple[str, ...]:
    first = Counter[str]()
    every = Counter[str]()
    n = 0
    for text in texts:
        words = text.split()
        first.update(words[:1])
        every.update(words)
        n += 1
    return tuple(
        sorted(
            word
            for word, times in first.items()
            if word[0].isupper() and times >= max(_LEAST_ROWS, _SHARE_OF_ROWS * n, _SHARE_OF_USES * every[word])
        )
    )


Segment = Literal["sentence", "paragraph", "none"]
"""The unit that is translated at once: a sentence, a line ("paragraph"), or the whole text ("none")."""

Rank = Literal[0, 1, 2, 3]
SENTENCE, DOUBTFUL, PAUSE, SPACE = 0, 1, 2, 3
"""The ranks of possible cuts, best first: certain end of a sentence, possible end, comma or similar mark, space."""

_FULL_STOPS: Final = "。｡．！？︒‼⁇⁈⁉।॥።။។؟۔"  # no space is needed after them
_STOPS: Final = ".!?…" + _FULL_STOPS
_OPENING, _CLOSING = "「『（([{［｛【〈《〔〖｢", "」』）)\\]}］｝】〉》〕〗｣"
_QUOTES: Final = "\"'”’»›“‘«‹„‚"
_PAUSES: Final = ",;:–—"  # with a space after them
_FULL_PAUSES: Final = "、，､；：،؛፣፤༌།―"
_BREAKS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_LINE_BREAKS: Final = frozenset(_BREAKS)
_SPACES: Final = re.compile(r"\s+")
_MAYBE_ENDS: Final = re.compile(rf"[{_STOPS}{_BREAKS}][^{_STOPS}{_BREAKS}]*[^{_STOPS}{_BREAKS}{_CLOSING}{_QUOTES}\s]")
_MARKS: Final = re.compile(
    rf"(?P<stop>[{_STOPS}]+)(?P<closed>(?:[{_CLOSING}{_QUOTES}*_]|\s»(?=\s|$))*)"
    rf"|(?P<pause>[{_PAUSES}{_FULL_PAUSES}])|(?P<space>\s+)|[{re.escape(_OPENING)}{_CLOSING}]"
)
_GAP: Final = re.compile(r"\s*")
_BEGINNING: Final = re.compile(rf"[{re.escape(_OPENING)}{_QUOTES}¿¡*_–—-]*(?:(?<=[–—-])\s)?(?P<first>.?)", re.DOTALL)
_TOKENIZED: Final = 0.2  # share of spaces above which a text has spaces between words, in any script
_HIRAGANA: Final = re.compile("[\u3041-\u309f、，,]")  # continues a sentence after a quotation
_WORD: Final = re.compile(r"[^\s(\[{\"'“‘«„/–—-]*\Z")
_INITIALS: Final = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]|\d{1,2}")

_TITLES: Final = (
    "mr mrs ms dr prof st rev hon gen col capt cmdr lt sgt maj gov sen rep pres jr sr vs etc al approx dept est inc ltd"
    " co corp mt ave blvd rd jan feb apr jun jul aug sept oct nov dec tues thurs cf viz ca ph.d phd messrs mme mlle bzw"
    " usw dipl ing str ggf evtl inkl zzgl vgl hr fr sra srta dra ud uds pág sig dott avv ecc bijv dhr mevr np tzn ul"
    " godz např tj atd tzv г гг ул им тыс млн млрд руб рис см напр стр"
)
_NUMBERED: Final = "no nos nr fig figs eq eqs sec secs ch chap vol vols pp art abb tab abs n°"
_ABBREVIATIONS, _BEFORE_NUMBERS = frozenset(_TITLES.split()), frozenset(_NUMBERED.split())


@dataclass(frozen=True)
class Segments:
    """The parts of a text without outer white space, and the separators before, between and after them.

    >>> Segments(("It rains.", "It pours."), ("", "  ", "\\n")).text
    'It rains.  It pours.\\n'
    """

    pieces: tuple[str, ...]
    separators: tuple[str, ...]

    @property
    def text(self) -> str:
        return self._between(self.pieces, self.separators)

    def joined(self, texts: Sequence[str], spaced: bool | None = None) -> str:
        """Join one text per part, for example translations, with the separators of the original text.

        If only one of the two languages uses spaces between words, plain spaces are inserted or removed. `spaced`
        states whether `texts` use spaces (default: detected).

        >>> japanese = split_sentences("雨だ。風も強い。")
        >>> japanese.joined(["It rains.", "It is windy."]), japanese.joined(japanese.pieces)
        ('It rains. It is windy.', '雨だ。風も強い。')
        """
        if len(texts) != len(self.pieces):
            raise ValueError(f"{len(texts)} texts for {len(self.pieces)} pieces (expected one each)")
        was_spaced = _spaced(self.pieces)
        if spaced is None:
            spaced = _spaced(texts)
        first, last = self.separators[:1], self.separators[1:][-1:]
        inner = self.separators[1:-1]
        if was_spaced is not None and spaced is not None and was_spaced != spaced:
            inner = [gap or " " if spaced or gap.strip(" \u00a0") else "" for gap in inner]
        return self._between(texts, (*first, *inner, *last))

    @staticmethod
    def _between(texts: Sequence[str], separators: Sequence[str]) -> str:
        return separators[0] + "".join(text + gap for text, gap in zip(texts, separators[1:], strict=True))


class Cut(NamedTuple):
    """A possible cut in a text: a part ends at `end`, the next part starts at `start`, with white space in between."""

    end: int
    start: int
    rank: Rank


def split_sentences(text: str) -> Segments:
    """Split a text into sentences. A line break always ends a sentence.

    Args:
        text: A text in any language.

    Returns:
        The sentences, and the white space around them.

    >>> split_sentences("Dr. Li saw 3.5 mm. (Snow fell.) Why?").pieces
    ('Dr. Li saw 3.5 mm.', '(Snow fell.)', 'Why?')
    >>> split_sentences("「雨だ。」と彼は言った。本当か？そうだ。").pieces
    ('「雨だ。」と彼は言った。', '本当か？', 'そうだ。')
    """
    return _segments(text, _sentence_cuts(text))


def split_text(
    text: str,
    limit: int,
    n_tokens: Callable[[str], int],
    segment: Segment = "sentence",
    beginnings: tuple[str, ...] = (),
) -> Segments:
    """Split a text into sentences or lines, and split parts of more than `limit` tokens further.

    A line or a whole text above the limit is split into its sentences. A sentence above the limit is split into parts
    of about equal size, if possible at a possible end of a sentence, a comma or a space. A part exceeds the limit only
    if it is a single character with more tokens.

    `n_tokens` counts the tokens of a text. `segment` is the unit: "sentence", "paragraph" (a line) or "none" (the whole
    text). `beginnings` are words that begin a sentence even without an end mark before them (`Usual.beginnings`).
    Raises ValueError if the limit is below 1.

    >>> split_text("a b, c d e f", 4, n_tokens=lambda piece: len(piece.split())).pieces
    ('a b,', 'c d e f')
    >>> split_text("雪が山に積もった", 3, n_tokens=len).pieces
    ('雪が山', 'に積も', 'った')
    >>> split_text("One. Two.\\nThree.", 20, len, "paragraph").pieces
    ('One. Two.', 'Three.')
    """
    if limit < 1:
        raise ValueError(f"limit={limit} must be at least 1")
    found = _segments(text, _line_cuts(text) if segment == "paragraph" else ())
    found = _finer(
        found,
        lambda unit: _sentence_cuts(unit, beginnings) if segment == "sentence" or n_tokens(unit) > limit else (),
    )
    return _finer(found, lambda sentence: _fitted(sentence, limit, n_tokens))


def _finer(segments: Segments, cuts_of: Callable[[str], Iterable[Cut]]) -> Segments:
    """Return the same text, with each part cut further."""
    each = [list(cuts_of(piece)) for piece in segments.pieces]
    if not any(each):
        return segments
    places, position = [], len(segments.separators[0])
    for piece, own, gap in zip(segments.pieces, each, segments.separators[1:], strict=True):
        places += [Cut(position + cut.end, position + cut.start, cut.rank) for cut in own]
        end = position + len(piece)
        position = end + len(gap)
        places.append(Cut(end, position, SENTENCE))
    return _segments(segments.text, places[:-1])


def _sentence_cuts(text: str, beginnings: tuple[str, ...] = ()) -> list[Cut]:
    """Return the certain ends of sentences. A quick search first skips texts whose only mark is at the end."""
    found = [cut for cut in cuts(text) if cut.rank == SENTENCE] if _MAYBE_ENDS.search(text) else []
    if beginnings:
        found = sorted({*found, *(Cut(*gap.span(), SENTENCE) for gap in _before(beginnings).finditer(text))})
    return found


@lru_cache(maxsize=8)
def _before(beginnings: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for white space before one of `beginnings` and a lowercase word (not "Black Forest")."""
    return re.compile(rf"(?<=\w)\s+(?=(?:{'|'.join(map(re.escape, beginnings))})\s+[^\W\d_A-Z])")


def _line_cuts(text: str) -> list[Cut]:
    body = text.rstrip()
    gaps = _SPACES.finditer(body, len(body) - len(body.lstrip()))
    return [Cut(*gap.span(), SENTENCE) for gap in gaps if not _LINE_BREAKS.isdisjoint(gap[0])]


def cuts(text: str) -> list[Cut]:
    """Return all possible cuts at punctuation marks or spaces within a text, in order.

    >>> [(text[:cut.end], cut.rank) for text in ["a, b. C"] for cut in cuts(text)]
    [('a,', 2), ('a, b.', 1)]
    """
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    return [cut for cut in _marked(text) if first < cut.end < last]


def _marked(text: str) -> Iterator[Cut]:
    depth, done = 0, 0  # depth of brackets; a space after a mark is not a separate place
    uncased = text.islower()  # then a lowercase letter may begin a sentence
    for mark in _MARKS.finditer(text):
        if mark.start() < done:
            continue
        found, closed = mark[0], mark["closed"] or ""
        depth = max(0, depth + sum((c in _OPENING) - (c in _CLOSING) for c in closed or found))
        end = mark.start() if mark["space"] else mark.end()
        gap = _GAP.match(text, end)
        assert gap is not None  # it also matches empty text
        start = gap.end()
        rank = _rank(text, mark, start, uncased)
        if not _LINE_BREAKS.isdisjoint(gap[0]):
            rank, depth = SENTENCE, 0
        elif rank == SENTENCE and depth:
            rank = DOUBTFUL
        if rank is not None:
            done = start
            yield Cut(end, start, rank)


def _rank(text: str, mark: re.Match[str], start: int, uncased: bool) -> Rank | None:
    """Return the rank of a cut after this mark, or None if no cut is possible. The text continues at `start`."""
    gap = start > mark.end() or mark["space"]
    if mark["stop"]:
        beginning = _BEGINNING.match(text, start)  # only here: slow for rows of brackets
        return _stop_rank(text, mark, bool(gap), beginning["first"] if beginning else "", uncased)
    if mark["pause"]:
        wide = mark["pause"] in _FULL_PAUSES
        return PAUSE if gap or (wide and not text[start : start + 1].isdigit()) else None
    return SPACE if gap else None


def _stop_rank(text: str, mark: re.Match[str], gap: bool, first: str, uncased: bool) -> Rank | None:
    stop, closed = mark["stop"], mark["closed"]
    full = any(c in _FULL_STOPS for c in stop)
    if not gap and not full and not (stop[-1] in "!?" and _is_unspaced(first)):
        return None
    if not gap and stop[-1] == "．" and first.isdigit():
        return None
    if closed and not gap and _HIRAGANA.match(text, mark.end()):
        return DOUBTFUL
    if not full and first.islower() and (closed or not uncased):
        return DOUBTFUL
    return DOUBTFUL if stop == "." and _is_abbreviation(text, mark.start(), first) else SENTENCE


def _is_abbreviation(text: str, end: int, first: str) -> bool:
    """Return whether the word that ends here usually has a period, like a title, an initial or a short number."""
    found = _WORD.search(text[max(0, end - 12) : end])
    word = found[0].lower() if found else ""
    if word in _BEFORE_NUMBERS:
        return first.isdigit()
    return word in _ABBREVIATIONS or (_INITIALS.fullmatch(word) is not None and not _is_unspaced(word[-1:]))


def _is_unspaced(character: str) -> bool:
    return character.isalpha() and not is_spaced([character])


def _segments(text: str, places: Sequence[Cut]) -> Segments:
    body = text.strip()
    if not body:
        return Segments((), (text,))
    begin = text.index(body[0])
    starts = [begin, *(cut.start for cut in places)]
    ends = [*(cut.end for cut in places), begin + len(body)]
    gaps = [text[end:start] for end, start in zip(ends, [*starts[1:], len(text)], strict=True)]
    pieces = tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
    return Segments(pieces, (text[:begin], *gaps))


def _fitted(sentence: str, limit: int, n_tokens: Callable[[str], int]) -> Iterator[Cut]:
    """Yield the cuts that leave no part above `limit` tokens, or nothing if the sentence fits."""
    total = n_tokens(sentence)
    if total <= limit:
        return
    # parts of similar size: a last part of only two words would lack context
    aim = min(limit, math.ceil(1.15 * total / math.ceil(total / limit)))
    places = cuts(sentence)
    ends = [cut.end for cut in places]
    start = 0
    while (far := _reach(sentence, start, aim, n_tokens)) < len(sentence):
        cut = _best(sentence, start, far, places, ends)
        while cut.end > start + 1 and n_tokens(sentence[start : cut.end]) > limit:
            cut = _best(sentence, start, cut.end - 1, places, ends)
        yield cut
        start = cut.start


def _reach(text: str, start: int, limit: int, n_tokens: Callable[[str], int]) -> int:
    """Return the furthest end of a part that starts here and is within the limit, but at least one character."""
    low, size = start + 1, limit
    while (end := min(start + size, len(text))) > low and n_tokens(text[start:end]) <= limit:
        if end == len(text):
            return end
        low, size = end, 2 * size
    high = max(low + 1, end)
    while high - low > 1:
        middle = (low + high) // 2
        if n_tokens(text[start:middle]) <= limit:
            low = middle
        else:
            high = middle
    return low


def _best(text: str, start: int, far: int, places: Sequence[Cut], ends: Sequence[int]) -> Cut:
    """Return the best cut between `start` and `far`. Good cuts that are not near the start are preferred."""
    here = places[bisect_right(ends, start) : bisect_right(ends, far)]
    late = here[bisect_left([cut.end for cut in here], start + 0.4 * (far - start)) :]
    if late:
        return min(reversed(late), key=lambda cut: cut.rank)
    if here:
        return min(reversed(here), key=lambda cut: cut.rank == SPACE)
    end = far
    while end > start + 1 and _belongs_to_the_last(text, end):
        end -= 1
    end = far if _belongs_to_the_last(text, end) else end
    return Cut(end, end, SPACE)


def _belongs_to_the_last(text: str, at: int) -> bool:
    """Return whether this character combines with the previous one, like an accent, a vowel sign or a joined emoji."""
    joiner, modifiers = "\u200d", ("\U0001f3fb", "\U0001f3ff")
    character = text[at : at + 1]
    return bool(character) and (
        unicodedata.category(character).startswith("M")
        or joiner in (character, text[at - 1])
        or modifiers[0] <= character <= modifiers[1]
    )


def _spaced(texts: Sequence[str]) -> bool | None:
    """Return whether these texts have spaces between words, by script or share of spaces, or None without letters."""
    if not any(c.isalpha() for text in texts for c in text):
        return None
    n_spaces = sum(text.count(" ") for text in texts)
    return is_spaced(texts) or n_spaces > _TOKENIZED * sum(map(len, texts))
