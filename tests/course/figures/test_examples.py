"""The figures about attention: every number against a direct calculation in NumPy, and that the figure shows it."""

import warnings
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy_transcription import softmax

from attendo.model_config import ModelConfig
from attendo.models import EncoderDecoder
from attendo_course.figures import draw_networks
from attendo_course.figures.cells import CellStyle, draw_cells, tint, written
from attendo_course.figures.drawing import painter
from attendo_course.figures.examples import heads, one_query, translation_steps
from attendo_course.figures.sketch import Sketch
from attendo_course.figures.style import BLUE, VERMILION

TIGHT = {"rtol": 0, "atol": 1e-12}


def axes_of(name, language="en"):
    figure = Figure()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Japanese characters that the default font lacks
        painter(name)(figure, language)
    return figure.axes[0]


def texts(name, language="en"):
    return [text.get_text() for text in axes_of(name, language).texts]


def same_numbers(shown, *tables):
    """Whether the texts of a figure contain the numbers of all tables, each as often as the tables do."""
    expected = [written(number, digits) for table, digits in tables for number in np.ravel(table)]
    return all(shown.count(text) >= expected.count(text) for text in set(expected))


# ---- one query


def test_one_query_by_hand():
    x = np.array([[0, 0, 2], [1, 1, -1], [-1, 1, 1], [0, 2, 2]])
    query = x[1] @ [[0, -1, 0, 0], [1, 0, 0, 1], [-1, 0, -1, 0]]
    keys = x @ [[1, 0, -1, 0], [0, 0, 0, 1], [1, 1, 1, 0]]
    values = x @ [[1, 0], [1, 0], [0, 1]]
    assert query.tolist() == [2, -1, 1, 1]
    products = np.array([sum(q * k for q, k in zip(query, key, strict=True)) for key in keys])
    assert products.tolist() == [4, 0, 2, 6]
    powers = np.exp(products / 2)
    weights = powers / powers.sum()
    z = sum(weight * value for weight, value in zip(weights, values, strict=True))
    found = one_query()
    for array, expected in (
        (found.query[0], query),
        (found.keys, keys),
        (found.values, values),
        (found.products[0], products),
        (found.scores[0], products / 2),
        (found.exponentials[0], powers),
        (found.weights[0], weights),
        (found.weighted, weights[:, None] * values),
        (found.result[0], z),
    ):
        np.testing.assert_allclose(array, expected, **TIGHT)


@pytest.mark.parametrize("language", ["en", "ja"])
def test_one_query_shows_every_number(language):
    found, shown = one_query(language), texts("attention-flow", language)
    whole = (found.x, found.w_q, found.w_k, found.w_v, found.query, found.keys, found.values)
    parts = (found.exponentials, found.weights, found.weighted, found.result)
    tables = [(table, 0) for table in (*whole, found.products, found.scores)]
    assert same_numbers(shown, *tables, *((table, 3) for table in parts))
    assert {"Σ 31.193", "÷ 31.193", "Σ 1.000", "÷ √4", "[4, 3]"} <= set(shown)
    assert all(shown.count(word) >= 3 for word in found.words)
    assert found.words[found.index] in shown[0]


# ---- heads


@pytest.mark.parametrize("language", ["en", "ja"])
def test_heads_by_their_formulas(language):
    found = heads(language)
    words = found.words
    names = list(dict.fromkeys(words))
    angle = 2 * np.pi / 5 * np.array([names.index(word) for word in words])
    places = np.arange(6)
    distance = places - places[:, None]
    scores = [np.cos((distance + 1) / 2), np.cos((distance - 1) / 2), np.cos(angle - angle[:, None])]
    weights = np.array([softmax(25 * np.array(each) / np.sqrt(2)) for each in [*scores, np.zeros((6, 6))]])
    np.testing.assert_allclose(found.weights, weights, **TIGHT)
    values = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    together = np.concatenate([each @ values for each in weights], axis=1)
    w_o = np.random.default_rng(0).standard_normal((8, 8)) / np.sqrt(8)
    np.testing.assert_allclose(found.concatenated, together, **TIGHT)
    np.testing.assert_allclose(found.result, together @ w_o, **TIGHT)
    for p, row in enumerate(found.weights[2]):  # equal words, and no others
        assert [row[t] > 0.3 for t in places] == [word == words[p] for word in words]
    shown = texts("heads", language)
    assert same_numbers(shown, (weights, 2), (together, 1), (w_o, 1), (together @ w_o, 1))


# ---- translation


