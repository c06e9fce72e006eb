"""Vectors of texts and tokens from any model, against the model's own passes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_embedders import LAYERS, embedder

from attendo.errors import AttendoError
from attendo.inference.embedder import nearest_rows

TEXTS = ["ab ba", "a", "", "b" * 40, "aabb"]


@pytest.mark.parametrize("architecture", LAYERS)
@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_a_text_has_the_same_vector_alone_and_among_others(architecture, pooling):
    found = embedder(architecture)
    for layer in (None, 0, 1, 2):
        together = found.embed(TEXTS, pooling, layer)
        alone = np.concatenate([found.embed([text], pooling, layer) for text in TEXTS])
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
        assert together.shape == (len(TEXTS), 8)


def token_vectors(found, text):
    """The tokens of a text that fits into the context, and a vector for each."""
    [part] = found._parts(text)
    states, _ = found._states([part], None)
    return found.tokenizer.pieces(part), states[0].double().numpy()


@pytest.mark.parametrize("architecture", LAYERS)
def test_a_texts_vector_is_its_tokens_pooled(architecture):
    found = embedder(architecture)
    pieces, vectors = token_vectors(found, "ab ba")
    assert len(pieces) == len(vectors) == 6
    special = "</s>" if architecture == "encoder-decoder" else "<s>"
    assert pieces[-1 if special == "</s>" else 0] == special
    np.testing.assert_allclose(found.embed(["ab ba"])[0], vectors.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.embed(["ab ba"], "max")[0], vectors.max(0), atol=1e-6)
    np.testing.assert_allclose(found.embed(["ab ba"], "first")[0], vectors[0], atol=1e-6)


def test_a_long_text_is_read_in_stretches():
    found = embedder("masked")
    first, second = "ab" * 7 + "a", "ba"
    parts = [token_vectors(found, text)[1] for text in (first, second)]
    np.testing.assert_allclose(found.embed([first + second])[0], np.concatenate(parts).mean(0), atol=1e-6)
    np.testing.assert_allclose(found.embed([first + second], "max")[0], np.concatenate(parts).max(0), atol=1e-6)


def test_what_is_not_there_is_named():
    found = embedder("masked")
    with pytest.raises(AttendoError, match=r"must be 0 \(the embedding\) to 2"):
        found.embed(["a"], layer=3)
    with pytest.raises(AttendoError, match="expected max, mean, first"):
        found.embed(["a"], "last")


vectors = st.lists(st.lists(st.integers(-3, 3), min_size=2, max_size=2), min_size=1, max_size=6).map(np.array)


@given(rows=vectors, n=st.integers(1, 7))
def test_the_nearest_rows_are_those_of_a_sorted_list(rows, n):
    query = np.array([1.0, 2.0])
    norms = [float(np.linalg.norm(row)) for row in rows]
    cosines = [float(row @ query) / (norm * 5**0.5) if norm else 0.0 for row, norm in zip(rows, norms, strict=True)]
    found = nearest_rows(query, rows.astype(float), n)
    assert [cosine for cosine, _ in found] == pytest.approx(sorted(cosines, reverse=True)[:n])
    assert [cosines[row] for _, row in found] == pytest.approx([cosine for cosine, _ in found])
