"""Training of Unigram tokenizers on word counts (Kudo 2018, arXiv:1804.10959, section 3.2).

This implementation is deterministic. The trainer of the `tokenizers` library is not deterministic, because it sums in
the order of a randomly keyed hash map. The initial subwords of that trainer also contain no whole words.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

_LONGEST_PIECE = 16  # characters, as in SentencePiece
_LONGEST_WORD = 24  # longer words are cut; the probability of 24 rare characters is still a normal float
_WORDS = 200_000  # number of words, most frequent first, for learning
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
    words = _words(counts)
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


def _words(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the most frequent words in a fixed order, with long words cut, and the characters of other words."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words: dict[str, int] = {}
    for word, count in order[:_WORDS]:
        for i in range(0, len(word), _LONGEST_WORD):
            part = word[i : i + _LONGEST_WORD]
            words[part] = words.get(part, 0) + count
    for word, count in order[_WORDS:]:
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
    for length in range(1, _LONGEST_PIECE + 1):
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
        edges.append(
            (node[at], node[at] + length, len(pieces) + numbers, node[at] - first[word[at]] + length)
        )
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
