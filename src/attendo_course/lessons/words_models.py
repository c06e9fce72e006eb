"""Models of words: counts of one and two words, an LSTM, Transformers; how they are trained, and how they go on."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.data.token_stream import Document
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.backends import eager_decoder
from attendo.decoding.options import SpecialIds
from attendo.decoding.sampling import SamplingConfig, generate
from attendo.inference.generation import Window
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM
from attendo.nn.layers import Dropout
from attendo.runs.tasks import LanguageModelTask
from attendo.training.checkpoints import CheckpointConfig
from attendo.training.loop import train
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import Run
from attendo_course.lessons.words_text import CONTEXT, LINE

WIDTH, LAYERS, HEADS, DROPOUT = 200, 2, 2, 0.2
"""The source's."""


class WordCounts:
    """Probabilities of words from counts: of a word by itself, and of a word after another.

    P₁(w) = (c(w) + 1) / (N + V) and, after Witten & Bell 1991, P(w | v) = (c(v w) + T(v) P₁(w)) / (c(v) + T(v)), where
    T(v) is how many different words were seen after v: the less is known of what follows v, the more counts P₁.
    """

    def __init__(self, documents: Iterable[Document], vocab_size: int):
        """Counts documents, each between its begin and its end."""
        before, after = _neighbors(documents)
        self.vocab_size = vocab_size
        self.words: Int[np.ndarray, " vocab"] = np.bincount(after, minlength=vocab_size)
        self.pairs, self.pair_counts = np.unique(before * vocab_size + after, return_counts=True)
        self.befores: Int[np.ndarray, " vocab"] = np.bincount(before, minlength=vocab_size)
        self.kinds: Int[np.ndarray, " vocab"] = np.bincount(self.pairs // vocab_size, minlength=vocab_size)

    def single(self) -> Float[np.ndarray, " vocab"]:
        """P₁ of every word."""
        return (self.words + 1) / (self.words.sum() + self.vocab_size)

    def after(self, before: Int[np.ndarray, " n"], words: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """P(word | word before) of each pair; P₁ after a word that was never seen."""
        wanted = before * self.vocab_size + words
        places = np.searchsorted(self.pairs, wanted).clip(max=len(self.pairs) - 1)
        counts = np.where(self.pairs[places] == wanted, self.pair_counts[places], 0)
        kinds = np.where(self.befores[before] > 0, self.kinds[before], 1)
        return (counts + kinds * self.single()[words]) / (self.befores[before] + kinds)

    def nats(self, documents: Iterable[Document]) -> tuple[float, float]:
        """Mean -ln P of the words of documents and of their ends: by themselves, and after the word before."""
        before, after = _neighbors(documents)
        single, pair = self.single()[after], self.after(before, after)
        return float(-np.log(single).mean()), float(-np.log(pair).mean())


def _neighbors(documents: Iterable[Document]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """What stands before each target, and the targets."""
    before, after = [], []
    for document in documents:
        ids = document.ids.astype(np.int64)
        targets = np.append(ids, Tokenizer.eos_id) if document.ended else ids
        after.append(targets)
        before.append(np.concatenate([[Tokenizer.bos_id], targets[:-1]]))
    return np.concatenate(before), np.concatenate(after)


State = tuple[Tensor, Tensor]


class RecurrentLM(nn.Module):
    """An LSTM that predicts the next word (Hochreiter & Schmidhuber 1997); dropout as in the Transformer beside it.

    Its state begins anew with each window, so it sees no more than the Transformer. Where a new document begins inside
    of a window, only the begin id tells it so.
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
        """The state after each position, from which the next word is predicted; segments are not looked at."""
        return self.dropout(self.lstm(self.dropout(self.embedding(token_ids)))[0])

    def step(
        self, token_ids: Int[Tensor, "rows n"], state: State | None
    ) -> tuple[Float[Tensor, "rows vocab"], State]:
        """(logits after the last of these words, state): goes on from a state, None at the beginning."""
        hidden, reached = self.lstm(self.embedding(token_ids), state)
        return self.output_proj(hidden[:, -1]), reached


def recurrent_parameters(vocab_size: int, width: int, state_width: int) -> int:
    """Parameters of a RecurrentLM: V d + 4 h (d + h + 2) + (h + 1) V."""
    cells = 4 * state_width * (width + state_width + 2)
    return vocab_size * width + cells + (state_width + 1) * vocab_size


def state_width_for(n_parameters: int, vocab_size: int, width: int) -> int:
    """The width of the LSTM's state with which it has about so many parameters.

    >>> state_width_for(recurrent_parameters(5000, 200, 222), 5000, 200)
    222
    """
    half = (4 * (width + 2) + vocab_size) / 8
    rest = n_parameters - recurrent_parameters(vocab_size, width, 0)
    return max(1, round(math.sqrt(half**2 + max(0, rest) / 4) - half))


def recurrent(vocab_size: int, n_parameters: int) -> RecurrentLM:
    """A fresh LSTM with about so many parameters."""
    return RecurrentLM(vocab_size, WIDTH, state_width_for(n_parameters, vocab_size, WIDTH), DROPOUT)


def transformer(vocab_size: int) -> DecoderLM:
    """The source's model: two blocks, two heads, 200 wide, embeddings x √200, sinusoids; our norms come first."""
    return DecoderLM(_config(vocab_size))


def unordered(vocab_size: int) -> DecoderLM:
    """One block without positions, and about as many parameters as the source's two.

    To its attention the words before are a set: it sees which ones were there, and which is the last, but no order.
    """
    d_ff = (
        LAYERS * WIDTH + (LAYERS - 1) * 2 * WIDTH
    )  # an attention has as many parameters as 2 d values of d_ff
    config = dataclasses.replace(
        _config(vocab_size), n_decoder_layers=1, d_ff=d_ff, positions="none", max_len=CONTEXT
    )
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


@dataclass(frozen=True, eq=False)
class WordRun:
    """A trained model, its loss at each step and on the validation text in nats a word.

    seconds_per_1000: CPU seconds that 1,000 words of training took, all threads together.
    """

    model: WordModel
    losses: list[float]
    validation_loss: float
    seconds_per_1000: float


def train_words(
    model: WordModel, task: LanguageModelTask, steps: int, learning_rate: float, seed: int
) -> WordRun:
    """Trains a model in place by Adam: a short warm-up, a constant rate, linear decay over the last half."""
    config = TrainingConfig(
        steps=steps,
        seed=seed,
        learning_rate=learning_rate,
        warmup_steps=max(1, steps // 20),
        decay_share=0.5,
        label_smoothing=0.0,
        beta2=0.999,
        epsilon=1e-8,
        weight_decay=0.0,
        evaluate_every=steps,
    )
    losses: list[float] = []
    validation_loss, seconds, n_words = math.nan, 0.0, 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        began = time.process_time()
        for report in train(Run(model, task, config, CheckpointConfig(), folder=None)):
            if report.kind == "step":
                losses.append(report.loss)
                seconds, n_words = time.process_time() - began, report.progress.tokens
            elif report.evaluation is not None:
                validation_loss = report.evaluation.value
    model.eval()
    return WordRun(model, losses, validation_loss, 1000 * seconds / n_words)


Step = Callable[[Sequence[int]], Float[Tensor, "1 vocab"]]
"""What `decoding.sampling.generate` asks: words that follow those given before, to logits of the next."""


def counting_step(counts: WordCounts, *, pairs: bool) -> Step:
    """ln P of every word by itself or, with `pairs`, after the last one."""
    words = np.arange(counts.vocab_size)

    def step(ids: Sequence[int]) -> Tensor:
        chances = counts.after(np.full_like(words, ids[-1]), words) if pairs else counts.single()
        return torch.from_numpy(np.log(chances))[None]

    return step


def model_step(model: WordModel, n_expected: int) -> Step:
    """The model's logits, from its state or, the Transformer's, from the words that its window still holds."""
    if isinstance(model, DecoderLM):
        return Window(eager_decoder(model), n_expected).read
    state: State | None = None

    def step(ids: Sequence[int]) -> Tensor:
        nonlocal state
        logits, state = model.step(torch.tensor([ids]), state)
        return logits

    return step


def continued(step: Step, prompt_ids: Sequence[int], tokenizer: Tokenizer, config: SamplingConfig) -> str:
    """How a text goes on: its words with spaces between them, ends of lines as ⏎; no unknown word is drawn."""
    special = SpecialIds(
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        banned_ids=(tokenizer.pad_id, tokenizer.bos_id, tokenizer.unk_id),
    )
    found = [token.token_id for token in generate(step, prompt_ids, config, special)]
    return shown(found, tokenizer)


def shown(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Words on one line."""
    return tokenizer.decode(ids).replace(LINE, "⏎")
