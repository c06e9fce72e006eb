"""The lesson `attendo lesson word2vec`: skip-gram with negative sampling, analogies, and the same words in context."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import permutations, product
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, xlogy
from torch.nn.functional import logsigmoid

from attendo.display.i18n import Localized
from attendo.inference.embedder import nearest_rows
from attendo.models import MaskedLM
from attendo_course.book import passage, table, translated
from attendo_course.lessons import contexts_words as nouns
from attendo_course.lessons.arrays import mean_and_deviation
from attendo_course.lessons.contexts import (
    ENCODER_END,
    NEIGHBORS,
    Material,
    Measures,
    kind_read,
    near_bat,
    plain_nouns,
    read_by_probe,
    right_neighbors,
    share_right,
    unit_rows,
)
from attendo_course.lessons.contexts_models import (
    STATIC,
    masked_model,
    new_masked_model,
    texts_of,
    tokenizer,
    word_vectors,
)
from attendo_course.lessons.lesson import Conclusion, Lesson, Options, Piece, Table

WINDOW, NEGATIVES, SMOOTHING = 3, 5, 0.75
"""The maximum distance of two words of a pair, the number k of noise words per pair, and the exponent of the noise."""
WIDTHS = (4, 32)
"""The numbers of dimensions of the skip-gram models. The analogies use the last number."""
STEPS, PAIRS, RATE = 1500, 1024, 0.02
"""The number of steps of a skip-gram model, of pairs per step, and the first learning rate."""
MASKED_STEPS, SEEDS = 2000, 3
WORD, MEAN, NO_POSITIONS = "Word2Vec: the word", "Word2Vec: mean", "untrained, no positions"
"""Kinds of vectors: of the word itself, the mean of all words of the text, and of a Transformer without positions."""
VECTORS = {
    WORD: (WORD, "50%", "50%"),
    MEAN: (MEAN, "", "50%"),
    NO_POSITIONS: (NO_POSITIONS, "", "50%"),
    STATIC: ("Transformer: embedding", "50%", "50%"),
    "encoder 1": ("Transformer: layer 1", "100%", "100%"),
    ENCODER_END: ("Transformer: layer 2", "100%", "100%"),
}
"""The name of each kind of vector, and the exact limits of the accuracy for the kind of a noun and the place of "i"."""
SHOWN_PAIRS = (
    ("king", "father"),
    ("queen", "father"),
    ("king", "crown"),
    ("bat", "hungry"),
    ("bat", "broken"),
)
VERBS = {"am": "", "was": "", "can": "be ", "must": "be "}
"""The words after "i" in a statement and before "i" in a question, and the text between the verb and the ending."""
RELATIONS: dict[str, dict[str, Any]] = table("lessons/word2vec_words.toml")
Vectors = Float[ndarray, "words d"]
Counts = Float[ndarray, "words words"]


def relation_texts() -> list[str]:
    """Return the sentences about the words of the relations: a frame, a word and an ending.

    >>> len(relation_texts()), relation_texts()[0]
    (384, 'his father the man with a gray coat')
    """
    return [
        f"{frame} {word} {ending}"
        for relation in RELATIONS.values()
        for pair, endings in relation["pairs"].items()
        for form, word in zip(("first", "second"), pair.split(), strict=True)
        for frame, ending in product(relation[form], endings)
    ]


def order_texts(*, unseen: bool) -> list[str]:
    """Return statements and questions in which "i" is the first or the second word. One of three is held out.

    >>> order_texts(unseen=True)[:2]
    ['i am hungry', 'am i hungry']
    """
    endings = [
        *nouns.ADJECTIVES["animal"],
        *(text.removeprefix("is ") for text in nouns.PREDICATES["either"]),
    ]
    return [
        f"{first} {second} {middle}{ending}"
        for number, ((verb, middle), ending) in enumerate(product(VERBS.items(), endings))
        if (number % 3 == 0) == unseen
        for first, second in (("i", verb), (verb, "i"))
    ]


@dataclass(frozen=True, eq=False)
class Corpus:
    """The sentences on which all models of the lesson are trained, with words separated by spaces."""

    texts: Sequence[str]

    @classmethod
    def drawn(cls) -> Corpus:
        """Draw 12,000 sentences: 60 % about nouns with one or two meanings, 30 % about relations, 10 % about order."""
        rng = np.random.default_rng(0)
        related, ordered, frames = relation_texts(), order_texts(unseen=False), list(nouns.FRAMES)
        texts = texts_of(nouns.drawn(rng, 7200))
        texts += [f"{rng.choice(frames)} {rng.choice(related)}".strip() for _ in range(3600)]
        return cls([*texts, *rng.choice(ordered, 1200).tolist()])

    @cached_property
    def ids(self) -> dict[str, int]:
        """The row of each word, in alphabetical order."""
        words = {word for text in self.texts for word in text.split()}
        return {word: row for row, word in enumerate(sorted(words))}

    @cached_property
    def counts(self) -> Counts:
        """The number of times that a context word (column) is within WINDOW words of a word (row).

        >>> Corpus(["i am here"]).counts.tolist()
        [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
        """
        counts = np.zeros((len(self.ids), len(self.ids)))
        for text in self.texts:
            rows = np.array([self.ids[word] for word in text.split()])
            for distance in range(1, WINDOW + 1):
                np.add.at(counts, (rows[:-distance], rows[distance:]), 1)
        return counts + counts.T


def skip_gram_loss(scores: Float[Tensor, " batch"], noise: Float[Tensor, "batch k"]) -> Float[Tensor, ""]:
    """Return the mean loss per pair, −ln σ(u·v) − Σₙ ln σ(−u·vₙ), from the scores u·v of a pair and its noise words.

    The gradient with respect to a score is σ(u·v) − 1 for a pair and σ(u·vₙ) for a noise word, divided by the number
    of pairs. The source is Mikolov et al. 2013, "Distributed Representations of Words and Phrases", equation 4.

    >>> float(skip_gram_loss(torch.zeros(1), torch.zeros(1, 5)))  # 6 ln 2
    4.158883094787598
    """
    return -(logsigmoid(scores) + logsigmoid(-noise).sum(1)).mean()


def cells(counts: Counts, k: int = NEGATIVES) -> tuple[Counts, Counts]:
    """Return the expected number per drawn pair of each (word, context) as a pair, and as a word with a noise word.

    Pairs have the probability P(w, c). A noise word is drawn from Pₙ(c) ∝ P(c)^0.75, k times per pair.
    """
    pairs = counts / counts.sum()
    noise = pairs.sum(0) ** SMOOTHING
    return pairs, k * np.outer(pairs.sum(1), noise / noise.sum())


def limit(counts: Counts, k: int = NEGATIVES) -> Counts:
    """Return the score u·v with the least loss for each pair: ln(P(w, c) / (k P(w) Pₙ(c))), or −∞ for unseen pairs.

    With Pₙ = P, this is the pointwise mutual information (PMI) minus ln k. The source is Levy & Goldberg 2014.
    """
    pairs, noise = cells(counts, k)
    with np.errstate(divide="ignore"):
        return np.log(pairs / noise)


def expected_loss(scores: Counts, counts: Counts, k: int = NEGATIVES) -> float:
    """Return the exact mean of the skip-gram loss over all pairs and noise words, in nats per pair."""
    x, (pairs, noise) = torch.from_numpy(scores), map(torch.from_numpy, cells(counts, k))
    # xlogy(0, 0) is 0: a pair that is never drawn adds nothing, also if its score is −∞
    return -float((xlogy(pairs, x.sigmoid()) + xlogy(noise, (-x).sigmoid())).sum())


def skip_gram(counts: Counts, d: int, steps: int, seed: int) -> tuple[Vectors, Vectors]:
    """Train a vector u per word and a vector v per context word with Adam, and return both.

    Each step draws pairs as often as they are in the corpus, and noise words. The learning rate decreases to 0.
    """
    rng = torch.Generator().manual_seed(seed)
    n = len(counts)
    u = ((torch.rand(n, d, generator=rng) - 0.5) / d).requires_grad_()
    v = torch.zeros(n, d, requires_grad=True)
    pairs, noise = map(torch.from_numpy, cells(counts))
    optimizer = torch.optim.Adam([u, v], lr=RATE)
    for step in range(steps):
        drawn = torch.multinomial(pairs.flatten(), PAIRS, replacement=True, generator=rng)
        others = torch.multinomial(noise.sum(0), PAIRS * NEGATIVES, replacement=True, generator=rng)
        rows = u[drawn // n]
        scores = (rows * v[drawn % n]).sum(1)
        noise_scores = (v[others].view(PAIRS, NEGATIVES, d) @ rows[:, :, None]).squeeze(2)
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
        optimizer.zero_grad()
        skip_gram_loss(scores, noise_scores).backward()
        optimizer.step()
    return u.detach().double().numpy(), v.detach().double().numpy()


def questions(relation: str) -> list[tuple[str, ...]]:
    """Return all analogies (a, b, c, d) of a relation, "a is to b as c is to d", in both directions.

    >>> len(questions("gender")), questions("gender")[1]
    (112, ('woman', 'man', 'queen', 'king'))
    """
    pairs = [pair.split() for pair in RELATIONS[relation]["pairs"]]
    return [analogy for (a, b), (c, d) in permutations(pairs, 2) for analogy in ((a, b, c, d), (b, a, d, c))]


def answers(
    vectors: Vectors, asked: Int[ndarray, "n 3"], signs: tuple[float, ...] = (-1.0, 1.0, 1.0)
) -> Int[ndarray, " n"]:
    """Return the row whose cosine with b − a + c is the largest, without the rows a, b and c of each analogy.

    This is 3CosAdd, which uses vectors of length 1. The signs (0, 0, 1) search near c alone. The sources are Mikolov et
    al. 2013, "Linguistic Regularities in Continuous Space Word Representations", and Levy & Goldberg 2014.

    >>> answers(np.array([[1, 0], [1, 1], [0, 1], [1, 9]]), np.array([[0, 1, 2]])).tolist()
    [3]
    """
    unit = unit_rows(vectors)
    scores = np.einsum("s,nsd->nd", signs, unit[asked]) @ unit.T
    np.put_along_axis(scores, asked, -np.inf, axis=1)
    return scores.argmax(axis=1)


def right_answers(vectors: Vectors, ids: Mapping[str, int], signs: tuple[float, ...] = (-1.0, 1.0, 1.0)) -> list[float]:
    """Return the share of right answers for each relation, then for all analogies."""
    rows = [np.array([[ids[word] for word in analogy] for analogy in questions(name)]) for name in RELATIONS]
    parts = [answers(vectors, part[:, :3], signs) == part[:, 3] for part in rows]
    return [float(part.mean()) for part in (*parts, np.concatenate(parts))]


Read = Callable[[Sequence[str], Sequence[int]], Mapping[str, Vectors]]
"""A function from texts and the places of words to vectors of different kinds, one vector per text."""


def measured(read: Read, material: Material) -> Measures:
    """Return the probe accuracies for each kind of vector: kind of a noun, kind of a new noun, and place of "i"."""
    fit, test = (
        read(texts_of(part), [sentence.source_place(0) for sentence in part]) for part in (material.fit, material.test)
    )
    texts = [order_texts(unseen=unseen) for unseen in (False, True)]
    places = [[text.split().index("i") for text in part] for part in texts]
    known, new = map(read, texts, places)
    labels, true = ([str(place) for place in part] for part in places)
    return {
        name: (
            *kind_read(fit[name], test[name], material),
            share_right(read_by_probe(known[name], labels, new[name]), true),
        )
        for name in fit
    }


def static_reader(vectors: Vectors, ids: Mapping[str, int]) -> Read:
    """Return a function that reads the Word2Vec vector of a word, and the mean vector of all words of its text."""

    def read(texts: Sequence[str], places: Sequence[int]) -> Mapping[str, Vectors]:
        rows = [[ids[word] for word in text.split()] for text in texts]
        own = [vectors[row[place]] for row, place in zip(rows, places, strict=True)]
        return {WORD: np.array(own), MEAN: np.array([vectors[row].mean(0) for row in rows])}

    return read


def teach(options: Options) -> Iterator[Piece]:
    """Compare skip-gram with its limit, answer analogies, and compare its vectors with vectors in context."""
    corpus, seeds, steps = Corpus.drawn(), range(1, 1 + (options.seeds or SEEDS)), options.steps(STEPS)
    sizes = {"texts": len(corpus.texts), "words": len(corpus.ids)}
    yield passage("word2vec.teach", **sizes, window=WINDOW, k=NEGATIVES)
    models = {d: [skip_gram(corpus.counts, d, steps, seed) for seed in seeds] for d in WIDTHS}
    yield from approach(corpus, models)
    vectors = [u for u, _ in models[WIDTHS[-1]]]
    yield from relations(corpus, vectors)
    yield from in_context(corpus, vectors, options.steps(MASKED_STEPS))


def approach(corpus: Corpus, models: Mapping[int, Sequence[tuple[Vectors, Vectors]]]) -> Iterator[Piece]:
    """Yield the loss and the scores of skip-gram models beside the limit, which no model can exceed."""
    counts, best = corpus.counts, limit(corpus.counts)
    seen, least = counts > 0, expected_loss(best, counts)
    scores = {d: [u @ v.T for u, v in runs] for d, runs in models.items()}
    losses = {d: [expected_loss(x, counts) for x in found] for d, found in scores.items()}

    def distance(x: Counts) -> float:
        return float(np.sqrt(np.average((x - best)[seen] ** 2, weights=counts[seen])))

    yield passage("word2vec.approach")
    rows = [
        (d, mean_and_deviation(losses[d]), f"{least:.3f}", mean_and_deviation([distance(x) for x in found]))
        for d, found in scores.items()
    ]
    title = translated("Skip-gram with negative sampling: nats per pair")
    yield Table("skip-gram", title, _heads("dimensions", "loss", "limit", "RMS of u·v − limit"), tuple(rows))
    d = WIDTHS[-1]
    shown = []
    for word, context in SHOWN_PAIRS:
        pair = corpus.ids[word], corpus.ids[context]
        value = f"{best[pair]:.2f}".replace("-inf", "−∞")
        reached = mean_and_deviation([x[pair] for x in scores[d]], ".2f")
        shown.append((word, context, int(counts[pair]), reached, value))
    title = translated("u·v of single pairs, {d} dimensions", d=d)
    yield Table("pairs", title, _heads("word", "context word", "pairs", "u·v", "limit"), tuple(shown))
    zero, above = (1 + NEGATIVES) * math.log(2), fmean(losses[d]) - least
    yield Conclusion(passage("word2vec.approach-2", zero=zero, least=least, d=d, above=above, words=len(counts)))


def relations(corpus: Corpus, vectors: Sequence[Vectors]) -> Iterator[Piece]:
    """Yield the answers to analogies, by vectors of skip-gram, by its limit and by the word c alone."""
    ids, d = corpus.ids, WIDTHS[-1]
    # the small constant is for "the", which has no positive value: a vector of length 0 has no cosine
    best = np.maximum(limit(corpus.counts), 0) + 1e-9
    u, s, _ = np.linalg.svd(best)
    found = {
        "b − a + c": [right_answers(vector, ids) for vector in vectors],
        "c alone": [right_answers(vector, ids, (0.0, 0.0, 1.0)) for vector in vectors],
        "SVD": [right_answers(u[:, :d] * np.sqrt(s[:d]), ids)],
        "limit": [right_answers(best, ids)],
    }
    shown = [[mean_and_deviation(column, ".0%") for column in zip(*runs, strict=True)] for runs in found.values()]
    asked = {relation: questions(relation) for relation in RELATIONS}
    names = [*(" : ".join(analogies[0][:2]) for analogies in asked.values()), translated("all")]
    sizes = [len(analogies) for analogies in asked.values()]
    yield passage("word2vec.relations", d=d, chance=1 / (len(ids) - 3))
    title, columns = translated("Analogies answered correctly"), _heads("relation", "analogies", *found)
    rows = tuple(zip(names, [*sizes, sum(sizes)], *shown, strict=True))
    yield Table("analogies", title, columns, rows)
    words, first = list(ids), [analogies[0][:3] for analogies in asked.values()]
    given = answers(vectors[0], np.array([[ids[word] for word in analogy] for analogy in first]))
    lines = [f"{c} − {a} + {b} = {words[row]}" for (a, b, c), row in zip(first, given, strict=True)]
    yield Localized("\n".join(lines), "\n".join(lines))
    share, near, ranked, full = (fmean(run[-1] for run in runs) for runs in found.values())
    yield Conclusion(passage("word2vec.relations-2", share=share, near=near, ranked=ranked, full=full))


def in_context(corpus: Corpus, vectors: Sequence[Vectors], steps: int) -> Iterator[Piece]:
    """Yield what probes read from vectors of Word2Vec and of a Transformer that is trained on the same sentences."""
    tokens, texts, ids = tokenizer(corpus.texts), np.array(corpus.texts), corpus.ids
    material = replace(Material.drawn(), tokens=tokens)
    held_out = texts_of(material.held_out)

    def draw(rng: np.random.Generator, n: int) -> list[str]:
        return texts[rng.integers(len(texts), size=n)].tolist()

    models, found = [], []
    for seed, u in enumerate(vectors, start=1):
        run = masked_model(new_masked_model(tokens, seed), tokens, draw, held_out, steps, seed)
        models.append(cast(MaskedLM, run.model))
        unordered = new_masked_model(tokens, seed, positions="none")
        blind = measured(partial(word_vectors, unordered, tokens), material)[ENCODER_END]
        trained = measured(partial(word_vectors, models[-1], tokens), material)
        found.append({**measured(static_reader(u, ids), material), NO_POSITIONS: blind, **trained})
    yield passage("word2vec.in_context")
    rows = []
    for name, (label, kind_limit, place_limit) in VECTORS.items():
        kind, new, place = (mean_and_deviation(column, ".0%") for column in zip(*(m[name] for m in found), strict=True))
        rows.append((translated(label), kind, new, kind_limit, place, place_limit))
    title = translated("What a linear probe reads on unseen sentences")
    columns = _heads("vector", "kind", "new noun", "limit", 'place of "i"', "limit")
    yield Table("in-context", title, columns, tuple(rows))
    others, u = plain_nouns(), vectors[0]
    nearest = nearest_rows(u[ids["bat"]], u[[ids[noun.source] for noun in others]], NEIGHBORS)
    yield near_bat(models[0], tokens, "Word2Vec", [(cosine, others[row]) for cosine, row in nearest])
    bag, first, last = (np.mean([m[name] for m in found], axis=0) for name in (MEAN, "encoder 1", ENCODER_END))
    near = fmean(right_neighbors(model, tokens, ENCODER_END) for model in models)
    measures = {"bag": bag[0], "kind": last[0], "first": first[2], "place": last[2], "near": near}
    yield Conclusion(passage("word2vec.in_context-2", **measures))


def _heads(*names: str) -> tuple[Localized, ...]:
    return tuple(map(translated, names))


LESSON = Lesson(
    "word2vec",
    "Slides on the Transformer: Word2Vec knows neither relations between words nor positions",
    translated("Word2Vec against context"),
    passage("word2vec.question"),
    2.7,
    teach,
    seeds=(SEEDS,),
)
LESSONS = (LESSON,)
