"""What all models that label texts share: an encoder with an output layer, its tokenizer, and n-grams beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from attendo.bundle import Bundle, TaskName, TextModel, load_as
from attendo.config import build
from attendo.data.batches import pad_rows, token_batches
from attendo.data.labelled import LabelledRow, Long, LongTexts, PairEncoder, has_pairs
from attendo.data.tokenizers import Tokenizer, require_list
from attendo.decoding.protocols import TokenRows
from attendo.errors import AttendoError
from attendo.inference.decisions import Thresholds
from attendo.inference.ngram_classifier import NGRAMS, NgramClassifier
from attendo.inference.tables import Cell, cell_text, label_table
from attendo.metrics import log_softmax
from attendo.models import EncoderClassifier


def classify_table(
    user: LabelModel,
    rows: Iterator[tuple[int, tuple[str, ...]]],
    out: Path,
    show: Callable[[int], None] = lambda n_done: None,
    kept: Sequence[str] = (),
) -> tuple[int, int]:
    """Classify the texts of a table in constant memory. Write the columns `kept`, line, the model's `heads` and text.

    `show` receives the number of finished rows. Returns the numbers of all rows and of rows with a truncated text.
    """
    n_done = n_cut = 0
    with label_table(out, (*kept, "line", *user.heads, "text")) as write:
        while chunk := list(islice(rows, CHUNK)):
            for (line, (text, *own)), found in zip(
                chunk, user.classify([fields[0] for _, fields in chunk]), strict=True
            ):
                write((*own, line, *found.cells, text))
                n_cut += found.cut
            n_done += len(chunk)
            show(n_done)
    return n_done, n_cut


def mixed(
    encoder: Float[ndarray, "rows classes"], ngrams: Float[ndarray, "rows classes"], share: float
) -> Float[ndarray, "rows classes"]:
    """Return share · log softmax(encoder) + (1 - share) · log softmax(ngrams).

    >>> mixed(np.zeros((1, 2)), np.log([[0.8, 0.2]]), 0.5).round(2)
    array([[-0.46, -1.15]])
    """
    return share * log_softmax(encoder) + (1.0 - share) * log_softmax(ngrams)


Logits = Float[ndarray, "texts outputs"]
Decisions = Float[ndarray, "decisions classes"]
"""The logits or log-probabilities of each text, and of each decision: a decision is a choice of one class."""
BATCH_TOKENS = 8192
"""Largest number of tokens in a batch. A single longer part of a text is a batch of its own."""
CHUNK = 1000
"""Number of texts that are encoded at a time."""


def encoder_logits(
    model: EncoderClassifier, tokenizer: Tokenizer, long_texts: LongTexts, encoded: TokenRows
) -> Float[ndarray, "texts_or_tokens classes"]:
    """Compute the logits of each text, or of each token of all texts if the model's `pooling` is "none".

    `encoded` contains the token ids without special tokens. If a long text is read in windows, the logits of its
    windows are averaged.
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
            tokenizer.specials.text([encoded[i][place] for place in part]) for i, part in (parts[r] for r in rows)
        ]
        src, src_lengths = pad_rows(chosen, tokenizer.pad_id, model.output_proj.weight.device)
        with torch.inference_mode():
            found = model(src, src_lengths).double().cpu().numpy()
        places = np.array([starts[parts[row][0]] for row in rows])
        if per_token:
            found = np.concatenate([row[first : first + n] for row, n in zip(found, lengths[rows], strict=True)])
            places = np.concatenate([starts[i] + np.array(part, np.int64) for i, part in (parts[r] for r in rows)])
        np.add.at(sums, places, found)
        np.add.at(counts, places, 1)
    return sums / counts


@dataclass(frozen=True)
class Answer(ABC):
    """The answer of a model for one text, with the number of its tokens, and whether the text was truncated (`cut`)."""

    text: str
    n_tokens: int
    cut: bool

    @property
    @abstractmethod
    def cells(self) -> tuple[Cell, ...]:
        """The values of the columns `LabelModel.heads` of a table."""

    @property
    def line(self) -> str:
        """The answer for a terminal: the cells, separated by tabs."""
        return "\t".join(map(cell_text, self.cells))

    def as_json(self) -> dict[str, Any]:
        """Return the answer without the text, as JSON values."""
        general = {"n_tokens": self.n_tokens, "cut": self.cut}
        return {name: value for name, value in vars(self).items() if name not in ("text", *general)} | general


