"""Copy, reverse, sort and add (tasks T08a and T10): an encoder-decoder on sequences of symbols, decoded greedily."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float
from torch import Tensor

from attendo.data.batches import pad_rows
from attendo.decoding.beam import DecodingConfig
from attendo.decoding.options import SpecialIds
from attendo.decoding.searcher import SearchBackend, Searcher
from attendo.display.i18n import Localized
from attendo.model_config import ModelConfig, Positions
from attendo.models import EncoderDecoder
from attendo.nn.cache import DecoderCache
from attendo_course.book import passage, translated
from attendo_course.lessons import arrays
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table
from attendo_course.pictures import Picture

Symbols = list[int]
Rule = Callable[[Symbols], Symbols]
"""A function from a sequence of symbols 0, 1, ... to the target sequence."""
PAD, BOS, EOS, FIRST = 0, 2, 3, 4  # as in a tokenizer; symbol s has id FIRST + s
CLOCK = 12


def reverse(row: Symbols) -> Symbols:
    """Return the symbols from last to first.

    >>> reverse([1, 2, 3])
    [3, 2, 1]
    """
    return row[::-1]


def shift(row: Symbols) -> Symbols:
    """Return (z + 5) mod 12 for each symbol z.

    >>> shift([0, 7, 11])
    [5, 0, 4]
    """
    return [(z + 5) % CLOCK for z in row]


def add(row: Symbols) -> Symbols:
    """Return the sum of the symbols modulo 12.

    >>> add([7, 8])
    [3]
    """
    return [sum(row) % CLOCK]


def symbol_ids(row: Symbols) -> list[int]:
    """Return the token ids of symbols.

    >>> symbol_ids([0, 2])
    [4, 6]
    """
    return [FIRST + symbol for symbol in row]


def random_rows(rng: np.random.Generator, n: int, n_symbols: int, lengths: range) -> list[Symbols]:
    """Draw rows of symbols. All lengths and all symbols are equally likely."""
    drawn = rng.integers(lengths.start, lengths.stop, n)
    return [rng.integers(0, n_symbols, length).tolist() for length in drawn.tolist()]


def pairs(rows: Sequence[Symbols], rule: Rule) -> arrays.Examples:
    """Return rows and their targets as input for an EncoderDecoder: src, tgt, src_lengths and targets."""
    return arrays.sequence_pairs([symbol_ids(row) for row in rows], [symbol_ids(rule(row)) for row in rows])


def drawn_pairs(rule: Rule, n_symbols: int, lengths: range) -> arrays.Draw:
    """Return a function that draws new rows of these lengths with their targets."""
    return lambda rng, n: pairs(random_rows(rng, n, n_symbols, lengths), rule)


def decoded(model: EncoderDecoder, rows: Sequence[Symbols]) -> list[Symbols]:
    """Return the model's output for each row by greedy search."""

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
    """Return the share of rows for which the output of the model equals the target."""
    wanted = [rule(row) for row in rows]
    return float(np.mean([got == right for got, right in zip(decoded(model, rows), wanted, strict=True)]))


def unordered_limit(n_symbols: int, lengths: range) -> tuple[float, float]:
    """Return the loss (nats per target) and the share of exact rows of the best model that copies rows without order.

    All arrangements of k symbols are equally likely. The mean loss of a row is therefore ln(k! / Π n_s!). The share
    of correct rows is C(k + n - 1, k) / n^k, one arrangement of each multiset. All lengths are equally likely.

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
    """Return a configuration with one block per side, one head and no dropout."""
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
    task: arrays.ArrayTask,
    steps: int,
    seed: int,
    *,
    rate: float = 3e-3,
    weight_decay: float = 0.0,
) -> arrays.Training:
    """Train a model with Adam, 100 steps of warm-up and a linear decay over the second half."""
    model = arrays.seeded(lambda: EncoderDecoder(config), seed)
    return arrays.trained(model, task, steps, rate, seed, warmup_steps=100, decay_share=0.5, weight_decay=weight_decay)


def cross_weights(model: EncoderDecoder, row: Symbols, rule: Rule) -> Float[np.ndarray, "tgt_len src_len"]:
    """Return the weights of the decoder's only cross-attention head, with one row per target symbol and eos."""
    weights = arrays.recorded_weights(model, "decoder.blocks.0.cross_attention", **pairs([row], rule).inputs)
    return weights[0, 0].double().numpy()


N_SYMBOLS, LONGEST, LONGER = 10, 10, 14
TEST_ROWS = 1000
SEEDS = 2
TRAINING_LOSS = translated("Training loss")
TEST_SEED = 2**31  # of the test rows; no run draws from it


