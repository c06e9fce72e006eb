"""The classification task: what the training loop is told about labelled texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from attendo.data.batches import Batch, EpochBatches, Rows, pad_rows, padding_share, token_batches
from attendo.data.labelled import LabelledRow, shown
from attendo.data.labelled_store import LabelledStore
from attendo.data.lengths import RowLengths
from attendo.data.long_texts import LongTexts
from attendo.data.special_tokens import OWN, SpecialTokens
from attendo.data.store import StoreFacts
from attendo.display.formats import plural
from attendo.errors import AttendoError
from attendo.metrics import (
    accuracy,
    calibration_error,
    class_scores,
    confusion_matrix,
    fit_temperature,
    log_loss,
    log_softmax,
)
from attendo.tasks.baselines import Baselines, baselines
from attendo.tasks.classifier import Classifier
from attendo.training.distributed import ALONE, Ranks
from attendo.training.report_lines import measured
from attendo.training.run import Evaluation

N_SAMPLES = 31
"""Rows of an evaluation that are passed on, at equal distances: they may be sorted by label. A prime number, so that
steps at equal distances come by all of them."""
_WINDOWS = 1  # tells the numbers that choose windows from those that shuffle


@dataclass(frozen=True, eq=False)
class LabelledMaterial:
    """A token store of labelled texts as training sees it: each text once an epoch, with its specials.

    weights: what a row of each class counts in the loss; None: all the same. token_dropout: the share of input tokens
    that training replaces by the unknown token, drawn for each epoch and row (Iyyer et al. 2015, "word dropout").
    """

    store: LabelledStore
    long_texts: LongTexts
    weights: tuple[float, ...] | None = None
    token_dropout: float = 0.0
    specials: SpecialTokens = OWN

    def __post_init__(self) -> None:
        if self.token_dropout and self._dropped < 0:
            raise AttendoError(
                f"token_dropout={self.token_dropout} puts unknown tokens in, and the tokenizer has none, nor a mask;"
                " set it to 0"
            )
        if not 0.0 <= self.token_dropout < 1.0:
            raise ValueError(f"token_dropout={self.token_dropout} must be at least 0 and below 1")

    @property
    def facts(self) -> StoreFacts:
        """The store's."""
        return self.store.facts

    @property
    def n_rows(self) -> int:
        """Texts."""
        return len(self.store)

    @cached_property
    def lengths(self) -> RowLengths:
        """Tokens of each text that an epoch reads."""
        return self.store.lengths.capped(self.long_texts.max_tokens)

    @property
    def n_tokens(self) -> int:
        """Tokens of an epoch, with the start of each text."""
        return self._n_tokens

    @cached_property
    def _n_tokens(self) -> int:
        return self.lengths.sum() + self.n_rows * self.specials.n_around_text

    @property
    def n_long(self) -> int:
        """Texts that are longer than the model reads at once."""
        return sum(int((piece > self.long_texts.max_tokens).sum()) for piece in self.store.lengths.pieces())

    def batches(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        """The batches of an epoch."""
        return self._epochs(batch_tokens, seed, epoch)

    @cached_property
    def _epochs(self) -> Callable[[int, int, int], EpochBatches]:
        """The epochs asked for last, each made once."""
        return lru_cache(maxsize=2)(self._epoch)

    def _epoch(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        rows = token_batches(self.lengths, None, batch_tokens, seed, epoch)
        return EpochBatches(rows, partial(self._collate, seed, epoch))

    def _collate(self, seed: int, epoch: int, rows: Rows) -> Batch:
        texts = [self.specials.text(self._tokens(seed, epoch, int(row)).tolist()) for row in rows]
        src, lengths = pad_rows(texts, self.specials.pad_id)
        inputs = {"src": src} if lengths is None else {"src": src, "src_lengths": lengths}
        classes = self.store.labels[rows].astype(np.int64)
        weights = None if self.weights is None else torch.tensor(self.weights)[classes]
        # no class is padding, so no id is left for it
        n_tokens = sum(map(len, texts))
        return Batch(inputs, torch.from_numpy(classes), len(rows), rows, -1, weights, n_tokens)

    def _tokens(self, seed: int, epoch: int, row: int) -> NDArray[Any]:
        """A row's tokens as this epoch reads them."""
        ids = self.store.text(row)
        if self.long_texts.is_long(len(ids)):
            # the row's place in one series of numbers, of which none needs to be held
            numbers = np.random.PCG64(np.random.SeedSequence((seed, epoch, _WINDOWS))).advance(row)
            ids = self.long_texts.training_part(ids, np.random.Generator(numbers).random())
        if not self.token_dropout:
            return ids
        dropped = np.random.default_rng((seed, epoch, row)).random(len(ids)) < self.token_dropout
        return np.where(dropped, self._dropped, ids)

    @property
    def _dropped(self) -> int:
        """What takes a dropped token's place: the unknown token, or the mask where there is none."""
        return self.specials.unk_id if self.specials.unk_id >= 0 else self.specials.mask_id


@dataclass(frozen=True, eq=False)
class ClassificationTask:
    """Batches from a token store; evaluation by classifying validation texts.

    name: where the validation rows come from, for messages. all_validation: those that decide at the end, if they are
    more.
    """

    material: LabelledMaterial
    classifier: Classifier
    validation: Sequence[LabelledRow]
    batch_tokens: int
    name: str = "validation"
    all_validation: Sequence[LabelledRow] = ()

    def __post_init__(self) -> None:
        for rows in (self.validation, self.all_validation):
            self.classifier.ids_of(rows, self.name)  # an unseen label is told before anything is trained

    @property
    def final(self) -> ClassificationTask | None:
        """The task with all validation texts; None where it has them."""
        if len(self.all_validation) <= len(self.validation):
            return None
        return replace(self, validation=self.all_validation)

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """The batches of an epoch from number `start` on."""
        return self.material.batches(self.batch_tokens, seed, epoch)[start:]

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Fits the temperature and measures accuracy and macro-F1; loss (nats a text) and calibration error with it.

        The measure "temperature" is that of the very weights, and belongs into the card with them. The baselines'
        measures stand beside the model's.
        """
        classifier = self.classifier
        assert model is classifier.model
        true = classifier.ids_of(self.validation, self.name)
        texts = [row.text for row in self.validation]
        logits = np.array(ranks.shared(texts, lambda part: classifier.read(part)[0].tolist()))
        classifier.temperature = fit_temperature(logits, true)
        log_probs = log_softmax(logits / classifier.temperature)
        predicted = log_probs.argmax(1)
        measures = {
            "loss": log_loss(log_probs, true),
            "accuracy": accuracy(true, predicted),
            "macro_f1": class_scores(confusion_matrix(true, predicted, len(classifier.labels))).macro_f1,
            "ece": calibration_error(np.exp(log_probs), true),
            "ece_uncalibrated": calibration_error(np.exp(log_softmax(logits)), true),
            "temperature": classifier.temperature,
            **self.baselines.measures(),
        }
        names = classifier.labels.names
        samples = [(row.text, row.label, names[i]) for row, i in zip(self.validation, predicted, strict=True)]
        step = max(1, len(samples) // N_SAMPLES)
        return Evaluation(measures, self.deciding, samples[::step][:N_SAMPLES])

    @cached_property
    def baselines(self) -> Baselines:
        """What the model has to beat on the validation texts."""
        tokenizer, true = self.classifier.tokenizer, self.classifier.ids_of(self.validation, self.name)
        texts = tokenizer.encode_batch(row.text for row in self.validation)
        shape = len(self.classifier.labels), tokenizer.vocab_size
        return baselines(self.material.store, texts, true, shape)

    @property
    def what_to_beat(self) -> str:
        """The baselines in a line for people, by accuracy and by the measure that decides."""
        found, n = self.baselines, len(self.validation)
        label = shown(self.classifier.labels.names[found.commonest])
        line = f"to beat on {plural(n, 'validation text')}: always {label}, {self._scores(found.always)}"
        return line if found.counting is None else f"{line}; counting words, {self._scores(found.counting)}"

    def _scores(self, scores: tuple[float, float]) -> str:
        names = ("accuracy", "macro_f1") if self.deciding == "macro_f1" else ("accuracy",)
        return ", ".join(measured(dict(zip(names, scores, strict=False))))

    @property
    def deciding(self) -> str:
        """The measure that decides."""
        return "accuracy" if self.material.weights is None else "macro_f1"

    def better(self, value: float, than: float) -> bool:
        """More is better."""
        return value > than

    def describe(self) -> dict[str, Any]:
        """Rows, tokens, classes and padding of the training data."""
        material, batches = self.material, self.batches(0, 0, 0).rows
        return {
            "texts": material.n_rows,
            "tokens": material.n_tokens,
            "long_texts": material.n_long,
            "class_weights": material.weights,
            "batches_per_epoch": len(batches),
            "padding_share": round(padding_share(batches, material.lengths), 4),
            "validation_texts": max(len(self.validation), len(self.all_validation)),
        }
