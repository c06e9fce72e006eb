"""Words in context: what a hidden state contains in addition to the word itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from attendo.data.tokenizers import Tokenizer
from attendo.display.i18n import Localized
from attendo.inference.embedder import nearest_rows
from attendo.inference.translator import Translator
from attendo.inspecting.recording import recording
from attendo.models import EncoderDecoder, MaskedLM
from attendo_course.book import passage, translated
from attendo_course.lessons import contexts_words as corpus
from attendo_course.lessons.arrays import Training, loss_curves, mean_and_deviation
from attendo_course.lessons.contexts_models import (
    N_LAYERS,
    STATIC,
    contexts,
    english,
    english_drawn,
    masked_model,
    new_masked_model,
    new_translator,
    noun_vectors,
    texts_of,
    tokenizer,
    translator,
)
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table
from attendo_course.pictures import Picture

RIDGE = 1.0


def read_by_probe(
    x: Float[ndarray, "n d"], labels: Sequence[str], new: Float[ndarray, "m d"], strength: float = RIDGE
) -> list[str]:
    """Return the labels that a linear probe, fitted to vectors x and their labels, predicts for new vectors.

    The probe is a ridge regression to +1 for the label of a vector and -1 for the other labels. The weights of the
    probe are W = (XᵀX + λI)⁻¹ XᵀY with centered X and Y. The label with the largest score is predicted, or the first
    label in a tie. The source is Hoerl & Kennard 1970.

    >>> read_by_probe(np.array([[0.0], [1.0]]), ["no", "yes"], np.array([[0.9], [0.2]]))
    ['yes', 'no']
    """
    names = sorted(set(labels))
    y = np.where(np.array(labels)[:, None] == np.array(names), 1.0, -1.0)
    center, middle = x.mean(axis=0), y.mean(axis=0)
    centered = x - center
    weights = np.linalg.solve(centered.T @ centered + strength * np.eye(x.shape[1]), centered.T @ (y - middle))
    scores = (new - center) @ weights + middle
    return [names[i] for i in scores.round(9).argmax(axis=1)]  # equal but for rounding is equal


def share_right(read: Sequence[str], true: Sequence[str]) -> float:
    """Return the share of labels that are predicted correctly.

    >>> share_right(["a", "b"], ["a", "a"])
    0.5
    """
    return float(np.mean([one == other for one, other in zip(read, true, strict=True)]))


def mean_cosine(x: Float[ndarray, "n d"], y: Float[ndarray, "m d"]) -> float:
    """Return the mean cosine over all pairs of a row of x and a row of y, without pairs of a row with itself.

    >>> mean_cosine(np.eye(2), np.array([[1.0, 0.0]])), mean_cosine(x := np.eye(2), x)
    (0.5, 0.0)
    """
    cosines = unit_rows(x) @ unit_rows(y).T
    if x is y:
        return float(cosines[~np.eye(len(x), dtype=bool)].mean())
    return float(cosines.mean())


def unit_rows(x: Float[ndarray, "n d"]) -> Float[ndarray, "n d"]:
    """Return the rows of x, divided by their lengths.

    >>> unit_rows(np.array([[3.0, 4.0]])).tolist()
    [[0.6, 0.8]]
    """
    return x / np.linalg.norm(x, axis=1, keepdims=True)


NEIGHBORS = 3
CUES: dict[corpus.Kind, str] = {"animal": "hungry", "thing": "broken"}
"""The adjective before the noun in the displayed sentences."""
Vectors = Float[ndarray, "sentences d_model"]
Measures = Mapping[str, tuple[float, ...]]
"""The measures of each layer, in the order of the layers."""


@dataclass(frozen=True, eq=False)
class Material:
    """The sentences of the lesson. A cue is a word that determines the kind of the noun.

    Attributes:
        fit, test: Sentences about ambiguous nouns. The test sentences have other cues, and unseen clauses.
        synonyms_fit, synonyms_test: Sentences about nouns that have a translation in common.
    """

    tokens: Tokenizer
    fit: Sequence[corpus.Sentence]
    test: Sequence[corpus.Sentence]
    synonyms_fit: Sequence[corpus.Sentence]
    synonyms_test: Sequence[corpus.Sentence]

    @classmethod
    def drawn(cls) -> Material:
        """Draw the sentences, which are the same for all seeds."""
        rng = np.random.default_rng(0)
        two, one = ([noun for pair in pairs for noun in pair] for pairs in (corpus.two_meanings(), corpus.synonyms()))
        return cls(
            tokenizer(),
            contexts(two, "first", rng, unseen=False),
            contexts(two, "second", rng, unseen=True),
            contexts(one, "first", rng, unseen=False),
            contexts(one, "second", rng, unseen=True),
        )

    @cached_property
    def held_out(self) -> list[corpus.Sentence]:
        """The test sentences of the models. The first clause of each sentence does not occur in the training data."""
        return [*self.test, *self.synonyms_test]


def nouns_of(sentences: Sequence[corpus.Sentence]) -> list[corpus.Noun]:
    """Return the noun in the first clause of each sentence."""
    return [sentence.clauses[0].noun for sentence in sentences]


def likeness(vectors: Vectors, about: Sequence[corpus.Noun], pairs: Sequence[tuple[corpus.Noun, corpus.Noun]]) -> float:
    """Return the mean cosine between the vectors of two nouns, averaged over pairs of nouns.

    `about` contains the noun of each vector. The mean of all vectors is subtracted first, since the mean contains no
    information about a noun.

    >>> cat, dog = (corpus.Noun(source, "", "animal") for source in ("cat", "dog"))
    >>> likeness(np.array([[2.0, 1.0], [0.0, 1.0]]), [cat, dog], [(cat, dog)])
    -1.0
    """
    centered = vectors - vectors.mean(axis=0)
    rows = {noun: centered[[other == noun for other in about]] for pair in pairs for noun in pair}
    return float(np.mean([mean_cosine(rows[one], rows[other]) for one, other in pairs]))


def kind_read(fit: Vectors, test: Vectors, material: Material) -> tuple[float, float]:
    """Return the accuracy of a probe for the kind of a noun (animal or thing): for fitted nouns, and for a new noun.

    In both cases, the cues differ from the cues in the sentences to which the probe was fitted.
    """
    fitted, asked = nouns_of(material.fit), nouns_of(material.test)
    kinds, true = [noun.kind for noun in fitted], [noun.kind for noun in asked]
    known = share_right(read_by_probe(fit, kinds, test), true)
    shares = []
    for source in corpus.AMBIGUOUS:
        others = [i for i, noun in enumerate(fitted) if noun.source != source]
        own = [i for i, noun in enumerate(asked) if noun.source == source]
        read = read_by_probe(fit[others], [kinds[i] for i in others], test[own])
        shares.append(share_right(read, [true[i] for i in own]))
    return known, float(np.mean(shares))


def masked_measures(model: MaskedLM, material: Material) -> Measures:
    """Measure each layer of a masked model.

    The first two measures are the mean cosine within one meaning and between two meanings. The next two measures are
    the probe accuracy for the kind of a fitted noun and of a new noun. The last measure is the share of nearest nouns
    of the right kind.
    """
    fit, test = (noun_vectors(model, material.tokens, part) for part in (material.fit, material.test))
    about, pairs = nouns_of(material.test), corpus.two_meanings()
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
    """Measure each layer of a translator.

    The first three measures are the probe accuracies for kind, translation and source word. The last two measures are
    the mean cosine between the two meanings of a source word, and between two source words with one meaning. Kind and
    translation are measured for ambiguous nouns, and the source word is measured for synonyms.
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
            likeness(both, [*asked, *one_asked], corpus.two_meanings()),
            likeness(both, [*asked, *one_asked], corpus.synonyms()),
        )

    return {layer: measured(layer) for layer in test}


