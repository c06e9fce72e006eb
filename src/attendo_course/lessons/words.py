"""The lesson `attendo lesson words`: the next word from counts, from an LSTM and from Transformers."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from attendo.data.text_corpus import TextCorpus, TextData, WindowDataset
from attendo.data.texts import STDLIB, Chunk, read_documents
from attendo.data.token_stream import Document, TokenStream
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.backends import eager_decoder
from attendo.decoding.options import SpecialIds
from attendo.decoding.sampling import Sampler, SamplingConfig
from attendo.display.i18n import Localized
from attendo.inference.generation import Windows
from attendo.inference.perplexity import document_windows
from attendo.inspecting.recording import recording
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM, parameter_count
from attendo.nn.layers import Dropout
from attendo.runs.tasks import LanguageModelTask
from attendo_course.book import passage, translated
from attendo_course.lessons.arrays import Training, loss_curves, mean_and_deviation, seeded, trained
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table
from attendo_course.pictures import Picture

WIDTH, LAYERS, HEADS, DROPOUT = 200, 2, 2, 0.2
"""The sizes and the dropout rate of the source."""


class WordCounts:
    """Probabilities of words from counts: of a word alone, and of a word after another word.

    P₁(w) = (c(w) + 1) / (N + V) is the probability of a single word. After Witten & Bell 1991, P(w | v) = (c(v w) +
    T(v) P₁(w)) / (c(v) + T(v)), where T(v) is the number of different words after v. The weight of P₁ is high if
    little is known about the words after v.
    """

    def __init__(self, documents: Iterable[Document], vocab_size: int):
        """Count the words of documents, including the beginning and the end of each document."""
        before, after = _neighbors(documents)
        self.vocab_size = vocab_size
        self.words: Int[np.ndarray, " vocab"] = np.bincount(after, minlength=vocab_size)
        self.pairs, self.pair_counts = np.unique(before * vocab_size + after, return_counts=True)
        self.befores: Int[np.ndarray, " vocab"] = np.bincount(before, minlength=vocab_size)
        self.kinds: Int[np.ndarray, " vocab"] = np.bincount(self.pairs // vocab_size, minlength=vocab_size)

    def single(self) -> Float[np.ndarray, " vocab"]:
        """Return P₁ of all words."""
        return (self.words + 1) / (self.words.sum() + self.vocab_size)

    def after(self, before: Int[np.ndarray, " n"], words: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return P(word | previous word) of each pair, or P₁ if the previous word was never seen."""
        wanted = before * self.vocab_size + words
        places = np.searchsorted(self.pairs, wanted).clip(max=len(self.pairs) - 1)
        counts = np.where(self.pairs[places] == wanted, self.pair_counts[places], 0)
        kinds = np.where(self.befores[before] > 0, self.kinds[before], 1)
        return (counts + kinds * self.single()[words]) / (self.befores[before] + kinds)

    def nats(self, documents: Iterable[Document]) -> tuple[float, float]:
        """Return the mean loss in nats per word and document end: with P₁, and with P given the previous word."""
        before, after = _neighbors(documents)
        single, pair = self.single()[after], self.after(before, after)
        return float(-np.log(single).mean()), float(-np.log(pair).mean())


