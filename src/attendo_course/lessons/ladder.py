"""The attention ladder: counting letters, their difference, a signal, three signals (tasks T06a to T06d)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from attendo.data.weather import entropy
from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.inspecting.recording import recording
from attendo.models import parameter_count
from attendo_course.lessons.arrays import (
    ArrayTask,
    Draw,
    Training,
    curve,
    logits_of,
    mean_and_deviation,
    measures,
    seeded,
    trained,
)
from attendo_course.lessons.ladder_models import (
    QueryModel,
    SetEncoder,
    Start,
    counter,
    difference_counter,
    one_hot_counter,
    signal_counter,
)
from attendo_course.lessons.ladder_tasks import (
    BEGIN,
    N_LETTERS,
    SYMBOLS,
    count_distribution,
    counting,
    difference_distribution,
    signals,
    text,
    unordered_signal_limit,
)
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table

LENGTH = 10
BATCH_ROWS = 100
DECAY_SHARE = 0.25  # the sources keep the rate constant; their last losses jump
TEST_ROWS = 2000
TEST_SEED = 2**31  # of the test rows; no run draws from it
MODEL, LOSS = Localized("model", "モデル"), Localized("loss (nats)", "損失（ナット）")
EXACT, ACCURACY = Localized("all right", "全問正解"), Localized("right", "正答率")
NOTHING_SEEN = Localized("letters not seen (exact)", "文字を見ない場合（厳密値）")


@dataclass(frozen=True)
class Contender:
    """A model and how it is trained. `name` is the same in every language: it labels curves."""

    name: str
    build: Callable[[], QueryModel]
    draw: Draw
    steps: int
    learning_rate: float

    def trained(self, seed: int) -> Training:
        """A run of it: `BATCH_ROWS` fresh rows a step, tested on `TEST_ROWS` others. The rate falls at the end."""
        test = self.draw(np.random.default_rng(TEST_SEED), TEST_ROWS)
        task = ArrayTask(self.draw, test, BATCH_ROWS)
        model = seeded(self.build, seed)
        return trained(model, task, self.steps, self.learning_rate, seed, decay_share=DECAY_SHARE)


def contest(contenders: Sequence[Contender], seeds: int) -> list[list[Training]]:
    """For each contender its runs with seeds 1, 2, ..."""
    return [[contender.trained(seed) for seed in range(1, seeds + 1)] for contender in contenders]


def teach(options: Options) -> Iterator[Piece]:
    """The four steps of the ladder, in order."""
    for step in (counting_step, difference_step, signal_step, several_signals_step):
        yield from step(options)


def counting_step(options: Options) -> Iterator[Piece]:
    """T06a: how many A, B and C; the source's models, and the same with a mark before the first letter."""
    yield Localized(
        f"1. How many A, B and C are there among {LENGTH} letters and blanks? Three queries attend to a set of one-hot"
        ' vectors; a count is one of the classes 0 to 11. "K=V": one projection makes keys and values, as in'
        ' attention-primer; "QKV": the usual projections; "one-hot": the query is the letter itself, as in Shumi-Note.'
        ' "^": a mark stands before the first letter.',
        f"1. {LENGTH} 個の文字と空白のなかに A、B、C はそれぞれいくつあるか。3 個のクエリが one-hot ベクトルの集合に"
        "アテンションを向け、個数を 0 から 11 のクラスとして答える。「K=V」は attention-primer と同じく 1 つの射影が"
        "キーとバリューを兼ねるもの、「QKV」は通常の射影、「one-hot」は Shumi-Note と同じく文字そのものをクエリと"
        "するもの。「^」は最初の文字の前に目印を置く。",
    )
    contenders = counters(options.steps(2000))
    runs = contest(contenders, options.seeds or 2)
    by_length = [
        [_exact_by_length(c.draw, run.model) for run in of] for c, of in zip(contenders, runs, strict=True)
    ]
    chance = count_distribution(LENGTH, 1 / 4)
    rows: list[tuple[Cell, ...]] = [
        (NOTHING_SEEN, f"{entropy(chance):.3f}", f"{chance.max():.3f}", "", "", "")
    ]
    for contender, of, exact in zip(contenders, runs, by_length, strict=True):
        cells = [mean_and_deviation([values[i] for values in exact], ".3f") for i in range(3)]
        rows.append((contender.name, *_cells(of, "loss", "accuracy"), *cells))
    lengths = [Localized(f"{EXACT.en}, length {n}", f"{EXACT.ja}、長さ {n}") for n in _lengths()]
    yield Table(
        "counting",
        Localized("Counting letters", "文字を数える"),
        (MODEL, LOSS, ACCURACY, *lengths),
        tuple(rows),
    )
    yield _curves(contenders, runs)
    last = contenders[-1]
    yield _letters_map(cast(QueryModel, runs[-1][0].model), last.draw)
    bare, marked = (
        np.mean(
            [e for e, c in zip(by_length, contenders, strict=True) if c.name.endswith("^") == mark],
            axis=(0, 1),
        )
        for mark in (False, True)
    )
    said = Localized(
        "Softmax gives shares, not counts: a row and the same row twice look alike. Doubling the rows changes the"
        f' logits of "K=V" by at most {_doubling(runs[0][0].model, contenders[0].draw):.0e}. The mark\'s own share'
        f" tells how many letters it is compared with. All counts are right in {bare[1]:.1%} of the rows without it"
        f" ({bare[0]:.1%} and {bare[2]:.1%} at lengths 9 and 11), in {marked[1]:.1%} with it ({marked[0]:.1%} and"
        f" {marked[2]:.1%}), mean of the models; all were trained at length {LENGTH} only.",
        "softmax が与えるのは個数ではなく割合であり、ある行とそれを 2 回並べた行は区別できない。行を 2 倍にしても"
        f"「K=V」のロジットの変化は高々 {_doubling(runs[0][0].model, contenders[0].draw):.0e} である。目印があれば、"
        f"目印自身の割合から個数がわかる。全部の個数が正しい行は、目印なしで {bare[1]:.1%}（長さ 9 と 11 では"
        f" {bare[0]:.1%} と {bare[2]:.1%}）、目印ありで {marked[1]:.1%}（{marked[0]:.1%} と {marked[2]:.1%}）である"
        f"（モデルの平均。学習はすべて長さ {LENGTH} だけで行った）。",
    )
    yield Conclusion(said)