def shown_sentence(source: str, kind: corpus.Kind) -> corpus.Sentence:
    """Return the sentence "the hungry … is here" for an animal, or "the broken … is here" for a thing.

    >>> shown_sentence("bat", "thing").english
    'the broken bat is here'
    """
    noun = next(noun for noun in corpus.nouns() if (noun.source, noun.kind) == (source, kind))
    return corpus.Sentence((corpus.Clause(noun, CUES[kind], "is here"),))


def plain_nouns() -> list[corpus.Noun]:
    """Return the unambiguous nouns."""
    return [noun for noun in corpus.nouns() if noun.source not in corpus.AMBIGUOUS]


def neighbors(
    model: MaskedLM, tokens: Tokenizer, source: str, layer: str
) -> Mapping[corpus.Kind, list[tuple[float, corpus.Noun]]]:
    """Return the unambiguous nouns nearest to an ambiguous noun as an animal and as a thing, as (cosine, noun).

    The unambiguous nouns are in a sentence without a cue: "the white … is here".
    """
    others = plain_nouns()
    plain = [corpus.Sentence((corpus.Clause(noun, "white", "is here"),)) for noun in others]
    rows = noun_vectors(model, tokens, plain)[layer]
    own = noun_vectors(model, tokens, [shown_sentence(source, kind) for kind in corpus.KINDS])[layer]
    return {
        kind: [(cosine, others[row]) for cosine, row in nearest_rows(vector, rows, NEIGHBORS)]
        for kind, vector in zip(corpus.KINDS, own, strict=True)
    }


