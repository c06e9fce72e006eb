"""Classification of raw text by a trained classifier and its tokenizer, with calibrated probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from attendo.bundle import Bundle, TaskName, TextModel, load_as
from attendo.config import build
from attendo.data.batches import pad_rows, token_batches
from attendo.data.labelled import LabelledRow, LabelSet, LongTexts
from attendo.data.tokenizers import Tokenizer, require_list
from attendo.decoding.protocols import TokenRows
from attendo.errors import AttendoError
from attendo.inference.decisions import Thresholds, decide
from attendo.inference.ngram_classifier import NGRAMS, NgramClassifier
from attendo.inference.tables import Cell, cell_text, label_table
from attendo.metrics import (
    accuracy,
    brier_score,
    calibration_error,
    class_scores,
    confusion_matrix,
    log_loss,
    log_softmax,
    share_error,
)
from attendo.models import EncoderClassifier

if TYPE_CHECKING:
    from attendo.inference.tagger import Tagger


def classify_table(
    classifier: Classifier | Tagger,
    rows: Iterator[tuple[int, tuple[str, ...]]],
    out: Path,
    show: Callable[[int], None] = lambda n_done: None,
    kept: Sequence[str] = (),
) -> tuple[int, int]:
    """Classify the texts of a table in constant memory. Write the columns `kept`, line, the model's `heads` and text.

    A text without content has no label. `show` receives the number of finished rows. Returns the number of all rows and
    the number of rows whose text was truncated.
    """
    n_done = n_cut = 0
    with label_table(out, (*kept, "line", *classifier.heads, "text")) as write:
        while chunk := list(islice(rows, CHUNK)):
            for (line, (text, *own)), found in zip(
                chunk, classifier.classify([fields[0] for _, fields in chunk]), strict=True
            ):
                write((*own, line, *found.cells, text))
                n_cut += found.cut
            n_done += len(chunk)
            show(n_done)
    return n_done, n_cut


def mixed(
    logits: Float[ndarray, "texts classes"], log_probs: Float[ndarray, "texts classes"], share: float
) -> Float[ndarray, "texts classes"]:
    """Return share · log softmax(logits) + (1 - share) · log_probs.

    >>> mixed(np.zeros((1, 2)), np.log([[0.8, 0.2]]), 0.5).round(2)
    array([[-0.46, -1.15]])
    """
    return share * log_softmax(logits) + (1.0 - share) * log_probs


BATCH_TOKENS = 8192
"""Largest number of tokens in a batch. A single longer part of a text is a batch of its own."""

CHUNK = 1000
"""Number of texts that are encoded at a time."""


def encoder_logits(
    model: EncoderClassifier, tokenizer: Tokenizer, long_texts: LongTexts, encoded: TokenRows
) -> Float[ndarray, "texts_or_tokens classes"]:
    """Compute the logits of each text, or of each token of all texts if the model's `pooling` is "none".

    Args:
        model: The encoder with its output layer.
        tokenizer: The tokenizer of the model.
        long_texts: Treatment of long texts. If a text is read in windows, the logits of its windows are averaged.
        encoded: The token ids of the texts, without special tokens.
    """
    per_token = model.config.pooling == "none"
    starts = np.cumsum([0, *map(len, encoded)]) if per_token else np.arange(len(encoded) + 1)
    parts = [(i, [*part]) for i, ids in enumerate(encoded) for part in long_texts.parts(range(len(ids)))]
    lengths = np.array([len(part) for _, part in parts])
    sums = np.zeros((starts[-1], model.config.n_classes))
    counts = np.zeros((starts[-1], 1))
    first = len(tokenizer.specials.around_text[0])
    for rows in token_batches(lengths, np.zeros_like(lengths), BATCH_TOKENS, 0, 0):
        chosen = [
            tokenizer.specials.text([encoded[i][place] for place in part])
            for i, part in (parts[r] for r in rows)
        ]
        src, src_lengths = pad_rows(chosen, tokenizer.pad_id, model.output_proj.weight.device)
        with torch.inference_mode():
            found = model(src, src_lengths).double().cpu().numpy()
        places = np.array([starts[parts[row][0]] for row in rows])
        if per_token:
            found = np.concatenate(
                [row[first : first + n] for row, n in zip(found, lengths[rows], strict=True)]
            )
            places = np.concatenate(
                [starts[i] + np.array(part, np.int64) for i, part in (parts[r] for r in rows)]
            )
        np.add.at(sums, places, found)
        np.add.at(counts, places, 1)
    return sums / counts


@dataclass(frozen=True)
class Classification:
    """The predicted label of a text and the probabilities of all labels, most probable first.

    A text without content (empty or only white space) has the label None and no probabilities. A text for which no
    label reaches its threshold has the label None.

    Attributes:
        label: The predicted label: the most probable label, if the classifier has no thresholds (see `decide`).
        probability: Calibrated probability of `label`, or of the most probable label if `label` is None, in [0, 1].
        probabilities: Calibrated probabilities by label, in descending order.
        n_tokens: Number of tokens in the whole text.
        cut: Whether the text was truncated because it is too long.
    """

    text: str
    label: str | None
    probability: float | None
    probabilities: dict[str, float]
    n_tokens: int
    cut: bool

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.label, self.probability

    @property
    def line(self) -> str:
        """The answer for a terminal: the label, a tab and the probability."""
        return "\t".join(map(cell_text, self.cells))

    def as_json(self) -> dict[str, Any]:
        """Return the answer without the text, as JSON values."""
        return {name: value for name, value in vars(self).items() if name != "text"}


@dataclass(frozen=True)
class ClassScore:
    """The precision, recall and F1 score of one label, in [0, 1], and its number of rows (`support`)."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, eq=False)