def test_the_encoder_runs_once_and_the_cache_grows_by_a_row():
    calls = []
    encode = EncoderDecoder.encode
    with patch.object(EncoderDecoder, "encode", lambda *given: calls.append(1) or encode(*given)):
        found = translation_steps()
    assert len(calls) == 1
    for arrays in (found.keys, found.values):
        assert [len(array) for array in arrays] == [1, 2, 3, 4]
        for before, after in pairwise(arrays):
            np.testing.assert_array_equal(after[:-1], before)
    assert found.inputs[1:] == found.outputs[:-1]


def test_kept_keys_and_values_are_the_models():
    found = translation_steps()
    sizes = {"d_model": 4, "d_ff": 8, "n_heads": 1, "n_encoder_layers": 2, "n_decoder_layers": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = EncoderDecoder(ModelConfig(vocab_size=8, **sizes)).double().eval()
    table = {name: part.numpy() for name, part in model.state_dict().items()}
    with torch.no_grad():
        x = model.target_embedding(torch.tensor([[1, 5, 6, 7]]))[0].numpy()
        memory = model.encode(torch.tensor([[2, 3, 4]]))[0].numpy()
    np.testing.assert_allclose(found.memory, memory, **TIGHT)

    def product(vectors, layer, module, name):
        path = f"decoder.blocks.{layer}.{module}.{name}"
        return vectors @ table[f"{path}.weight"].T + table[f"{path}.bias"]

    np.testing.assert_allclose(found.keys[-1], product(x, 0, "self_attention", "k_proj"), **TIGHT)
    np.testing.assert_allclose(found.values[-1], product(x, 0, "self_attention", "v_proj"), **TIGHT)
    for layer in (0, 1):
        keys, values = found.memory_keys[layer], found.memory_values[layer]
        np.testing.assert_allclose(keys, product(memory, layer, "cross_attention", "k_proj"), **TIGHT)
        np.testing.assert_allclose(values, product(memory, layer, "cross_attention", "v_proj"), **TIGHT)


@pytest.mark.parametrize("language", ["en", "ja"])
def test_kept_rows_have_equal_colors_in_all_steps(language):
    axes = axes_of("translation", language)
    shown = [text.get_text() for text in axes.texts]
    assert [f"K [{n}, 4]" in shown and f"V [{n}, 4]" in shown for n in (1, 2, 3, 4)] == [True] * 4
    found = translation_steps(language)
    assert all(shown.count(word) == 2 for word in found.source)
    steps = {}
    for patch_ in axes.patches:
        if isinstance(patch_, Rectangle) and round(patch_.get_width(), 3) == draw_networks.SMALL.width:
            step = int((patch_.get_x() - draw_networks.FIRST + 0.7) / draw_networks.PITCH)
            steps.setdefault(step, {}).setdefault(round(patch_.get_y(), 3), []).append(patch_.get_facecolor())
    rows = [[colors for _, colors in sorted(steps[step].items(), reverse=True)] for step in range(4)]
    assert [len(each) for each in rows] == [1, 2, 3, 4]
    assert all(rows[step] == rows[3][: step + 1] for step in range(4))
    assert len({str(row) for row in rows[3]}) == 4


# ---- autoencoder


def test_autoencoder_has_its_shapes_and_a_bottleneck():
    axes = axes_of("autoencoder")
    shown = [text.get_text() for text in axes.texts]
    assert {"W₁ [8, 3]", "W₂ [3, 8]"} <= set(shown)
    assert [shown.count(text) for text in ("x [8]", "h [3]", "x̃ [8]", "bottleneck: 3 < 8")] == [2] * 4
    fills = [to_hex(part.get_facecolor()) for part in axes.patches if isinstance(part, Rectangle)]
    assert fills.count(tint(BLUE, 0.35)) == 2 * (8 + 8)
    assert fills.count(tint(VERMILION, 0.35)) == 2 * 3


# ---- cells


def test_cells_have_the_color_of_their_sign_and_size():
    sketch = Sketch(Figure(), "en", 4.0, 2.0)
    table = np.array([[1.0, -2.0], [-np.inf, np.nan]])
    place = draw_cells(sketch, (1.0, 1.5), table, style=CellStyle(width=0.5), rows=["a", "long name"])
    cells = [part for part in sketch.axes.patches if part.get_width() == 0.5]
    colors = [to_hex(part.get_facecolor()) for part in cells]
    assert colors == [tint(BLUE, 0.5), tint(VERMILION, 1.0), *[tint(BLUE, np.nan)] * 2]
    assert [text.get_text() for text in sketch.axes.texts] == ["1.00", "−2.00", "−∞", "", "a", "long name"]
    assert place.west(0)[0] < 1.0 - sketch.width_of("long name", 9.5)
    assert place.east(1) == (place.right + 0.07, place.row(1))
