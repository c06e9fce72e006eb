"""Claims about hidden vectors: they encode the surrounding text (C16), and they are useful for other tasks (C26)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attendo.model_config import Positions
from attendo.models import EncoderClassifier, MaskedLM
from attendo.nn.layers import pool
from attendo_course.book import translated
from attendo_course.claims.claim import Check, Finding, above, below, equals, shown
from attendo_course.claims.samples import built, largest, small_config
from attendo_course.pictures import Picture

WORDS = ("river", "savings", "dog", "man", "bank", "floods", "lends", "bites")
ABOUT_BANKS = ("river bank floods", "savings bank lends", "river bank lends", "dog bites bank")
"""Sentences that contain a common word, in the first three at the same position."""


def _sentence(text: str) -> Int[Tensor, "1 len"]:
    return torch.tensor([[WORDS.index(word) for word in text.split()]])


def _model_of_words(positions: Positions) -> MaskedLM:
    blocks = {"n_encoder_layers": 2, "n_decoder_layers": 0}
    config = small_config(len(WORDS), 8, architecture="masked", positions=positions, **blocks)
    return built(lambda: MaskedLM(config)).requires_grad_(False)


def _at(states: Float[Tensor, "1 len d"], text: str, word: str) -> Float[Tensor, " d"]:
    return states[0, text.split().index(word)]


def words_in_context(positions: Positions = "sinusoidal") -> Finding:
    """Check that a static vector is equal in all texts, and a hidden vector depends on the other words and their order.

    The source is the slides on the Transformer. `positions` is the positional encoding of the tested model.

    >>> words_in_context().holds
    True
    >>> words_in_context("none").holds
    False
    """
    model, blind = _model_of_words(positions), _model_of_words("none")
    first, second = ABOUT_BANKS[:2]
    static = [_at(model.embedding.tokens(_sentence(text)), text, "bank") for text in ABOUT_BANKS]
    hidden = [_at(model.hidden(_sentence(text)), text, "bank") for text in ABOUT_BANKS]
    without = [_at(blind.hidden(_sentence(text)), text, "bank") for text in (first, second)]
    one, other = "dog bites man", "man bites dog"
    bags = [pool(model.embedding.tokens(_sentence(text)), "mean") for text in (one, other)]
    pairs = {}
    for name, net in (("with", model), ("none", blind)):
        states, reversed_states = net.hidden(_sentence(one)), net.hidden(_sentence(other))
        moved = [_at(states, one, word) - _at(reversed_states, other, word) for word in ("dog", "bites", "man")]
        pairs[name] = [vector.norm().item() for vector in moved]
    context = translated("no positions: |bank by the river - bank of savings|")
    unordered = translated("no positions: largest |word - same word, reversed|")
    checks = (
        equals("static: |bank by the river - bank of savings|", largest(static[0] - static[1]), 0.0, 0.0),
        above("hidden: |bank by the river - bank of savings|", (hidden[0] - hidden[1]).norm().item(), 1.0),
        shown("hidden: their cosine", F.cosine_similarity(hidden[0], hidden[1], dim=0).item()),
        above(context, (without[0] - without[1]).norm().item(), 1.0),
        below("static: |mean of 'dog bites man' - of 'man bites dog'|", largest(bags[0] - bags[1]), 1e-12),
        above("with positions: least |word - same word, reversed|", min(pairs["with"]), 0.1),
        below(unordered, max(pairs["none"]), 1e-12, counterexample=True),
    )
    units = F.normalize(torch.stack(hidden), dim=-1)
    title = translated("cosines of the hidden vectors of 'bank'")
    return Finding(checks, Picture("matrix", title, (units @ units.T).numpy(), ABOUT_BANKS))


LETTERS, N_TEXTS, LENGTH = 6, 256, 8
LENGTHS = (2, 4, 8, 16, 32, 64)

Read = Callable[[Float[Tensor, "texts len d"]], Float[Tensor, "texts len d"]]


def _as_it_is(memory: Float[Tensor, "texts len d"]) -> Float[Tensor, "texts len d"]:
    return memory


def _flat(rows: Float[Tensor, "texts len d"]) -> Float[Tensor, "n d"]:
    return rows.flatten(0, 1)


def _texts(seed: int, length: int = LENGTH) -> Int[Tensor, "texts len"]:
    return torch.randint(LETTERS, (N_TEXTS, length), generator=torch.Generator().manual_seed(seed))


def has_more_early_letters(texts: Int[Tensor, "texts len"]) -> Int[Tensor, " texts"]:
    """Return 1 for texts in which letters of the first half of the alphabet are more frequent, otherwise 0.

    Claim C26 trains an encoder on this task.

    >>> has_more_early_letters(torch.tensor([[0, 1, 5], [0, 4, 5]]))
    tensor([1, 0])
    """
    return ((texts < LETTERS // 2).sum(1) > texts.shape[1] // 2).long()


@cache
def trained_encoder(steps: int = 60, seed: int = 0) -> EncoderClassifier:
    """Train an encoder and a classifier on the task `has_more_early_letters` with plain gradient descent, once.

    >>> trained_encoder(steps=0).config.d_model
    16
    """
    from attendo.training.losses import token_losses  # a claim that is only listed loads no training

    blocks = {"n_encoder_layers": 2, "n_decoder_layers": 0}
    config = small_config(LETTERS, 128, architecture="classifier", n_classes=2, **blocks)
    model, texts = built(lambda: EncoderClassifier(config), seed), _texts(seed + 1)
    targets = has_more_early_letters(texts)
    for _ in range(steps):
        loss = token_losses(model(texts), targets).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    return model.requires_grad_(False)


def probe_accuracy(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], other: Float[Tensor, "m d"], truth: Int[Tensor, " m"]
) -> float:
    """Fit a linear map from x to one-hot labels by least squares, and return its accuracy on the vectors `other`.

    >>> eye = torch.eye(3)
    >>> probe_accuracy(eye, torch.arange(3), eye, torch.arange(3))
    1.0
    """
    with_bias, others = (F.pad(rows, (0, 1), value=1.0) for rows in (x, other))
    solved = torch.linalg.lstsq(with_bias, F.one_hot(labels).to(x.dtype), driver="gelsd").solution
    return ((others @ solved).argmax(-1) == truth).double().mean().item()


def memory_serves_other_tasks(read: Read = _as_it_is, steps: int = 60) -> Finding:
    """Check that a linear map can read other tasks from the hidden vectors of an encoder trained on one task.

    The source is NYU Deep Learning 2020, week 12-3. This check is a demonstration with one seed, on texts that
    neither the training nor the probe has seen. `read` transforms the memory `[texts, len, d]` before the linear map.

    >>> memory_serves_other_tasks().holds
    True
    >>> memory_serves_other_tasks(lambda memory: memory.mean(1, keepdim=True).expand_as(memory)).holds
    False
    """
    model, untrained = trained_encoder(steps), trained_encoder(0)

    def memory(texts: Tensor, model: EncoderClassifier = model) -> Tensor:
        return read(model.encoder(model.embedding(texts)))

    train, test = _texts(11), _texts(12)
    states, others = memory(train), memory(test)
    places = torch.arange(LENGTH).repeat(N_TEXTS)
    own = probe_accuracy(_flat(states), train.flatten(), _flat(others), test.flatten())
    place = probe_accuracy(_flat(states), places, _flat(others), places)
    before = probe_accuracy(_flat(memory(train, untrained)), places, _flat(memory(test, untrained)), places)
    left = probe_accuracy(_flat(states[:, 1:]), train[:, :-1].flatten(), _flat(others[:, 1:]), test[:, :-1].flatten())
    nearest = torch.cdist(_flat(others)[:500], _flat(states)).argmin(1)
    neighbor = (train.flatten()[nearest] == test.flatten()[:500]).double().mean().item()
    first, mean = [], []
    for length in LENGTHS:
        texts, fresh = _texts(21, length), _texts(22, length)
        rows, new = memory(texts), memory(fresh)
        first.append(probe_accuracy(_flat(rows), texts.flatten(), _flat(new), fresh.flatten()))
        pooled = pool(rows, "mean"), pool(new, "mean")
        mean.append(probe_accuracy(pooled[0], texts[:, 0], pooled[1], fresh[:, 0]))
    names = (
        translated("probe, the letter itself: accuracy, chance .17"),
        translated("probe, its place: accuracy, chance .13"),
        translated("probe, the letter to its left: accuracy, chance .17"),
        translated("nearest hidden vector has the same letter: share"),
    )
    longest = translated("64 letters, probe of each vector: accuracy")
    one = translated("64 letters, one mean vector, first letter: accuracy")
    accuracy = (model(test).argmax(-1) == has_more_early_letters(test)).double().mean().item()
    checks: list[Check] = [
        equals(translated("text of {t}: vectors in memory", t=t), n, t, 0.0)
        for t, n in ((t, memory(_texts(31, t)).shape[1]) for t in (1, 8, 128))
    ]
    checks.append(above("its own task: accuracy on new texts", accuracy, 0.9))
    checks += [
        above(name, value, least)
        for name, value, least in zip(names, (own, place, left, neighbor), (0.9, 0.3, 0.25, 0.9), strict=True)
    ]
    checks.append(above("its place: accuracy before - after training", before - place, 0.1))
    checks += [above(longest, first[-1], 0.9), below(one, mean[-1], 0.35, counterexample=True)]
    title = translated("accuracy of the probe by length of text")
    values = np.array([first, mean])
    labels = tuple(str(length) for length in LENGTHS)
    return Finding(tuple(checks), Picture("curves", title, values, ("each vector", "one mean"), labels))


CLAIMS = {"C16": words_in_context, "C26": memory_serves_other_tasks}
