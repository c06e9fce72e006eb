"""The training of tokenizers. Equal texts and settings result in byte-identical files."""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.trainers import BpeTrainer

from attendo.data.tokenizers import (
    BYTES,
    MARK,
    SPECIALS,
    Kind,
    LearnedTokenizer,
    Tokenizer,
    keep_to_one_thread,
    tokenizer_document,
    well_formed,
)
from attendo.errors import AttendoError

_FIXED = len(SPECIALS) + len(BYTES)
_LONGEST = 16  # maximum number of characters in a subword, as in SentencePiece
_STRETCH = 256  # maximum number of characters without a space: BPE takes quadratic time for a word
_IN_MEMORY = 1 << 26  # bytes of text; larger texts are written to a temporary file


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The settings of tokenizer training, which uses no random numbers.

    Attributes:
        kind: Kind of token. `uncased` tokens are lowercase words, and `imported` is the tokenizer of an imported model.
        vocab_size: Number of vocabulary entries, with 4 special tokens and 256 bytes. Small datasets result in fewer
            entries.
        min_count: Smallest count of a word or character in the vocabulary, or of a pair that BPE merges (at least 2).
        character_coverage: Share of all characters that BPE and Unigram represent without bytes. The share is 1 if an
            eighth of the vocabulary is enough for all characters.
    """

    kind: Kind = "bpe"
    vocab_size: int | None = None
    min_count: int = 1
    character_coverage: float = 0.9995

    def __post_init__(self) -> None:
        if self.vocab_size is not None and self.vocab_size < 1:
            raise ValueError(f"vocab_size={self.vocab_size} must be at least 1")
        if self.min_count < 1:
            raise ValueError(f"min_count={self.min_count} must be at least 1")
        if not 0 < self.character_coverage <= 1:
            raise ValueError(f"character_coverage={self.character_coverage} must be above 0 and at most 1")


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train a tokenizer and return it. The texts are read once.

    Memory grows with the number of different words, not with the amount of text.

    Args:
        texts: The training texts.
        config: The settings, with the kind of tokenizer and the vocabulary size.

    Raises:
        AttendoError: There is no text, or the vocabulary is too small for the characters. The message names the
            minimum.

    >>> tokenizer = train_tokenizer(["a cat", "a dog"], TokenizerConfig(kind="word"))
    >>> tokenizer.encode("a dog"), tokenizer.decode([5, 6])
    ([5, 7], 'a cat')
    """
    if config.kind == "imported":
        raise AttendoError(
            "[tokenizer] kind='imported' is only for imported models and cannot be trained. Start from "
            "such a model with `init_from`, or choose another kind"
        )
    trainers = {"word": _words, "uncased": _uncased_words, "character": _characters, "byte": _only_bytes}
    model = trainers.get(config.kind, _pieces)(texts, config)
    document = tokenizer_document(config.kind, model)
    return LearnedTokenizer(json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def _words(texts: Iterable[str], config: TokenizerConfig) -> dict[str, Any]:
    """Return a model of words by decreasing count. Each word includes the space before it, unlike "</s>"."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(well_formed(text).split(" ") if text else ())
    _require_text(counts)
    del counts[""]  # the empty word between two spaces always has an id
    fixed = [*SPECIALS, " "]
    words = [" " + word for word in _frequent(counts, config, len(fixed))]
    return {"type": "WordLevel", "vocab": _numbered([*fixed, *words]), "unk_token": SPECIALS[1]}


def _uncased_words(texts: Iterable[str], config: TokenizerConfig) -> dict[str, Any]:
    """Return a model of uncased words by decreasing count. No word equals a special token, because "<" is a word."""
    library = _untrained("uncased", {"type": "WordLevel", "vocab": {}, "unk_token": SPECIALS[1]})
    clean, cuts = library.normalizer, library.pre_tokenizer
    assert clean is not None and cuts is not None
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in cuts.pre_tokenize_str(clean.normalize_str(well_formed(text))))
    _require_text(counts)
    words = _frequent(counts, config, len(SPECIALS))
    return {"type": "WordLevel", "vocab": _numbered([*SPECIALS, *words]), "unk_token": SPECIALS[1]}


def _characters(texts: Iterable[str], config: TokenizerConfig) -> dict[str, Any]:
    """Return a BPE model of characters in the order of decreasing count, without merges."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(well_formed(text))
    _require_text(counts)
    return _bpe(_frequent(counts, config, _FIXED), [])


def _only_bytes(texts: Iterable[str], config: TokenizerConfig) -> dict[str, Any]:
    """Return a BPE model of bytes. Nothing is learned, so texts are only read until the first non-empty text."""
    if config.vocab_size is not None and config.vocab_size < _FIXED:
        raise _too_small(config, _FIXED, f"4 specials and {len(BYTES)} bytes")
    _require_text(Counter(next(([text] for text in texts if text.strip()), [])))
    return _bpe([], [])


def _frequent(counts: Counter[str], config: TokenizerConfig, fixed: int) -> list[str]:
    """Return the most frequent entries that fit next to the `fixed` entries. Ties are in code point order."""
    room = len(counts) if config.vocab_size is None else config.vocab_size - fixed
    if room < 1:
        raise _too_small(config, fixed + 1, f"{fixed} fixed entries and one {config.kind}")
    return [entry for entry, count in _by_count(counts)[:room] if count >= config.min_count]


def _pieces(texts: Iterable[str], config: TokenizerConfig) -> dict[str, Any]:
    """Train BPE or Unigram in two passes: count the characters, then learn subwords of the frequent characters."""
    size = config.vocab_size
    if size is None:
        raise AttendoError(f"a {config.kind} tokenizer requires a size. Set tokenizer.vocab_size, for example to 8000")
    counts: Counter[str] = Counter()
    with tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", newline="\n") as file:
        for text in texts:
            clean = well_formed(text).replace("\r\n", "\n").replace("\r", " ")
            counts.update(clean)
            file.write(clean.replace("\n", "\r") + "\n")  # one line per text
        _require_text(counts)
        alphabet = _alphabet(counts, config, size)
        file.seek(0)
        lines = _only(alphabet, file)
        return _train_bpe(lines, config, size) if config.kind == "bpe" else _train_unigram(lines, size)


def _alphabet(counts: Counter[str], config: TokenizerConfig, size: int) -> list[str]:
    """Return the characters with a vocabulary entry, most frequent first. Other characters are spelled in bytes."""
    found = [(c, n) for c, n in _by_count(counts) if c in "\n\t" or (c > " " and c not in (MARK, "\x7f"))]
    goal = config.character_coverage * sum(n for _, n in found)
    kept = covered = 0
    while kept < len(found) and covered < goal:
        covered += found[kept][1]
        kept += 1
    least = _FIXED + 1 + kept  # 1 for the mark
    if size < least:
        what = f"4 specials, 256 bytes and {kept + 1} characters"
        raise _too_small(config, least, what)
    kept = max(kept, min(size // 8, size - _FIXED - 1))
    return [c for c, _ in found[:kept]]


def _only(alphabet: list[str], lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines for the trainers, with spaces for characters outside the alphabet, and with long words split."""
    other = re.compile(f"(?<! ) *[^{re.escape(''.join(alphabet))} ]+ *")
    stretch = re.compile(f"[^ ]{{{_STRETCH}}}")
    spaces = re.compile(f" {{{_STRETCH},}}")
    for line in lines:
        clean = other.sub(" ", line.removesuffix("\n").replace("\r", "\n"))
        yield stretch.sub(r"\g<0> ", spaces.sub(" " * _STRETCH, clean))


def _train_bpe(lines: Iterator[str], config: TokenizerConfig, size: int) -> dict[str, Any]:
    """Train byte-pair encoding (Sennrich et al. 2016). The library breaks ties between pairs by their ids."""
    library = _untrained("bpe", {"type": "BPE", "vocab": {}, "merges": []})
    trainer = BpeTrainer(
        vocab_size=size - len(BYTES),
        min_frequency=max(2, config.min_count),
        special_tokens=list(SPECIALS),
        initial_alphabet=[MARK],
        max_token_length=_LONGEST,
        show_progress=False,
    )
    library.train_from_iterator(lines, trainer)
    model = json.loads(library.to_str())["model"]
    return _bpe(sorted(model["vocab"], key=model["vocab"].get)[len(SPECIALS) :], model["merges"])


def _train_unigram(lines: Iterator[str], size: int) -> dict[str, Any]:
    """Train a Unigram language model (Kudo 2018): count the words that the library cuts, and learn subwords."""
    library = _untrained("unigram", {"type": "Unigram", "vocab": [], "unk_id": None, "byte_fallback": False})
    cuts = library.pre_tokenizer
    assert cuts is not None
    words: Counter[str] = Counter({MARK: 1})
    for line in lines:
        words.update(word for word, _ in cuts.pre_tokenize_str(MARK + line))
    scores = train_unigram(words, size - _FIXED)
    learned = sorted(((piece, round(score, 4)) for piece, score in scores.items()), key=_falling)
    vocab = [*((piece, 0.0) for piece in (*SPECIALS, *BYTES)), *learned]
    return {"type": "Unigram", "unk_id": 1, "vocab": vocab, "byte_fallback": True}


def _untrained(kind: Kind, model: dict[str, Any]) -> LibraryTokenizer:
    keep_to_one_thread()
    return LibraryTokenizer.from_str(json.dumps(tokenizer_document(kind, model)))


def _bpe(pieces: list[str], merges: list[Any]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": SPECIALS[1],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": _numbered([*SPECIALS, *BYTES, *pieces]),
        "merges": merges,
    }


def _numbered(entries: list[str]) -> dict[str, int]:
    return {entry: number for number, entry in enumerate(entries)}


def _by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=_falling)


def _falling(item: tuple[str, float]) -> tuple[float, str]:
    """Return a sort key: the highest number first, ties in code point order."""
    return -item[1], item[0]


def _require_text(counts: Counter[str]) -> None:
    if not any(entry.strip() for entry in counts):
        raise AttendoError("no text to train a tokenizer from: every row is empty or was skipped")


def _too_small(config: TokenizerConfig, least: int, what: str) -> AttendoError:
    return AttendoError(
        f"tokenizer.vocab_size={config.vocab_size} is too small for these texts: {what} require at least "
        f"{least}. Set it to {least} or more"
    )


# ---- Unigram (Kudo 2018, arXiv:1804.10959, section 3.2)


# The trainer of the `tokenizers` library is not deterministic, because it sums in the order of a randomly keyed hash
# map. Its initial subwords also contain no whole words.
_LONGEST_WORD = 24  # longer words are cut; the probability of 24 rare characters is still a normal float
_MOST_WORDS = 200_000  # number of words, most frequent first, for learning
_SEEDS = 100_000  # initial candidates, or 4 per wanted subword if that is more
_SHRINK = 0.75  # share of the candidates that survives a round
_LEAST = 0.5  # minimum expected count of a character, so no character gets probability 0


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lattice:
    """All segmentations of words into candidate subwords: a node between any two characters, and an edge per subword.

    Each edge has a `start` node, an `end` node, the index `piece` of its subword, and `place`, the distance of `end`
    from the first node of the word. Edges are sorted by `place`. Each word has a `first` and a `last` node and a count.
    """

    start: Ints
    end: Ints
    piece: Ints
    place: Ints
    first: Ints
    last: Ints
    counts: Floats

    def expected_counts(self, probabilities: Floats) -> Floats:
        """Return the expected count of each subword `[pieces]` in all segmentations of the words (the E step)."""
        ends = np.searchsorted(self.place, np.arange(1, _LONGEST_WORD + 2))
        steps = [slice(*pair) for pair in pairwise(ends.tolist())]
        weight = probabilities[self.piece]
        forward = np.zeros(int(self.last[-1]) + 1)
        forward[self.first] = 1
        for step in steps:
            np.add.at(forward, self.end[step], forward[self.start[step]] * weight[step])
        backward = np.zeros_like(forward)
        backward[self.last] = self.counts / forward[self.last]
        for step in reversed(steps):
            np.add.at(backward, self.start[step], backward[self.end[step]] * weight[step])
        flow = forward[self.start] * weight * backward[self.end]
        return np.bincount(self.piece, flow, minlength=len(probabilities)).astype(np.float64)

    def keep(self, kept: NDArray[np.bool_]) -> Self:
        """Return the lattice with only the subwords in the mask `kept` `[pieces]`, renumbered in their order."""
        edges = kept[self.piece]
        piece = (np.cumsum(kept) - 1)[self.piece[edges]]
        return type(self)(
            self.start[edges], self.end[edges], piece, self.place[edges], self.first, self.last, self.counts
        )


def train_unigram(counts: Mapping[str, int], size: int) -> dict[str, float]:
    """Return at most `size` subwords with their log-probabilities: all characters and the best longer subwords.

    Each round runs expectation-maximization twice. The round then removes the quarter of the longer candidates whose
    removal lowers the likelihood least. In a tie, shorter subwords are kept, then lower code points.
    """
    words = _cut_words(counts)
    lattice, pieces, probabilities = _candidates(words, max(_SEEDS, 4 * size))
    single = np.array([len(piece) == 1 for piece in pieces])
    room = max(0, size - int(single.sum()))
    while True:
        expected = _expected(lattice, single, probabilities)
        expected = _expected(lattice, single, expected / expected.sum())
        probabilities = expected / expected.sum()
        longer = int(len(pieces) - single.sum())
        if longer <= room:
            break
        loss = np.where(single, np.inf, expected * _worth(pieces, probabilities))
        left = max(room, int(longer * _SHRINK)) + int(single.sum())
        kept = np.zeros(len(pieces), bool)
        kept[np.argsort(-loss, kind="stable")[:left]] = True
        lattice = lattice.keep(kept)
        pieces = [piece for piece, stays in zip(pieces, kept, strict=True) if stays]
        probabilities, single = probabilities[kept] / probabilities[kept].sum(), single[kept]
    useful = single | (expected >= 1)
    found = zip(pieces, np.log(np.maximum(probabilities, 1e-300)).tolist(), useful, strict=True)
    return {piece: score for piece, score, stays in found if stays}


def _expected(lattice: Lattice, single: NDArray[np.bool_], probabilities: Floats) -> Floats:
    """Return the expected counts of all subwords. Divided by their sum, they are the new probabilities (the M step)."""
    return np.where(single, _LEAST, 0) + lattice.expected_counts(probabilities)


def _cut_words(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the most frequent words in a fixed order, with long words cut, and the characters of other words."""
    order = _by_count(counts)
    words: dict[str, int] = {}
    for word, count in order[:_MOST_WORDS]:
        for i in range(0, len(word), _LONGEST_WORD):
            part = word[i : i + _LONGEST_WORD]
            words[part] = words.get(part, 0) + count
    for word, count in order[_MOST_WORDS:]:
        for character in word:
            words[character] = words.get(character, 0) + count
    return words


def _candidates(words: Mapping[str, int], most: int) -> tuple[Lattice, list[str], Floats]:
    """Return all characters and the `most` best repeated substrings, with their lattice and initial probabilities."""
    text = "".join(words)
    lengths = np.array([len(word) for word in words])
    first = np.cumsum(lengths + 1) - lengths - 1
    counts = np.array(list(words.values()), np.float64)
    word = np.repeat(np.arange(len(lengths)), lengths)
    node = np.arange(len(text)) + word
    rest = np.repeat(first + lengths, lengths) - node
    _, character = np.unique(np.frombuffer(text.encode("utf-32-le"), "<u4"), return_inverse=True)
    n_characters = int(character.max()) + 1

    at, numbers = np.arange(len(text)), np.zeros(len(text), np.int64)
    pieces: list[str] = []
    scores, edges = [], []
    for length in range(1, _LONGEST + 1):
        long_enough = rest[at] >= length
        at = at[long_enough]
        if not len(at):
            break
        keys = numbers[long_enough] * n_characters + character[at + length - 1]
        _, example, numbers = np.unique(keys, return_index=True, return_inverse=True)
        total = np.bincount(numbers, counts[word[at]])
        kept = (total >= 2) | (length == 1)
        examples = at[example[kept]]
        stays = kept[numbers]
        at, numbers = at[stays], (np.cumsum(kept) - 1)[numbers[stays]]
        edges.append((node[at], node[at] + length, len(pieces) + numbers, node[at] - first[word[at]] + length))
        scores.append(total[kept] * length)  # as in SentencePiece
        pieces += [text[i : i + length] for i in examples.tolist()]
    start, end, piece, place = (np.concatenate(part) for part in zip(*edges, strict=True))
    order = np.argsort(place, kind="stable")
    lattice = Lattice(start[order], end[order], piece[order], place[order], first, first + lengths, counts)

    score = np.concatenate(scores)
    rank = np.where(np.arange(len(score)) < n_characters, np.inf, score)
    chosen = np.zeros(len(score), bool)
    chosen[np.argsort(-rank, kind="stable")[: n_characters + most]] = True
    pieces = [piece for piece, stays in zip(pieces, chosen, strict=True) if stays]
    return lattice.keep(chosen), pieces, score[chosen] / score[chosen].sum()


def _worth(pieces: Iterable[str], probabilities: Floats) -> Floats:
    """Return by how much the log-probability of each longer subword exceeds its best spelling by others `[pieces]`."""
    with np.errstate(divide="ignore"):  # log 0 for a candidate that is never used
        scores = dict(zip(pieces, np.log(probabilities).tolist(), strict=True))
    worth = np.zeros(len(scores))
    for i, (piece, score) in enumerate(scores.items()):
        if len(piece) > 1 and score > -np.inf:
            worth[i] = score - _best_spelling(piece, scores)
    return worth


def _best_spelling(piece: str, scores: Mapping[str, float]) -> float:
    """Return the log-probability of the best spelling of a subword by two or more other subwords."""
    best = [0.0]
    for end in range(1, len(piece) + 1):
        starts = range(1 if end == len(piece) else 0, end)
        best.append(max(best[s] + scores.get(piece[s:end], -np.inf) for s in starts))
    return best[-1]
