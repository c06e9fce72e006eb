"""`attendo lesson words`: the next word from counts, from an LSTM, from Transformers; what each costs and knows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from attendo.decoding.sampling import SamplingConfig
from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.inference.perplexity import document_windows
from attendo.inspecting.recording import recording
from attendo.models import DecoderLM, parameter_count
from attendo.runs.tasks import LanguageModelTask
from attendo_course.lessons.arrays import curve, mean_and_deviation, seeded
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table
from attendo_course.lessons.words_models import (
    LAYERS,
    Step,
    WordCounts,
    WordModel,
    WordRun,
    continued,
    counting_step,
    model_step,
    recurrent,
    shown,
    train_words,
    transformer,
    unordered,
)
from attendo_course.lessons.words_text import BATCH_ROWS, CONTEXT, about, phrase, word_task

SEEDS, STEPS = 3, 300
MEASURED, VOCABULARY = 20_000, 3000
"""Words of the validation text, and words that are known."""
PHRASE, PROMPT, DRAWN = 14, 7, 20
"""Words of the phrase whose attention is shown, of its beginning that is continued, and of what is drawn."""
SAMPLING = SamplingConfig(max_tokens=DRAWN, temperature=0.8, seed=1)
NEAR, WINDOWS = 10, 64
"""Distances back that are told apart in the windows by which heads are described."""
SINGLE, PAIRS = Localized("word counts", "単語の頻度"), Localized("pair counts", "単語対の頻度")


@dataclass(frozen=True)
class Contender:
    """A model and how it is trained. `name` is the same in every language: it labels curves."""

    name: str
    build: Callable[[], WordModel]
    learning_rate: float

    def runs(self, task: LanguageModelTask, steps: int, seeds: int) -> list[WordRun]:
        """Its runs with seeds 1, 2, ..."""
        return [
            train_words(seeded(self.build, seed), task, steps, self.learning_rate, seed)
            for seed in range(1, seeds + 1)
        ]


def contenders(vocab_size: int) -> list[Contender]:
    """The models that are trained, with equally many parameters; rates from a short search for each."""
    n_parameters = parameter_count(transformer(vocab_size))
    return [
        Contender("no order", lambda: unordered(vocab_size), 3e-3),
        Contender("LSTM", lambda: recurrent(vocab_size, n_parameters), 8e-3),
        Contender("Transformer", lambda: transformer(vocab_size), 2e-3),
    ]


@dataclass(frozen=True, eq=False)
class Contest:
    """The counts, the CPU seconds they took, their nats (single words, pairs); the runs of each contender by name."""

    counts: WordCounts
    counting_seconds: float
    nats: tuple[float, float]
    runs: dict[str, list[WordRun]]

    def loss(self, name: str) -> float:
        """The mean over the runs of a contender, in nats a word."""
        return fmean(run.validation_loss for run in self.runs[name])


def teach(options: Options) -> Iterator[Piece]:
    """The text, the models side by side, what context and order are worth, texts they write, where heads look."""
    steps = options.steps(STEPS)
    task = word_task(options.files, steps * CONTEXT * BATCH_ROWS, MEASURED, VOCABULARY)
    yield about(task)
    yield Localized(
        "Counted are single words, and which word follows which (Witten-Bell). The Transformer has the source's shape:"
        f' {LAYERS} blocks, 2 heads, 200 wide. "no order" is one wider block without positions: it knows the last word'
        " and the set of those before it, but not their order. The LSTM and it have as many parameters as the"
        " Transformer; all are trained by Adam on the same windows.",
        "数えるのは単語の頻度と、どの語の次にどの語が来るか（Witten-Bell 法）である。Transformer は原典と同じ形"
        f"（{LAYERS} ブロック、2 ヘッド、幅 200）。「no order」は位置情報をもたない幅広の 1 ブロックで、直前の語と、"
        "それより前の語の集合は知っているが、その順序は知らない。LSTM も「no order」もパラメータ数を Transformer に"
        "そろえ、同じウィンドウから Adam で学習する。",
    )
    began = time.process_time()
    counts = WordCounts(task.stream.documents(), task.tokenizer.vocab_size)
    seconds = time.process_time() - began
    nats = counts.nats(task.validation_documents)
    seeds = options.seeds or SEEDS
    entered = contenders(task.tokenizer.vocab_size)
    contest = Contest(counts, seconds, nats, {c.name: c.runs(task, steps, seeds) for c in entered})
    yield models_table(contest, task)
    yield learning_curves(contest)
    yield Conclusion(comparison(contest))
    yield Conclusion(worth_of_order(contest))
    words = phrase(task, PHRASE)
    yield continuations(contest, task, words[:PROMPT])
    model = contest.runs["Transformer"][0].model
    assert isinstance(model, DecoderLM), "it is built as one"
    yield from attention(model, task, words)


def models_table(contest: Contest, task: LanguageModelTask) -> Table:
    """Parameters, perplexity and time of each model; a stored count is a parameter."""
    counts, seconds = contest.counts, 1000 * contest.counting_seconds / task.stream.n_positions
    single, pairs = (f"{math.exp(nats):.1f}" for nats in contest.nats)
    rows: list[tuple[Cell, ...]] = [
        (SINGLE, counts.vocab_size, "0", single, f"{seconds:.5f}"),
        (PAIRS, counts.vocab_size + len(counts.pairs), "1, 1", pairs, f"{seconds:.5f}"),
    ]
    for name, runs in contest.runs.items():
        perplexity = mean_and_deviation([math.exp(run.validation_loss) for run in runs], ".1f")
        time_taken = mean_and_deviation([run.seconds_per_1000 for run in runs], ".3f")
        window = f"{CONTEXT}, {CONTEXT}"
        rows.append((name, parameter_count(runs[0].model), window, perplexity, time_taken))
    n_seeds = len(contest.runs["Transformer"])
    columns = (
        Localized("model", "モデル"),
        Localized("parameters", "パラメータ数"),
        Localized("context, stride", "文脈長、ストライド"),
        Localized("perplexity", "パープレキシティ"),
        Localized("CPU s/1,000 words", "CPU 秒/千語"),
    )
    title = Localized(
        f"Models of words (seeds: {n_seeds}). Context: words that are seen at once, the begin of a document included;"
        " stride: words scored in each such window; time: of training, all threads",
        f"単語のモデル（シード数 {n_seeds}）。文脈長は一度に見る語数（文書の開始記号を含む）、"
        "ストライドは各ウィンドウで採点する語数、時間は学習に要した全スレッドの合計",
    )
    return Table("words", title, columns, tuple(rows))


def learning_curves(contest: Contest) -> Picture:
    """The training loss of each contender, mean over its runs."""
    values = np.stack(
        [np.mean([curve(run.losses) for run in runs], axis=0) for runs in contest.runs.values()]
    )
    steps = str(len(contest.runs["Transformer"][0].losses))
    return Picture(
        "curves",
        Localized("Training loss (nats a word)", "学習時の損失（ナット/語）"),
        values,
        tuple(contest.runs),
        ("1", steps),
    )


def comparison(contest: Contest) -> Localized:
    """Which of LSTM and Transformer is better, by how much, how surely, and what a word costs."""
    pair = ("Transformer", "LSTM")
    better, other = sorted(pair, key=contest.loss)
    gain = contest.loss(other) - contest.loss(better)
    ahead = sum(
        a.validation_loss < b.validation_loss
        for a, b in zip(contest.runs[better], contest.runs[other], strict=True)
    )
    n = len(contest.runs[better])
    times = [fmean(run.seconds_per_1000 for run in contest.runs[name]) for name in pair]
    ratio = times[0] / times[1]
    return Localized(
        f"After so few words the {better} is ahead: its perplexity is {1 - math.exp(-gain):.1%} below the {other}'s"
        f" ({gain:.3f} nats a word), and lower with {ahead} of {n} seeds. A word costs the Transformer {ratio:.1f}"
        " times the LSTM's time on a processor. --effort 3 trains three times as long.",
        f"この語数では {better} が上回り、パープレキシティは {other} より {1 - math.exp(-gain):.1%} 低い（1 語あたり"
        f" {gain:.3f} ナット。{n} 個のシードのうち {ahead} 個で低い）。1 語あたりの CPU 時間は Transformer が LSTM の"
        f" {ratio:.1f} 倍である。--effort 3 とすれば 3 倍長く学習する。",
    )


def worth_of_order(contest: Contest) -> Localized:
    """What the word before, the words before as a set, and their order are worth, in nats a word."""
    (single, pair), bag, ordered = contest.nats, contest.loss("no order"), contest.loss("Transformer")
    total, order = single - ordered, bag - ordered
    steps = " → ".join(f"{math.exp(nats):.1f}" for nats in (single, pair, bag, ordered))
    if order > 0:
        verdict = Localized(
            f"order (with the second block that reads it) is worth {order:.3f} nats a word, {order / total:.0%} of"
            " what the context is worth as a whole",
            f"順序（とそれを読む 2 番目のブロック）の価値は 1 語あたり {order:.3f} ナットで、文脈全体の価値の"
            f" {order / total:.0%} にあたる",
        )
    else:
        verdict = Localized(
            "order was worth nothing to a Transformer that learned so briefly",
            "これだけの学習では、順序は Transformer の役に立っていない",
        )
    return Localized(
        f"Perplexity goes {steps}: from frequency alone, to one word before, to the set of {CONTEXT} words, to their"
        f" order. The word before is worth {single - pair:.3f} nats a word, the others as a set {pair - bag:.3f};"
        f" {verdict.en}.",
        f"パープレキシティは、頻度だけ、直前の 1 語、{CONTEXT} 語の集合、その順序、と知るにつれて {steps} と変わる。"
        f"直前の語の価値は 1 語あたり {single - pair:.3f} ナット、それより前の語の集合は {pair - bag:.3f} ナットで、"
        f"{verdict.ja}。",
    )


def continuations(contest: Contest, task: LanguageModelTask, prompt: Sequence[int]) -> Localized:
    """The same beginning as each model goes on from it."""
    writers: list[tuple[Localized, Step]] = [
        (SINGLE, counting_step(contest.counts, pairs=False)),
        (PAIRS, counting_step(contest.counts, pairs=True)),
    ]
    for name, runs in contest.runs.items():
        writers.append((Localized(name, name), model_step(runs[0].model, DRAWN)))
    texts = [(name, continued(step, prompt, task.tokenizer, SAMPLING)) for name, step in writers]
    given = shown(prompt, task.tokenizer)
    return Localized(
        f'What each writes after "{given}" (temperature {SAMPLING.temperature}, seed {SAMPLING.seed}):\n'
        + "\n".join(f"- {name.en}: {text}" for name, text in texts),
        f"「{given}」に続けて各モデルが書いた文（温度 {SAMPLING.temperature}、シード {SAMPLING.seed}）：\n"
        + "\n".join(f"- {name.ja}:{text}" for name, text in texts),
    )


def attention(model: DecoderLM, task: LanguageModelTask, words: Sequence[int]) -> Iterator[Piece]:
    """How far back each head looks, on validation windows, and where the most decided one looks in a phrase."""
    names, weights = head_weights(model, validation_windows(task))
    near = looking_back(weights, NEAR)
    far = mean_distance(weights)
    columns = (*(str(k) for k in range(near.shape[1] - 1)), "+")
    title = Localized(
        "How far back each head of the Transformer looks (rows: block.head; columns: words back, + the rest), mean of"
        " the validation text",
        "Transformer の各ヘッドはどこまで遡って見るか（行はブロック.ヘッド、列は何語前か、+ はさらに前の合計。"
        "検証文の平均）",
    )
    yield Picture("matrix", title, near, names, columns)
    nearest, farthest = int(far.argmin()), int(far.argmax())
    n = weights.shape[-1]
    [even] = mean_distance(np.tril(1 / np.arange(1.0, n + 1)[:, None].repeat(n, axis=1))[None, None])
    yield Localized(
        f"Head {names[nearest]} looks {far[nearest]:.1f} words back on average, head {names[farthest]}"
        f" {far[farthest]:.1f}; an even spread would give {even:.1f}.",
        f"ヘッド {names[nearest]} は平均 {far[nearest]:.1f} 語前、ヘッド {names[farthest]} は平均"
        f" {far[farthest]:.1f} 語前を見る。均等な配分なら {even:.1f} 語前である。",
    )
    head = int((weights**2).sum(-1).mean((0, 2)).argmax())
    _, of_phrase = head_weights(model, [list(words)])
    labels = tuple(shown([word], task.tokenizer) for word in words)
    title = Localized(
        f"Head {names[head]}, the most decided: what each word of a phrase (rows) looks at (columns)",
        f"最も偏りの強いヘッド {names[head]}：検証文の一節で、各語（行）がどの語（列）を見ているか",
    )
    yield Picture("matrix", title, of_phrase[0, head], labels, labels)


def validation_windows(task: LanguageModelTask) -> list[list[int]]:
    """At most 64 windows of the validation text, all as long as the longest."""
    windows = [
        window.token_ids.tolist()
        for document in task.validation_documents
        for window in document_windows(document, CONTEXT, CONTEXT)
    ]
    longest = max(map(len, windows))
    return [window for window in windows if len(window) == longest][:WINDOWS]


@torch.no_grad()
def head_weights(
    model: DecoderLM, windows: Sequence[Sequence[int]]
) -> tuple[tuple[str, ...], Float[ndarray, "windows all_heads len len"]]:
    """The names block.head, and the attention weights in windows of equal length."""
    with recording(model, "*.self_attention.weights") as record:
        record.model.hidden(torch.tensor(windows))
    blocks = [record[f"decoder.blocks.{block}.self_attention"].weights for block in range(LAYERS)]
    names = tuple(f"{i + 1}.{head + 1}" for i, block in enumerate(blocks) for head in range(block.shape[1]))
    return names, cast(ndarray, torch.cat(blocks, dim=1).double().numpy())


def looking_back(
    weights: Float[ndarray, "windows heads len len"], near: int
) -> Float[ndarray, "heads distances"]:
    """The mean weight on the word k places back, k = 0, 1, ... `near` - 1, and on all before; each row sums to 1.

    Averaged over the positions that have so many before them; of shorter windows over the last one.

    >>> looking_back(np.array([[[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]]]]), 2)
    array([[0.5, 0.4, 0.1]])
    """
    near = min(near, weights.shape[-1])
    at = np.arange(near - 1, weights.shape[-1])
    parts = [weights[:, :, at, at - k].mean(axis=(0, 2)) for k in range(near)]
    rest = np.maximum(1 - np.sum(parts, axis=0), 0)  # not a hair below
    return np.stack([*parts, rest], axis=1)


def mean_distance(weights: Float[ndarray, "windows heads len len"]) -> Float[ndarray, " heads"]:
    """How many places back the weight lies on average, at the positions of `looking_back` with `NEAR`.

    >>> mean_distance(np.array([[[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]]]])).round(3)
    array([0.7])
    """
    n = weights.shape[-1]
    back = np.arange(n)[:, None] - np.arange(n)
    return (weights * back).sum(-1)[:, :, min(NEAR, n) - 1 :].mean(axis=(0, 2))


WORDS = Lesson(
    name="words",
    source="the word language model that NYU Deep Learning 12-3 builds on: PyTorch's examples",
    title=Localized("The next word", "次の単語"),
    question=Localized(
        "How well do counts, an LSTM and a Transformer of equal size predict the next word, what does each cost, and"
        " what is the order of words worth?",
        "頻度、LSTM、同じ大きさの Transformer は、次の単語をどれだけ予測できるのか。それぞれのコストはいくらか。"
        "語順にはどれだけの価値があるのか。",
    ),
    cpu_minutes=3.0,
    teach=teach,
    takes_files=True,
    seeds=(SEEDS,),
)
LESSONS = (WORDS,)
