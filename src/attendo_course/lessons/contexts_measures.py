"""What is measured of the vectors of a noun, layer by layer, in the lesson on words in context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attendo.data.tokenizers import Tokenizer
from attendo.inference.embedder import nearest_rows
from attendo.models import EncoderDecoder, MaskedLM
from attendo_course.lessons.contexts_models import contexts, noun_vectors, tokenizer
from attendo_course.lessons.contexts_probes import mean_cosine, read_by_probe, share_right
from attendo_course.lessons.contexts_words import (
    AMBIGUOUS,
    KINDS,
    Clause,
    Kind,
    Noun,
    Sentence,
    nouns,
    synonyms,
    two_meanings,
)

NEIGHBORS = 3
CUES: dict[Kind, str] = {"animal": "hungry", "thing": "broken"}
"""What stands before the noun in the sentences that are shown."""
Vectors = Float[ndarray, "sentences d_model"]
Measures = Mapping[str, tuple[float, ...]]
"""By layer, in the layers' order."""


@dataclass(frozen=True, eq=False)
class Material:
    """The sentences: what probes are fitted to, and what they are tested on, with other cues and unseen clauses.

    fit, test: about ambiguous nouns; synonyms_fit, synonyms_test: about nouns that share a translation.
    """

    tokens: Tokenizer
    fit: Sequence[Sentence]
    test: Sequence[Sentence]
    synonyms_fit: Sequence[Sentence]
    synonyms_test: Sequence[Sentence]

    @classmethod
    def drawn(cls) -> Material:
        """The same sentences for every seed."""
        rng = np.random.default_rng(0)
        two, one = ([noun for pair in pairs for noun in pair] for pairs in (two_meanings(), synonyms()))
        return cls(
            tokenizer(),
            contexts(two, "first", rng, unseen=False),
            contexts(two, "second", rng, unseen=True),
            contexts(one, "first", rng, unseen=False),
            contexts(one, "second", rng, unseen=True),
        )

    @cached_property
    def held_out(self) -> list[Sentence]:
        """What the models are measured on: no clause that begins one of them was trained on."""
        return [*self.test, *self.synonyms_test]


def nouns_of(sentences: Sequence[Sentence]) -> list[Noun]:
    """The noun of each sentence's first clause."""
    return [sentence.clauses[0].noun for sentence in sentences]


def likeness(vectors: Vectors, about: Sequence[Noun], pairs: Sequence[tuple[Noun, Noun]]) -> float:
    """The mean cosine of the vectors of two nouns, mean of the pairs; about: the noun of each vector.

    Of all vectors their mean is subtracted first: what every vector has tells nothing of a noun.

    >>> cat, dog = (Noun(source, "", "animal") for source in ("cat", "dog"))
    >>> likeness(np.array([[2.0, 1.0], [0.0, 1.0]]), [cat, dog], [(cat, dog)])
    -1.0
    """
    centered = vectors - vectors.mean(axis=0)
    rows = {noun: centered[[other == noun for other in about]] for pair in pairs for noun in pair}
    return float(np.mean([mean_cosine(rows[one], rows[other]) for one, other in pairs]))


def kind_read(fit: Vectors, test: Vectors, material: Material) -> tuple[float, float]:
    """How often a probe tells an ambiguous noun's kind: of nouns that it was fitted to, and of one that it was not.

    Both times the cues are others than those that it was fitted to.
    """
    fitted, asked = nouns_of(material.fit), nouns_of(material.test)
    kinds, true = [noun.kind for noun in fitted], [noun.kind for noun in asked]
    known = share_right(read_by_probe(fit, kinds, test), true)
    shares = []
    for source in AMBIGUOUS:
        others = [i for i, noun in enumerate(fitted) if noun.source != source]
        own = [i for i, noun in enumerate(asked) if noun.source == source]
        read = read_by_probe(fit[others], [kinds[i] for i in others], test[own])
        shares.append(share_right(read, [true[i] for i in own]))
    return known, float(np.mean(shares))


def masked_measures(model: MaskedLM, material: Material) -> Measures:
    """Of each layer: cosine in one meaning, in two; kind read, of a new noun; share of neighbors of the right kind."""
    fit, test = (noun_vectors(model, material.tokens, part) for part in (material.fit, material.test))
    about, pairs = nouns_of(material.test), two_meanings()
    same = [(noun, noun) for pair in pairs for noun in pair]
    return {
        layer: (
            likeness(test[layer], about, same),
            likeness(test[layer], about, pairs),
            *kind_read(fit[layer], test[layer], material),
            right_neighbors(model, material.tokens, layer),
        )
        for layer in test
    }


def translator_measures(model: EncoderDecoder, material: Material) -> Measures:
    """Of each layer: how often kind, translation and source word are read; cosine of one source, of one translation.

    Kind and translation are read of ambiguous nouns, the source word of synonyms. The cosines are those of the two
    meanings of a source word, and of two source words of one meaning.
    """
    parts = (material.fit, material.test, material.synonyms_fit, material.synonyms_test)
    fit, test, one_fit, one_test = (noun_vectors(model, material.tokens, part) for part in parts)
    fitted, asked, one_fitted, one_asked = (nouns_of(part) for part in parts)

    def measured(layer: str) -> tuple[float, ...]:
        targets = read_by_probe(fit[layer], [noun.target for noun in fitted], test[layer])
        sources = read_by_probe(one_fit[layer], [noun.source for noun in one_fitted], one_test[layer])
        both = np.concatenate([test[layer], one_test[layer]])
        return (
            kind_read(fit[layer], test[layer], material)[0],
            share_right(targets, [noun.target for noun in asked]),
            share_right(sources, [noun.source for noun in one_asked]),
            likeness(both, [*asked, *one_asked], two_meanings()),
            likeness(both, [*asked, *one_asked], synonyms()),
        )

    return {layer: measured(layer) for layer in test}


def shown_sentence(source: str, kind: Kind) -> Sentence:
    """The hungry or the broken one is here.

    >>> shown_sentence("bat", "thing").english
    'the broken bat is here'
    """
    noun = next(noun for noun in nouns() if (noun.source, noun.kind) == (source, kind))
    return Sentence((Clause(noun, CUES[kind], "is here"),))


def neighbors(
    model: MaskedLM, tokens: Tokenizer, source: str, layer: str
) -> Mapping[Kind, list[tuple[float, Noun]]]:
    """The nouns of one meaning nearest to an ambiguous one as an animal and as a thing, as (cosine, noun).

    They stand in a sentence without a cue: "the white … is here".
    """
    others = [noun for noun in nouns() if noun.source not in AMBIGUOUS]
    plain = [Sentence((Clause(noun, "white", "is here"),)) for noun in others]
    rows = noun_vectors(model, tokens, plain)[layer]
    own = noun_vectors(model, tokens, [shown_sentence(source, kind) for kind in KINDS])[layer]
    return {
        kind: [(cosine, others[row]) for cosine, row in nearest_rows(vector, rows, NEIGHBORS)]
        for kind, vector in zip(KINDS, own, strict=True)
    }


def right_neighbors(model: MaskedLM, tokens: Tokenizer, layer: str) -> float:
    """The share of the nearest nouns that are of the kind that the sentence tells, over all ambiguous nouns."""
    return float(
        np.mean(
            [
                noun.kind == kind
                for source in AMBIGUOUS
                for kind, found in neighbors(model, tokens, source, layer).items()
                for _, noun in found
            ]
        )
    )