def counters(steps: int) -> list[Contender]:
    """The models of T06a, trained at length 10 by Adam with the source's 1e-2; the usual projections want less."""
    classes = LENGTH + 2  # 0 to 11, for the longest rows they are tested on
    letters = range(1, N_LETTERS + 1)

    def builders(n: int) -> list[tuple[str, Callable[[], QueryModel], float]]:
        return [
            ("K=V", lambda: counter(n, N_LETTERS, classes, projected=False), 1e-2),
            ("QKV", lambda: counter(n, N_LETTERS, classes, projected=True), 3e-3),
            ("one-hot", lambda: one_hot_counter(n, letters, classes), 1e-2),
        ]

    return [
        Contender(name + " ^" * begin, build, counting([LENGTH], begin=begin), steps, rate)
        for begin in (False, True)
        for name, build, rate in builders(len(SYMBOLS) if begin else BEGIN)
    ]


def difference_step(options: Options) -> Iterator[Piece]:
    """T06b: a fourth answer, |A - B|, with and without self-attention among the answers."""
    yield Localized(
        "2. A fourth answer: the difference of A and B. It can be read from the letters, or from the other answers,"
        ' if answers attend to each other ("self"). Both models: "K=V ^" of step 1.',
        "2. 4 番目の答えとして A と B の個数の差を加える。差は文字から直接読むことも、"
        "答えどうしがアテンションを向け合う場合（「self」）には他の答えから読むこともできる。"
        "どちらも手順 1 の「K=V ^」に基づく。",
    )
    draw = counting([LENGTH], begin=True, difference=True)
    steps = options.steps(1000)
    contenders = [
        Contender(
            "self" if own else "no self",
            lambda own=own: difference_counter(len(SYMBOLS), LENGTH + 2, self_attention=own),
            draw,
            steps,
            1e-2,
        )
        for own in (False, True)
    ]
    runs = contest(contenders, options.seeds or 2)
    counts, difference = count_distribution(LENGTH, 1 / 4), difference_distribution(LENGTH)
    chance = (3 * entropy(counts) + entropy(difference)) / 4
    rows: list[tuple[Cell, ...]] = [(NOTHING_SEEN, f"{chance:.3f}", "", f"{difference.max():.3f}")]
    fourth = [[_fourth_right(run.model, draw) for run in of] for of in runs]
    for contender, of, right in zip(contenders, runs, fourth, strict=True):
        rows.append((contender.name, *_cells(of, "loss", "exact"), mean_and_deviation(right)))
    columns = (MODEL, LOSS, EXACT, Localized("difference right", "差の正答率"))
    yield Table("difference", Localized("Counts and a difference", "個数と差"), columns, tuple(rows))
    weights = _mean_weights(runs[1][0].model, draw, "self_attention")
    answers = ("A", "B", "C", "|A-B|")
    title = Localized(
        "Self-attention among the answers, mean of the test rows",
        "答えどうしのセルフアテンション（テスト行の平均）",
    )
    yield Picture("matrix", title, weights, answers, answers)
    share, even = float(weights[3, :2].sum()), 0.5
    more = share > even
    said = Localized(
        f"The fourth row gives {share:.0%} of its weight to the answers for A and B, {'more' if more else 'no more'}"
        f" than an even spread ({even:.0%}). With self-attention the difference is right in"
        f" {np.mean(fourth[1]):.1%} of the rows, without it in {np.mean(fourth[0]):.1%}.",
        f"4 行目は重みの {share:.0%} を A と B の答えに向けており、均等な配分（{even:.0%}）"
        f"{'より多い' if more else 'を上回らない'}。差が正しい行はセルフアテンションありで {np.mean(fourth[1]):.1%}、"
        f"なしで {np.mean(fourth[0]):.1%} である。",
    )
    yield Conclusion(said)


