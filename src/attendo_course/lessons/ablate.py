"""Ablations (task T12): one thing at a time is changed of a small translator, as in the Transformer paper's table 3."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float

from attendo.data.forecasts import Forecast, english, japanese
from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.inspecting.recording import recording
from attendo.model_config import ModelConfig
from attendo.models import EncoderDecoder, parameter_count
from attendo_course.lessons.ablate_corpus import (
    Pieces,
    small_forecasts,
    small_pieces,
    translations,
    unordered_limit,
)
from attendo_course.lessons.arrays import (
    ArrayTask,
    Training,
    curve,
    margin,
    mean_and_deviation,
    seeded,
    trained,
)
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table

TRAIN_ROWS, TEST_ROWS, BATCH_ROWS = 96, 500, 16
STEPS, WARMUP_SHARE, DECAY_SHARE, RATE = 300, 0.1, 0.5, 5e-3
SEEDS = 4
TEST_SEED = 2**31  # of the test rows; no run draws from it
PAPER_PERPLEXITY = 4.92
"""Of the paper's base model, on its development set; its BLEU is 25.8."""


@dataclass(frozen=True)
class Variant:
    """A model with one change, named with the letter of the paper's row if there is one.

    paper: what the paper changed of its own base, and the perplexity it found; None where it has no such row.
    """

    name: Localized
    config: ModelConfig
    paper: tuple[str, float] | None = None

    @property
    def paper_cell(self) -> str:
        """What the paper's change cost there, in nats a token (the logarithm of a ratio of perplexities).

        >>> Variant(Localized("1 head", "1 ヘッド"), base_config(), ("1/8", 5.29)).paper_cell
        '+0.07 (1/8)'
        """
        if self.paper is None:
            return ""
        change, perplexity = self.paper
        return f"{math.log(perplexity / PAPER_PERPLEXITY):+.2f} ({change})"


def base_config() -> ModelConfig:
    """The paper's base model made small, with the norms before the sublayers, where it needs fewer steps."""
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
    """The base first, then each change of it, in the order of the paper's table."""
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
    return tuple(Variant(Localized(en, ja), config, paper) for en, ja, config, paper in rows)


@dataclass(frozen=True, eq=False)
class Data:
    """Forecasts for the test, and for each seed others to learn from: every variant gets the same."""

    pieces: Pieces
    test: Sequence[Forecast]

    def task(self, seed: int) -> ArrayTask:
        """What a run with this seed learns from, and what all are measured on."""
        train = small_forecasts(np.random.default_rng(seed), TRAIN_ROWS, self.test)
        return ArrayTask(
            translations(train, self.pieces), translations(self.test, self.pieces), batch_rows=BATCH_ROWS
        )


def small_data() -> Data:
    """`TEST_ROWS` forecasts that no seed learns from."""
    return Data(small_pieces(), small_forecasts(np.random.default_rng(TEST_SEED), TEST_ROWS))


