"""Properties of texts, computed from their characters: script, unusual invisible characters, and letter profile.

All functions process a batch of texts as concatenated code points, in linear time.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attendo.data.languages import UNSPACED, Seen, language_of

# Blocks of letters per script, each with its first and last code point. Digits, punctuation and spaces have no script.
_BLOCKS: dict[str, tuple[tuple[int, int], ...]] = {
    "Latin": (
        *((0x41, 0x5A), (0x61, 0x7A), (0xAA, 0xAA), (0xBA, 0xBA), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x2AF)),
        *((0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF), (0xAB30, 0xAB6F)),
        *((0xFF21, 0xFF3A), (0xFF41, 0xFF5A)),
    ),
    "Greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "Cyrillic": ((0x400, 0x52F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F)),
    "Armenian": ((0x530, 0x58F),),
    "Georgian": ((0x10A0, 0x10FF), (0x1C90, 0x1CBF), (0x2D00, 0x2D2F)),
    "Han": (
        *((0x2E80, 0x2FDF), (0x3005, 0x3005), (0x3007, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF)),
        *((0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
    ),
    # Kana, which only Japanese uses; Han characters between Kana also count as Japanese
    "Japanese": ((0x3041, 0x30FA), (0x30FC, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    "Hangul": ((0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF)),
    # The following scripts use joiners, direction marks or zero-width spaces.
    "Hebrew": ((0x590, 0x5FF), (0xFB1D, 0xFB4F)),
    "Arabic": ((0x600, 0x6FF), (0x750, 0x77F), (0x8A0, 0x8FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC)),
    "Syriac": ((0x700, 0x74F),),
    "Devanagari": ((0x900, 0x97F), (0xA8E0, 0xA8FF)),
    "Bengali": ((0x980, 0x9FF),),
    "Gurmukhi": ((0xA00, 0xA7F),),
    "Gujarati": ((0xA80, 0xAFF),),
    "Oriya": ((0xB00, 0xB7F),),
    "Tamil": ((0xB80, 0xBFF),),
    "Telugu": ((0xC00, 0xC7F),),
    "Kannada": ((0xC80, 0xCFF),),
    "Malayalam": ((0xD00, 0xD7F),),
    "Sinhala": ((0xD80, 0xDFF),),
    "Thai": ((0xE00, 0xE7F),),
    "Lao": ((0xE80, 0xEFF),),
    "Tibetan": ((0xF00, 0xFFF),),
    "Myanmar": ((0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F)),
    "Ethiopic": ((0x1200, 0x139F), (0x2D80, 0x2DDF)),
    "Khmer": ((0x1780, 0x17FF),),
    "Mongolian": ((0x1800, 0x180D), (0x180F, 0x18AF)),
}
SCRIPTS = ("none", *_BLOCKS)
"""Script names by code. Code 0, "none", is for a text with too few letters or without one script for most letters."""

FEWEST_LETTERS = 4
"""The minimum number of letters for a text to have a script. Shorter texts such as "OK" do not identify a script."""

USUAL_SHARE = 0.8
"""The share of a column's texts that must have the same script. Only then can another text have a wrong script."""

FEWEST_GAPS = 2
LONGEST_PIECE = 8
"""A text has spaces between words if it has at least 2 spaces between letters, and at most 8 letters per such space.
Words have 2 to 5 letters and phrases 20 to 40. A title or a name may also contain a single space.
"""

HAN = SCRIPTS.index("Han")
JAPANESE = SCRIPTS.index("Japanese")
FIRST_JOINING = SCRIPTS.index("Hebrew")
_EMOJI, _INVISIBLE, _CONTROL = range(len(SCRIPTS), len(SCRIPTS) + 3)
_N_CLASSES = len(SCRIPTS) + 3
_UNSPACED = [SCRIPTS.index(name) for name in UNSPACED]
_EMOJI_BLOCKS = ((0x2190, 0x21FF), (0x2300, 0x23FF), (0x2600, 0x27BF), (0x2B00, 0x2BFF), (0x1F000, 0x1FAFF))
_INVISIBLE_BLOCKS = ((0x200B, 0x200F),)  # zero-width space, joiners, direction marks: valid in some scripts
_CONTROL_BLOCKS = (
    *((0x01, 0x08), (0x0B, 0x0C), (0x0E, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x180E, 0x180E)),
    *((0x2028, 0x202E), (0x2060, 0x206F), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFD), (0xFFFE, 0xFFFF)),
)  # C0 except tab and line breaks, C1, soft hyphen, line separators, embedded directions, word joiners, U+FFFD

_BUCKETS = 1 << 16
_END = "\n\n"  # ends each text, so no trigram crosses two texts
_LINE_FEED = 10
_SPACE = 32


@dataclass(frozen=True)
class CodePoints:
    """The code points of a batch of texts, uint32 `[chars]`. Two line feeds follow each text.

    `owner` is the index of the text that contains each code point, int64 `[chars]`.
    """

    codes: np.ndarray
    owner: np.ndarray
    n_texts: int


def code_points(texts: Sequence[str]) -> CodePoints:
    """Return a batch of texts as concatenated code points."""
    joined = _END.join(texts) + _END
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    lengths = np.fromiter(map(len, texts), np.int64, len(texts)) + len(_END)
    return CodePoints(codes, np.repeat(np.arange(len(texts)), lengths), len(texts))