def signal_step(options: Options) -> Iterator[Piece]:
    """T06c: the first letter says what to count; with and without positions."""
    yield Localized(
        f"3. The first letter says which letter to count in the {LENGTH} that follow: order matters now. One encoder"
        " block, one head, with trained positions and without.",
        f"3. 最初の文字が、続く {LENGTH} 文字のうちどの文字を数えるかを指定する。ここでは順序に意味がある。エンコーダ"
        "ブロック 1 個、1 ヘッドで、学習する位置埋め込みの有無を比べる。",
    )
    draw, steps = signals(1, LENGTH), options.steps(2000)
    starts: tuple[tuple[str, Start], ...] = (("no positions", "none"), ("positions", "drawn"))
    contenders = [
        Contender(
            name,
            lambda start=start: signal_counter(1, LENGTH, LENGTH + 1, n_heads=1, positions=start),
            draw,
            steps,
            1e-3,
        )
        for name, start in starts
    ]
    runs = contest(contenders, options.seeds or 1)
    chance, (loss, accuracy) = count_distribution(LENGTH, 1 / 3), unordered_signal_limit(LENGTH)
    unordered = Localized("letters without their order (exact)", "順序なしの文字（厳密値）")
    rows: list[tuple[Cell, ...]] = [
        (NOTHING_SEEN, f"{entropy(chance):.3f}", f"{chance.max():.3f}"),
        (unordered, f"{loss:.3f}", f"{accuracy:.3f}"),
    ]
    rows += [(c.name, *_cells(of, "loss", "accuracy")) for c, of in zip(contenders, runs, strict=True)]
    yield Table("signal", Localized("A signal", "合図"), (MODEL, LOSS, ACCURACY), tuple(rows))
    yield _curves(contenders, runs)
    model = cast(QueryModel, runs[1][0].model)
    places = cast(SetEncoder, model.encoder).positions
    assert places is not None, "this contender has positions"
    norms = places.weight.detach().norm(dim=1).numpy()
    names = tuple(str(i) for i in range(LENGTH + 1))
    title = Localized("Length of the vector of each position", "各位置ベクトルの長さ")
    yield Picture("matrix", title, norms[None].astype(np.float64), ("",), names)
    without, with_places = (float(np.mean([run.measures["loss"] for run in of])) for of in runs)
    said = Localized(
        f"Without positions no model can have a mean loss below {loss:.3f}; this one has {without:.3f}, with positions"
        f" {with_places:.4f}. The vector of the signal's position is {norms[0]:.2f} long, the others"
        f" {norms[1:].mean():.2f} on average.",
        f"位置がなければ、どんなモデルでも平均損失は {loss:.3f} を下回らない。このモデルは {without:.3f}、位置があれば"
        f" {with_places:.4f} である。合図の位置のベクトルの長さは {norms[0]:.2f}、他は平均"
        f" {norms[1:].mean():.2f} である。",
    )
    yield Conclusion(said)