@dataclass(frozen=True)
class Toy:
    """A lesson about sequences: its rule, and whether the order of the source matters."""

    name: str
    rule: Rule
    ordered: bool
    title: Localized
    question: Localized

    def lesson(self) -> Lesson:
        """Return the lesson for this rule."""
        source = "NYU Deep Learning 12-3 (translation, on a toy)"
        return Lesson(self.name, source, self.title, self.question, 2.5, partial(teach_toy, self), seeds=(SEEDS,))


def teach_toy(toy: Toy, options: Options) -> Iterator[Piece]:
    """Train models with sinusoidal, rotary and no positions on the rule, and test them also on longer rows."""
    lengths, steps = range(1, LONGEST + 1), options.steps(1500)
    rng = np.random.default_rng(TEST_SEED)
    test = random_rows(rng, TEST_ROWS, N_SYMBOLS, lengths)
    longer = random_rows(rng, TEST_ROWS, N_SYMBOLS, range(LONGEST + 1, LONGER + 1))
    task = arrays.ArrayTask(drawn_pairs(toy.rule, N_SYMBOLS, lengths), pairs(test, toy.rule), batch_rows=64)
    kinds: tuple[Positions, ...] = ("sinusoidal", "rotary", "none")
    runs = {
        kind: [
            learned(toy_config(N_SYMBOLS, 64, kind), task, steps, seed)
            for seed in range(1, 1 + (options.seeds or SEEDS))
        ]
        for kind in kinds
    }
    exact = {kind: [exact_share(_model(run), test, toy.rule) for run in of] for kind, of in runs.items()}
    loss, limit = unordered_limit(N_SYMBOLS, lengths)
    rows: list[tuple[Cell, ...]] = []
    if toy.ordered:
        unordered = translated("order not seen (exact)")
        rows.append((unordered, f"{loss:.4f}", f"{limit:.3f}", ""))
    for kind, of in runs.items():
        far = [exact_share(_model(run), longer, toy.rule) for run in of]
        losses = arrays.mean_and_deviation([run.measures["loss"] for run in of], ".4f")
        rows.append((kind, losses, arrays.mean_and_deviation(exact[kind]), arrays.mean_and_deviation(far)))
    columns = (
        translated("positions"),
        translated("loss (nats)"),
        translated("exact, length 1-{LONGEST}", LONGEST=LONGEST),
        translated("exact, {longer_from}-{LONGER}", longer_from=LONGEST + 1, LONGER=LONGER),
    )
    yield Table(toy.name, toy.title, columns, tuple(rows))
    yield _columns_explained(toy.ordered)
    yield arrays.loss_curves(TRAINING_LOSS, runs)
    yield from _attention(toy, _model(runs["sinusoidal"][0]), test)
    none, best = float(np.mean(exact["none"])), float(np.mean(exact["sinusoidal"]))
    if toy.ordered:
        yield Conclusion(passage("toys.teach_toy", best=best, limit=limit, none=none))
    else:
        yield Conclusion(passage("toys.teach_toy-2", best=best, none=none))


def _columns_explained(ordered: bool) -> Localized:
    return passage(
        "toys.columns_explained-2",
        TEST_ROWS=TEST_ROWS,
        longer_from=LONGEST + 1,
        LONGER=LONGER,
        LONGEST=LONGEST,
        unordered=passage("toys.columns_explained") if ordered else translated(""),
    )


def _attention(toy: Toy, model: EncoderDecoder, test: Sequence[Symbols]) -> Iterator[Piece]:
    """Yield the cross-attention of one row, and the share of attention on the target symbol."""
    shares, chances = [], []
    for row in [row for row in test if len(row) > 1][:100]:
        weights, wanted = cross_weights(model, row, toy.rule), toy.rule(row)
        same = np.array(wanted)[:, None] == np.array(row)
        shares.append((weights[: len(wanted), : len(row)] * same).sum(1).mean())
        chances.append(same.sum(1).mean() / (len(row) + 1))
    row = next((row for row in test if len(row) == len(set(row)) == 7), test[0])
    names, wanted = tuple(map(str, row)), tuple(map(str, toy.rule(row)))
    title = passage("toys.attention")
    yield Picture("matrix", title, cross_weights(model, row, toy.rule), (*wanted, "$"), (*names, "$"))
    yield passage("toys.attention-2", share=np.mean(shares), chance=np.mean(chances))