def right_neighbors(model: MaskedLM, tokens: Tokenizer, layer: str) -> float:
    """Return the share of nearest nouns that have the kind that the sentence determines, over all ambiguous nouns."""
    return float(
        np.mean(
            [
                noun.kind == kind
                for source in corpus.AMBIGUOUS
                for kind, found in neighbors(model, tokens, source, layer).items()
                for _, noun in found
            ]
        )
    )


SEEDS = 3
MASKED_STEPS, TRANSLATOR_STEPS = 1500, 500
LAYER = translated("layer")
KIND = translated("kind")
ENCODER_END, DECODER_END = f"encoder {N_LAYERS}", f"decoder {N_LAYERS}"


def teach(options: Options) -> Iterator[Piece]:
    """Compare the vectors of ambiguous nouns in a masked model, then in the encoder and decoder of a translator."""
    material, seeds = Material.drawn(), range(1, 1 + (options.seeds or SEEDS))
    tokens = material.tokens
    yield passage("contexts.teach", n_nouns=len(corpus.AMBIGUOUS))
    steps, held = options.steps(MASKED_STEPS), texts_of(material.held_out)
    masked = [masked_model(new_masked_model(tokens, seed), tokens, english_drawn, held, steps, seed) for seed in seeds]
    yield from in_context(masked, [new_masked_model(tokens, seed) for seed in seeds], material)
    translators = [translator(tokens, material.held_out, options.steps(TRANSLATOR_STEPS), seed) for seed in seeds]
    yield from in_translation(translators, [new_translator(tokens, seed) for seed in seeds], material)


def in_context(runs: Sequence[Training], untrained: Sequence[MaskedLM], material: Material) -> Iterator[Piece]:
    """Yield the results for a masked model, which has never seen a translation."""
    models = [run.model for run in runs if isinstance(run.model, MaskedLM)]
    yield loss_curves(translated("Masked model: training loss"), {"masked": runs})
    columns = (
        LAYER,
        translated("one meaning"),
        translated("two"),
        KIND,
        translated("new noun"),
        translated("neighbors"),
    )
    yield passage("contexts.in_context", NEIGHBORS=NEIGHBORS)
    title = translated("A model of hidden English words")
    found = [masked_measures(model, material) for model in models]
    control = [masked_measures(model, material) for model in untrained]
    yield Table("words-in-context", title, columns, _rows(found))
    yield Table("words-in-context-untrained", _UNTRAINED, columns, _rows(control))
    yield from _bat(models[0], material.tokens)
    _, _, static, _, _ = _mean(found, STATIC)
    same, other, kind, new, _ = _mean(found, ENCODER_END)
    guessed = _mean(control, ENCODER_END)[2]
    said = passage(
        "contexts.in_context-2",
        static=static,
        N_LAYERS=N_LAYERS,
        same=same,
        other=other,
        kind=kind,
        new=new,
        guessed=guessed,
    )
    yield Conclusion(said)


def _bat(model: MaskedLM, tokens: Tokenizer) -> Iterator[Piece]:
    """Yield the nearest nouns and the attention of the same word in two sentences."""
    yield near_bat(model, tokens, STATIC, next(iter(neighbors(model, tokens, "bat", STATIC).values())))
    sentence = shown_sentence("bat", "animal")
    title = translated('Where "bat" looks, by layer and head (rows: layer.head)')
    weights = gaze(model, tokens, sentence)
    n_heads = len(weights) // N_LAYERS
    names = tuple(f"{layer + 1}.{head + 1}" for layer in range(N_LAYERS) for head in range(n_heads))
    yield Picture("matrix", title, weights, names, (*sentence.english.split(), "$"))


def near_bat(model: MaskedLM, tokens: Tokenizer, name: str, static: Sequence[tuple[float, corpus.Noun]]) -> Table:
    """Return the nouns nearest to "bat": by a static vector of this name, and by the last layer in two sentences."""
    rows: list[tuple[Cell, ...]] = [("bat", name, _listed(static))]
    for kind, found in neighbors(model, tokens, "bat", ENCODER_END).items():
        rows.append((shown_sentence("bat", kind).english, ENCODER_END, _listed(found)))
    columns = (translated("bat in"), LAYER, translated("nearest nouns (cosine)"))
    return Table("bat", translated('What is near "bat"'), columns, tuple(rows))


def gaze(model: MaskedLM, tokens: Tokenizer, sentence: corpus.Sentence) -> Float[np.ndarray, "heads places"]:
    """Return the attention from the first clause's noun to each word and eos, with one row per layer and head."""
    paths = [f"encoder.blocks.{layer}.self_attention" for layer in range(N_LAYERS)]
    with torch.no_grad(), recording(model, "*.self_attention.weights") as record:
        record.model.hidden(**english([sentence.english], tokens))
    weights = [record[path].weights[0, :, sentence.source_place(0)] for path in paths]
    return np.concatenate([part.double().numpy() for part in weights])