def _neighbors(documents: Iterable[Document]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Return the previous word of each target, and the targets."""
    before, after = [], []
    for document in documents:
        ids = document.ids.astype(np.int64)
        targets = np.append(ids, Tokenizer.eos_id) if document.ended else ids
        after.append(targets)
        before.append(np.concatenate([[Tokenizer.bos_id], targets[:-1]]))
    return np.concatenate(before), np.concatenate(after)


State = tuple[Tensor, Tensor]


class RecurrentLM(nn.Module):
    """An LSTM that predicts the next word (Hochreiter & Schmidhuber 1997), with dropout as in the Transformer.

    Each window starts with an empty state, and the LSTM therefore sees no more words than the Transformer. If a
    document begins inside a window, only the begin id shows its beginning.
    """

    def __init__(self, vocab_size: int, width: int, state_width: int, dropout: float):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.dropout = Dropout(dropout)
        self.lstm = nn.LSTM(width, state_width, batch_first=True)
        self.output_proj = nn.Linear(state_width, vocab_size)

    def hidden(
        self, token_ids: Int[Tensor, "batch len"], segments: Int[Tensor, "batch len"] | None = None
    ) -> Float[Tensor, "batch len state_width"]:
        """Return the state after each position, from which the next word is predicted. `segments` is ignored."""
        return self.dropout(self.lstm(self.dropout(self.embedding(token_ids)))[0])

    def step(self, token_ids: Int[Tensor, "rows n"], state: State | None) -> tuple[Float[Tensor, "rows vocab"], State]:
        """Return the logits after the last of these words, and the new state. The state None starts a text."""
        hidden, reached = self.lstm(self.embedding(token_ids), state)
        return self.output_proj(hidden[:, -1]), reached


def recurrent_parameters(vocab_size: int, width: int, state_width: int) -> int:
    """Return the number of parameters of a RecurrentLM: V d + 4 h (d + h + 2) + (h + 1) V."""
    cells = 4 * state_width * (width + state_width + 2)
    return vocab_size * width + cells + (state_width + 1) * vocab_size


def state_width_for(n_parameters: int, vocab_size: int, width: int) -> int:
    """Return the state width of an LSTM with about this number of parameters.

    >>> state_width_for(recurrent_parameters(5000, 200, 222), 5000, 200)
    222
    """
    half = (4 * (width + 2) + vocab_size) / 8
    rest = n_parameters - recurrent_parameters(vocab_size, width, 0)
    return max(1, round(math.sqrt(half**2 + max(0, rest) / 4) - half))


def recurrent(vocab_size: int, n_parameters: int) -> RecurrentLM:
    """Return an LSTM with random weights and about this number of parameters."""
    return RecurrentLM(vocab_size, WIDTH, state_width_for(n_parameters, vocab_size, WIDTH), DROPOUT)


def transformer(vocab_size: int) -> DecoderLM:
    """Return the source's model: 2 blocks, 2 heads, width 200, sinusoids, embeddings × √200, but with pre-norm."""
    return DecoderLM(_config(vocab_size))


def unordered(vocab_size: int) -> DecoderLM:
    """Return a model with one block and no positions, and about as many parameters as the source's two blocks.

    For the attention of this model, the previous words are a set. The model knows which words occurred and which word
    is the last, but not their order.
    """
    # an attention has as many parameters as 2 d values of d_ff
    d_ff = LAYERS * WIDTH + (LAYERS - 1) * 2 * WIDTH
    config = dataclasses.replace(_config(vocab_size), n_decoder_layers=1, d_ff=d_ff, positions="none", max_len=CONTEXT)
    return DecoderLM(config)


def _config(vocab_size: int) -> ModelConfig:
    return ModelConfig(
        architecture="decoder",
        vocab_size=vocab_size,
        d_model=WIDTH,
        d_ff=WIDTH,
        n_heads=HEADS,
        n_encoder_layers=0,
        n_decoder_layers=LAYERS,
        max_len=CONTEXT,
        dropout=DROPOUT,
        norm_first=True,
        tie="none",
        output_bias=True,
    )


WordModel = DecoderLM | RecurrentLM


def train_words(model: WordModel, task: LanguageModelTask, steps: int, learning_rate: float, seed: int) -> Training:
    """Train a model in place with Adam, a short warm-up, a constant rate and a linear decay over the last half."""
    warmup = max(1, steps // 20)
    return trained(model, task, steps, learning_rate, seed, warmup_steps=warmup, decay_share=0.5, clip_norm=1.0)


Step = Callable[[Sequence[int]], Float[Tensor, "1 vocab"]]
"""A function from the new words of a text to the logits of the next word."""


def counting_step(counts: WordCounts, *, pairs: bool) -> Step:
    """Return a function that computes ln P of all words: P₁, or with `pairs`, P given the last word."""
    words = np.arange(counts.vocab_size)

    def step(ids: Sequence[int]) -> Tensor:
        chances = counts.after(np.full_like(words, ids[-1]), words) if pairs else counts.single()
        return torch.from_numpy(np.log(chances))[None]

    return step


def model_step(model: WordModel, n_expected: int) -> Step:
    """Return a function that computes a model's next-word logits and remembers the words of the text so far."""
    if isinstance(model, DecoderLM):
        windows = Windows(eager_decoder(model), [[]], [n_expected + 1])

        def read(ids: Sequence[int]) -> Tensor:
            windows.rows[0].unread += ids[:-1]
            return windows.step(torch.tensor([ids[-1:]]))

        return read
    state: State | None = None

    def step(ids: Sequence[int]) -> Tensor:
        nonlocal state
        logits, state = model.step(torch.tensor([ids]), state)
        return logits

    return step


def continued(step: Step, prompt_ids: Sequence[int], tokenizer: Tokenizer, config: SamplingConfig) -> str:
    """Return the continuation of a text: words separated by spaces, line ends as ⏎, and no unknown words."""
    special = SpecialIds(
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        banned_ids=(tokenizer.pad_id, tokenizer.bos_id, tokenizer.unk_id),
    )
    sampler = Sampler([prompt_ids], [config], special.banned_ids)
    found: list[int] = []
    with torch.inference_mode():
        while len(found) < config.max_tokens and special.eos_id not in found[-1:]:
            [token] = sampler.draw(step(found[-1:] or prompt_ids))
            found.append(token.token_id)
    return shown(found, tokenizer)


def shown(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return words on one line."""
    return tokenizer.decode(ids).replace(LINE, "⏎")


CONTEXT, BATCH_ROWS = 35, 20
"""The number of words in a window (bptt in the source) and of windows in a batch, as in the source."""
MOST_CHARACTERS = 20_000_000
"""The maximum number of characters of the training text and of the validation text, from their beginning."""
LINE = "\n"
"""The word that ends a line."""

_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Kana and Chinese characters. Each is a separate word, because there are no spaces between words."""
_WORD = re.compile(rf"\n\s*|[{_ALONE}]|[^\W\d_{_ALONE}]+|\d|[^\w\s]|_")


def words_of(text: str) -> list[str]:
    r"""Return the words of a text. A sequence of letters is a word, as is each digit, sign and line end.

    Spaces, blank lines and indentation after a line end are dropped.

    >>> words_of("It's 10 °C.\n\n  雨だ")
    ['It', "'", 's', '1', '0', '°', 'C', '.', '\n', '雨', 'だ']
    """
    return [LINE if word[0] == LINE else word for word in _WORD.findall(text)]


def cut(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the documents with one space between words, for a word tokenizer."""
    begins = False
    for text, starts in chunks:
        begins |= starts
        if found := words_of(text):
            yield Chunk(("" if begins else " ") + " ".join(found), begins)
            begins = False


def first(chunks: Iterable[Chunk], n_characters: int) -> Iterator[Chunk]:
    """Yield the chunks up to a number of characters."""
    for chunk in chunks:
        yield chunk
        n_characters -= len(chunk.text)
        if n_characters <= 0:
            return


def stream_of(documents: Sequence[Document]) -> TokenStream:
    """Return documents as a stream in memory. A truncated document ends where it was truncated."""
    return TokenStream(
        np.concatenate([document.ids for document in documents]),
        np.cumsum([0, *(len(document.ids) for document in documents)]),
        np.array([document.n_bytes for document in documents]),
        np.array([document.n_characters for document in documents]),
    )


def word_task(files: Iterable[Path], n_train: int, n_valid: int, vocab_size: int) -> LanguageModelTask:
    """Return a task with at most `n_train` words for training and `n_valid` words for evaluation.

    The text comes from the files or, without files, from the standard library. Documents are drawn once, and a window
    never crosses a document boundary. Some documents of the files, or the end of each file, are held out, as in
    `attendo train language-model`. All words outside the vocabulary become the unknown word. Raises AttendoError for
    a file that is missing, too short or not UTF-8.
    """
    data = TextData(train=tuple(map(str, files)) or (STDLIB,), strict=True)
    data.check()
    source = data.source("train")
    for _ in read_documents(source, data.strict):
        pass  # what cannot be read is refused before anything is split off
    corpus = TextCorpus(data, say=lambda line: None)
    train, valid = (list(cut(first(corpus.chunks(part), MOST_CHARACTERS))) for part in ("train", "valid"))
    tokenizer = train_tokenizer((chunk.text for chunk in train), TokenizerConfig(kind="word", vocab_size=vocab_size))
    stream = stream_of(TokenStream.of_chunks(train, tokenizer).sample(n_train, tokenizer))
    return LanguageModelTask(
        WindowDataset(stream, CONTEXT, tokenizer.specials),
        TokenStream.of_chunks(valid, tokenizer),
        tokenizer,
        CONTEXT * BATCH_ROWS,
        evaluate_tokens=n_valid,
        name=STDLIB if data.embedded else source.name,
    )


def about(task: LanguageModelTask) -> Localized:
    """Return a description of the training and test data in a few sentences."""
    documents = task.validation_documents
    n, n_valid = task.stream.n_positions, sum(document.n_targets for document in documents)
    v, name = task.tokenizer.vocab_size, Localized(task.name, task.name)
    if task.name == STDLIB:
        name = translated("the source of Python's standard library")
    unknown, also = unknown_share([task.stream.ids]), unknown_share([document.ids for document in documents])
    return passage("words.about", name=name, n=n, n_valid=n_valid, v=v, unknown=unknown, also=also)


def unknown_share(ids: Iterable[np.ndarray]) -> float:
    """Return the share of words outside the vocabulary.

    >>> unknown_share([np.array([Tokenizer.unk_id, 7]), np.array([8, 9])])
    0.25
    """
    return float((np.concatenate(list(ids)) == Tokenizer.unk_id).mean())


def phrase(task: LanguageModelTask, n_words: int) -> list[int]:
    """Return words of the validation text from the beginning of a line, without unknown words if possible.

    The first phrase with the largest number of different words is selected, not counting line ends. If no phrase has
    only known words, the first words of a document are returned.
    """
    [line] = task.tokenizer.encode(LINE)
    best: list[int] = []
    for document in task.validation_documents:
        ids = document.ids.tolist()
        for start in (i + 1 for i, word in enumerate(ids) if word == line and line != Tokenizer.unk_id):
            found = ids[start : start + n_words]
            known = len(found) == n_words and Tokenizer.unk_id not in found
            if known and len({*found} - {line}) > len({*best} - {line}):
                best = found
    return best or task.validation_documents[0].ids[:n_words].tolist()


SEEDS, STEPS = 3, 300
MEASURED, VOCABULARY = 20_000, 3000
"""The number of evaluated words of the validation text, and the vocabulary size."""
PHRASE, PROMPT, DRAWN = 14, 7, 20
"""The numbers of words: of the phrase whose attention is shown, of its beginning as a prompt, and of a continuation."""
SAMPLING = SamplingConfig(max_tokens=DRAWN, temperature=0.8, seed=1)
NEAR, WINDOWS = 10, 64
"""The number of separate distances in the description of a head, and the number of windows for it."""
SINGLE, PAIRS = translated("word counts"), translated("pair counts")


@dataclass(frozen=True)
class Contender:
    """A model and its training settings. `name` labels the curves and is the same in all languages."""

    name: str
    build: Callable[[], WordModel]
    learning_rate: float

    def runs(self, task: LanguageModelTask, steps: int, seeds: int) -> list[Training]:
        """Train the model with seeds 1, 2, ..., and return the runs."""
        return [
            train_words(seeded(self.build, seed), task, steps, self.learning_rate, seed) for seed in range(1, seeds + 1)
        ]


def contenders(vocab_size: int) -> list[Contender]:
    """Return the trained models, which have equal numbers of parameters. The learning rates are from a short search."""
    n_parameters = parameter_count(transformer(vocab_size))
    return [
        Contender("no order", lambda: unordered(vocab_size), 3e-3),
        Contender("LSTM", lambda: recurrent(vocab_size, n_parameters), 8e-3),
        Contender("Transformer", lambda: transformer(vocab_size), 2e-3),
    ]


@dataclass(frozen=True, eq=False)
class Contest:
    """The word counts, their CPU seconds, their losses in nats (single words, pairs), and the runs of each model."""

    counts: WordCounts
    counting_seconds: float
    nats: tuple[float, float]
    runs: dict[str, list[Training]]

    def loss(self, name: str) -> float:
        """Return the mean loss over the runs of a model in nats per word."""
        return fmean(run.measures["loss"] for run in self.runs[name])


def teach(options: Options) -> Iterator[Piece]:
    """Yield the text, the comparison of the models, the value of context and order, continuations, and attention."""
    steps = options.steps(STEPS)
    task = word_task(options.files, steps * CONTEXT * BATCH_ROWS, MEASURED, VOCABULARY)
    yield about(task)
    yield passage("words.teach", LAYERS=LAYERS)
    began = time.process_time()
    counts = WordCounts(task.stream.documents(), task.tokenizer.vocab_size)
    seconds = time.process_time() - began
    nats = counts.nats(task.validation_documents)
    seeds = options.seeds or SEEDS
    entered = contenders(task.tokenizer.vocab_size)
    contest = Contest(counts, seconds, nats, {c.name: c.runs(task, steps, seeds) for c in entered})
    yield models_table(contest, task)
    yield loss_curves(translated("Training loss (nats a word)"), contest.runs)
    yield Conclusion(comparison(contest))
    yield Conclusion(worth_of_order(contest))
    words = phrase(task, PHRASE)
    yield continuations(contest, task, words[:PROMPT])
    model = contest.runs["Transformer"][0].model
    assert isinstance(model, DecoderLM), "it is built as one"
    yield from attention(model, task, words)


def models_table(contest: Contest, task: LanguageModelTask) -> Table:
    """Return the parameters, perplexity and time of each model. Each stored count is a parameter."""
    counts, seconds = contest.counts, 1000 * contest.counting_seconds / task.stream.n_positions
    single, pairs = (f"{math.exp(nats):.1f}" for nats in contest.nats)
    rows: list[tuple[Cell, ...]] = [
        (SINGLE, counts.vocab_size, "0", single, f"{seconds:.5f}"),
        (PAIRS, counts.vocab_size + len(counts.pairs), "1, 1", pairs, f"{seconds:.5f}"),
    ]
    for name, runs in contest.runs.items():
        perplexity = mean_and_deviation([math.exp(run.measures["loss"]) for run in runs], ".1f")
        time_taken = mean_and_deviation([run.seconds_per_1000 for run in runs], ".3f")
        window = f"{CONTEXT}, {CONTEXT}"
        rows.append((name, parameter_count(runs[0].model), window, perplexity, time_taken))
    n_seeds = len(contest.runs["Transformer"])
    columns = (
        translated("model"),
        translated("parameters"),
        translated("context, stride"),
        translated("perplexity"),
        translated("CPU s/1,000 words"),
    )
    title = passage("words.models_table", n_seeds=n_seeds)
    return Table("words", title, columns, tuple(rows))


def comparison(contest: Contest) -> Localized:
    """Return the better of LSTM and Transformer, the difference with its uncertainty, and the cost per word."""
    pair = ("Transformer", "LSTM")
    better, other = sorted(pair, key=contest.loss)
    gain = contest.loss(other) - contest.loss(better)
    ahead = sum(
        a.measures["loss"] < b.measures["loss"] for a, b in zip(contest.runs[better], contest.runs[other], strict=True)
    )
    n = len(contest.runs[better])
    times = [fmean(run.seconds_per_1000 for run in contest.runs[name]) for name in pair]
    ratio = times[0] / times[1]
    return passage(
        "words.comparison",
        better=better,
        gained=1 - math.exp(-gain),
        other=other,
        gain=gain,
        ahead=ahead,
        n=n,
        ratio=ratio,
    )


def worth_of_order(contest: Contest) -> Localized:
    """Return the value of the previous word, of the set of words, and of their order in nats per word."""
    (single, pair), bag, ordered = contest.nats, contest.loss("no order"), contest.loss("Transformer")
    total, order = single - ordered, bag - ordered
    steps = " → ".join(f"{math.exp(nats):.1f}" for nats in (single, pair, bag, ordered))
    if order > 0:
        verdict = passage("words.worth_of_order", order=order, share=order / total)
    else:
        verdict = translated("order was worth nothing to a Transformer that learned so briefly")
    return passage(
        "words.worth_of_order-2",
        steps=steps,
        CONTEXT=CONTEXT,
        first_gain=single - pair,
        second_gain=pair - bag,
        verdict=verdict,
    )


def continuations(contest: Contest, task: LanguageModelTask, prompt: Sequence[int]) -> Localized:
    """Return the continuations of one prompt by all models."""
    writers: list[tuple[Localized, Step]] = [
        (SINGLE, counting_step(contest.counts, pairs=False)),
        (PAIRS, counting_step(contest.counts, pairs=True)),
    ]
    for name, runs in contest.runs.items():
        writers.append((Localized(name, name), model_step(cast(WordModel, runs[0].model), DRAWN)))
    texts = [(name, continued(step, prompt, task.tokenizer, SAMPLING)) for name, step in writers]
    given = shown(prompt, task.tokenizer)
    return Localized(
        f'What each writes after "{given}" (temperature {SAMPLING.temperature}, seed {SAMPLING.seed}):\n'
        + "\n".join(f"- {name.en}: {text}" for name, text in texts),
        f"「{given}」に続けて各モデルが書いた文（温度 {SAMPLING.temperature}、シード {SAMPLING.seed}）：\n"
        + "\n".join(f"- {name.ja}：{text}" for name, text in texts),
    )


def attention(model: DecoderLM, task: LanguageModelTask, words: Sequence[int]) -> Iterator[Piece]:
    """Yield the distance to which each head attends in validation windows, and the sharpest head in a phrase."""
    names, weights = head_weights(model, validation_windows(task))
    near = looking_back(weights, NEAR)
    far = mean_distance(weights)
    columns = (*(str(k) for k in range(near.shape[1] - 1)), "+")
    title = passage("words.attention")
    yield Picture("matrix", title, near, names, columns)
    nearest, farthest = int(far.argmin()), int(far.argmax())
    n = weights.shape[-1]
    [even] = mean_distance(np.tril(1 / np.arange(1.0, n + 1)[:, None].repeat(n, axis=1))[None, None])
    yield passage(
        "words.attention-2",
        nearest=names[nearest],
        least=far[nearest],
        farthest=names[farthest],
        most=far[farthest],
        even=even,
    )
    head = int((weights**2).sum(-1).mean((0, 2)).argmax())
    _, of_phrase = head_weights(model, [list(words)])
    labels = tuple(shown([word], task.tokenizer) for word in words)
    title = passage("words.attention-3", name=names[head])
    yield Picture("matrix", title, of_phrase[0, head], labels, labels)


def validation_windows(task: LanguageModelTask) -> list[list[int]]:
    """Return at most 64 windows of the validation text, all of maximum length."""
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
    """Return the names block.head of all heads, and their attention weights in windows of equal length."""
    with recording(model, "*.self_attention.weights") as record:
        record.model.hidden(torch.tensor(windows))
    blocks = [record[f"decoder.blocks.{block}.self_attention"].weights for block in range(LAYERS)]
    names = tuple(f"{i + 1}.{head + 1}" for i, block in enumerate(blocks) for head in range(block.shape[1]))
    return names, cast(ndarray, torch.cat(blocks, dim=1).double().numpy())


def looking_back(weights: Float[ndarray, "windows heads len len"], near: int) -> Float[ndarray, "heads distances"]:
    """Return the mean weight on the word k places back for k = 0 to `near` - 1, and on all earlier words.

    Each row sums to 1. The mean is over positions with at least `near` - 1 previous words, or over the last position
    of shorter windows.

    >>> looking_back(np.array([[[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]]]]), 2)
    array([[0.5, 0.4, 0.1]])
    """
    near = min(near, weights.shape[-1])
    at = np.arange(near - 1, weights.shape[-1])
    parts = [weights[:, :, at, at - k].mean(axis=(0, 2)) for k in range(near)]
    rest = np.maximum(1 - np.sum(parts, axis=0), 0)  # not a hair below
    return np.stack([*parts, rest], axis=1)


def mean_distance(weights: Float[ndarray, "windows heads len len"]) -> Float[ndarray, " heads"]:
    """Return the mean attended distance in words, at the positions of `looking_back` with `NEAR`.

    >>> mean_distance(np.array([[[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]]]])).round(3)
    array([0.7])
    """
    n = weights.shape[-1]
    back = np.arange(n)[:, None] - np.arange(n)
    return (weights * back).sum(-1)[:, :, min(NEAR, n) - 1 :].mean(axis=(0, 2))


WORDS = Lesson(
    name="words",
    source="the word language model that NYU Deep Learning 12-3 builds on: PyTorch's examples",
    title=translated("The next word"),
    question=passage("words.question"),
    cpu_minutes=3.0,
    teach=teach,
    takes_files=True,
    seeds=(SEEDS,),
)
LESSONS = (WORDS,)