class Assessment:
    """The measured quality of classifications.

    Attributes:
        found: The classifications, in the order of the rows.
        classes: The score of each label, in the order of the classes. Rows without a predicted label lower the recall.
        confusion: Number of rows by true and predicted class, `[true, predicted]`, without rows that have no label.
        probabilities: The calibrated probabilities.
        true: The class of each row.
        measures: Quality measures by name: `loss` (nats per text), `accuracy`, `macro_f1`, `brier` and `ece` (expected
            calibration error) of the calibrated probabilities. `loss_uncalibrated` and `ece_uncalibrated` are computed
            at temperature 1. `accuracy_error` is one standard error of the accuracy, and `commonest` is the share of
            the most frequent label. With thresholds, `coverage` is the share of rows with a predicted label, and
            `accuracy_given` is the share of correct labels among them; the accuracy is that of the most probable label.
    """

    found: tuple[Classification, ...]
    classes: tuple[ClassScore, ...]
    confusion: Int[ndarray, "classes classes"]
    probabilities: Float[ndarray, "rows classes"]
    true: Int[ndarray, " rows"]
    measures: dict[str, float]


@dataclass
class Classifier(TextModel):
    """A trained classifier and its tokenizer, which classify raw text.

    Attributes:
        model: The encoder with its classification head.
        tokenizer: The tokenizer of the model.
        counts: Number of training rows of each label, in the order of the classes.
        temperature: Divisor of the logits in p = softmax(logits / temperature), fitted on the validation set.
        long_texts: Treatment of texts with more than `max_tokens` tokens, which are truncated or read in windows.
        ngrams: The linear classifier of n-grams that was fitted on the same rows (None: none).
        share: Share of the encoder in the log-probabilities, fitted on the validation set. The n-grams have the rest.
        encoder_temperature: Divisor of the encoder's logits before they are combined with the n-grams.
        card: The contents of the run's card.json.
        folder: Path of the run folder that the classifier was loaded from.
    """

    task: ClassVar[TaskName] = "classification"
    heads: ClassVar[tuple[str, ...]] = ("label", "probability")

    model: EncoderClassifier
    tokenizer: Tokenizer
    counts: Mapping[str, int]
    temperature: float = 1.0
    long_texts: LongTexts = field(default_factory=LongTexts)
    ngrams: NgramClassifier | None = None
    share: float = 1.0
    encoder_temperature: float = 1.0
    card: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def __post_init__(self) -> None:
        config = self.model.config
        around = self.tokenizer.specials.n_around_text
        if not config.n_classes or config.pooling == "none":
            does = "tags parts of texts. Load it with attendo.load or Tagger.load"
            none = "has no labels; it computes vectors. Use it with `attendo embed`"
            raise AttendoError(f"this model {does if config.n_classes else none}")
        if len(self.counts) != config.n_classes:
            raise AttendoError(
                f"card.json names {len(self.counts)} labels, but the model has {config.n_classes} classes. Restore"
                " the card.json of the run folder"
            )
        try:
            self.labels = LabelSet(tuple(self.counts))
        except ValueError as error:
            raise AttendoError(f"{error}. Restore the card.json of the run folder") from None
        if config.positions == "learned" and self.long_texts.max_tokens + around > config.max_len:
            raise AttendoError(
                f"data.max_tokens={self.long_texts.max_tokens} plus the start token exceeds"
                f" model.max_len={config.max_len}. Lower max_tokens or raise max_len"
            )

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Classifier:
        """Load and return the classifier of a run folder.

        Args:
            folder: Path of the run folder.
            device: Device of the model, "cpu" or "cuda".

        Raises:
            AttendoError: A file is missing or damaged, or the run has another task.
        """
        return cls.from_bundle(*load_as(EncoderClassifier, folder, device))

    @classmethod
    def from_bundle(cls, bundle: Bundle, model: EncoderClassifier) -> Classifier:
        """Return a classifier for a model that is already in memory.

        Args:
            bundle: The contents of the run folder. card.json contains the number of training rows per label and the
                temperature. The table [data] contains `max_tokens` and `long`.
            model: The trained model.
        """
        card = bundle.card
        data = bundle.tables.get("data", {})
        long = {key: data[key] for key in ("max_tokens", "long") if key in data}
        fitted = card.get("validation", {})
        sha256 = card.get("files", {}).get(NGRAMS)
        ngrams = None if sha256 is None or not bundle.folder else NgramClassifier.load(bundle.folder, sha256)
        return cls(
            model,
            bundle.tokenizer,
            card.get("labels", {}),
            fitted.get("temperature", 1.0),
            build(LongTexts, long, "config.toml [data]"),
            ngrams,
            fitted.get("share", 1.0) if ngrams else 1.0,
            fitted.get("encoder_temperature", 1.0),
            card,
            bundle.folder,
        )

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.output_proj.weight.device

    @property
    def thresholds(self) -> Thresholds:
        """The lowest probability at which each label is given, from card.json (see `store_thresholds`)."""
        return self.card.get("thresholds", {})

    def classify(self, texts: Sequence[str], thresholds: Thresholds | None = None) -> list[Classification]:
        """Classify texts of any length. The encoder cuts long texts or reads windows; the n-grams read whole texts.

        Args:
            texts: A list of texts.
            thresholds: The lowest probability at which each label is given (default: the stored thresholds).

        Returns:
            One Classification per text, in the order of the texts.

        Raises:
            AttendoError: `texts` is a single string.
        """
        logits, n_tokens = self.read(texts)
        probabilities = np.exp(log_softmax(logits / self.temperature))
        return self._classifications(texts, probabilities, n_tokens, thresholds)

    def evaluate(
        self,
        rows: Sequence[LabelledRow],
        name: str = "the rows",
        read: tuple[Float[ndarray, "texts classes"], list[int]] | None = None,
    ) -> Assessment:
        """Classify the texts of labeled rows and compare the predictions with the labels.

        Args:
            rows: Labeled texts. For a text without content, the prediction is the most frequent training label.
            name: Name of the rows in error messages, for example a file name.
            read: The result of `read` for the texts of the rows (default: it is computed).

        Returns:
            An Assessment with the quality measures and the predictions.

        Raises:
            AttendoError: A label does not occur in the training set.
        """
        true = self.ids_of(rows, name)
        texts = [row.text for row in rows]
        logits, n_tokens = read or self.read(texts)
        log_probs = log_softmax(logits / self.temperature)
        probabilities = np.exp(log_probs)
        most_probable = probabilities.argmax(1)
        predicted = decide(probabilities, self._threshold_array(self.thresholds))
        given = predicted >= 0
        n = len(self.labels)
        # the last column counts the texts without a label
        confusion = confusion_matrix(true, np.where(given, predicted, n), n + 1)[:n, :n]
        scores = class_scores(confusion, np.bincount(true[~given], minlength=n))
        raw = log_softmax(logits)
        measures = {
            "loss": log_loss(log_probs, true),
            "accuracy": accuracy(true, most_probable),
            "accuracy_error": share_error(accuracy(true, most_probable), len(true)),
            "commonest": float(scores.support.max()) / len(true),
            "macro_f1": scores.macro_f1,
            "ece": calibration_error(probabilities, true),
            "brier": brier_score(probabilities, true),
            "loss_uncalibrated": log_loss(raw, true),
            "ece_uncalibrated": calibration_error(np.exp(raw), true),
        }
        if self.thresholds:
            measures["coverage"] = float(given.mean())
            measures["accuracy_given"] = accuracy(true[given], predicted[given]) if given.any() else 0.0
        columns = (scores.precision, scores.recall, scores.f1, scores.support)
        classes = zip(self.labels.names, *(column.tolist() for column in columns), strict=True)
        return Assessment(
            tuple(self._classifications(texts, probabilities, n_tokens, None)),
            tuple(ClassScore(*row) for row in classes),
            confusion,
            probabilities,
            true,
            measures,
        )

    def ids_of(self, rows: Sequence[LabelledRow], name: str) -> Int[ndarray, " rows"]:
        """Return the class id of each row's label.

        Args:
            rows: Labeled texts.
            name: Name of the rows in error messages, for example a file name.

        Raises:
            AttendoError: A label does not occur in the training set.
        """
        return np.array([self.labels.id_of(row.label, f"{name}:{row.number}") for row in rows], np.int64)

    def read(
        self, texts: Sequence[str], *, alone: bool = False
    ) -> tuple[Float[ndarray, "texts classes"], list[int]]:
        """Compute the logits of each text, before the division by the temperature.

        Args:
            texts: A list of texts. If a long text is read in windows, the logits of its windows are averaged.
            alone: Whether to return the logits of the encoder alone.

        Returns:
            The logits `[texts, classes]` of the encoder and the n-grams together (see `combined`), and the number of
            tokens of each text. For a text without content, the probabilities equal the shares of the labels in the
            training set.

        Raises:
            AttendoError: `texts` is a single string.
        """
        require_list(texts)
        logits = np.empty((len(texts), len(self.labels)))
        n_tokens: list[int] = []
        for start in range(0, len(texts), CHUNK):
            chunk = texts[start : start + CHUNK]
            encoded = self.tokenizer.encode_batch(chunk)
            n_tokens += map(len, encoded)
            logits[start : start + CHUNK] = self._chunk_logits(encoded)
        if not alone:
            logits = self.combined(logits, texts)
        empty = [i for i, text in enumerate(texts) if not text.strip()]
        shares = np.array(list(self.counts.values()), np.float64)
        logits[empty] = self.temperature * np.log(shares / shares.sum())
        return logits, n_tokens

    def combined(
        self, logits: Float[ndarray, "texts classes"], texts: Sequence[str]
    ) -> Float[ndarray, "texts classes"]:
        """Return share · (log-probabilities of the encoder) + (1 - share) · (log-probabilities of the n-grams).

        Both are calibrated alone.

        Args:
            logits: The logits of the encoder. Without n-grams, they are returned.
            texts: The texts.
        """
        if self.ngrams is None or self.share == 1.0:
            return logits
        return mixed(logits / self.encoder_temperature, self.ngrams.log_probs(texts), self.share)

    def _chunk_logits(self, encoded: TokenRows) -> Float[ndarray, "texts classes"]:
        return encoder_logits(self.model, self.tokenizer, self.long_texts, encoded)

    def _threshold_array(self, thresholds: Thresholds) -> Float[ndarray, " classes"]:
        """Return the thresholds in the order of the classes (NaN: none)."""
        return np.array([thresholds.get(name, np.nan) for name in self.labels.names])

    def _classifications(
        self,
        texts: Sequence[str],
        probabilities: Float[ndarray, "texts classes"],
        n_tokens: Sequence[int],
        thresholds: Thresholds | None,
    ) -> list[Classification]:
        names, cuts = self.labels.names, self.long_texts.long == "cut"
        chosen = decide(
            probabilities, self._threshold_array(self.thresholds if thresholds is None else thresholds)
        )
        results = []
        for text, row, n, class_id in zip(texts, probabilities, n_tokens, chosen.tolist(), strict=True):
            if not text.strip():
                results.append(Classification(text, None, None, {}, n, cut=False))
                continue
            order = np.argsort(-row, kind="stable")
            label = names[class_id] if class_id >= 0 else None
            probability = float(row[order[0] if label is None else class_id])
            by_label = {names[i]: float(row[i]) for i in order}
            cut = cuts and self.long_texts.is_long(n)
            results.append(Classification(text, label, probability, by_label, n, cut))
        return results