@dataclass(frozen=True)
class ClassScore:
    """The precision, recall and F1 score of one label, in [0, 1], and its number of rows (`support`)."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, eq=False)
class LabelAssessment:
    """The measured quality of answers: the answers in the order of the rows, the score of each label, and measures."""

    found: tuple[Any, ...]
    labels: tuple[ClassScore, ...]
    measures: dict[str, float]


@dataclass
class LabelModel(TextModel, ABC):
    """The base class of models that label texts: an encoder with an output layer, and its tokenizer.

    Attributes:
        model: The encoder with its output layer.
        tokenizer: The tokenizer of the model.
        counts: Number of training rows (or spans) of each label, in the order of the labels.
        temperature: Divisor of the logits in p = softmax(logits / temperature), fitted on the validation set.
        long_texts: Treatment of texts with more than `max_tokens` tokens, which are truncated or read in windows.
        card: The contents of the run's card.json.
        folder: Path of the run folder that the model was loaded from.
    """

    task: ClassVar[TaskName]
    heads: ClassVar[tuple[str, ...]]
    usual_long: ClassVar[Long] = "cut"

    model: EncoderClassifier
    tokenizer: Tokenizer
    counts: Mapping[str, int]
    temperature: float = 1.0
    long_texts: LongTexts = field(default_factory=LongTexts)
    card: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def __post_init__(self) -> None:
        config = self.model.config
        if not config.n_classes:
            raise AttendoError("this model has no labels; it computes vectors. Use it with `attendo embed`")
        task = self.card.get("task", "tagging" if config.pooling == "none" else self.task)
        if task != self.task:
            raise AttendoError(
                f"this model was trained for {task}, not for {self.task}. Give another run, or use attendo.load"
            )
        if self.n_outputs != config.n_classes:
            raise AttendoError(
                f"card.json names {len(self.counts)} labels, but the model has {config.n_classes} classes. Restore"
                " the card.json of the run folder"
            )
        n_read = self.long_texts.max_tokens + self.tokenizer.specials.n_around_text
        if config.positions == "learned" and n_read > config.max_len:
            raise AttendoError(
                f"data.max_tokens={self.long_texts.max_tokens} plus the special tokens exceeds"
                f" model.max_len={config.max_len}. Lower max_tokens or raise max_len"
            )

    @property
    def n_outputs(self) -> int:
        """The number of outputs of the output layer."""
        return len(self.counts)

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Self:
        """Load and return the model of a run folder.

        Args:
            folder: Path of the run folder.
            device: Device of the model, "cpu" or "cuda".

        Raises:
            AttendoError: A file is missing or damaged, or the run has another task.
        """
        return cls.from_bundle(*load_as(EncoderClassifier, folder, device))

    @classmethod
    def from_bundle(cls, bundle: Bundle, model: EncoderClassifier) -> Self:
        """Return the object for a model that is already in memory.

        Args:
            bundle: The contents of the run folder. card.json contains the counts of the labels and the temperature. The
                table [data] contains `max_tokens` and `long`.
            model: The trained model.
        """
        return cls(model, bundle.tokenizer, bundle.card.get("labels", {}), **cls._stored(bundle))

    @classmethod
    def _stored(cls, bundle: Bundle) -> dict[str, Any]:
        """Return the values of the further fields."""
        data = bundle.tables.get("data", {})
        long = {"long": cls.usual_long} | {key: data[key] for key in ("max_tokens", "long") if key in data}
        return {
            "temperature": bundle.card.get("validation", {}).get("temperature", 1.0),
            "long_texts": build(LongTexts, long, "config.toml [data]"),
            "card": bundle.card,
            "folder": bundle.folder,
        }

    @abstractmethod
    def classify(self, texts: Sequence[str]) -> Sequence[Answer]:
        """Return one answer per text, in the order of the texts."""

    @abstractmethod
    def evaluate(self, rows: Sequence[LabelledRow], name: str = "the rows") -> Any:
        """Classify the texts of labeled rows, and compare the answers with the labels."""


@dataclass
class TextClassifier(LabelModel):
    """The base class of models that decide about whole texts, with n-grams beside the encoder.

    Attributes:
        ngrams: The linear classifier of n-grams that was fitted on the same rows (None: none).
        share: Share of the encoder in the log-probabilities, fitted on the validation set. The n-grams have the rest.
        encoder_temperature: Divisor of the encoder's logits before they are combined with the n-grams.
        pairs: Whether each text consists of two texts, separated by a tab.
    """

    ngrams: NgramClassifier | None = None
    share: float = 1.0
    encoder_temperature: float = 1.0
    pairs: bool = False

    @classmethod
    def _stored(cls, bundle: Bundle) -> dict[str, Any]:
        fitted = bundle.card.get("validation", {})
        sha256 = bundle.card.get("files", {}).get(NGRAMS)
        ngrams = None if sha256 is None or not bundle.folder else NgramClassifier.load(bundle.folder, sha256)
        return super()._stored(bundle) | {
            "ngrams": ngrams,
            "share": fitted.get("share", 1.0) if ngrams else 1.0,
            "encoder_temperature": fitted.get("encoder_temperature", 1.0),
            "pairs": has_pairs(bundle.tables.get("data", {}).get("columns")),
        }

    @property
    @abstractmethod
    def baseline(self) -> str:
        """The name of the prediction that never reads the text, for messages."""

    @property
    @abstractmethod
    def prior(self) -> Float[ndarray, " outputs"]:
        """The logits of a text without content: the shares of the labels in the training set."""

    @abstractmethod
    def decisions(self, logits: Logits) -> Decisions:
        """Return the logits of each decision."""

    @abstractmethod
    def classes_of(self, rows: Sequence[LabelledRow], name: str) -> Int[ndarray, "rows *outputs"]:
        """Return the true classes of rows, flattened in the order of the decisions by `ravel`.

        Raises AttendoError, with the `name` of the rows, if a label does not occur in the training set.
        """

    @abstractmethod
    def scores(self, log_probs: Decisions, rows: Sequence[LabelledRow]) -> dict[str, float]:
        """Return the main measures of log-probabilities, the most important first."""

    @abstractmethod
    def predicted(self, log_probs: Decisions) -> list[str]:
        """Return the predicted label of each text, in the form of the labels of rows."""

    def read(self, texts: Sequence[str], *, alone: bool = False) -> tuple[Logits, list[int]]:
        """Compute the logits of each text, before the division by the temperature, and its number of tokens.

        The logits are those of the encoder and the n-grams together (see `combined`), or of the encoder alone. If a
        long text is read in windows, the logits of its windows are averaged. For a text without content, the
        probabilities equal the shares of the labels in the training set. Raises AttendoError if `texts` is a single
        string, or if a text of a classifier of pairs has no tab.
        """
        require_list(texts)
        encode = PairEncoder(self.tokenizer).encode_batch if self.pairs else self.tokenizer.encode_batch
        logits = np.empty((len(texts), self.n_outputs))
        n_tokens: list[int] = []
        for start in range(0, len(texts), CHUNK):
            encoded = encode(texts[start : start + CHUNK])
            n_tokens += map(len, encoded)
            logits[start : start + CHUNK] = encoder_logits(self.model, self.tokenizer, self.long_texts, encoded)
        if not alone and self.ngrams is not None and self.share < 1.0:
            logits = self.combined(logits, self.ngrams.scores(texts))
        empty = [i for i, text in enumerate(texts) if not text.strip()]
        logits[empty] = self.temperature * self.prior
        return logits, n_tokens

    def is_cut(self, n_tokens: int) -> bool:
        """Return whether a text with this number of tokens is truncated."""
        return self.long_texts.long == "cut" and self.long_texts.is_long(n_tokens)

    @property
    def thresholds(self) -> Thresholds:
        """The lowest probability at which each label is given, from card.json (see `store_thresholds`)."""
        return self.card.get("thresholds", {})

    @abstractmethod
    def combined(self, logits: Logits, ngrams: Logits) -> Logits:
        """Return share · (calibrated logits of the encoder) + (1 - share) · (logits of the n-grams)."""
