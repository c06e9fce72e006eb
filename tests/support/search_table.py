"""A model that is a table of logits, so that a search can be checked by adding up."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import torch

from attendo.decoding.beam import beam_search, length_norm
from attendo.decoding.options import SpecialIds

BOS, EOS = 0, 1
SPECIAL = SpecialIds(bos_id=BOS, eos_id=EOS, banned_ids=(BOS,))


@dataclass
class TableCache:
    """Rows are their own prefixes; `calls` counts what the search asked for."""

    sources: list[tuple[int, ...]]
    prefixes: list[tuple[int, ...]]
    calls: list[str] = field(default_factory=list)

    def reorder(self, rows):
        assert [self.sources[row] for row in rows] == self.sources
        self.calls.append("reorder")
        self.prefixes = [self.prefixes[row] for row in rows]

    def keep(self, rows):
        assert len(rows) < len(self.prefixes)
        self.calls.append("keep")
        self.sources = [self.sources[row] for row in rows]
        self.prefixes = [self.prefixes[row] for row in rows]


@dataclass
class Table:
    """Logits drawn anew for every (source, prefix); `levels` rounds them, so that many are equal."""

    seed: int = 0
    vocab: int = 4
    levels: int | None = None
    end_bias: float = 0.0
    entries: dict[tuple, np.ndarray] = field(default_factory=dict)
    n_rows: list[int] = field(default_factory=list)
    n_starts_without_gradients: int = 0

    def logits(self, source, prefix):
        if (source, prefix) not in self.entries:
            rng = np.random.default_rng([self.seed, len(source), *source, 99, *prefix])
            logits = rng.normal(0, 2, self.vocab)
            if self.levels is not None:
                logits = np.round(logits * self.levels / 4)
            logits[EOS] += self.end_bias
            self.entries[source, prefix] = logits
        return self.entries[source, prefix]

    def start(self, sources, rows_per_source, capacity):
        self.n_starts_without_gradients += torch.is_inference_mode_enabled()
        rows = [tuple(source) for source in sources for _ in range(rows_per_source)]
        return TableCache(rows, [() for _ in rows])

    def step(self, token_ids, cache):
        assert token_ids.shape == (len(cache.prefixes), 1)
        self.n_rows.append(len(cache.prefixes))
        fed = [(*prefix, int(token)) for prefix, token in zip(cache.prefixes, token_ids[:, 0], strict=True)]
        cache.prefixes = fed
        rows = zip(cache.sources, fed, strict=True)
        return torch.from_numpy(np.stack([self.logits(source, prefix[1:]) for source, prefix in rows]))

    def log_probs(self, source, prefix):
        return torch.from_numpy(self.logits(source, prefix)[None]).log_softmax(-1)[0].tolist()


def search(table, sources, limits, config):
    cache = table.start(sources, config.beam, max(limits))
    return beam_search(table.step, cache, limits, config, SPECIAL)


def every_text(table, source, limit, alpha):
    """All finished texts of at most `limit` tokens, best first: (ids, log-probability, score)."""
    found = []
    for length in range(limit):
        for ids in itertools.product(range(2, table.vocab), repeat=length):
            steps = [table.log_probs(source, ids[:i])[token] for i, token in enumerate((*ids, EOS))]
            found.append((ids, sum(steps), sum(steps) / length_norm(length + 1, alpha)))
    return sorted(found, key=lambda text: -text[2])
