"""Copy, reverse, sort and add (tasks T08a and T10): an encoder-decoder on sequences of symbols, decoded greedily."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.model_config import Positions
from attendo.models import EncoderDecoder
from attendo_course.lessons.arrays import ArrayTask, Draw, Examples, Training, curve, mean_and_deviation
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table
from attendo_course.lessons.toy_tasks import (
    CLOCK,
    Rule,
    Symbols,
    add,
    cross_weights,
    drawn_pairs,
    exact_share,
    learned,
    pairs,
    random_rows,
    reverse,
    shift,
    toy_config,
    unordered_limit,
)

N_SYMBOLS, LONGEST, LONGER = 10, 10, 14
TEST_ROWS = 1000
SEEDS = 2
TEST_SEED = 2**31  # of the test rows; no run draws from it


@dataclass(frozen=True)
class Toy:
    """A lesson of sequences: what it wants, and whether that depends on the order of the source."""

    name: str
    rule: Rule
    ordered: bool
    title: Localized
    question: Localized

    def lesson(self) -> Lesson:
        """The lesson of it."""
        source = "NYU Deep Learning 12-3 (translation, on a toy)"
        return Lesson(
            self.name, source, self.title, self.question, 2.5, partial(teach_toy, self), seeds=(SEEDS,)
        )


def teach_toy(toy: Toy, options: Options) -> Iterator[Piece]:
    """Learns the rule with sinusoidal, rotary and no positions; exact match, also on longer rows; the attention."""
    lengths, steps = range(1, LONGEST + 1), options.steps(1500)
    rng = np.random.default_rng(TEST_SEED)
    test = random_rows(rng, TEST_ROWS, N_SYMBOLS, lengths)
    longer = random_rows(rng, TEST_ROWS, N_SYMBOLS, range(LONGEST + 1, LONGER + 1))
    task = ArrayTask(drawn_pairs(toy.rule, N_SYMBOLS, lengths), pairs(test, toy.rule), batch_rows=64)
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
        unordered = Localized("order not seen (exact)", "順序を見ない場合（厳密値）")
        rows.append((unordered, f"{loss:.4f}", f"{limit:.3f}", ""))
    for kind, of in runs.items():
        far = [exact_share(_model(run), longer, toy.rule) for run in of]
        losses = mean_and_deviation([run.measures["loss"] for run in of], ".4f")
        rows.append((kind, losses, mean_and_deviation(exact[kind]), mean_and_deviation(far)))
    columns = (
        Localized("positions", "位置"),
        Localized("loss (nats)", "損失（ナット）"),
        Localized(f"exact, length 1-{LONGEST}", f"完全一致、長さ 1-{LONGEST}"),
        Localized(f"exact, {LONGEST + 1}-{LONGER}", f"完全一致、{LONGEST + 1}-{LONGER}"),
    )
    yield Table(toy.name, toy.title, columns, tuple(rows))
    yield _columns_explained(toy.ordered)
    yield _curves(runs, steps)
    yield from _attention(toy, _model(runs["sinusoidal"][0]), test)
    none, best = float(np.mean(exact["none"])), float(np.mean(exact["sinusoidal"]))
    if toy.ordered:
        said = Localized(
            f"With sinusoids {best:.1%} of fresh rows are exact. Without positions the encoder hands over a bag of"
            f" symbols: at most {limit:.1%} can be exact, and {none:.1%} are.",
            f"正弦波の位置では未見の行の {best:.1%} が完全一致する。位置がなければエンコーダが渡すのは記号の多重集合で"
            f"あり、完全一致は高々 {limit:.1%}、実際は {none:.1%} である。",
        )
        yield Conclusion(said)
    else:
        said = Localized(
            f"With sinusoids {best:.1%} of fresh rows are exact. The result does not depend on the source's order, so"
            f" positions are not needed to know it; without them {none:.1%} are exact.",
            f"正弦波の位置では未見の行の {best:.1%} が完全一致する。答えは入力の順序によらないので、原理的には位置は"
            f"いらない。位置なしでは {none:.1%} が完全一致する。",
        )
        yield Conclusion(said)


def _columns_explained(ordered: bool) -> Localized:
    """What the rows and columns of the table are."""
    unordered = Localized(
        ' "order not seen" is computed, not trained: the least loss and the most exact rows for whatever knows the'
        " symbols of a row but not their order.",
        "「順序を見ない場合」は学習の結果ではなく計算値で、行の記号を知っていてもその順序を知らないときの、損失の下限と"
        "完全一致の上限である。",
    )
    return Localized(
        f"Exact: the share of {TEST_ROWS:,} fresh rows written without a mistake. {LONGEST + 1}-{LONGER}: rows longer"
        f" than any that was trained on, {LONGEST} at most." + unordered.en * ordered,
        f"完全一致は、未見の {TEST_ROWS:,} 行のうち一つの誤りもなく書けた割合である。{LONGEST + 1}-{LONGER} は、"
        f"学習した行（長さ {LONGEST} 以下）より長い行を表す。" + unordered.ja * ordered,
    )


def _attention(toy: Toy, model: EncoderDecoder, test: Sequence[Symbols]) -> Iterator[Piece]:
    """The cross-attention of one row, and how much of it lies on the wanted symbol."""
    shares, chances = [], []
    for row in [row for row in test if len(row) > 1][:100]:
        weights, wanted = cross_weights(model, row, toy.rule), toy.rule(row)
        same = np.array(wanted)[:, None] == np.array(row)
        shares.append((weights[: len(wanted), : len(row)] * same).sum(1).mean())
        chances.append(same.sum(1).mean() / (len(row) + 1))
    row = next((row for row in test if len(row) == len(set(row)) == 7), test[0])
    names, wanted = tuple(map(str, row)), tuple(map(str, toy.rule(row)))
    title = Localized(
        "Cross-attention of the first model with sinusoids: rows are what is wanted, columns the source",
        "正弦波の位置の 1 個目のモデルのクロスアテンション（行は出力、列は入力）",
    )
    yield Picture("matrix", title, cross_weights(model, row, toy.rule), (*wanted, "$"), (*names, "$"))
    yield Localized(
        f"To predict a symbol, {np.mean(shares):.0%} of the weight lies where the source has it; evenly spread it"
        f" would be {np.mean(chances):.0%}.",
        f"記号を予測するとき、重みの {np.mean(shares):.0%} が入力中の同じ記号の位置にある。均等なら"
        f" {np.mean(chances):.0%} である。",
    )


@dataclass(frozen=True)
class Sum:
    """A task of T10: what is learned, from which rows, tested on which, for how many steps."""

    name: Localized
    rule: Rule
    train: Examples | Draw
    test: Sequence[Symbols]
    steps: int
    rate: float = 2e-3
    weight_decay: float = 0.0

    def trained(self, steps: int, seed: int) -> Training:
        """A run with the source's width of 50."""
        task = ArrayTask(self.train, pairs(self.test, self.rule), batch_rows=72)
        config = toy_config(CLOCK, 50, "sinusoidal")
        return learned(config, task, steps, seed, rate=self.rate, weight_decay=self.weight_decay)


