"""Sampling by lists and loops: what is allowed, how probable it is, how probable counts are; texts from a table."""

import math

import torch
from search_table import BOS, SPECIAL

from attendo.decoding.sampling import Sampling


def softmax(logits):
    weights = [math.exp(x - max(logits)) for x in logits]
    return [weight / math.fsum(weights) for weight in weights]


def by_rank(logits):
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def probabilities(logits, config, seen=()):
    """Of each token: penalty, temperature, top-k, top-p, min-p, in this order; -inf is never allowed."""
    penalty = config.repetition_penalty
    logits = [x / penalty if i in seen and x > 0 else x * penalty if i in seen else x for i, x in enumerate(logits)]
    kept = by_rank(logits)
    if config.temperature == 0.0:
        return [float(i == kept[0]) for i in range(len(logits))]
    kept = kept[: config.top_k or None]
    weights = [math.exp((x - max(logits)) / config.temperature) if i in kept else 0.0 for i, x in enumerate(logits)]
    total, reached = math.fsum(weights), 0.0
    nucleus = []
    for i in kept:
        nucleus.append(i)
        reached += weights[i] / total
        if reached >= config.top_p:
            break
    best = weights[kept[0]]
    weights = [w if i in nucleus and w >= config.min_p * best else 0.0 for i, w in enumerate(weights)]
    return [w / math.fsum(weights) for w in weights]


def exact_texts(logits_of, config, prefix=(), *, never, end):
    """Every text that goes on from the prefix, of at most max_tokens tokens, the end too, and its probability."""
    if len(prefix) == config.max_tokens or prefix[-1:] == (end,):
        return {prefix: 1.0}
    logits = [-math.inf if i in never else float(x) for i, x in enumerate(logits_of(prefix))]
    found = {}
    for token, probability in enumerate(probabilities(logits, config)):
        if probability > 0:
            for text, rest in exact_texts(logits_of, config, (*prefix, token), never=never, end=end).items():
                found[text] = probability * rest
    return found


def p_value(counts, expected):
    """The probability of a χ² as large as this, cells that expect fewer than 5 put together."""
    pairs = sorted(zip(expected, counts, strict=True))
    cells = [[0.0, 0]]
    for wanted, count in pairs:
        if cells[-1][0] >= 5:
            cells.append([0.0, 0])
        cells[-1][0] += wanted
        cells[-1][1] += count
    if cells[-1][0] < 5 and len(cells) > 1:
        few = cells.pop()
        cells[-1] = [cells[-1][0] + few[0], cells[-1][1] + few[1]]
    chi_square = sum((count - wanted) ** 2 / wanted for wanted, count in cells)
    halves = torch.tensor([(len(cells) - 1) / 2, chi_square / 2], dtype=torch.float64)
    return torch.special.gammaincc(*halves).item()


def texts_of(table, configs, numbers=None):
    """The texts of one batch; `numbers` are those of the sources, which choose the logits."""
    sources = [()] * len(configs) if numbers is None else [(number,) for number in numbers]
    found = [[] for _ in configs]
    cache = table.start(sources, 1, 99)
    sampling = Sampling(table.step, cache, [[BOS]] * len(configs), configs, SPECIAL)
    while sampling.going_on:
        for number, token in sampling.advance():
            found[number].append(token)
    return found
