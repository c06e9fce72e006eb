"""The four kinds of tasks for the training loop: batches, evaluation, and facts for the model card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from numpy import ndarray
from numpy.typing import NDArray
from torch import nn

from attendo.data.batches import (
    Batch,
    EpochBatches,
    Rows,
    TokenDataset,
    pad_rows,
    padding_share,
    token_batches,
)
from attendo.data.labelled import LabelledRow, shown
from attendo.data.labelled_corpus import LabelledDataset
from attendo.data.masking import Rule, hidden_tokens
from attendo.data.pair_corpus import PairDataset
from attendo.data.segments import usual_of
from attendo.data.store import LabelledStore, StoreFacts, Stretches
from attendo.data.text_corpus import WindowDataset
from attendo.data.token_stream import Document, TokenStream, require_window
from attendo.data.tokenizers import OWN, SpecialTokens, Tokenizer
from attendo.display.formats import plural
from attendo.errors import AttendoError
from attendo.inference.classifier import Classifier
from attendo.inference.perplexity import shared_text_loss
from attendo.inference.translations import ROWS
from attendo.inference.translator import Translator
from attendo.metrics import (
    accuracy,
    calibration_error,
    class_scores,
    confusion_matrix,
    fit_temperature,
    log_loss,
    log_softmax,
)
from attendo.models import MaskedLM
from attendo.training.distributed import ALONE, Ranks
from attendo.training.losses import token_losses
from attendo.training.run import Evaluation, measured

DatasetT = TypeVar("DatasetT", bound=TokenDataset)


class TokenTask(Generic[DatasetT]):
    """Base class of all tasks: batches, validation rows, and the comparison of values."""

    material: DatasetT
    batch_tokens: int
    validation: Any
    all_validation: Sequence[Any] = ()
    higher_is_better: ClassVar[bool] = True

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """Return the batches of an epoch, from number `start` on."""
        return self.material.batches(self.batch_tokens, seed, epoch)[start:]

    def better(self, value: float, than: float) -> bool:
        """Return whether one value of the deciding measure is better than another value."""
        return value > than if self.higher_is_better else value < than

    @property
    def final(self) -> Self | None:
        """The task with all validation rows, or None if every evaluation uses all rows."""
        if not self.all_validation or len(self.all_validation) <= len(self.validation):
            return None
        return replace(self, validation=self.all_validation)  # pyright: ignore[reportArgumentType, reportReturnType]


# ---- translation


TRANSLATION_SAMPLES = 32
"""Number of texts that an evaluation returns as samples. With fewer texts, equal outputs would be hard to recognize."""


@dataclass(frozen=True, eq=False)
class TranslationTask(TokenTask[PairDataset]):
    """Batches from a token store, and evaluation by greedy translation.

    The deciding measure is chrF, which requires no tokenizer and also suits languages without spaces.
    """

    material: PairDataset
    translator: Translator
    validation: Sequence[tuple[str, str]]
    batch_tokens: int
    all_validation: Sequence[tuple[str, str]] = ()

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Compute loss (nats per token), perplexity, BLEU, chrF and exact match of greedy translations."""
        assert model is self.translator.model
        found = self.translator.prepare().evaluate(self.validation, beam=1, ranks=ranks)
        samples = [(s, t, text) for (s, t), text in zip(self.validation, found.texts, strict=True)]
        return Evaluation(found.measures, "chrf", samples[:TRANSLATION_SAMPLES])

    def describe(self) -> dict[str, Any]:
        """Return the numbers of rows and tokens and the padding share of the training data."""
        store = self.material.store
        first = self.batches(0, 0, 0).rows
        lengths = zip(store.source_lengths.pieces(), store.target_lengths.pieces(), strict=True)
        decode = self.translator.tokenizer.decode
        sources = (decode(store.source(i).tolist()) for i in range(min(len(store), ROWS)))
        return {
            "pairs": len(store),
            "source_tokens": int(store.source_lengths.sum()) + len(store),
            "target_tokens": self.material.n_tokens,
            "batches_per_epoch": len(first),
            "padding_share": round(padding_share(first, store.source_lengths, store.target_lengths), 4),
            "validation_pairs": max(len(self.validation), len(self.all_validation)),
            "usual": usual_of(lengths, sources)._asdict(),
        }


# ---- classification


BASELINE_MEASURES = tuple(
    f"{measure}_{rival}"
    for rival in ("always_commonest", "counting_words")
    for measure in ("accuracy", "macro_f1")
)
"""Names of the measures of the baselines."""
MOST_WORD_COUNTS = 1 << 23
"""Largest number of word counts (classes times words) for which naive Bayes is computed: 64 MiB."""
COUNTED_TOKENS = 1 << 20
"""Number of tokens that are counted at a time."""
CLASSIFICATION_SAMPLES = 31
"""Number of rows that an evaluation returns as samples. The rows are equally spaced, because they may be sorted by
label. The number is prime, so steps at equal distances reach all samples.
"""


