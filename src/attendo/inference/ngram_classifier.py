"""A linear classifier of n-grams: TF-IDF of words and characters with logistic regression.

A trained classifier contains one, which is fitted on the same rows, or on a sample of very many rows.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Float, Integer
from numpy import ndarray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from attendo.errors import AttendoError
from attendo.metrics import fit_temperature, log_loss, log_softmax, yes_or_no

NGRAMS = "ngrams.safetensors"
"""The file in a run folder with the n-grams and their weights."""
LONGEST = 5
"""The maximum length of character n-grams. Large training sets have shorter ones, see MOST_COUNTED."""
MOST_COUNTED = 50_000_000
"""The maximum number of character n-grams in training, counted with repetitions: about 20 s."""
MOST_READ = 100_000_000
"""The maximum number of characters times classes in training. Of more rows, every n-th row of each class is used."""
MOST_WEIGHTS = 1 << 22
"""The maximum number of weights (n-grams times classes). The solver requires about 200 bytes per weight."""
RARE_ROWS = 10_000
"""With at least this many rows, a word n-gram must be in two rows, as character n-grams always must."""
STRENGTHS = (1.0, 3.0, 10.0, 30.0)
"""Values of C, the inverse strength of the L2 penalty, of which the validation rows choose one."""
USUAL_STRENGTH = 10.0
"""The only value of C that is tried if a fit is slow."""
MOST_STEPS = 200
"""The maximum number of steps of the solver."""
FEW_WEIGHTS = 1 << 20
"""The maximum number of weights for which all blocks and all strengths are tried."""
MOST_WORK = 3e7
"""The maximum work (n-grams of all rows, times classes) for which all blocks and all strengths are tried."""
_WORD = re.compile(r"\w+|[^\w\s]")

Analyzer = Callable[[str], Iterable[str]]


def word_ngrams(text: str) -> list[str]:
    """Return the words and punctuation marks of a text in lower case, and all pairs of neighbors.

    >>> word_ngrams("Not good!")
    ['not', 'good', '!', 'not good', 'good !']
    """
    words = _WORD.findall(text.lower())
    return [*words, *map(" ".join, pairwise(words))]


def character_ngrams(text: str, longest: int = LONGEST) -> Iterator[str]:
    """Yield all character sequences of up to `longest` characters in lower case. White space counts as one space.

    >>> list(character_ngrams("駅 近", 2))
    ['駅', ' ', '近', '駅 ', ' 近']
    """
    text = " ".join(text.lower().split())
    return (text[i : i + n] for n in range(1, longest + 1) for i in range(len(text) - n + 1))


def even_rows(classes: Iterable[Hashable], n_characters: int, n_classes: int) -> list[bool]:
    """Return whether each row is used for fitting. Each class keeps its first row (see MOST_READ).

    >>> even_rows([0, 0, 0, 1, 0], MOST_READ, 2)
    [True, False, True, True, False]
    """
    step = -(-n_characters * n_classes // MOST_READ)
    seen: Counter[Hashable] = Counter()
    kept = []
    for c in classes:
        kept.append(step <= 1 or seen[c] % step == 0)
        seen[c] += 1
    return kept


@dataclass(frozen=True, eq=False)
class NgramClassifier:
    """A fitted linear classifier of n-grams.

    `idf` is the inverse document frequency of each n-gram, and `weights` are in nats. The rows of the character
    n-grams, with up to `longest` characters, follow those of the words.
    """

    words: Sequence[str]
    characters: Sequence[str]
    longest: int
    idf: Float[ndarray, " ngrams"]
    weights: Float[ndarray, "ngrams classes"]
    bias: Float[ndarray, " classes"]

    @cached_property
    def _places(self) -> list[tuple[Analyzer, dict[str, int]]]:
        """The function that finds the n-grams of a text, and the row of each known n-gram: words, then characters."""
        words = {term: row for row, term in enumerate(self.words)}
        characters = {term: row for row, term in enumerate(self.characters, len(words))}
        return [(word_ngrams, words), (partial(character_ngrams, longest=self.longest), characters)]

    @cached_property
    def _terms(self) -> list[str]:
        return [*self.words, *self.characters]

    def features(self, text: str) -> dict[int, float]:
        """Return the TF-IDF weight of each known n-gram of a text by its row in `weights`.

        The weight is (1 + ln count) · idf. The weights of the words and of the characters have Euclidean norm 1 each.
        """
        found: dict[int, float] = {}
        for analyze, rows in self._places:
            counts = Counter(rows[term] for term in analyze(text) if term in rows) if rows else {}
            values = {row: (1.0 + math.log(n)) * float(self.idf[row]) for row, n in counts.items()}
            norm = math.sqrt(sum(value * value for value in values.values()))
            found |= {row: value / norm for row, value in values.items()}
        return found

    def scores(self, texts: Sequence[str]) -> Float[ndarray, "texts classes"]:
        """Return the calibrated logits of all classes for each text. The texts are read completely."""
        scores = np.tile(self.bias.astype(np.float64), (len(texts), 1))
        for row, text in zip(scores, texts, strict=True):
            if found := self.features(text):
                row += np.array([*found.values()]) @ self.weights[[*found]]
        return scores

    def reasons(self, text: str, label: int, n: int = 8) -> list[tuple[str, float]]:
        """Return the `n` n-grams of a text that change the score of a class most, and their contributions in nats.

        A contribution is the difference from the mean over all classes.
        """
        found = [
            (self._terms[row], value * float(self.weights[row, label] - self.weights[row].mean()))
            for row, value in self.features(text).items()
        ]
        return sorted(found, key=lambda pair: (-abs(pair[1]), pair[0]))[:n]

    def to_bytes(self) -> bytes:
        """Return the contents of the file NGRAMS."""
        facts = {name: getattr(self, name) for name in ("words", "characters", "longest")}
        tensors = {name: getattr(self, name) for name in ("idf", "weights", "bias")}
        # one key, because keys are written in random order
        return save(tensors, {"facts": json.dumps(facts)})

    @classmethod
    def load(cls, folder: Path, sha256: str) -> NgramClassifier:
        """Load the file NGRAMS of a run folder. Raises AttendoError if it is missing or has another hash."""
        path = folder / NGRAMS
        try:
            if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                raise AttendoError(f"{path} is damaged or from another run. Restore the file of this run")
            with safe_open(path, framework="np") as file:
                facts = json.loads(file.metadata()["facts"])
                tensors = {name: file.get_tensor(name) for name in ("idf", "weights", "bias")}
        except (OSError, SafetensorError) as error:
            raise AttendoError(f"{path} cannot be read ({error}). Restore the file of this run") from None
        return cls(**facts, **tensors)


class _Block(NamedTuple):
    """The n-grams of one kind, and the TF-IDF features of the training and the validation texts (sparse matrices)."""

    terms: ndarray
    idf: Float[ndarray, " ngrams"]
    train: Any
    valid: Any


def fit_ngrams(
    texts: Sequence[str],
    classes: Integer[ndarray, "rows *labels"],
    n_classes: int,
    class_weights: Sequence[float] | None,
    valid_texts: Sequence[str],
    true: Integer[ndarray, "validation_texts *labels"],
    search: bool = True,
) -> NgramClassifier:
    """Fit TF-IDF with logistic regression (Manning et al. 2008, chapters 6 and 15), and return the best on validation.

    `classes` is the class of each text, from 0, where each class has a text; or for each label whether the text has it.
    `true` has the same form. Words, characters and both are compared with several strengths of the penalty, or without
    `search` there is a single fit. The result is calibrated, and has the lowest loss on `valid_texts`.
    """
    from scipy.sparse import hstack

    longest = min(LONGEST, MOST_COUNTED // max(1, sum(map(len, texts))))
    blocks = _blocks(texts, valid_texts, longest, n_classes)
    work = sum(block.train.nnz for block in blocks.values()) * n_classes
    n_weights = sum(len(block.terms) for block in blocks.values()) * n_classes
    quick = search and work <= MOST_WORK and n_weights <= FEW_WEIGHTS
    strengths = STRENGTHS if quick else (USUAL_STRENGTH,)
    best: Any = None
    for names in dict.fromkeys([tuple(blocks), *((name,) for name in blocks if quick)]):
        train = hstack([blocks[name].train for name in names]).tocsr()
        valid = hstack([blocks[name].valid for name in names]).tocsr()
        for strength in strengths:
            coef, bias = fit_linear(train, classes, strength, class_weights)
            scores = valid @ coef + bias
            scores = scores if classes.ndim == 1 else yes_or_no(scores)
            temperature = fit_temperature(scores, true.ravel())
            loss = log_loss(log_softmax(scores / temperature), true.ravel())
            if best is None or loss < best[0]:
                best = loss, names, coef / temperature, bias / temperature
    _, names, coef, bias = best
    terms = {name: blocks[name].terms.tolist() if name in names else [] for name in ("words", "characters")}
    idf = np.concatenate([blocks[name].idf for name in names])
    arrays = (array.astype(np.float32) for array in (idf, coef, bias))
    return NgramClassifier(terms["words"], terms["characters"], longest, *arrays)


def fit_linear(
    features: Any,
    classes: Integer[ndarray, "rows *labels"],
    strength: float,
    class_weights: Sequence[float] | None = None,
    most_steps: int = MOST_STEPS,
) -> tuple[Float[ndarray, "features classes"], Float[ndarray, " classes"]]:
    """Fit logistic regression with an L2 penalty, and return the weights and the bias of each class or label.

    The features can be a sparse matrix. `classes` is the class of each row, or for each label whether the row has it.
    `strength` is the inverse strength of the penalty.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    weights = None if class_weights is None else dict(enumerate(class_weights))
    model = LogisticRegression(C=strength, class_weight=weights, max_iter=most_steps)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the validation loss decides
        for column in classes.T if classes.ndim == 2 else [classes]:
            if len(np.unique(column)) > 1:
                model.fit(features, column)
                found.append((model.coef_.T, model.intercept_))
            else:  # all rows agree on a label
                sure = math.log(1 + len(column)) * (1 if column[0] else -1)
                found.append((np.zeros((features.shape[1], 1)), np.array([sure])))
    coef, bias = np.hstack([coef for coef, _ in found]), np.hstack([bias for _, bias in found])
    if classes.ndim == 1 and len(bias) == 1:  # the difference of the scores of two classes
        return np.hstack([-coef / 2, coef / 2]), np.hstack([-bias / 2, bias / 2])
    return coef, bias


def _blocks(texts: Sequence[str], valid_texts: Sequence[str], longest: int, n_classes: int) -> dict[str, _Block]:
    """Return the blocks "words" and "characters", if the texts have such n-grams."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    analyzers: dict[str, Analyzer] = {"words": word_ngrams}
    if longest > 1:
        analyzers["characters"] = partial(character_ngrams, longest=longest)
    most = MOST_WEIGHTS // n_classes // len(analyzers)
    blocks: dict[str, _Block] = {}
    for name, analyze in analyzers.items():
        few = name == "words" and len(texts) < RARE_ROWS
        for least_rows in (1,) if few else (2, 1):
            own: Any = TfidfVectorizer(
                analyzer=cast(Any, analyze), min_df=least_rows, max_features=most, sublinear_tf=True
            )
            try:
                train = own.fit_transform(texts)
            except ValueError:  # no n-gram is in two rows
                continue
            blocks[name] = _Block(own.get_feature_names_out(), own.idf_, train, own.transform(valid_texts))
            break
    return blocks
