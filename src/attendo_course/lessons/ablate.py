"""Ablations (task T12) as in table 3 of the Transformer paper: variants of a small translator with one change each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from jaxtyping import Float

from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.display.i18n import Localized
from attendo.model_config import ModelConfig
from attendo.models import EncoderDecoder, parameter_count
from attendo_course.book import passage, translated
from attendo_course.lessons import arrays
from attendo_course.lessons.forecast_grammar import Clause, Connective, Forecast, Weather, english, japanese
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table
from attendo_course.pictures import Picture
from attendo_course.residuals import without_residuals

DATES = ("today", "tomorrow", "this weekend", "on Monday", "on Sunday")
PLACES = ("Sapporo", "Sendai", "Tokyo", "Kyoto", "Osaka", "Naha")
CERTAINTIES = ("will", "may")
TIMES = 5
"""The number of times of day, up to the evening."""
CONNECTIVES: tuple[Connective, ...] = ("although", "after", "because")
PHENOMENA = ("rain", "thunderstorms", "snow", "cloudy", "foggy", "sunny", "clear", "dry")
SPELLING_ROWS = 1000
"""The number of forecasts on which the tokenizer is trained. They contain each word many times."""
SPELLING_SIZE = 600


def small_forecast(rng: np.random.Generator) -> Forecast:
    """Draw a forecast with a main clause and a subordinate clause from 50,400 equally likely forecasts.

    The main clause is first in English, and the subordinate clause is first in Japanese.
    """
    main, below = rng.choice(len(PHENOMENA), 2, replace=False)
    return Forecast(
        date=DATES[rng.integers(len(DATES))],
        place=PLACES[rng.integers(len(PLACES))],
        certainty=CERTAINTIES[rng.integers(len(CERTAINTIES))],
        main=Clause(Weather(PHENOMENA[main]), int(rng.integers(TIMES))),
        below=((CONNECTIVES[rng.integers(len(CONNECTIVES))], Clause(Weather(PHENOMENA[below]))),),
    )


def small_forecasts(rng: np.random.Generator, n: int, without: Collection[Forecast] = ()) -> list[Forecast]:
    """Draw different forecasts that are not in a given set."""
    found: dict[Forecast, None] = {}
    others = set(without)
    while len(found) < n:
        forecast = small_forecast(rng)
        if forecast not in others:
            found[forecast] = None
    return list(found)


def turned_round(forecast: Forecast) -> Forecast:
    """Return a forecast with the weather of the two clauses exchanged."""
    ((connective, below),) = forecast.below
    main = replace(forecast.main, event=below.event)
    return replace(forecast, main=main, below=((connective, replace(below, event=forecast.main.event)),))


@dataclass(frozen=True, eq=False)
class Pieces:
    """The subwords of the small corpus, with contiguous ids. Unused subwords of the tokenizer have no id.

    `ids` contains the tokenizer's id of each subword. In both numberings, the first four ids are pad, unk, bos and
    eos.
    """

    tokenizer: Tokenizer
    ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. Raise ValueError for a subword that the small corpus does not contain."""
        return [self.ids.index(i) for i in self.tokenizer.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text with these ids."""
        return self.tokenizer.decode([self.ids[i] for i in ids])

    def names(self, ids: Sequence[int]) -> list[str]:
        """Return the display text of each id."""
        return self.tokenizer.pieces([self.ids[i] for i in ids])

    def __len__(self) -> int:
        """Return the number of subwords, including the four special tokens."""
        return len(self.ids)


@cache
def small_pieces() -> Pieces:
    """Train a BPE tokenizer for both languages on small forecasts. Most subwords are complete words.

    >>> pieces = small_pieces()
    >>> pieces.names(pieces.encode("Today it will be foggy in Kyoto"))
    ['▁Today', '▁it', '▁will', '▁be', '▁foggy', '▁in', '▁Kyoto']
    """
    forecasts = small_forecasts(np.random.default_rng(0), SPELLING_ROWS)
    texts = [text for forecast in forecasts for text in (english(forecast), japanese(forecast))]
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=SPELLING_SIZE))
    used = {i for row in tokenizer.encode_batch(texts) for i in row}
    return Pieces(tokenizer, (*range(Tokenizer.eos_id + 1), *sorted(used)))


def translations(forecasts: Sequence[Forecast], pieces: Pieces) -> arrays.Examples:
    """Return forecasts as input for an EncoderDecoder that translates English to Japanese."""
    sources = [pieces.encode(english(forecast)) for forecast in forecasts]
    return arrays.sequence_pairs(sources, [pieces.encode(japanese(forecast)) for forecast in forecasts])


def unordered_limit(forecasts: Sequence[Forecast], pieces: Pieces) -> tuple[float, float]:
    """Return the loss in nats per token and the share of exact translations of the best translator without word order.

    The sentence "It will be clear, although it will be foggy" has the same subwords as its opposite, which is equally
    likely. Each such sentence adds ln 2 to the loss, and half of these sentences are translated wrongly. No other two
    forecasts have the same subwords.
    """
    alike = [
        sorted(pieces.encode(english(forecast))) == sorted(pieces.encode(english(turned_round(forecast))))
        for forecast in forecasts
    ]
    n_targets = sum(len(pieces.encode(japanese(forecast))) + 1 for forecast in forecasts)
    return sum(alike) * math.log(2) / n_targets, 1 - 0.5 * sum(alike) / len(alike)


TRAIN_ROWS, TEST_ROWS, BATCH_ROWS = 96, 500, 16
STEPS, WARMUP_SHARE, DECAY_SHARE, RATE = 300, 0.1, 0.5, 5e-3
SEEDS = 4
TEST_SEED = 2**31  # of the test rows; no run draws from it
PAPER_PERPLEXITY = 4.92
"""The perplexity of the base model in the paper on its development set. The BLEU score of this model is 25.8."""


@dataclass(frozen=True)
class Variant:
    """A model with one change. Its name contains the row letter in the paper's table 3, if there is such a row.

    `paper` contains the change in the paper and the resulting perplexity, or None if the paper has no such row. If
    `residuals` is false, the residual connections of the model are removed.
    """

    name: Localized
    config: ModelConfig
    paper: tuple[str, float] | None = None
    residuals: bool = True

    @property
    def paper_cell(self) -> str:
        """The cost of the change in the paper in nats per token (the logarithm of a ratio of perplexities).

        >>> Variant(Localized("1 head", "1 ヘッド"), base_config(), ("1/8", 5.29)).paper_cell
        '+0.07 (1/8)'
        """
        if self.paper is None:
            return ""
        change, perplexity = self.paper
        return f"{math.log(perplexity / PAPER_PERPLEXITY):+.2f} ({change})"


def base_config() -> ModelConfig:
    """Return the configuration of a small version of the paper's base model, with pre-norm, which needs fewer steps."""
    return ModelConfig(
        vocab_size=len(small_pieces()),
        d_model=32,
        d_ff=128,
        n_heads=4,
        n_encoder_layers=2,
        n_decoder_layers=2,
        norm_first=True,
        max_len=32,
    )


def variants() -> tuple[Variant, ...]:
    """Return the base model, followed by its variants in the order of the paper's table."""
    base = base_config()
    one, four = (replace(base, n_encoder_layers=n, n_decoder_layers=n) for n in (1, 4))
    narrow, wide = (replace(base, d_model=d, d_ff=4 * d) for d in (16, 64))
    key_4, key_2 = (replace(base, head_dim=d, value_dim=8) for d in (4, 2))
    rows: list[tuple[str, str, ModelConfig, tuple[str, float] | None]] = [
        ("base", "基準", base, None),
        ("(A) 1 head", "(A) 1 ヘッド", replace(base, n_heads=1), ("1/8", 5.29)),
        ("(A) 2 heads", "(A) 2 ヘッド", replace(base, n_heads=2), ("4/8", 5.00)),
        ("(A) 8 heads", "(A) 8 ヘッド", replace(base, n_heads=8), ("16/8", 4.91)),
        ("(B) d_k 4", "(B) d_k 4", key_4, ("32/64", 5.01)),
        ("(B) d_k 2", "(B) d_k 2", key_2, ("16/64", 5.16)),
        ("(C) 1 block", "(C) 1 層", one, ("2/6", 6.11)),
        ("(C) 4 blocks", "(C) 4 層", four, ("8/6", 4.88)),
        ("(C) width 16", "(C) 幅 16", narrow, ("256/512", 5.75)),
        ("(C) width 64", "(C) 幅 64", wide, ("1024/512", 4.66)),
        ("(D) drop 0", "(D) drop 0", replace(base, dropout=0.0), ("0/.1", 5.77)),
        ("(D) drop .2", "(D) drop .2", replace(base, dropout=0.2), (".2/.1", 4.95)),
        ("(E) learned", "(E) 学習位置", replace(base, positions="learned"), ("learned", 4.92)),
        ("no positions", "位置なし", replace(base, positions="none"), None),
        ("post-norm", "後置正規化", replace(base, norm_first=False), None),
    ]
    found = (Variant(Localized(en, ja), config, paper) for en, ja, config, paper in rows)
    return (*found, Variant(Localized("no residuals", "残差接続なし"), base, residuals=False))


@dataclass(frozen=True, eq=False)
class Data:
    """The test forecasts, and the training forecasts of each seed. All variants use the same data."""

    pieces: Pieces
    test: Sequence[Forecast]

    def task(self, seed: int) -> arrays.ArrayTask:
        """Return the training task for this seed, with the common test data."""
        train = small_forecasts(np.random.default_rng(seed), TRAIN_ROWS, self.test)
        return arrays.ArrayTask(
            translations(train, self.pieces), translations(self.test, self.pieces), batch_rows=BATCH_ROWS
        )


def small_data() -> Data:
    """Return the data with `TEST_ROWS` test forecasts, which occur in no training data."""
    return Data(small_pieces(), small_forecasts(np.random.default_rng(TEST_SEED), TEST_ROWS))


def ablated(
    config: ModelConfig, task: arrays.ArrayTask, steps: int, seed: int, *, residuals: bool = True
) -> arrays.Training:
    """Train a variant with Adam, a warm-up over a tenth of the steps and a linear decay over the second half.

    The measure "exact" is the share of sentences that greedy search translates exactly. A translation is exact if and
    only if each reference token is the most probable token after the previous reference tokens.
    """
    model = arrays.seeded(lambda: EncoderDecoder(config), seed)
    model = model if residuals else without_residuals(model)
    warmup = max(1, round(WARMUP_SHARE * steps))
    return arrays.trained(model, task, steps, RATE, seed, warmup_steps=warmup, decay_share=DECAY_SHARE)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean by Student's t, which is unbounded for a single value.

    >>> [round(x, 2) for x in interval([1.0, 2.0, 3.0])]
    [-0.48, 4.48]
    """
    mean, half = statistics.fmean(differences), arrays.margin(differences)
    return mean - half, mean + half


@dataclass(frozen=True, eq=False)
class Result:
    """The runs of a variant with seeds 1, 2, ..., and the runs of the base model with the same seeds."""

    variant: Variant
    runs: list[arrays.Training]
    base: list[arrays.Training]

    @property
    def losses(self) -> list[float]:
        """The test loss of each run in nats per token."""
        return [run.measures["loss"] for run in self.runs]

    @property
    def exact(self) -> list[float]:
        """The percentage of exactly translated test sentences of each run."""
        return [100 * run.measures["exact"] for run in self.runs]

    @property
    def differences(self) -> list[float]:
        """The difference in test loss to the base model with the same seed and the same training sentences."""
        pairs = zip(self.runs, self.base, strict=True)
        return [run.measures["loss"] - base.measures["loss"] for run, base in pairs]

    @property
    def verdict(self) -> int:
        """1 if the variant is worse than the base, -1 if it is better, 0 if the confidence interval contains 0."""
        low, high = interval(self.differences)
        return (low > 0) - (high < 0)

    @property
    def training_loss(self) -> float:
        """The training loss with dropout in the last tenth of the steps, as a mean over the runs."""
        return float(np.mean([np.mean(run.losses[-max(1, len(run.losses) // 10) :]) for run in self.runs]))

    def row(self) -> tuple[Cell, ...]:
        """Return the cells of the variant's row in the table."""
        weights = parameter_count(self.runs[0].model)
        exact, loss = arrays.mean_and_deviation(self.exact, ".0f"), arrays.mean_and_deviation(self.losses)
        difference = "" if self.runs is self.base else arrays.mean_and_deviation(self.differences)
        if difference and not difference.startswith("-"):
            difference = f"+{difference}"
        return self.variant.name, weights, exact, loss, difference, self.variant.paper_cell


def teach(options: Options) -> Iterator[Piece]:
    """Train all variants with all seeds, and report the differences."""
    data, steps = small_data(), options.steps(STEPS)
    seeds = range(1, 1 + (options.seeds or SEEDS))
    yield _about(data, steps, len(seeds))
    tasks = {seed: data.task(seed) for seed in seeds}
    results: list[Result] = []
    for variant in variants():
        runs = [ablated(variant.config, task, steps, seed, residuals=variant.residuals) for seed, task in tasks.items()]
        results.append(Result(variant, runs, results[0].runs if results else runs))
    columns = (
        translated("change"),
        translated("weights"),
        translated("exact %"),
        translated("loss (nats)"),
        translated("vs base"),
        translated("in the paper"),
    )
    yield Table("ablate", ABLATE.title, columns, (_unordered(data), *(result.row() for result in results)))
    yield _curves(results)
    yield _cross_attention(results[0].runs[0], data)
    yield Conclusion(_verdicts(results, len(seeds)))
    by_name = {result.variant.name.en: result for result in results}
    yield Conclusion(_positions(by_name))
    yield Conclusion(_dropout(by_name))


def _about(data: Data, steps: int, n_seeds: int) -> Localized:
    source, target = english(data.test[0]), japanese(data.test[0])
    return passage(
        "ablate.about",
        TRAIN_ROWS=TRAIN_ROWS,
        n_test=len(data.test),
        source=source,
        target=target,
        n_seeds=n_seeds,
        steps=steps,
        BATCH_ROWS=BATCH_ROWS,
    )


def _unordered(data: Data) -> tuple[Cell, ...]:
    """Return the limit of all models that ignore the order of the source."""
    loss, exact = unordered_limit(data.test, data.pieces)
    return (translated("order unseen"), translated("limit"), f"{100 * exact:.0f}", f"{loss:.3f}", "", "")


def _curves(results: Sequence[Result]) -> Picture:
    """Return the training loss of the base model and of the best and the worst variant on the test data."""
    ranked = sorted(results[1:], key=lambda result: statistics.fmean(result.losses))
    shown = [results[0], ranked[0], ranked[-1]]
    title = translated("Training loss: the base, then the best and the worst on the test")
    return arrays.loss_curves(title, {result.variant.name: result.runs for result in shown})


def cross_weights(model: EncoderDecoder, forecast: Forecast, pieces: Pieces) -> Float[np.ndarray, "tgt_len src_len"]:
    """Return the cross-attention in the last decoder block: the mean over heads, one row per target subword and eos."""
    path = f"decoder.blocks.{model.config.n_decoder_layers - 1}.cross_attention"
    weights = arrays.recorded_weights(model.eval(), path, **translations([forecast], pieces).inputs)
    return weights[0].mean(0).double().numpy()


def _cross_attention(run: arrays.Training, data: Data) -> Picture:
    assert isinstance(run.model, EncoderDecoder)
    texts = english(data.test[0]), japanese(data.test[0])
    source, target = ((*data.pieces.names(data.pieces.encode(text)), "$") for text in texts)
    title = translated("Cross-attention of the base, last block: rows are what is wanted, columns the source")
    return Picture("matrix", title, cross_weights(run.model, data.test[0], data.pieces), target, source)


def _verdicts(results: Sequence[Result], n_seeds: int) -> Localized:
    if n_seeds < 2:
        return passage("ablate.verdicts")
    found = {verdict: [r.variant.name for r in results[1:] if r.verdict == verdict] for verdict in (1, -1, 0)}
    worse, better, untold = (
        Localized(", ".join(x.en for x in names) or "none", "、".join(x.ja for x in names) or "なし")
        for names in found.values()
    )
    n = len(results) - 1
    return passage(
        "ablate.verdicts-2",
        worse=worse,
        better=better,
        untold=untold,
        n_seeds=n_seeds,
        n=n,
        by_chance=0.05 * n,
    )


_FOUND = {1: translated("worse"), -1: translated("better"), 0: translated("not told apart")}


def _positions(by_name: dict[str, Result]) -> Localized:
    base, learned, none = (by_name[name] for name in ("base", "(E) learned", "no positions"))
    exact = [statistics.fmean(result.exact) for result in (base, learned, none)]
    verdicts = [_FOUND[result.verdict] for result in (learned, none)]
    return passage("ablate.positions", exact=exact, learned=verdicts[0], none=verdicts[1])


def _dropout(by_name: dict[str, Result]) -> Localized:
    kinds = [by_name[name] for name in ("(D) drop 0", "base", "(D) drop .2")]
    shown = [f"{kind.training_loss:.3f} / {statistics.fmean(kind.losses):.3f}" for kind in kinds]
    return passage("ablate.dropout", shown=shown)


ABLATE = Lesson(
    "ablate",
    "Vaswani et al. 2017, table 3",
    translated("What each part of a small translator is worth"),
    passage("ablate.question"),
    3.0,
    teach,
    seeds=(SEEDS,),
)
LESSONS = (ABLATE,)
