"""The training of the chat lesson: next words, conversations and preferences, with one model and one loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from attendo.data.batches import Batch, EpochBatches, Rows
from attendo.data.chat import Message
from attendo.data.chat_corpus import Turns, chat_batch, preference_batch, template_of
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.display.i18n import Language
from attendo.inference.generator import Generator
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM
from attendo.runs.chat_tasks import answers_of
from attendo.training.distributed import ALONE, Ranks
from attendo.training.losses import Trainable, answer_log_probs, token_losses
from attendo.training.run import Evaluation
from attendo_course.lessons.arrays import Training, seeded, trained
from attendo_course.lessons.chat_talks import FACTS, Question, bulletins, questions

BATCH_ROWS, EVALUATED = 16, 100
"""The number of texts per batch in training (two per pair) and in evaluation."""
BULLETINS, TALKS, PAIRS = 9600, 19200, 1600
"""The number of training texts of each stage."""
VOCABULARY = 400
SIZES: dict[str, Any] = {
    "d_model": 64,
    "d_ff": 128,
    "n_heads": 4,
    "n_encoder_layers": 0,
    "n_decoder_layers": 3,
    "max_len": 160,
    "dropout": 0.0,
    "norm_first": True,
    "positions": "alibi",
    "tie": "output",
}
RATE, RATE_OF_PREFERENCES, WARMUP = 5e-3, 2e-4, 100
"""The learning rates, and the maximum number of steps of warm-up."""
BETA = 0.1
"""The weight β of the reference model in DPO, as in Rafailov et al. 2023."""
LONGEST_ANSWER = 32
"""The maximum number of tokens of an answer."""


@dataclass(frozen=True, eq=False)
class TextTask:
    """A training task on token ids, for the training loop of attendo. The loss is that of the marked tokens.

    Attributes:
        texts: The texts for training: token ids, and whether each token is a target.
        test: The texts for the evaluation, by their loss in nats per target.
        reference: With preferences, the log-probability of the better minus that of the worse answer under the
            reference model `[pairs]`. `texts` then alternates between better and worse answers.
    """

    texts: Sequence[Turns]
    test: Sequence[Turns]
    tokenizer: Tokenizer
    reference: np.ndarray | None = None
    final: None = None

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """Return the batches of an epoch from number `start` on, of rows in an order from (seed, epoch)."""
        size = BATCH_ROWS if self.reference is None else BATCH_ROWS // 2
        n = len(self.texts) if self.reference is None else len(self.reference)
        order = np.random.default_rng((seed, epoch)).permutation(n)
        cuts = [order[at : at + size] for at in range(0, n, size)]
        return EpochBatches(cuts, self.batch)[start:]

    def batch(self, rows: Rows) -> Batch:
        """Return rows, or pairs with preferences, as a batch."""
        specials = self.tokenizer.specials
        if self.reference is None:
            return chat_batch([[self.texts[row]] for row in map(int, rows)], rows, specials)
        turns = [self.texts[2 * row + side] for row in map(int, rows) for side in range(2)]
        return preference_batch(turns, rows, specials, BETA, self.reference[rows].astype(np.float32))

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Return the loss on the test texts."""
        return Evaluation({"loss": loss_of(model, self.tokenizer, self.test)}, "loss")

    def better(self, value: float, than: float) -> bool:
        """Return whether a loss is less than another loss."""
        return value < than

    def describe(self) -> dict[str, Any]:
        """Return the number of training texts and of test texts."""
        return {"texts": len(self.texts), "test_texts": len(self.test)}


def loss_of(model: nn.Module, tokenizer: Tokenizer, texts: Sequence[Turns]) -> float:
    """Return the mean loss in nats of the marked tokens of some texts."""
    reader, losses = cast(Trainable, model.eval()), list[Tensor]()
    with torch.no_grad():
        for at in range(0, len(texts), EVALUATED):
            rows = np.arange(at, min(at + EVALUATED, len(texts)))
            batch = chat_batch([[texts[row]] for row in map(int, rows)], rows, tokenizer.specials)
            asked = batch.targets != batch.pad_id
            logits = reader.output_proj(reader.hidden(**batch.inputs)[asked])
            losses.append(token_losses(logits, batch.targets[asked]).double())
    return float(torch.cat(losses).mean())