def ablated(config: ModelConfig, task: ArrayTask, steps: int, seed: int) -> Training:
    """A run by Adam: warm-up over a tenth of the steps, linear decay over the second half.

    "exact" among its measures is the share of sentences that greedy search translates to the letter: it does so if and
    only if each token of the reference is the likeliest after those before it.
    """
    model = seeded(lambda: EncoderDecoder(config), seed)
    warmup = max(1, round(WARMUP_SHARE * steps))
    return trained(model, task, steps, RATE, seed, warmup_steps=warmup, decay_share=DECAY_SHARE)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the mean, by Student's t; without bounds for a single value.

    >>> [round(x, 2) for x in interval([1.0, 2.0, 3.0])]
    [-0.48, 4.48]
    """
    mean, half = statistics.fmean(differences), margin(differences)
    return mean - half, mean + half


@dataclass(frozen=True, eq=False)
class Result:
    """A variant's runs with seeds 1, 2, ..., and the base's with the same ones."""

    variant: Variant
    runs: list[Training]
    base: list[Training]

    @property
    def losses(self) -> list[float]:
        """On the test, in nats a token."""
        return [run.measures["loss"] for run in self.runs]

    @property
    def exact(self) -> list[float]:
        """Percent of test sentences that are right to the letter."""
        return [100 * run.measures["exact"] for run in self.runs]

    @property
    def differences(self) -> list[float]:
        """Of the losses from the base's, each with the same seed and so the same training sentences."""
        pairs = zip(self.runs, self.base, strict=True)
        return [run.measures["loss"] - base.measures["loss"] for run, base in pairs]

    @property
    def verdict(self) -> int:
        """1 worse than the base, -1 better, by the interval of the differences; 0 if it has 0 in it."""
        low, high = interval(self.differences)
        return (low > 0) - (high < 0)

    @property
    def training_loss(self) -> float:
        """In the last tenth of the steps, with dropout on; mean of the runs."""
        return float(np.mean([np.mean(run.losses[-max(1, len(run.losses) // 10) :]) for run in self.runs]))

    def row(self) -> tuple[Cell, ...]:
        """The cells of its line in the table."""
        weights = parameter_count(self.runs[0].model)
        exact, loss = mean_and_deviation(self.exact, ".0f"), mean_and_deviation(self.losses)
        difference = "" if self.runs is self.base else mean_and_deviation(self.differences)
        if difference and not difference.startswith("-"):
            difference = f"+{difference}"
        return self.variant.name, weights, exact, loss, difference, self.variant.paper_cell


def teach(options: Options) -> Iterator[Piece]:
    """Trains every variant with every seed, one after the other, and says what the differences show."""
    data, steps = small_data(), options.steps(STEPS)
    seeds = range(1, 1 + (options.seeds or SEEDS))
    yield _about(data, steps, len(seeds))
    tasks = {seed: data.task(seed) for seed in seeds}
    results: list[Result] = []
    for variant in variants():
        runs = [ablated(variant.config, task, steps, seed) for seed, task in tasks.items()]
        results.append(Result(variant, runs, results[0].runs if results else runs))
    columns = (
        Localized("change", "変更"),
        Localized("weights", "重み"),
        Localized("exact %", "正解 %"),
        Localized("loss (nats)", "損失（ナット）"),
        Localized("vs base", "基準との差"),
        Localized("in the paper", "論文での差"),
    )
    yield Table("ablate", ABLATE.title, columns, (_unordered(data), *(result.row() for result in results)))
    yield _curves(results, steps)
    yield _cross_attention(results[0].runs[0], data)
    yield Conclusion(_verdicts(results, len(seeds)))
    by_name = {result.variant.name.en: result for result in results}
    yield Conclusion(_positions(by_name))
    yield Conclusion(_dropout(by_name))


def _about(data: Data, steps: int, n_seeds: int) -> Localized:
    source, target = english(data.test[0]), japanese(data.test[0])
    return Localized(
        f"A small translator learns from {TRAIN_ROWS} forecasts and is tested on {len(data.test)} others, such as"
        f' "{source}", which is "{target}" Each model is trained {n_seeds} times, for {steps} steps of {BATCH_ROWS}'
        f" sentences; run i of each model has the same sentences. The base has 2 blocks a side, width 32, 4 heads of"
        " 8, dropout .1, sinusoids, and norms before the sublayers. The letters are the rows of the paper's table 3."
        ' Beside each stand what the paper changed, from what, and what that cost there. "exact" are the sentences'
        " translated to the letter; losses are in nats a token.",
        f"小さな翻訳モデルが {TRAIN_ROWS} 個の予報文から学び、別の {len(data.test)} 個で試される。例：「{source}」→"
        f"「{target}」。各モデルを {n_seeds} 回、{BATCH_ROWS} 文ずつ {steps} ステップ学習する。i 回目の学習文は"
        "どのモデルでも同じである。基準は両側 2 層、幅 32、8 次元のヘッド 4 個、ドロップアウト 0.1、正弦波の位置、副層"
        "の前の正規化である。記号は論文の表 3 の行であり、右端は論文での損失の差と、論文が何を何から変えたかである。"
        "「正解」は一字一句正しく訳された文の割合、損失は 1 トークンあたりのナットである。",
    )


def _unordered(data: Data) -> tuple[Cell, ...]:
    """The limit of any model that does not see the order of the source."""
    loss, exact = unordered_limit(data.test, data.pieces)
    return (
        Localized("order unseen", "順序を見ない"),
        Localized("limit", "限界"),
        f"{100 * exact:.0f}",
        f"{loss:.3f}",
        "",
        "",
    )


def _curves(results: Sequence[Result], steps: int) -> Picture:
    """The training loss of the base and of those that are best and worst on the test."""
    ranked = sorted(results[1:], key=lambda result: statistics.fmean(result.losses))
    shown = [results[0], ranked[0], ranked[-1]]
    values = np.stack([np.mean([curve(run.losses) for run in result.runs], axis=0) for result in shown])
    title = Localized(
        "Training loss: the base, then the best and the worst on the test",
        "学習時の損失：基準、テストで最良のもの、最悪のもの",
    )
    return Picture("curves", title, values, tuple(r.variant.name.en for r in shown), ("1", str(steps)))


def cross_weights(
    model: EncoderDecoder, forecast: Forecast, pieces: Pieces
) -> Float[np.ndarray, "tgt_len src_len"]:
    """Cross-attention in the last decoder block, mean of its heads: a row for each piece of the target and its end."""
    path = f"decoder.blocks.{model.config.n_decoder_layers - 1}.cross_attention"
    with torch.no_grad(), recording(model.eval(), f"{path}.weights") as record:
        record.model(**translations([forecast], pieces).inputs)
    return record[path].weights[0].mean(0).double().numpy()


def _cross_attention(run: Training, data: Data) -> Picture:
    assert isinstance(run.model, EncoderDecoder)
    texts = english(data.test[0]), japanese(data.test[0])
    source, target = ((*data.pieces.names(data.pieces.encode(text)), "$") for text in texts)
    title = Localized(
        "Cross-attention of the base, last block: rows are what is wanted, columns the source",
        "基準のクロスアテンション、最後の層（行は出力、列は入力）",
    )
    return Picture("matrix", title, cross_weights(run.model, data.test[0], data.pieces), target, source)


def _verdicts(results: Sequence[Result], n_seeds: int) -> Localized:
    if n_seeds < 2:
        return Localized(
            "One run of each tells nothing about chance: train more seeds before you believe a difference.",
            "各 1 回では偶然との区別がつかない。差を信じる前にシードを増やすこと。",
        )
    found = {verdict: [r.variant.name for r in results[1:] if r.verdict == verdict] for verdict in (1, -1, 0)}
    en = {verdict: ", ".join(name.en for name in names) or "none" for verdict, names in found.items()}
    ja = {verdict: "、".join(name.ja for name in names) or "なし" for verdict, names in found.items()}
    n = len(results) - 1
    return Localized(
        f"By the 95 % interval of the mean difference from the base, run by run, worse: {en[1]}; better: {en[-1]};"
        f" {n_seeds} runs do not tell: {en[0]}. If none of the {n} changes mattered, {0.05 * n:.1f} of them would still"
        " look as if they did.",
        f"同じ回どうしの基準との差の平均の 95 % 信頼区間によれば、悪化：{ja[1]}。改善：{ja[-1]}。{n_seeds} 回では判断"
        f"できないもの：{ja[0]}。仮に {n} 個の変更のどれにも効果がなくても、平均して {0.05 * n:.1f} 個は効果があるよう"
        "に見える。",
    )


_FOUND = {
    1: Localized("worse", "悪化"),
    -1: Localized("better", "改善"),
    0: Localized("not told apart", "区別できない"),
}


def _positions(by_name: dict[str, Result]) -> Localized:
    base, learned, none = (by_name[name] for name in ("base", "(E) learned", "no positions"))
    exact = [statistics.fmean(result.exact) for result in (base, learned, none)]
    return Localized(
        f"Positions: with sinusoids {exact[0]:.0f} % exact, learned {exact[1]:.0f} % ({_FOUND[learned.verdict].en}),"
        f" none {exact[2]:.0f} % ({_FOUND[none.verdict].en}). In the paper learned ones have BLEU 25.7, sinusoids 25.8."
        " An encoder without positions often cannot tell which weather stands in which clause: the table's first row is"
        " the best that can be done so.",
        f"位置：完全一致は正弦波で {exact[0]:.0f} %、学習する位置で {exact[1]:.0f} %（{_FOUND[learned.verdict].ja}）、"
        f"位置なしで {exact[2]:.0f} %（{_FOUND[none.verdict].ja}）。論文の BLEU は学習する位置で 25.7、正弦波で 25.8 で"
        "ある。位置のないエンコーダには、どの天気がどの節にあるか、わからないことが多い。表の最初の行は、その場合に到達できる限界である。",
    )


def _dropout(by_name: dict[str, Result]) -> Localized:
    kinds = [by_name[name] for name in ("(D) drop 0", "base", "(D) drop .2")]
    shown = [f"{kind.training_loss:.3f} / {statistics.fmean(kind.losses):.3f}" for kind in kinds]
    return Localized(
        f"Training loss in the last steps / test loss with dropout 0: {shown[0]}, .1: {shown[1]}, .2: {shown[2]}. A"
        " training loss far below the test loss means sentences learned by heart, two high ones too little learned."
        " Dropout is on in training and off in the test, which can make the first the higher one.",
        f"最後の学習損失とテスト損失は、ドロップアウト 0 で {shown[0]}、0.1 で {shown[1]}、0.2 で {shown[2]}。学習損失"
        "がテスト損失よりずっと小さければ学習文の丸暗記であり、どちらも大きければ学習不足である。ドロップアウトは学習時に"
        "だけ働くので、学習損失のほうが大きくなることもある。",
    )


ABLATE = Lesson(
    "ablate",
    "Vaswani et al. 2017, table 3",
    Localized("What each part of a small translator is worth", "小さな翻訳モデルの各部の効果"),
    Localized(
        "Heads, size of keys, depth, width, dropout, positions, place of the norm: what if one of them changes?",
        "ヘッド数、キーの次元、層数、幅、ドロップアウト、位置、正規化の場所。どれか一つを変えると何が起こるか。",
    ),
    3.0,
    teach,
    seeds=(SEEDS,),
)
LESSONS = (ABLATE,)
