"""Word2Vec against context: the corpus, the loss and its limit, analogies, and what is equal by the theory."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attendo.display.tables import WIDTH
from attendo.display.width import columns
from attendo_course.commands.lesson import piece_lines
from attendo_course.lessons import word2vec
from attendo_course.lessons.contexts import Material
from attendo_course.lessons.lesson import Options, Table
from attendo_course.pictures import Picture

CORPUS = word2vec.Corpus.drawn()
SEEDS = st.integers(0, 2**32 - 1)


def random_counts(seed, n=4):
    counts = np.random.default_rng(seed).integers(1, 9, (n, n)).astype(float)
    return counts + counts.T


def test_the_corpus_contains_no_test_sentence():
    texts = set(CORPUS.texts)
    assert not texts & set(word2vec.order_texts(unseen=True))
    assert texts >= set(word2vec.order_texts(unseen=False))
    assert all(any(text.endswith(related) for text in texts) for related in word2vec.relation_texts()[::20])
    clauses = {sentence.clauses[0].english for sentence in Material.drawn().test}
    assert not any(clause in text for text in CORPUS.texts[::10] for clause in clauses)


@pytest.mark.parametrize("unseen", [False, True])
def test_a_statement_and_its_question_differ_only_in_their_order(unseen):
    texts = word2vec.order_texts(unseen=unseen)
    assert "i must be" in " ".join(texts)
    for statement, question in zip(texts[::2], texts[1::2], strict=True):
        assert (statement.split().index("i"), question.split().index("i")) == (0, 1)
        assert sorted(statement.split()) == sorted(question.split())


def test_counts_are_those_of_all_words_in_the_window():
    corpus = word2vec.Corpus(CORPUS.texts[:30])
    counts = np.zeros_like(corpus.counts)
    for text in corpus.texts:
        words = text.split()
        for i, word in enumerate(words):
            for other in (*words[max(0, i - word2vec.WINDOW) : i], *words[i + 1 : i + 1 + word2vec.WINDOW]):
                counts[corpus.ids[word], corpus.ids[other]] += 1
    assert (corpus.counts == counts).all()


def test_the_gradient_is_that_of_the_formula_and_of_finite_differences():
    rng = torch.Generator().manual_seed(1)
    scores, noise = (torch.randn(*size, generator=rng, dtype=torch.float64) for size in ((6,), (6, 3)))
    inputs = scores.requires_grad_(), noise.requires_grad_()
    assert torch.autograd.gradcheck(word2vec.skip_gram_loss, inputs)
    to_scores, to_noise = torch.autograd.grad(word2vec.skip_gram_loss(*inputs), inputs)
    assert torch.allclose(to_scores, (scores.sigmoid() - 1) / 6)
    assert torch.allclose(to_noise, noise.sigmoid() / 6)


@given(SEEDS, st.integers(1, 8))
def test_no_scores_have_a_loss_below_the_limit(seed, k):
    counts, rng = random_counts(seed), np.random.default_rng(seed)
    best = word2vec.limit(counts, k)
    least = word2vec.expected_loss(best, counts, k)
    for size in (1e-3, 1.0):
        assert word2vec.expected_loss(best + size * rng.normal(size=best.shape), counts, k) > least
    assert word2vec.expected_loss(np.zeros_like(best), counts, k) == pytest.approx((1 + k) * np.log(2))


def test_the_limit_is_pmi_minus_ln_k_if_the_noise_has_the_frequencies_of_the_words(monkeypatch):
    monkeypatch.setattr(word2vec, "SMOOTHING", 1.0)
    p = random_counts(3) / random_counts(3).sum()
    pmi = np.log(p / np.outer(p.sum(1), p.sum(0)))
    assert np.allclose(word2vec.limit(random_counts(3)), pmi - np.log(word2vec.NEGATIVES))


def test_an_unseen_pair_has_a_finite_loss_at_its_limit():
    counts = random_counts(2)
    counts[0, 1] = counts[1, 0] = 0
    assert word2vec.limit(counts)[0, 1] == -np.inf
    assert (
        0
        < word2vec.expected_loss(word2vec.limit(counts), counts)
        < word2vec.expected_loss(np.maximum(word2vec.limit(counts), -5), counts)
    )


def test_with_enough_dimensions_the_scores_reach_the_limit(monkeypatch):
    monkeypatch.setattr(word2vec, "RATE", 0.1)
    counts = random_counts(1, n=3)
    u, v = word2vec.skip_gram(counts, 3, 150, seed=1)
    short = np.outer(*(x[:, 0] for x in word2vec.skip_gram(counts, 1, 150, seed=1)))
    assert np.abs(u @ v.T - word2vec.limit(counts)).max() < 0.1
    assert np.abs(short - word2vec.limit(counts)).max() > 1
    again, other = (word2vec.skip_gram(counts, 3, 3, seed)[0] for seed in (1, 2))
    assert not (again == other).all()
    assert (again == word2vec.skip_gram(counts, 3, 3, seed=1)[0]).all()


@given(SEEDS)
def test_analogies_are_answered_by_the_largest_cosine_of_another_word(seed):
    rng = np.random.default_rng(seed)
    vectors, asked = rng.normal(size=(9, 3)), np.array([rng.permutation(9)[:3] for _ in range(5)])
    unit = [vector / np.linalg.norm(vector) for vector in vectors]
    for (a, b, c), found in zip(asked, word2vec.answers(vectors, asked), strict=True):
        others = set(range(9)) - {a, b, c}
        assert found == max(others, key=lambda row: (unit[b] - unit[a] + unit[c]) @ unit[row])


def test_the_limit_answers_all_analogies():
    best = np.maximum(word2vec.limit(CORPUS.counts), 0) + 1e-9
    assert word2vec.right_answers(best, CORPUS.ids) == [1.0] * (1 + len(word2vec.RELATIONS))
    assert len(word2vec.questions("past")) == 2 * 8 * 7
    assert {word for analogy in word2vec.questions("past") for word in analogy} <= set(CORPUS.ids)


def test_the_lesson_fits_the_terminal_and_has_exactly_the_accuracies_of_the_theory():
    pieces = list(word2vec.LESSON.teach(Options(seeds=1, effort=0.001)))
    tables = {piece.name: piece for piece in pieces if isinstance(piece, Table)}
    assert list(tables) == ["skip-gram", "pairs", "analogies", "in-context", "bat"]
    assert not any(isinstance(piece, Picture) for piece in pieces)
    word, mean, unordered, static, *_ = tables["in-context"].rows
    for row in (word, static):
        assert row[1:] == ("50%",) * 5
    for row in (mean, unordered):
        assert row[4:] == ("50%", "50%")
    for language in ("en", "ja"):
        lines = [line for piece in pieces for line in piece_lines(piece, language)]
        assert max(map(columns, lines)) <= WIDTH
        assert "nan" not in "".join(lines)


@pytest.mark.full
def test_skip_gram_approaches_its_limit_and_answers_analogies():
    u, v = word2vec.skip_gram(CORPUS.counts, 32, word2vec.STEPS, seed=1)
    assert (
        word2vec.expected_loss(u @ v.T, CORPUS.counts)
        - word2vec.expected_loss(word2vec.limit(CORPUS.counts), CORPUS.counts)
        < 0.03
    )
    assert word2vec.right_answers(u, CORPUS.ids)[-1] > 0.8