@dataclass(frozen=True, eq=False)
class Assistant:
    """A model with its tokenizer, the language of its texts, and the held-out questions that measure it."""

    model: DecoderLM
    tokenizer: Tokenizer
    language: Language
    held_out: Sequence[Question]

    @classmethod
    def new(cls, language: Language, n_held_out: int, seed: int = 1) -> Assistant:
        """Return an assistant with random weights, and a tokenizer for bulletins and conversations."""
        texts = list(islice(bulletins("train", language), BULLETINS // 6))
        for question in islice(questions("train"), TALKS // 4):
            texts += [content for _, content in question.messages(language)]
            texts += question.answers(language)
        tokenizer = train_tokenizer(texts, TokenizerConfig(kind="unigram", vocab_size=VOCABULARY)).with_chat()
        config = ModelConfig(architecture="decoder", vocab_size=tokenizer.vocab_size, **SIZES)
        model = seeded(lambda: DecoderLM(config), seed)
        return cls(model, tokenizer, language, list(islice(questions("test"), n_held_out)))

    def turns(self, question: Question, answer: str, full: bool = True) -> Turns:
        """Return a conversation as token ids, and which ids are of answers. `full` is the style of earlier answers."""
        messages = [*question.messages(self.language, full), Message("assistant", answer)]
        return template_of(self.tokenizer).encode(self.tokenizer, messages)

    def plain(self, text: str) -> Turns:
        """Return a text of the first stage as token ids, all of which are targets."""
        ids = [*self.tokenizer.specials.before_prompt, *self.tokenizer.encode(text), self.tokenizer.eos_id]
        return ids, [True] * len(ids)

    def task(self, texts: Sequence[Turns]) -> TextTask:
        """Return a task on these texts, evaluated by the loss of the full answers to the held-out questions."""
        return TextTask(texts, self.test, self.tokenizer)

    @cached_property
    def test(self) -> list[Turns]:
        """The full answers to the held-out questions, as token ids."""
        return [self.turns(question, question.answers(self.language)[1]) for question in self.held_out]

    def answers(self, asked: Sequence[Question]) -> list[tuple[str, bool]]:
        """Return a greedy answer to each question, and whether the answer has its end mark."""
        encode, generator = template_of(self.tokenizer).encode, Generator(self.model.eval(), self.tokenizer)
        prompts = [encode(self.tokenizer, one.messages(self.language), True)[0] for one in asked]
        return [found[:2] for found in answers_of(generator, prompts, LONGEST_ANSWER)]

    def learn(self, task: TextTask, steps: int, rate: float, seed: int = 1) -> Training:
        """Train the model in place with Adam, a short warm-up, and a linear decay over the last half."""
        warmup = max(1, min(WARMUP, steps // 10))
        return trained(self.model, task, steps, rate, seed, warmup_steps=warmup, decay_share=0.5, clip_norm=1.0)

    def pretrain(self, steps: int) -> Training:
        """Train on bulletins: the next token after each token (Radford et al. 2018, eq. 1)."""
        texts = islice(bulletins("train", self.language), BULLETINS)
        return self.learn(self.task([self.plain(text) for text in texts]), steps, RATE)

    def fine_tune(self, steps: int) -> Training:
        """Train on conversations, whose answers are short or full sentences at random: only the tokens of answers."""
        rng = np.random.default_rng(2)
        talks = list[Turns]()
        for question in islice(questions("train", rounds=(4, 4)), TALKS):
            full = bool(rng.random() < 0.5)
            talks.append(self.turns(question, question.answers(self.language)[full], full))
        return self.learn(self.task(talks), steps, RATE)

    def prefer(self, steps: int) -> Training:
        """Train on preferences with DPO (Rafailov et al. 2023, eq. 7). The reference is the model at the start."""
        texts = list[Turns]()
        for question, worse in preferences(self.language, PAIRS):
            texts += [self.turns(question, one) for one in (question.answers(self.language)[1], worse)]
        margins, task = np.zeros(len(texts) // 2), self.task(texts)
        with torch.no_grad():
            for batch in replace(task, reference=margins).batches(0, 0, 0):
                better, worse = answer_log_probs(cast(Trainable, self.model.eval()), batch).unbind(1)
                margins[batch.ids] = (better - worse).numpy()
        return self.learn(replace(task, reference=margins), steps, RATE_OF_PREFERENCES)


def preferences(language: Language, n: int) -> Iterator[tuple[Question, str]]:
    """Yield questions with a worse answer: the right one in few words, or a full sentence about something else."""
    rng = np.random.default_rng(3)
    for question in islice(questions("train", seed=1), n):
        short, best = question.answers(language)
        others = [
            other
            for kind in FACTS
            for place in (question.place, *(one.place for one in question.day))
            if (other := replace(question, kind=kind, place=place).answers(language)[1]) != best
        ]
        yield question, short if rng.random() < 0.5 else others[rng.integers(len(others))]
