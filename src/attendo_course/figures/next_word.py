"""The arrays of the figure "gpt": every step of a trained GPT of two layers, from a text to the next word."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from attendo_course import one_page

PROMPT = "the cat sat on the"


@dataclass(frozen=True)
class NextWord:
    """The steps from a text to the next word.

    Attributes:
        vocabulary: All words of the model.
        words: The words of the text.
        ids: The ids of these words.
        steps: Every result of the model, as `one_page.run` returns them, without gradients.
        probabilities: The probability of each word of the vocabulary to be the next word.
        u: The random number from 0 to 1 that chooses the word.
        next_id: The id of the next word.
    """

    vocabulary: list[str]
    words: list[str]
    ids: torch.Tensor
    steps: one_page.Steps
    probabilities: torch.Tensor
    u: float
    next_id: int


@cache
def trained() -> tuple[list[str], one_page.Weights, list[float]]:
    """Train the model of `one_page` on its text, and return the vocabulary, the weights and the loss before each step.

    The training takes less than two CPU-seconds. Every process trains again, so the numbers are those of the code.
    Rounding on another processor does not change the printed digits: if the first weights change by a factor of
    1 + 1e-15, the last weights change by 2e-8.

    >>> vocabulary, weights, losses = trained()
    >>> len(vocabulary), f"{losses[0]:.2f} {losses[-1]:.2f}"
    (14, '3.09 0.26')
    """
    vocabulary = sorted({*one_page.TEXT.split()})
    weights = one_page.new_weights(len(vocabulary))
    losses = one_page.train(weights, one_page.encode(one_page.TEXT, vocabulary))
    return vocabulary, {name: weight.detach() for name, weight in weights.items()}, losses


def next_word(text: str = PROMPT, seed: int = 0) -> NextWord:
    """Run the trained model on a text, and draw the next word as `one_page.generate` does.

    >>> found = next_word()
    >>> found.vocabulary[found.next_id], found.probabilities.max().item() > 0.6
    ('mat', True)
    """
    vocabulary, weights, _ = trained()
    ids = one_page.encode(text, vocabulary)
    steps = one_page.run(weights, ids)
    probabilities = one_page.softmax(steps.logits[-1])
    u = torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float32).item()
    next_id = one_page.draw(probabilities, u)
    return NextWord(vocabulary, text.split(), ids, steps, probabilities, u, next_id)