def in_translation(
    runs: Sequence[Training], untrained: Sequence[EncoderDecoder], material: Material
) -> Iterator[Piece]:
    """Yield the accuracy with which kind, translation and source word can be read from each layer of a translator."""
    models = [run.model for run in runs if isinstance(run.model, EncoderDecoder)]
    yield loss_curves(translated("Translator: training loss"), {"translator": runs})
    exact = mean_and_deviation([100 * run.measures["exact"] for run in runs], ".1f")
    columns = (
        LAYER,
        KIND,
        translated("target word"),
        translated("source word"),
        translated("bat, bat"),
        translated("dog, hound"),
    )
    n_targets, n_sources = (
        len({sentence.clauses[0].noun for sentence in part}) for part in (material.test, material.synonyms_test)
    )
    yield passage("contexts.in_translation", n_targets=n_targets, n_sources=n_sources)
    title = translated("A translator; {exact} % of unseen sentences right to the letter", exact=exact)
    found = [translator_measures(model, material) for model in models]
    control = [translator_measures(model, material) for model in untrained]
    yield Table("translator", title, columns, _rows(found))
    yield Table("translator-untrained", _UNTRAINED, columns, _rows(control))
    yield _translations(models[0], material.tokens)
    yield Conclusion(_where_kind(found, control))
    yield Conclusion(_where_words(found, control))


def _where_kind(found: Sequence[Measures], control: Sequence[Measures]) -> Localized:
    """Return the half of the translator in which the kind of an ambiguous noun is determined."""
    encoder, decoder = (_mean(found, layer)[0] for layer in (ENCODER_END, DECODER_END))
    guessed = [_mean(control, layer)[0] for layer in (ENCODER_END, DECODER_END)]
    if decoder < 0.75:
        said = translated("This translator has not learned to settle it.")
    elif encoder - 0.5 < (decoder - 0.5) / 2:
        said = passage("contexts.where_kind")
    else:
        said = translated("This translator settles most of it in the encoder.")
    return passage("contexts.where_kind-2", encoder=encoder, decoder=decoder, guessed=guessed, said=said)


def _where_words(found: Sequence[Measures], control: Sequence[Measures]) -> Localized:
    """Return whether the vectors of encoder and decoder represent source words or target words."""
    (_, _, source, bats, dogs), (_, target, kept, late_bats, late_dogs) = (
        _mean(found, layer) for layer in (ENCODER_END, DECODER_END)
    )
    first, last = (_mean(control, layer)[3:] for layer in (ENCODER_END, DECODER_END))
    if min(bats - dogs, late_dogs - late_bats) > 0.1:
        said = translated("The encoder's vectors go by the source word, the decoder's by its translation.")
    else:
        said = passage("contexts.where_words")
    return passage(
        "contexts.where_words-2",
        bats=bats,
        dogs=dogs,
        first=first,
        late_bats=late_bats,
        late_dogs=late_dogs,
        last=last,
        said=said,
        source=source,
        target=target,
        kept=kept,
    )


def _translations(model: EncoderDecoder, tokens: Tokenizer) -> Localized:
    texts = [shown_sentence("bat", kind).english for kind in corpus.KINDS]
    found = [translation.text for translation in Translator(model, tokens, segment="none").translate(texts, beam=1)]
    lines = "\n".join(f"{text} → {target}" for text, target in zip(texts, found, strict=True))
    return Localized(lines, lines)


_UNTRAINED = translated("The same of models that are not trained")


def _mean(found: Sequence[Measures], layer: str) -> tuple[float, ...]:
    return tuple(np.mean([measures[layer] for measures in found], axis=0).tolist())


def _rows(found: Sequence[Measures]) -> tuple[tuple[Cell, ...], ...]:
    """Return a row per layer with the mean and the deviation of each measure over the models."""
    return tuple(
        (
            layer,
            *(mean_and_deviation(column, ".2f") for column in zip(*(m[layer] for m in found), strict=True)),
        )
        for layer in found[0]
    )


def _listed(found: Sequence[tuple[float, corpus.Noun]]) -> str:
    return ", ".join(f"{noun.source} {cosine:.2f}" for cosine, noun in found)


LESSON = Lesson(
    "words-in-context",
    "NYU Deep Learning 12-3: hidden states as the meaning of a word",
    translated("One word in two contexts"),
    passage("contexts.question"),
    3.0,
    teach,
    seeds=(SEEDS,),
)
LESSONS = (LESSON,)
