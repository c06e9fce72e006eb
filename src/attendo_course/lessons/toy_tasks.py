"""Sequences of symbols for an encoder-decoder: rules, rows, exact limits, decoding by the search that translates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attendo.data.batches import pad_rows
from attendo.decoding.beam import DecodingConfig
from attendo.decoding.options import SpecialIds
from attendo.decoding.searcher import SearchBackend, Searcher
from attendo.inspecting.recording import recording
from attendo.model_config import ModelConfig, Positions
from attendo.models import EncoderDecoder
from attendo.nn.cache import DecoderCache
from attendo_course.lessons.arrays import NO_TARGET, ArrayTask, Draw, Examples, Training, seeded, trained

Symbols = list[int]
Rule = Callable[[Symbols], Symbols]
"""From a sequence of symbols 0, 1, ... to the sequence wanted."""
PAD, BOS, EOS, FIRST = 0, 2, 3, 4  # as in a tokenizer; symbol s has id FIRST + s
CLOCK = 12


def reverse(row: Symbols) -> Symbols:
    """The symbols from last to first.

    >>> reverse([1, 2, 3])
    [3, 2, 1]
    """
    return row[::-1]


def shift(row: Symbols) -> Symbols:
    """(z + 5) mod 12 for each symbol z.

    >>> shift([0, 7, 11])
    [5, 0, 4]
    """
    return [(z + 5) % CLOCK for z in row]


def add(row: Symbols) -> Symbols:
    """The sum of the symbols, mod 12.

    >>> add([7, 8])
    [3]
    """
    return [sum(row) % CLOCK]


def symbol_ids(row: Symbols) -> list[int]:
    """The token ids of symbols.

    >>> symbol_ids([0, 2])
    [4, 6]
    """
    return [FIRST + symbol for symbol in row]


def random_rows(rng: np.random.Generator, n: int, n_symbols: int, lengths: range) -> list[Symbols]:
    """Rows of symbols; each length and each symbol is equally likely."""
    drawn = rng.integers(lengths.start, lengths.stop, n)
    return [rng.integers(0, n_symbols, length).tolist() for length in drawn.tolist()]


def pairs(rows: Sequence[Symbols], rule: Rule) -> Examples:
    """Rows and what the rule makes of them, as an EncoderDecoder takes them: src, tgt, src_lengths and targets.

    A source ends with eos; a target starts with bos where it is read and ends with eos where it is wanted.

    >>> examples = pairs([[0, 1]], reverse)
    >>> examples.inputs["src"].tolist(), examples.inputs["tgt"].tolist(), examples.targets.tolist()
    ([[4, 5, 3]], [[2, 5, 4]], [[5, 4, 3]])
    """
    wanted = [symbol_ids(rule(row)) for row in rows]
    src, lengths = pad_rows([[*symbol_ids(row), EOS] for row in rows], PAD)
    tgt, _ = pad_rows([[BOS, *ids] for ids in wanted], PAD)
    targets, _ = pad_rows([[*ids, EOS] for ids in wanted], NO_TARGET)
    inputs = {"src": src, "tgt": tgt} | ({} if lengths is None else {"src_lengths": lengths})
    return Examples(inputs, targets)


def drawn_pairs(rule: Rule, n_symbols: int, lengths: range) -> Draw:
    """Fresh rows of these lengths under the rule."""
    return lambda rng, n: pairs(random_rows(rng, n, n_symbols, lengths), rule)


def decoded(model: EncoderDecoder, rows: Sequence[Symbols]) -> list[Symbols]:
    """What the model makes of each row, by the greedy search that translates."""

    def start(sources: Sequence[Sequence[int]], rows_per_source: int, capacity: int) -> DecoderCache:
        return model.start(*pad_rows(sources, PAD), rows_per_source, capacity)

    def step(token_ids: Tensor, cache: DecoderCache) -> Tensor:
        return model.step(token_ids, cache)[:, -1]

    config = DecodingConfig(beam=1, max_length_ratio=1.0, max_length_extra=2)
    special = SpecialIds(bos_id=BOS, eos_id=EOS, banned_ids=tuple(range(BOS + 1)))
    sources = [[*symbol_ids(row), EOS] for row in rows]
    searcher = Searcher(SearchBackend(start, step), special, model.config.max_len)
    found = searcher.search(sources, config)
    return [[token_id - FIRST for token_id in hypotheses[0].token_ids] for hypotheses in found]


def exact_share(model: EncoderDecoder, rows: Sequence[Symbols], rule: Rule) -> float:
    """The share of rows that the model decodes to exactly what the rule says."""
    wanted = [rule(row) for row in rows]
    return float(np.mean([got == right for got, right in zip(decoded(model, rows), wanted, strict=True)]))


def unordered_limit(n_symbols: int, lengths: range) -> tuple[float, float]:
    """(loss in nats a target, exact share) of the best who copies or reverses rows whose order it can't see.

    All arrangements of k symbols are equally likely, so the loss of a row is ln(k! / Π n_s!) in the mean, and
    right are C(k + n - 1, k) / n^k of the rows, one of each multiset's arrangements. Each length is equally likely.

    >>> loss, exact = unordered_limit(2, range(2, 3))
    >>> round(loss, 4), exact  # 01 or 10 half of the time, ln 2 / 2 for three targets
    (0.1155, 0.75)
    """
    nats = exact = 0.0
    for k in lengths:
        counts = [math.comb(k, n) * (n_symbols - 1) ** (k - n) / n_symbols**k for n in range(k + 1)]
        repeats = sum(p * math.lgamma(n + 1) for n, p in enumerate(counts))
        nats += math.lgamma(k + 1) - n_symbols * repeats
        exact += math.comb(k + n_symbols - 1, k) / n_symbols**k
    return nats / sum(k + 1 for k in lengths), exact / len(lengths)


def toy_config(n_symbols: int, d_model: int, positions: Positions) -> ModelConfig:
    """One block a side, one head, no dropout."""
    return ModelConfig(
        vocab_size=FIRST + n_symbols,
        d_model=d_model,
        d_ff=2 * d_model,
        n_heads=1,
        n_encoder_layers=1,
        n_decoder_layers=1,
        dropout=0.0,
        positions=positions,
        max_len=64,
    )


def learned(
    config: ModelConfig,
    task: ArrayTask,
    steps: int,
    seed: int,
    *,
    rate: float = 3e-3,
    weight_decay: float = 0.0,
) -> Training:
    """A run: Adam, 100 steps of warm-up, linear decay over the second half."""
    model = seeded(lambda: EncoderDecoder(config), seed)
    return trained(
        model, task, steps, rate, seed, warmup_steps=100, decay_share=0.5, weight_decay=weight_decay
    )


@torch.no_grad()
def cross_weights(model: EncoderDecoder, row: Symbols, rule: Rule) -> Float[np.ndarray, "tgt_len src_len"]:
    """Cross-attention in the decoder block's only head: a row for each wanted symbol and the end."""
    path = "decoder.blocks.0.cross_attention"
    with recording(model, f"{path}.weights") as record:
        record.model(**pairs([row], rule).inputs)
    return record[path].weights[0, 0].double().numpy()