@dataclass(frozen=True)
class Baselines:
    """Accuracy and macro-F1 (0 to 1) of two baselines: always the class `commonest`, and naive Bayes if computed."""

    commonest: int
    always: tuple[float, float]
    counting: tuple[float, float] | None

    def measures(self) -> dict[str, float]:
        """Return the scores by the names in BASELINE_MEASURES."""
        return dict(zip(BASELINE_MEASURES, self.always + (self.counting or ()), strict=False))


def baselines(
    store: LabelledStore,
    texts: Sequence[Sequence[int]],
    true: Integer[ndarray, " texts"],
    n_classes: int,
    n_ids: int,
) -> Baselines:
    """Compute the scores of both baselines on `texts` (token ids) with the classes `true`.

    The baselines are learned from a token store, which is read once.
    """
    sizes = np.bincount(store.labels, minlength=n_classes)
    commonest = int(sizes.argmax())
    counting = None
    if n_classes * n_ids <= MOST_WORD_COUNTS:
        scores = naive_bayes(sizes, word_counts(store, n_classes, n_ids))
        counted = (np.bincount(ids, minlength=n_ids) for ids in map(list, texts))
        found = np.array([(scores[0] + scores[1] @ n).argmax() for n in counted])
        counting = _scored(true, found, n_classes)
    return Baselines(commonest, _scored(true, np.full_like(true, commonest), n_classes), counting)


def naive_bayes(
    sizes: Integer[ndarray, " classes"], counts: Integer[ndarray, "classes words"]
) -> tuple[Float[ndarray, " classes"], Float[ndarray, "classes words"]]:
    """Return log P(c), and log P(w | c) = log (n_cw + 1) / (Σ_w n_cw + V) (Manning et al. 2008, section 13.2).

    The classifier is multinomial naive Bayes with add-one smoothing over the V words that occur. `sizes` are numbers
    of rows by class, and `counts` are numbers of words by class.

    >>> prior, words = naive_bayes(np.array([3, 1]), np.array([[5, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 1, 0]]))
    >>> [round(float(p), 4) for p in np.exp(prior + words[:, [0, 0, 0, 4, 5]].sum(1))]  # as in their example 13.1
    [0.0003, 0.0001]
    """
    seen = counts.sum(0) > 0
    smoothed = np.log((counts + 1.0) / (counts.sum(1, keepdims=True) + seen.sum()))
    return np.log(sizes / sizes.sum()), np.where(seen, smoothed, 0.0)


def word_counts(store: LabelledStore, n_classes: int, n_ids: int) -> Int[ndarray, "classes ids"]:
    """Count each token in the rows of each class."""
    counts = np.zeros((n_classes, n_ids), np.int64)
    ends = np.cumsum(store.lengths[:], dtype=np.int64)
    start = 0
    while start < len(store):
        before = ends[start - 1] if start else 0
        rows = slice(start, max(start + 1, int(np.searchsorted(ends, before + COUNTED_TOKENS, side="right"))))
        start = rows.stop
        classes = np.repeat(store.labels[rows], store.lengths[rows])
        np.add.at(counts, (classes, np.concatenate([store.text(i) for i in range(rows.start, rows.stop)])), 1)
    return counts


def _scored(true: ndarray, found: ndarray, n_classes: int) -> tuple[float, float]:
    return accuracy(true, found), class_scores(confusion_matrix(true, found, n_classes)).macro_f1


