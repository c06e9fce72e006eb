"""The figure "gpt": its numbers are those of a model that really learned its text, and all of them are drawn."""

import re
from collections import Counter

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from attendo_course import one_page
from attendo_course.figures.cells import written
from attendo_course.figures.draw_gpt import draw_gpt
from attendo_course.figures.next_word import PROMPT, next_word, trained


@pytest.fixture(scope="module")
def found():
    return next_word()


def test_the_model_learned_how_often_each_word_follows(found):
    """Among the places where the prompt occurs in the text, two of three continue with "mat"."""
    text = " ".join(one_page.TEXT.split())
    following = Counter(re.findall(rf"{PROMPT} (\w+)", text))
    assert following == {"mat": 2, "bed": 1}
    for word, share in zip(found.vocabulary, found.probabilities.tolist(), strict=True):
        assert share == pytest.approx(following[word] / 3, abs=0.03)


def test_the_last_word_attends_to_the_subject(found):
    assert (found.steps.layers[1].weights[:, -1, found.words.index("cat")] > 0.95).all()


def test_each_step_follows_from_the_step_before(found):
    steps = found.steps
    torch.testing.assert_close(steps.x, steps.words + steps.positions)
    x = steps.x
    for layer in steps.layers:
        assert (layer.weights.triu(1) == 0).all()
        torch.testing.assert_close(layer.weights.sum(-1), torch.ones(2, 5).double())
        torch.testing.assert_close(layer.weights @ layer.value, layer.mixed)
        torch.testing.assert_close(layer.middle, x + layer.attended)
        torch.testing.assert_close(layer.output, layer.middle + layer.fed)
        x = layer.output
    torch.testing.assert_close(steps.logits, steps.normed @ trained()[1]["words"].T)


def test_the_word_is_the_one_that_generate_appends(found):
    _, weights, _ = trained()
    assert one_page.generate(weights, found.ids, 1, seed=0).tolist() == [*found.ids.tolist(), found.next_id]
    other = next_word("the bird slept", seed=1)
    assert one_page.generate(weights, other.ids, 1, seed=1)[-1] == other.next_id
    assert other.vocabulary[other.next_id] == "in"


def test_every_number_of_the_first_layer_is_drawn_in_its_place(found):
    figure = Figure()
    FigureCanvasAgg(figure)
    draw_gpt(found, figure, "en")
    texts = [text.get_text() for text in figure.axes[0].texts]
    layer, last = found.steps.layers
    scores = layer.scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    matrices = [found.steps.words, found.steps.positions, found.steps.x, layer.normed_1]
    matrices += [heads.transpose(0, 1).flatten(1) for heads in (layer.query, layer.key, layer.value)]
    for head in (0, 1):
        matrices += [scores[head], layer.weights[head], layer.mixed[head]]
    matrices += [layer.attended, layer.middle, layer.normed_2, layer.hidden, layer.fed, layer.output]
    matrices += [*last.weights, last.output]
    matrices += [found.steps.normed[-1:], found.steps.logits[-1:], found.probabilities[None]]
    drawn = [text for text in texts if re.fullmatch(r"−?(\d+\.\d\d|∞)", text)]
    assert drawn == [written(number, 2) for matrix in matrices for number in matrix.flatten().tolist()]
    assert f"u = {found.u:.2f}" in texts and "mat" in texts