@dataclass(frozen=True)
class Sum:
    """A task of T10: the rule, the training rows, the test rows and the number of steps."""

    name: Localized
    rule: Rule
    train: arrays.Examples | arrays.Draw
    test: Sequence[Symbols]
    steps: int
    rate: float = 2e-3
    weight_decay: float = 0.0

    def trained(self, steps: int, seed: int) -> arrays.Training:
        """Train a model with the width of the source, 50."""
        task = arrays.ArrayTask(self.train, pairs(self.test, self.rule), batch_rows=72)
        config = toy_config(CLOCK, 50, "sinusoidal")
        return learned(config, task, steps, seed, rate=self.rate, weight_decay=self.weight_decay)


def sums() -> list[Sum]:
    """Return the tasks of T10: a shift, all sums of two, and sums for which a fifth of the pairs is held out.

    The pairs are held out alone, with their mirror images in the training data, or together with their mirror images.
    """
    rng = np.random.default_rng(TEST_SEED)
    rows = random_rows(rng, TEST_ROWS, CLOCK, range(8, 9))
    every = [[a, b] for a in range(CLOCK) for b in range(CLOCK)]
    half = [pair for pair in every if pair[0] < pair[1]]
    chosen = [half[i] for i in rng.permutation(len(half))[: len(every) // 5].tolist()]
    mirrored = chosen[: len(chosen) // 2]
    mirrored = mirrored + [pair[::-1] for pair in mirrored]
    names = (
        translated("(z + 5) mod 12"),
        translated("(a + b) mod 12, all pairs"),
        translated("a + b never seen, b + a seen"),
        translated("neither a + b nor b + a seen"),
    )
    drawn = drawn_pairs(shift, CLOCK, range(8, 9))
    held = [(every, every)] + [([p for p in every if p not in unseen], unseen) for unseen in (chosen, mirrored)]
    return [
        Sum(names[0], shift, drawn, rows, 500, rate=3e-3),
        *(
            Sum(name, add, pairs(seen, add), test, 2500, weight_decay=1.0)
            for name, (seen, test) in zip(names[1:], held, strict=True)
        ),
    ]


def teach_add(options: Options) -> Iterator[Piece]:
    """Train models on the shift of each symbol and the sum of two symbols modulo 12, and test sums of unseen pairs."""
    seeds, tasks = range(1, 1 + (options.seeds or SEEDS)), sums()
    runs = [[task.trained(options.steps(task.steps), seed) for seed in seeds] for task in tasks]
    exact = [
        [exact_share(_model(run), task.test, task.rule) for run in of] for task, of in zip(tasks, runs, strict=True)
    ]
    rows = tuple(
        (
            task.name,
            arrays.mean_and_deviation([run.measures["loss"] for run in of], ".4f"),
            arrays.mean_and_deviation(shares),
        )
        for task, of, shares in zip(tasks, runs, exact, strict=True)
    )
    columns = (translated("task"), translated("loss (nats)"), translated("exact"))
    yield Table("add", ADD.title, columns, rows)
    yield arrays.loss_curves(TRAINING_LOSS, {"z + 5": runs[0]})
    yield arrays.loss_curves(TRAINING_LOSS, {"a + b": runs[1]})
    shifted, known, once, never = (float(np.mean(shares)) for shares in exact)
    said = passage("toys.teach_add", shifted=shifted, known=known, once=once, never=never, guess=1 / CLOCK)
    yield Conclusion(said)


def _model(run: arrays.Training) -> EncoderDecoder:
    assert isinstance(run.model, EncoderDecoder)
    return run.model


COPY = Toy(
    "copy",
    list,
    True,
    translated("Copy a sequence"),
    translated("Can an encoder-decoder copy a sequence of digits, and what does it look at?"),
).lesson()
REVERSE = Toy(
    "reverse",
    reverse,
    True,
    translated("Reverse a sequence"),
    translated("Can an encoder-decoder reverse a sequence of digits, and what does it look at?"),
).lesson()
SORT = Toy(
    "sort",
    sorted,
    False,
    translated("Sort a sequence"),
    translated("Can an encoder-decoder sort a sequence of digits, and does it need positions for it?"),
).lesson()
ADD = Lesson(
    "add",
    'an implementation of "Formal Algorithms for Transformers" (Phuong & Hutter 2022): x = (z + 5) mod 12, and sums',
    translated("Add on a clock of 12 hours"),
    passage("toys.question"),
    1.5,
    teach_add,
    seeds=(SEEDS,),
)
LESSONS = (COPY, REVERSE, SORT, ADD)