@dataclass(frozen=True, eq=False)
class ClassificationTask(TokenTask[LabelledDataset]):
    """Batches from a token store, and evaluation by classifying validation texts, which messages call `name`."""

    material: LabelledDataset
    classifier: Classifier
    validation: Sequence[LabelledRow]
    batch_tokens: int
    name: str = "validation"
    all_validation: Sequence[LabelledRow] = ()

    def __post_init__(self) -> None:
        for rows in (self.validation, self.all_validation):
            self.classifier.ids_of(rows, self.name)  # raises an error for an unseen label before training

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Fit the temperature and compute accuracy, macro-F1, loss (nats per text), calibration error and baselines."""
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
        step = max(1, len(samples) // CLASSIFICATION_SAMPLES)
        return Evaluation(measures, self.deciding, samples[::step][:CLASSIFICATION_SAMPLES])

    @cached_property
    def baselines(self) -> Baselines:
        """Scores of the baselines on the validation texts."""
        tokenizer = self.classifier.tokenizer
        true = self.classifier.ids_of(self.validation, self.name)
        texts = tokenizer.encode_batch(row.text for row in self.validation)
        return baselines(self.material.store, texts, true, len(self.classifier.labels), tokenizer.vocab_size)

    @property
    def what_to_beat(self) -> str:
        """One line with the accuracy of the baselines, and with their macro-F1 if it is the deciding measure."""
        found = self.baselines
        n = len(self.validation)
        label = shown(self.classifier.labels.names[found.commonest])
        line = f"baselines on {plural(n, 'validation text')}: always {label}, {self._scores(found.always)}"
        return line if found.counting is None else f"{line}; naive Bayes, {self._scores(found.counting)}"

    def _scores(self, scores: tuple[float, float]) -> str:
        names = ("accuracy", "macro_f1") if self.deciding == "macro_f1" else ("accuracy",)
        return ", ".join(measured(dict(zip(names, scores, strict=False))))

    @property
    def deciding(self) -> str:
        """Name of the deciding measure: accuracy, or macro-F1 if the classes have weights."""
        return "accuracy" if self.material.weights is None else "macro_f1"

    def describe(self) -> dict[str, Any]:
        """Return the numbers of rows and tokens, the class weights and the padding share of the training data."""
        material = self.material
        batches = self.batches(0, 0, 0).rows
        return {
            "texts": material.n_rows,
            "tokens": material.n_tokens,
            "long_texts": material.n_long,
            "class_weights": material.weights,
            "batches_per_epoch": len(batches),
            "padding_share": round(padding_share(batches, material.lengths), 4),
            "validation_texts": max(len(self.validation), len(self.all_validation)),
        }


# ---- language modeling


PROMPT_TOKENS = 32
SHOWN_TOKENS = 32


MOST_EVALUATED = 100_000
"""The maximum number of validation tokens in an evaluation of a language model."""


@dataclass(frozen=True, eq=False)
class LanguageModelTask(TokenTask[WindowDataset]):
    """Batches of windows of a token stream, and evaluation on up to `evaluate_tokens` validation targets.

    `go_on` continues a text for the samples. Raises AttendoError if the stream is shorter than a window, or if there
    is no validation document.
    """

    material: WindowDataset
    validation: TokenStream
    tokenizer: Tokenizer
    batch_tokens: int
    evaluate_tokens: int = MOST_EVALUATED
    go_on: Callable[[str], str] | None = None
    name: str = "the training text"
    higher_is_better = False

    def __post_init__(self):
        require_window(self.stream, self.material.context, self.name)
        if not len(self.validation):
            raise AttendoError("there is no validation document. Give a file with at least one")

    @property
    def stream(self) -> TokenStream:
        """The training documents as a token stream."""
        return self.material.stream

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Compute loss (nats per token), perplexity and bits per byte. The end tokens of documents are included."""
        at_once = max(4096, self.batch_tokens)
        found = shared_text_loss(
            model, self.validation_documents, self.material.context, at_once, ranks, self.tokenizer.specials
        )
        measures = {
            "loss": found.nats_per_token,
            "perplexity": found.perplexity,
            "bits_per_byte": found.bits_per_byte,
        }
        return Evaluation(measures, "loss", self._samples())

    def describe(self) -> dict[str, Any]:
        """Return the numbers of documents, tokens and bytes of the training data, and of windows per epoch."""
        first = self.batches(0, 0, 0)
        return {
            "documents": len(self.stream),
            "tokens": self.stream.n_tokens,
            "bytes": int(self.stream.n_bytes.sum()),
            "characters": int(self.stream.n_characters.sum()),
            "context": self.material.context,
            "windows_per_epoch": sum(map(len, first.rows)),
            "batches_per_epoch": len(first),
            "validation_documents": len(self.validation),
            "validation_tokens": self.validation.n_tokens,
            "validation_targets_scored": sum(d.n_targets for d in self.validation_documents),
        }

    @cached_property
    def validation_documents(self) -> list[Document]:
        """The validation documents of an evaluation, which are the same in every evaluation."""
        return self.validation.sample(self.evaluate_tokens, self.tokenizer)

    def _samples(self) -> list[tuple[str, str, str]]:
        """Return the beginning of a validation document, its real continuation, and the model's continuation."""
        if self.go_on is None:
            return []
        ids = self.validation_documents[0].ids[: PROMPT_TOKENS + SHOWN_TOKENS].tolist()
        text = self.tokenizer.decode(ids)
        prompt = self.tokenizer.decode(ids[:PROMPT_TOKENS]).rstrip("\ufffd")
        return [(prompt, text[len(prompt) :], self.go_on(prompt))]


# ---- masked language modeling