def sums() -> list[Sum]:
    """The shift; all sums of two; sums with a fifth held back: pairs but not their mirror images, and both."""
    rng = np.random.default_rng(TEST_SEED)
    rows = random_rows(rng, TEST_ROWS, CLOCK, range(8, 9))
    every = [[a, b] for a in range(CLOCK) for b in range(CLOCK)]
    half = [pair for pair in every if pair[0] < pair[1]]
    chosen = [half[i] for i in rng.permutation(len(half))[: len(every) // 5].tolist()]
    mirrored = chosen[: len(chosen) // 2]
    mirrored = mirrored + [pair[::-1] for pair in mirrored]
    names = (
        Localized("(z + 5) mod 12", "(z + 5) mod 12"),
        Localized("(a + b) mod 12, all pairs", "(a + b) mod 12、すべての組"),
        Localized("a + b never seen, b + a seen", "a + b は未学習、b + a は学習済み"),
        Localized("neither a + b nor b + a seen", "a + b も b + a も未学習"),
    )
    drawn = drawn_pairs(shift, CLOCK, range(8, 9))
    held = [(every, every)] + [
        ([p for p in every if p not in unseen], unseen) for unseen in (chosen, mirrored)
    ]
    return [
        Sum(names[0], shift, drawn, rows, 500, rate=3e-3),
        *(
            Sum(name, add, pairs(seen, add), test, 2500, weight_decay=1.0)
            for name, (seen, test) in zip(names[1:], held, strict=True)
        ),
    ]


def teach_add(options: Options) -> Iterator[Piece]:
    """T10: a shift of each symbol, and the sum of two, mod 12; then sums of pairs that were not trained on."""
    seeds, tasks = range(1, 1 + (options.seeds or SEEDS)), sums()
    runs = [[task.trained(options.steps(task.steps), seed) for seed in seeds] for task in tasks]
    exact = [
        [exact_share(_model(run), task.test, task.rule) for run in of]
        for task, of in zip(tasks, runs, strict=True)
    ]
    rows = tuple(
        (
            task.name,
            mean_and_deviation([run.measures["loss"] for run in of], ".4f"),
            mean_and_deviation(shares),
        )
        for task, of, shares in zip(tasks, runs, exact, strict=True)
    )
    columns = (
        Localized("task", "タスク"),
        Localized("loss (nats)", "損失（ナット）"),
        Localized("exact", "完全一致"),
    )
    yield Table("add", ADD.title, columns, rows)
    yield _curves({"z + 5": runs[0]}, len(runs[0][0].losses))
    yield _curves({"a + b": runs[1]}, len(runs[1][0].losses))
    shifted, known, once, never = (float(np.mean(shares)) for shares in exact)
    said = Localized(
        f"Exact are {shifted:.1%} of the shifted rows and {known:.1%} of all sums, which can be learned by heart. Of"
        f" pairs held back {once:.1%} are right where the mirror image b + a was seen, {never:.1%} where it was held"
        f" back, too; guessing gives {1 / CLOCK:.1%}. Only the last is a test of addition.",
        f"完全一致は、5 を足すタスクで {shifted:.1%}、暗記もできるすべての組の和で {known:.1%} である。学習に使わなかっ"
        f"た組の正答率は、逆順の b + a を学習した場合は {once:.1%}、b + a も学習しなかった場合は {never:.1%} である"
        f"（当て推量では {1 / CLOCK:.1%}）。足し算そのものを試しているのは最後の数だけである。",
    )
    yield Conclusion(said)


def _model(run: Training) -> EncoderDecoder:
    assert isinstance(run.model, EncoderDecoder)
    return run.model


def _curves(runs: dict[Positions, list[Training]] | dict[str, list[Training]], steps: int) -> Picture:
    values = np.stack([np.mean([curve(run.losses) for run in of], axis=0) for of in runs.values()])
    title = Localized("Training loss", "学習時の損失")
    return Picture("curves", title, values, tuple(map(str, runs)), ("1", str(steps)))


COPY = Toy(
    "copy",
    list,
    True,
    Localized("Copy a sequence", "系列の複写"),
    Localized(
        "Can an encoder-decoder copy a sequence of digits, and what does it look at?",
        "エンコーダ・デコーダは数字の系列を複写できるか。そのとき何に注目するか。",
    ),
).lesson()
REVERSE = Toy(
    "reverse",
    reverse,
    True,
    Localized("Reverse a sequence", "系列の反転"),
    Localized(
        "Can an encoder-decoder reverse a sequence of digits, and what does it look at?",
        "エンコーダ・デコーダは数字の系列を反転できるか。そのとき何に注目するか。",
    ),
).lesson()
SORT = Toy(
    "sort",
    sorted,
    False,
    Localized("Sort a sequence", "系列の整列"),
    Localized(
        "Can an encoder-decoder sort a sequence of digits, and does it need positions for it?",
        "エンコーダ・デコーダは数字の系列を小さい順に整列できるか。それに位置は必要か。",
    ),
).lesson()
ADD = Lesson(
    "add",
    'an implementation of "Formal Algorithms for Transformers" (Phuong & Hutter 2022): x = (z + 5) mod 12, and sums',
    Localized("Add on a clock of 12 hours", "12 を法とする足し算"),
    Localized(
        "Can an encoder-decoder (d = 50) add 5 to each of 8 symbols, and two symbols to each other, mod 12?",
        "エンコーダ・デコーダ（d = 50）は、8 個の記号それぞれに 5 を足すこと、2 個の記号を足すことを、12 を法として"
        "学べるか。",
    ),
    1.5,
    teach_add,
    seeds=(SEEDS,),
)
LESSONS = (COPY, REVERSE, SORT, ADD)
