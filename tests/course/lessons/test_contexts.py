"""One word in two contexts: the corpus, where its nouns stand, probe and cosines against oracles, the lesson."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics.pairwise import cosine_similarity

from attendo.data.masking import MASK_ID
from attendo.display.tables import WIDTH
from attendo.display.width import columns
from attendo.models import MaskedLM
from attendo_course.commands.lesson import piece_lines
from attendo_course.lessons import contexts, contexts_models
from attendo_course.lessons.arrays import NO_TARGET
from attendo_course.lessons.contexts_models import (
    STATIC,
    english,
    english_drawn,
    hidden_words,
    layers,
    masked_model,
    new_masked_model,
    new_translator,
    noun_vectors,
    pairs,
    texts_of,
    translator,
)
from attendo_course.lessons.contexts_words import (
    ADJECTIVES,
    FRAMES,
    KINDS,
    PREDICATES,
    Sentence,
    clauses,
    drawn,
    nouns,
    synonyms,
    two_meanings,
    words,
)
from attendo_course.lessons.lesson import Options, Table
from attendo_course.pictures import Picture

MATERIAL = contexts.Material.drawn()
TOKENS = MATERIAL.tokens
CLAUSES = [clause for noun in nouns() for clause in clauses(noun)]
SENTENCES = st.builds(
    Sentence,
    st.lists(st.sampled_from(CLAUSES), min_size=1, max_size=2).map(tuple),
    st.sampled_from(list(FRAMES)),
)
WORDS = set(words())
SEEDS = st.integers(0, 2**32 - 1)


@given(SENTENCES)
def test_the_noun_is_where_it_is_said_to_be(sentence):
    source, target = sentence.english.split(), sentence.japanese.split()
    for number, clause in enumerate(sentence.clauses):
        assert source[sentence.source_place(number)] == clause.noun.source
        assert target[sentence.target_place(number)] == clause.noun.target
        assert target[sentence.target_place(number) + 1] == "は"


@given(SENTENCES)
def test_every_word_has_an_id(sentence):
    for text in (sentence.english, sentence.japanese):
        ids = TOKENS.encode(text)
        assert len(ids) == len(text.split())
        assert TOKENS.unk_id not in ids
        assert set(text.split()) <= WORDS


@given(SEEDS)
def test_held_out_clauses_are_never_drawn(seed):
    sentences = drawn(np.random.default_rng(seed), 50)
    assert not any(clause.held_out for sentence in sentences for clause in sentence.clauses)


def test_a_fifth_of_the_clauses_is_held_out_as_many_of_each_kind():
    held = Counter(clause.noun for clause in CLAUSES if clause.held_out)
    for animal, thing in two_meanings():
        assert held[animal] == held[thing] > 0
    assert sum(held.values()) / len(CLAUSES) == pytest.approx(0.2, abs=0.01)


def test_the_probes_chance_is_one_half():
    for part in (MATERIAL.fit, MATERIAL.test):
        found = Counter(contexts.nouns_of(part))
        assert set(found) == {noun for pair in two_meanings() for noun in pair}
        assert all(found[animal] == found[thing] for animal, thing in two_meanings())
    for part in (MATERIAL.synonyms_fit, MATERIAL.synonyms_test):
        assert set(contexts.nouns_of(part)) == {noun for pair in synonyms() for noun in pair}


def test_the_cues_of_the_test_are_others_and_its_clauses_are_held_out():
    def cues(sentences):
        told = {kind: set(ADJECTIVES[kind]) | set(PREDICATES[kind]) for kind in KINDS}
        for sentence in sentences:
            clause = sentence.clauses[0]
            ((cue, kind),) = [
                (part, kind) for part in (clause.adjective, clause.predicate) for kind in KINDS if part in told[kind]
            ]
            assert kind == clause.noun.kind
            assert all(second.noun.source != clause.noun.source for second in sentence.clauses[1:])
            yield cue

    for fit, test in ((MATERIAL.fit, MATERIAL.test), (MATERIAL.synonyms_fit, MATERIAL.synonyms_test)):
        assert not set(cues(fit)) & set(cues(test))
        assert all(sentence.clauses[0].held_out for sentence in test)
        assert not any(sentence.clauses[0].held_out for sentence in fit)
    assert set(map(id, MATERIAL.held_out)) == {id(s) for s in (*MATERIAL.test, *MATERIAL.synonyms_test)}


@given(SEEDS)
def test_hidden_words_are_the_targets(seed):
    rng = np.random.default_rng(seed)
    sentences = drawn(rng, 3)
    plain, examples = (
        english(texts_of(sentences), TOKENS)["src"],
        hidden_words(texts_of(sentences), TOKENS, rng),
    )
    asked = examples.targets != NO_TARGET
    assert asked.any(1).all()
    assert torch.equal(examples.targets[asked], plain[asked])
    assert (examples.inputs["src"][asked] == MASK_ID).all()
    assert torch.equal(examples.inputs["src"][~asked], plain[~asked])


@given(SEEDS, st.sampled_from([2, 4]), st.sampled_from([0.1, contexts.RIDGE, 30.0]))
def test_the_probe_is_a_ridge_classifier(seed, n_labels, strength):
    rng = np.random.default_rng(seed)
    x, new = rng.normal(size=(30, 5)), rng.normal(size=(20, 5))
    labels = [f"label {i % n_labels}" for i in range(30)]
    oracle = RidgeClassifier(alpha=strength).fit(x, labels)
    assert contexts.read_by_probe(x, labels, new, strength) == list(oracle.predict(new))


@given(SEEDS, st.integers(2, 5), st.integers(1, 5))
def test_the_mean_cosine_is_that_of_all_pairs(seed, n, m):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, 4)), rng.normal(size=(m, 4))
    assert contexts.mean_cosine(x, y) == pytest.approx(cosine_similarity(x, y).mean())
    inner = cosine_similarity(x, x)
    assert contexts.mean_cosine(x, x) == pytest.approx((inner.sum() - np.trace(inner)) / (n * (n - 1)))


def test_likeness_subtracts_what_all_vectors_have():
    rng = np.random.default_rng(0)
    about = [noun for pair in synonyms()[:3] for noun in pair] * 3
    vectors = rng.normal(size=(18, 4))
    centered = vectors - vectors.mean(0)
    wanted = [
        cosine_similarity(*(centered[[i for i in range(18) if about[i] == noun]] for noun in pair)).mean()
        for pair in synonyms()[:2]
    ]
    for shift in (0.0, 7.0):
        assert contexts.likeness(vectors + shift, about, synonyms()[:2]) == pytest.approx(np.mean(wanted))


def test_static_vectors_give_the_probe_exactly_chance():
    model = new_masked_model(TOKENS, 1)
    fit, test = (noun_vectors(model, TOKENS, part)[STATIC] for part in (MATERIAL.fit, MATERIAL.test))
    assert contexts.kind_read(fit, test, MATERIAL) == (0.5, 0.5)
    for animal, thing in two_meanings():
        rows = test[[noun in (animal, thing) for noun in contexts.nouns_of(MATERIAL.test)]]
        assert (rows == rows[0]).all()


def test_a_probe_reads_what_is_there_also_of_another_noun():
    def vectors(sentences):
        return np.array([[noun.kind == "animal", len(noun.source)] for noun in contexts.nouns_of(sentences)], float)

    assert contexts.kind_read(vectors(MATERIAL.fit), vectors(MATERIAL.test), MATERIAL) == (1.0, 1.0)


@torch.no_grad()
def test_vectors_are_the_models_at_the_noun():
    model, sentences = new_translator(TOKENS, 1), MATERIAL.test[::40]
    found = noun_vectors(model, TOKENS, sentences)
    assert list(found) == layers(model)
    inputs, rows = pairs(sentences, TOKENS).inputs, torch.arange(len(sentences))
    source = torch.tensor([sentence.source_place(0) for sentence in sentences])
    target = torch.tensor([sentence.target_place(0) for sentence in sentences])
    assert inputs["src"][rows, source].tolist() == [TOKENS.encode(n.source)[0] for n in contexts.nouns_of(sentences)]
    wanted = pairs(sentences, TOKENS).targets[rows, target]
    assert wanted.tolist() == [TOKENS.encode(n.target)[0] for n in contexts.nouns_of(sentences)]
    hidden = model.hidden(**inputs)[rows, target].double().numpy()
    assert np.allclose(found["decoder 2"], hidden, atol=1e-5)
    alone = noun_vectors(model, TOKENS, sentences[:1])
    assert np.allclose(found["encoder 2"][:1], alone["encoder 2"], atol=1e-5)  # padding tells nothing
    static = model.source_embedding.tokens.weight[inputs["src"][rows, source]]
    assert np.allclose(found[STATIC], static.numpy() * np.sqrt(64), atol=1e-6)


def test_neighbors_are_nouns_of_one_meaning_nearest_first():
    model = new_masked_model(TOKENS, 2)
    for found in contexts.neighbors(model, TOKENS, "seal", "encoder 1").values():
        cosines = [cosine for cosine, _ in found]
        assert cosines == sorted(cosines, reverse=True)
        assert not {noun.source for _, noun in found} & {pair[0].source for pair in two_meanings()}


def test_the_gaze_of_each_head_adds_up_to_one():
    sentence = contexts.shown_sentence("bat", "animal")
    weights = contexts.gaze(new_masked_model(TOKENS, 1), TOKENS, sentence)
    assert weights.shape == (8, len(sentence.english.split()) + 1)
    assert weights.sum(1) == pytest.approx(1.0)


def masked(sentences, steps, seed):
    texts = texts_of(sentences)
    return masked_model(new_masked_model(TOKENS, seed), TOKENS, english_drawn, texts, steps, seed)


@pytest.mark.some(1)
@pytest.mark.parametrize("learn", [masked, partial(translator, TOKENS)])
def test_the_same_seed_gives_the_same_numbers(learn):
    first, again, other = (learn(MATERIAL.test[:20], 2, seed) for seed in (1, 1, 2))
    assert (first.losses, first.measures) == (again.losses, again.measures)
    assert first.losses != other.losses


def test_the_lesson_shows_tables_and_pictures_that_fit_the_terminal(monkeypatch):
    monkeypatch.setattr(contexts_models, "FRAMES", {"": FRAMES[""]})
    pieces = list(contexts.LESSON.teach(Options(seeds=1, effort=0.001)))
    names = [piece.name for piece in pieces if isinstance(piece, Table)]
    assert names == [
        "words-in-context",
        "words-in-context-untrained",
        "bat",
        "translator",
        "translator-untrained",
    ]
    sizes = [len(piece.rows) for piece in pieces if isinstance(piece, Table)]
    assert sizes == [3, 3, 3, 6, 6]
    assert [p.kind for p in pieces if isinstance(p, Picture)] == ["curves", "matrix", "curves"]
    assert contexts.LESSON.question not in pieces  # the command prints it
    for language in ("en", "ja"):
        lines = [line for piece in pieces for line in piece_lines(piece, language)]
        assert max(map(columns, lines)) <= WIDTH
        assert "nan" not in "".join(lines)


@pytest.mark.parametrize(
    ("encoder", "decoder", "said"),
    [(0.7, 1.0, "most of it in the decoder"), (0.9, 1.0, "in the encoder"), (0.7, 0.7, "has not learned")],
)
def test_where_the_kind_is_settled_is_said_by_the_numbers(encoder, decoder, said):
    measures = {"encoder 2": (encoder, 0, 0, 0, 0), "decoder 2": (decoder, 0, 0, 0, 0)}
    assert said in contexts._where_kind([measures], [measures]).en


@pytest.mark.parametrize(("late_dogs", "clear"), [(0.8, True), (0.45, False), (0.1, False)])
def test_whose_word_the_vectors_go_by_is_said_only_where_it_is_clear(late_dogs, clear):
    measures = {"encoder 2": (1, 1, 1, 0.9, 0.6), "decoder 2": (1, 1, 1, 0.4, late_dogs)}
    assert ("not clear" not in contexts._where_words([measures], [measures]).en) is clear


@pytest.mark.full
def test_training_makes_contexts_of_different_meaning_different():
    run = masked(MATERIAL.held_out, contexts.MASKED_STEPS, 1)
    assert isinstance(run.model, MaskedLM)
    same, other, kind, new, _ = contexts.masked_measures(run.model, MATERIAL)["encoder 2"]
    assert same > 0.2 > 0 > other
    assert min(kind, new) > 0.9
    _, _, guessed, _, _ = contexts.masked_measures(new_masked_model(TOKENS, 1), MATERIAL)["encoder 2"]
    assert guessed < 0.7