MASKED_EVALUATION_TOKENS = 50_000
MASKED_VALIDATION_SEED = 0


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """The settings of masked language modeling.

    Attributes:
        share: Share of the tokens that are hidden. The tokens are drawn again in each epoch.
        rule: Replacement of hidden tokens. `mask` always uses the mask token. `80/10/10` uses the mask token in 80% of
            the cases, a random token in 10% and the original token in 10%.
    """

    share: float = 0.15
    rule: Rule = "mask"

    def __post_init__(self):
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"share={self.share} must be above 0 and below 1")


@dataclass(frozen=True, eq=False)
class MaskedDataset(TokenDataset):
    """Documents, split into nearly equal parts of at most `context` tokens. Each part begins with the begin token.

    The hidden tokens depend on the seed, the epoch and the number of the part.
    """

    stream: TokenStream
    context: int
    vocab_size: int
    masking: MaskingConfig
    specials: SpecialTokens = OWN
    text_ids: NDArray[np.int64] | None = None

    @property
    def facts(self) -> StoreFacts:
        """Facts about the token store of the documents."""
        assert self.stream.facts is not None, "a stream in memory has no store"
        return self.stream.facts

    @cached_property
    def stretches(self) -> Stretches:
        """Start and end of each part as positions in the token ids of all documents."""
        return Stretches(self.stream.offsets, self.context - self.specials.n_around_text)

    @property
    def n_rows(self) -> int:
        """Number of parts of all documents."""
        return len(self.stretches)

    @property
    def n_tokens(self) -> int:
        """Number of tokens in an epoch, including the special tokens of each part."""
        return self.stretches.sum() + self.n_rows * self.specials.n_around_text

    def _epoch(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        rows = token_batches(self.stretches, None, batch_tokens, seed, epoch)
        return EpochBatches(rows, partial(self._collate, seed, epoch))

    def _collate(self, seed: int, epoch: int, rows: Rows) -> Batch:
        texts: list[list[int]] = []
        wanted: list[list[int]] = []
        own = self.specials
        masking = self.masking
        nothing = own.no_target
        for row, start, end in zip(rows.tolist(), *self.stretches.edges(rows), strict=True):
            ids = np.array(own.text(self.stream.ids[start:end].tolist()), np.int64)
            rng = np.random.default_rng((seed, epoch, row))
            hide = partial(hidden_tokens, mask_id=own.mask_id, text_ids=self.text_ids)
            inputs, targets = hide(ids, masking.share, masking.rule, self.vocab_size, rng, nothing)
            texts.append(inputs.tolist())
            wanted.append(targets.tolist())
        src, lengths = pad_rows(texts, own.pad_id)
        targets, _ = pad_rows(wanted, nothing)
        inputs = {"src": src} if lengths is None else {"src": src, "src_lengths": lengths}
        n_targets = int((targets != nothing).sum())
        return Batch(inputs, targets, n_targets, rows, nothing, n_tokens=sum(map(len, texts)))


@dataclass(frozen=True, eq=False)
class MaskedTask(TokenTask[MaskedDataset]):
    """Batches with hidden tokens, and evaluation on hidden tokens of validation texts."""

    material: MaskedDataset
    validation: MaskedDataset
    batch_tokens: int
    higher_is_better = False

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Compute the loss in nats per hidden token, perplexity, and the share of hidden tokens predicted correctly.

        Every evaluation hides the same tokens.
        """
        model = cast(MaskedLM, model)
        sums = torch.zeros(3, dtype=torch.float64)  # loss, correct, tokens
        seen = 0
        batches = self.validation.batches(max(4096, self.batch_tokens), MASKED_VALIDATION_SEED, 0)
        for number, batch in enumerate(batches):
            seen += batch.targets.numel()
            if number % ranks.world == ranks.rank:
                batch = batch.to(model.output_proj.weight.device)
                asked = batch.targets != batch.pad_id
                logits = model.output(model.hidden(**batch.inputs)[asked]).float()
                targets = batch.targets[asked]
                loss = float(token_losses(logits, targets).sum(dtype=torch.float64))
                right = int((logits.argmax(-1) == targets).sum())
                sums += torch.tensor([loss, right, len(targets)], dtype=torch.float64)
            if seen >= MASKED_EVALUATION_TOKENS:
                break
        loss, right, n = ranks.total(sums).tolist()
        measures = {"loss": loss / n, "perplexity": float(np.exp(loss / n)), "accuracy": right / n}
        return Evaluation(measures, "loss")

    def describe(self) -> dict[str, Any]:
        """Return the numbers of documents and tokens and the padding share of the training data."""
        material = self.material
        batches = self.batches(0, 0, 0)
        return {
            "documents": len(material.stream),
            "tokens": material.n_tokens,
            "stretches": material.n_rows,
            "batches_per_epoch": len(batches),
            "padding_share": round(padding_share(batches.rows, material.stretches), 4),
            "validation_tokens": self.validation.n_tokens,
        }
