"""The figures' arrays against direct transcriptions in NumPy, and what a model's block diagram counts."""

import numpy as np
import pytest
from figure_models import CLASSIFIER, GPT2, MASKED, MIXED, encoding
from numpy_transcription import softmax

from attendo.errors import AttendoError
from attendo.models import build_model, parameter_count
from attendo_course.figures import arrays
from attendo_course.figures.model_parts import chosen_model, model_diagram

TIGHT = {"rtol": 0, "atol": 1e-10}


# ---- positions


def test_curves_of_the_formula():
    found = arrays.formula_curves()
    length, d = 50, 5
    assert found.positions.tolist() == list(range(1, 51))
    assert found.rows.shape == (4, 50)  # no fifth: i ends at d/2
    for i in (1, 2):
        for t in range(1, length + 1):
            expected = np.sin(t / length ** (2 * i / d)), np.cos(t / length ** (2 * i / d))
            np.testing.assert_allclose(found.rows[2 * i - 2 : 2 * i, t - 1], expected, **TIGHT)
    assert found.rows[:, 0].round(6).tolist() == [0.207607, 0.978212, 0.043721, 0.999044]
    assert found.periods.round(2).tolist() == [30.04, 30.04, 143.67, 143.67]


def test_curves_as_plotted():
    found = arrays.plotted_curves()
    length, d = 50, 5
    assert found.positions.tolist() == list(range(50))
    for i in range(1, d + 1):
        for x in range(length):
            expected = np.cos(x / length ** ((i - 1) / d)) if i % 2 else np.sin(x / length ** (i / d))
            np.testing.assert_allclose(found.rows[i - 1, x], expected, **TIGHT)
    assert found.rows[:, 1].round(6).tolist() == [0.540302, 0.207607, 0.978212, 0.043721, 0.999044]
    assert found.periods.round(2).tolist() == [6.28, 30.04, 30.04, 143.67, 143.67]