def several_signals_step(options: Options) -> Iterator[Piece]:
    """T06d: three signals; the source's bare single head, one head with projections, four heads of equal parameters."""
    yield Localized(
        '4. Three signals, three counts. "source": its single head, without any projection, and positions that start'
        ' at 0; "bare": the same with positions drawn at random; "1 head" and "4 heads": with projections, equally'
        " many parameters.",
        "4. 合図が 3 つ、答えも 3 つ。「source」は原典の 1 ヘッドで、射影をまったくもたず、位置は 0 から学習する。"
        "「bare」は同じ形で位置の初期値を乱数とする。「1 head」と「4 heads」は射影をもち、パラメータ数が等しい。",
    )
    draw, steps = signals(3, LENGTH), options.steps(4000)
    kinds: tuple[tuple[str, int | None, Start], ...] = (
        ("source", None, "zero"),
        ("bare", None, "drawn"),
        ("1 head", 1, "drawn"),
        ("4 heads", 4, "drawn"),
    )
    contenders = [
        Contender(
            name,
            lambda n=n, start=start: signal_counter(3, LENGTH, LENGTH + 1, n_heads=n, positions=start),
            draw,
            steps,
            1e-3,
        )
        for name, n, start in kinds
    ]
    runs = contest(contenders, options.seeds or 1)
    rows = tuple(
        (contender.name, parameter_count(of[0].model), *_cells(of, "loss", "exact"))
        for contender, of in zip(contenders, runs, strict=True)
    )
    columns = (MODEL, Localized("parameters", "パラメータ数"), LOSS, EXACT)
    yield Table("signals", Localized("Three signals", "3 つの合図"), columns, rows)
    yield _curves(contenders, runs)
    source, bare, one, four = (float(np.mean([run.measures["loss"] for run in of])) for of in runs)
    said = Localized(
        f"The source's single head has a loss of {source:.4f}, and {bare:.4f} once its positions start at random;"
        f" projections make it {one:.4f}, four heads in place of the one {four:.4f}. With equal parameters one head has"
        f" {one / four:.2g} times the loss of four.",
        f"原典の 1 ヘッドの損失は {source:.4f}、位置の初期値を乱数にすると {bare:.4f}、射影を加えると {one:.4f}、それを"
        f" 4 ヘッドに分けると {four:.4f} である。パラメータ数が等しいとき、1 ヘッドの損失は 4 ヘッドの {one / four:.2g}"
        " 倍である。",
    )
    yield Conclusion(said)


def _lengths() -> tuple[int, int, int]:
    return LENGTH - 1, LENGTH, LENGTH + 1


def _exact_by_length(draw: Draw, model: nn.Module) -> list[float]:
    """Share of rows all right, at each of the lengths."""
    begin = draw(np.random.default_rng(0), 1).inputs["x"].shape[-1] == len(SYMBOLS)
    rng = np.random.default_rng(TEST_SEED)
    return [measures(model, counting([n], begin=begin)(rng, TEST_ROWS))["exact"] for n in _lengths()]


def _fourth_right(model: nn.Module, draw: Draw) -> float:
    test = draw(np.random.default_rng(TEST_SEED), TEST_ROWS)
    return float((logits_of(model, test).argmax(-1) == test.targets)[:, 3].double().mean())


@torch.no_grad()
def _doubling(model: nn.Module, draw: Draw) -> float:
    """The largest change of a logit when every row stands twice."""
    x = draw(np.random.default_rng(TEST_SEED), 100).inputs["x"]
    return float((model(torch.cat([x, x], dim=1)) - model(x)).abs().max())


def _cells(runs: Sequence[Training], *names: str) -> tuple[str, ...]:
    forms = {"loss": ".4f"}
    return tuple(
        mean_and_deviation([run.measures[name] for run in runs], forms.get(name, ".3f")) for name in names
    )


def _curves(contenders: Sequence[Contender], runs: Sequence[Sequence[Training]]) -> Picture:
    """The loss of each contender, mean over its runs."""
    values = np.stack([np.mean([curve(run.losses) for run in of], axis=0) for of in runs])
    title = Localized("Training loss", "学習時の損失")
    return Picture(
        "curves", title, values, tuple(c.name for c in contenders), ("1", str(contenders[0].steps))
    )


@torch.no_grad()
def _mean_weights(model: nn.Module, draw: Draw, path: str) -> Float[np.ndarray, "q_len k_len"]:
    """The attention weights of a layer's first head, mean of the test rows."""
    x = draw(np.random.default_rng(TEST_SEED), TEST_ROWS).inputs["x"]
    with recording(model, f"{path}.weights") as record:
        record.model(x)
    return record[path].weights[:, 0].mean(0).double().numpy()


@torch.no_grad()
def _letters_map(model: QueryModel, draw: Draw) -> Picture:
    """What each query looks at in one row."""
    x = draw(np.random.default_rng(TEST_SEED), 1).inputs["x"]
    with recording(model, "cross_attention.weights") as record:
        record.model(x)
    title = Localized("What the queries for A, B and C attend to", "A、B、C のクエリが向けるアテンション")
    weights = record["cross_attention"].weights[0, 0].double().numpy()
    return Picture(
        "matrix", title, weights, tuple(SYMBOLS[1 : N_LETTERS + 1]), tuple(text(x[0]).replace(" ", "_"))
    )


LESSON = Lesson(
    name="ladder",
    source="attention-primer (Greenfrapp 2018), tasks 1 to 4; Shumi-Note",
    title=Localized("The attention ladder", "アテンションの段階別タスク"),
    question=Localized(
        "What can attention count, and what do marks, self-attention, positions and heads add?",
        "アテンションは何を数えられるのか。目印、セルフアテンション、位置、ヘッドは何を加えるのか。",
    ),
    cpu_minutes=3.5,
    teach=teach,
    seeds=(2, 2, 1, 1),
)
LESSONS = (LESSON,)
