"""What a search must find: by its definition, with lists and full sorts, and by listing all texts."""

import itertools
import math

import numpy as np
import torch
from search_table import BOS, EOS, SPECIAL, every_text

from attendo.decoding.beam import DecodingConfig, beam_search
from attendo.decoding.trace import TraceRecorder

FIELDS = ("token_ids", "log_prob", "score", "finished")


def attention(source, ids):
    """Where the row that has these ids looks in its source: a distribution, mostly on a few positions."""
    rng = np.random.default_rng([7, len(source), *source, 99, *ids])
    return rng.dirichlet(np.full(len(source), 0.3))


def attending(table):
    """The table's step, which also tells where the rows look; padding has weight 1."""

    def step(token_ids, cache):
        logits = table.step(token_ids, cache)
        longest = max(len(source) for source in cache.sources)
        weights = np.ones((len(cache.sources), longest))
        for row, source, prefix in zip(weights, cache.sources, cache.prefixes, strict=True):
            row[: len(source)] = attention(source, prefix[1:])
        return logits, torch.from_numpy(weights)

    return step


def find(table, sources, limits, config, prefixes=None):
    """The search's answer for each source, as tuples of FIELDS."""
    cache = table.start(sources, config.beam, max(limits))
    found = beam_search(table.step, cache, limits, config, SPECIAL, prefixes=prefixes, attending=attending(table))
    return [[tuple(getattr(text, field) for field in FIELDS) for text in texts] for texts in found]


def trace(table, sources, limits, config, prefixes=None):
    """The search's hypotheses and traces."""
    cache = table.start(sources, config.beam, max(limits))
    recorder = TraceRecorder(len(limits))
    options = {"prefixes": prefixes, "attending": attending(table), "recorder": recorder}
    return beam_search(table.step, cache, limits, config, SPECIAL, **options), recorder.traces()


def score(source, generated, log_prob, config):
    """The score of a text, its end token included, from the papers' formulas."""
    n = max(1, len(generated))
    norm = n if config.length_norm == "plain" else (5 + n) / 6
    total = log_prob / norm**config.length_penalty
    if config.coverage_penalty:
        seen = [attention(source, generated[:j]) for j in range(len(generated))]
        sums = [sum(weights[i] for weights in seen) for i in range(len(source))]
        total += config.coverage_penalty * sum(math.log(max(min(s, 1.0), 1e-300)) for s in sums)
    return total


def repeats(ids, n, given=0):
    """Whether a token behind the first `given` ends an n-gram that was there before."""
    grams = [ids[i : i + n] for i in range(len(ids) - n + 1)]
    return any(gram in grams[:i] for i, gram in enumerate(grams) if i + n > given)


def allowed(generated, limit, config, prefix):
    """Whether a text, complete or not, breaks no rule."""
    ids = tuple(token for token in generated if token != EOS)
    n = min(len(ids), len(prefix))
    ended = len(generated) > len(ids)
    return (
        ids[:n] == tuple(prefix)[:n]
        and not (ended and len(ids) < len(prefix))
        and not (ended and len(generated) < min(config.min_length, limit))
        and not (config.no_repeat_ngram and repeats(ids, config.no_repeat_ngram, len(prefix)))
    )


def best_texts(table, source, limit, config, prefix=()):
    """All texts that are allowed, best first: (ids, log-probability, score)."""
    texts = [
        (ids, log_prob, score(source, (*ids, EOS), log_prob, config))
        for ids, log_prob, _ in every_text(table, source, limit, 0.0)
        if allowed((*ids, EOS), limit, config, prefix)
    ]
    return sorted(texts, key=lambda text: -text[2])


def plain_search(table, source, limit, config: DecodingConfig, prefix=()):
    """The definition in `BeamSearch`, without its early stop; as tuples of FIELDS."""
    size = config.beam // config.beam_groups
    groups = [[((), ())] for _ in range(config.beam_groups)]
    n_finished, finished = [0] * config.beam_groups, {}
    limited, stuck = True, False
    for length in range(1, limit + 1):
        taken, extended = [], []
        for group, beams in enumerate(groups):
            candidates = []
            for number, (ids, steps) in enumerate(beams):
                for token, log_prob in enumerate(table.log_probs(source, ids)):
                    if token != BOS and allowed((*ids, token), limit, config, prefix):
                        total = float(np.add.accumulate((0.0, *steps, log_prob))[-1])
                        rank = total - config.diversity_penalty * taken.count(token)
                        candidates.append((-rank, token, number, log_prob))
            ranked = sorted(candidates)
            placed = ranked[: size - n_finished[group]]
            if config.refill:
                going_on = [candidate for candidate in ranked if candidate[1] != EOS][:size]
                placed = [c for c in ranked[:size] if c[1] == EOS] + going_on
            texts = [((*beams[n][0], token), (*beams[n][1], step)) for _, token, n, step in placed]
            ended = [(ids[:-1], steps) for ids, steps in texts if ids[-1] == EOS]
            for ids, steps in ended:
                finished.setdefault(ids, steps)
            n_finished[group] += len(ended)
            extended.append([(ids, steps) for ids, steps in texts if ids[-1] != EOS])
            if config.beam_groups > 1:
                taken += [token for _, token, _, _ in placed]
        limited = length == limit or sum(n_finished) < config.beam
        stuck = not any(extended)
        if stuck:
            break
        groups = extended
        if config.refill and sum(n_finished) >= config.beam:
            break
    results = [_text(source, ids, steps, True, config) for ids, steps in finished.items()]
    results.sort(key=lambda text: -text[2])
    if ((config.refill and limited) or len(results) < config.n_best) and not (stuck and results):
        going_on = {}
        for ids, steps in itertools.chain(*groups):
            going_on.setdefault(ids, steps)
        unfinished = [_text(source, ids, steps, False, config) for ids, steps in going_on.items()]
        results += sorted(unfinished, key=lambda text: -text[2])
    if config.refill:
        results.sort(key=lambda text: -text[2])
    return results[: config.n_best]


def _text(source, ids, steps, finished, config):
    log_prob = math.fsum(steps)
    generated = (*ids, EOS) if finished else ids
    return (ids, log_prob, score(source, generated, log_prob, config), finished)