@pytest.mark.parametrize(("d", "first_rise"), [(128, 11), (512, 43)])
def test_products_depend_on_distance_and_are_not_monotone(d, first_rise):
    found = arrays.products(d)
    omega = 10000.0 ** (-2 * np.arange(d // 2) / d)
    expected = np.array([np.cos(k * omega).sum() for k in range(101)])
    np.testing.assert_allclose(found.products, expected, **TIGHT)
    table = encoding(164, d)
    by_position = np.array([[table[p] @ table[p + k] for k in range(101)] for p in range(0, 64, 9)])
    np.testing.assert_allclose(by_position, np.broadcast_to(found.products, by_position.shape), **TIGHT)
    assert 0 < found.deviation < 1e-11
    assert found.first_rise == first_rise
    assert (np.diff(expected[: first_rise + 1]) < 0).all()
    assert expected[first_rise + 1] > expected[first_rise]


# ---- attention


def test_temperature_from_soft_to_hard():
    found = arrays.temperature()
    np.testing.assert_allclose(found.betas, 10 ** np.linspace(-2, 3, 201), rtol=1e-12)
    expected = softmax(found.betas[:, None] * np.array([1, 0.5, 0.2]))
    np.testing.assert_allclose(found.weights, expected, **TIGHT)
    np.testing.assert_allclose(found.soft, [1 / 3] * 3, **TIGHT)
    assert found.hard.tolist() == [1, 0, 0]
    assert round(arrays.weights_at((1.0, 0.5, 0.2), 20.0)[0], 5) == 0.99995


def test_entropy_with_and_without_the_scale():
    dimensions, n_keys, draws, seed = (1, 8, 64), 5, 7, 3
    found = arrays.entropies(dimensions, n_keys, draws, seed)
    for row, d in enumerate(dimensions):
        random = np.random.default_rng((seed, d))
        query, key = random.standard_normal((draws, 1, d)), random.standard_normal((draws, n_keys, d))
        scores = np.einsum("iqd,ikd->ik", query, key)
        for entropies, scale in ((found.unscaled, 1.0), (found.scaled, 1 / np.sqrt(d))):
            weights = softmax(scores * scale)
            np.testing.assert_allclose(entropies[row], -(weights * np.log(weights)).sum(-1), **TIGHT)
    assert found.uniform == pytest.approx(np.log(n_keys), abs=1e-12)


def test_entropy_falls_with_the_dimension_without_the_scale_only():
    found = arrays.entropies(draws=100)
    assert (np.diff(found.unscaled.mean(1)) < 0).all()
    assert found.unscaled[-1].mean() < 0.25
    assert np.ptp(found.scaled[2:].mean(1)) < 0.15
    np.testing.assert_array_equal(found.scaled, arrays.entropies(draws=100).scaled)
    assert (found.scaled != arrays.entropies(draws=100, seed=1).scaled).all()


# ---- learning rate


# ---- the block diagram


def test_base_and_big_have_the_papers_counts():
    base = model_diagram(chosen_model())
    assert base.total == 63_045_632
    assert [(words.en, count) for words, count in base.sums] == [
        ("embeddings", 37_000 * 512),
        ("encoder", 6 * (4 * 512**2 + 2 * 512 * 2048 + 2048 + 512 + 2 * 2 * 512)),
        ("decoder", 6 * (8 * 512**2 + 2 * 512 * 2048 + 2048 + 512 + 3 * 2 * 512)),
        ("output", 0),
    ]
    assert model_diagram(chosen_model("big")).total == 214_171_648


@pytest.mark.parametrize(
    "config",
    [CLASSIFIER, GPT2, MASKED, MIXED, chosen_model("tiny"), chosen_model("tiny", ["model.tie=output"])],
    ids=["classifier", "decoder", "masked", "mixed", "tiny", "tied"],
)
def test_the_boxes_add_up_to_the_model(config):
    found = model_diagram(config)
    assert sum(count for _, count in found.sums) == found.total
    assert len(found.head) == len(found.head_inputs)
    if config.vocab_size < 10_000:
        assert found.total == parameter_count(build_model(config))


def test_parts_stand_where_the_model_has_them():
    encoder, decoder = model_diagram(chosen_model()).stacks
    assert [layer.part.name.en for layer in encoder.sublayers] == ["Self-attention", "Feed-forward"]
    assert [layer.part.name.en for layer in decoder.sublayers] == [
        "Causal self-attention",
        "Cross-attention",
        "Feed-forward",
    ]
    assert [layer.reads_memory for layer in decoder.sublayers] == [False, True, False]
    assert not any(layer.norm_first for stack in (encoder, decoder) for layer in stack.sublayers)
    assert (encoder.last_norm, decoder.last_norm) == (None, None)
    assert (encoder.n_blocks, encoder.length, decoder.length) == (6, "src_len", "tgt_len")
    assert encoder.embedding.parameters == 37_000 * 512
    assert not encoder.embedding.shared
    assert (decoder.embedding.parameters, decoder.embedding.shared) == (0, True)
    assert encoder.positions is not None
    assert encoder.positions.name.en == "sinusoidal positions"


def test_parts_of_a_decoder_alone_with_the_norm_first():
    found = model_diagram(GPT2)
    (stack,) = found.stacks
    assert [layer.part.name.en for layer in stack.sublayers] == ["Causal self-attention", "Feed-forward"]
    assert all(layer.norm_first and not layer.reads_memory for layer in stack.sublayers)
    assert stack.last_norm is not None
    assert stack.positions is not None
    assert stack.positions.parameters == 1024 * 768
    assert found.head[0].shared
    assert found.result.en == "logits [batch, len, 50,257]"


def test_parts_of_a_classifier_and_a_masked_model():
    found = model_diagram(CLASSIFIER)
    assert [part.name.en for part in found.head] == ["Max over time", "Dense layer"]
    assert found.head_inputs == ("[batch, len, 32]", "[batch, 32]")
    assert found.result.en == "logits [batch, 2]"
    assert found.stacks[0].embedding_norm is not None
    masked = model_diagram(MASKED)
    assert [part.name.en for part in masked.head] == ["Dense layer", "LayerNorm", "Output projection"]
    assert (masked.head[-1].parameters, masked.head[-1].shared) == (300, True)  # its bias is its own


def test_details_of_unusual_parts():
    encoder, decoder = model_diagram(MIXED).stacks
    assert encoder.positions is None
    assert encoder.sublayers[0].part.detail.en == "6 heads × 4/3, 2 kv, rotary"
    assert decoder.sublayers[1].part.detail.en == "6 heads × 4/3, 2 kv"
    assert encoder.sublayers[1].part.detail.en == "24 → 40 → 24, SiLU, gated"
    assert encoder.sublayers[0].norm.name.en == "RMSNorm"


def test_choosing_a_model():
    assert chosen_model("demo").vocab_size == 1500  # its tokenizer's
    assert chosen_model("base", ["model.vocab_size=50"]).vocab_size == 50
    with pytest.raises(AttendoError, match=r"training.*model\.KEY=VALUE"):
        chosen_model("base", ["training.steps=5"])
    with pytest.raises(AttendoError, match=r"d_modell.*d_model"):
        chosen_model("base", ["model.d_modell=5"])
    with pytest.raises(AttendoError, match="n_heads=7"):
        chosen_model("base", ["model.n_heads=7"])
    as_classifier = ["model.architecture=classifier", "model.n_classes=2"]
    assert model_diagram(chosen_model("lecture", as_classifier)).total == 1_612_802
    with pytest.raises(AttendoError, match="lecture: a classifier without its number of labels"):
        chosen_model("lecture")
    with pytest.raises(AttendoError, match="did you mean base"):
        chosen_model("bas")