def scripts_and_controls(points: CodePoints) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the script code (uint8), the number of letters and whether there are unusual characters, each `[texts]`.

    Han characters count as Japanese if at least a tenth of all Han and Kana characters are Kana. Unusual characters are
    control characters, and zero-width or direction marks in a text without emoji or a script that needs them.

    >>> found, letters, odd = scripts_and_controls(code_points(["it rains", "雨が降る", "a\\u200bb"]))
    >>> [SCRIPTS[code] for code in found], letters.tolist(), odd.tolist()
    (['Latin', 'Japanese', 'none'], [7, 4, 2], [False, False, True])
    """
    keys = points.owner * _N_CLASSES + _class_table()[points.codes]
    counts = np.bincount(keys, minlength=points.n_texts * _N_CLASSES).reshape(points.n_texts, _N_CLASSES)
    joining = counts[:, FIRST_JOINING : _EMOJI + 1].any(1)
    odd = (counts[:, _CONTROL] > 0) | ((counts[:, _INVISIBLE] > 0) & ~joining)
    letters = counts[:, : len(SCRIPTS)].copy()
    letters[:, 0] = 0
    cjk = letters[:, HAN] + letters[:, JAPANESE]
    japanese = letters[:, JAPANESE] * 10 >= np.maximum(cjk, 1)
    letters[:, JAPANESE] = np.where(japanese, cjk, 0)
    letters[:, HAN] = np.where(japanese, 0, cjk)
    total = letters.sum(1)
    winner = letters.argmax(1)
    clear = (total >= FEWEST_LETTERS) & (letters.max(1) * 2 > total)
    return np.where(clear, winner, 0).astype(np.uint8), total, odd


def words_apart(points: CodePoints, n_letters: np.ndarray) -> np.ndarray:
    """Return whether each text has spaces between words although its script uses none, bool `[texts]`.

    `n_letters` is the number of letters of each text, as `scripts_and_controls` returns it.

    >>> texts = ["私 は 学校 に 行く", "雨です。 明日は晴れ", "東京 大阪", "it will rain", "비가 올 것 이다"]
    >>> words_apart(points := code_points(texts), scripts_and_controls(points)[1]).tolist()
    [True, False, False, False, False]
    """
    spaces = np.flatnonzero(points.codes == _SPACE)
    before, behind = (_class_table()[points.codes[spaces + step]] for step in (-1, 1))
    gaps = spaces[np.isin(before, _UNSPACED) & np.isin(behind, _UNSPACED)]
    n_gaps = np.bincount(points.owner[gaps], minlength=points.n_texts)
    return (n_gaps >= FEWEST_GAPS) & (n_gaps * LONGEST_PIECE >= n_letters)


def usual_script(counts: np.ndarray) -> tuple[int, float]:
    """Return the most frequent script code of a column with its share. The code is 0 if the share is below USUAL_SHARE.

    `counts` is the number of texts of each script.
    """
    counts = counts.copy()
    if counts[JAPANESE] > counts[HAN]:  # a short Japanese text may contain no Kana
        counts[JAPANESE] += counts[HAN]
        counts[HAN] = 0
    counts[0] = 0
    code = int(counts.argmax())
    share = float(counts[code] / max(counts.sum(), 1))
    return (code, share) if share >= USUAL_SHARE else (0, share)


def seen_in(texts: Sequence[str]) -> Seen:
    """Detect the usual script and the language of texts, each "" if it is unclear.

    >>> seen_in(["it rains", "it snows"]), seen_in(["12:30"])
    (Seen(script='Latin', language=''), Seen(script='', language=''))
    """
    codes, _, _ = scripts_and_controls(code_points(texts))
    code, _ = usual_script(np.bincount(codes, minlength=len(SCRIPTS)))
    return Seen(SCRIPTS[code] if code else "", language_of(texts))


def letter_profile(sources: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    """Return weights that distinguish source from target texts: log p(trigram | source) / p(trigram | target).

    The weights are float64 `[65536]`. Trigrams are hashed into 65,536 buckets, and 0.5 is added to each count.
    """
    counts = []
    for texts in (sources, targets):
        points = code_points(texts)
        inside = points.codes[:-2] != _LINE_FEED
        counts.append(np.bincount(_trigram_buckets(points)[inside], minlength=_BUCKETS) + 0.5)
    return np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())


def profile_scores(points: CodePoints, profile: np.ndarray) -> np.ndarray:
    """Return the log-odds in nats that each text is a source (positive) or a target (negative), float64 `[texts]`."""
    weights = profile[_trigram_buckets(points)]
    weights[points.codes[:-2] == _LINE_FEED] = 0.0
    return np.bincount(points.owner[:-2], weights, minlength=points.n_texts)


def _trigram_buckets(points: CodePoints) -> np.ndarray:
    first, second, third = points.codes[:-2], points.codes[1:-1], points.codes[2:]
    mixed = first * np.uint32(0x9E3779B1)
    mixed ^= second * np.uint32(0x85EBCA6B)
    mixed ^= third * np.uint32(0xC2B2AE35)
    return mixed >> np.uint32(16)


@functools.cache
def _class_table() -> np.ndarray:
    """Return the class of each code point, uint8 `[0x110000]`: a script code, emoji, invisible, control, or 0."""
    table = np.zeros(0x110000, np.uint8)
    classes = [(SCRIPTS.index(name), blocks) for name, blocks in _BLOCKS.items()]
    classes += [(_EMOJI, _EMOJI_BLOCKS), (_INVISIBLE, _INVISIBLE_BLOCKS), (_CONTROL, _CONTROL_BLOCKS)]
    for code, blocks in classes:
        for first, last in blocks:
            table[first : last + 1] = code
    return table
