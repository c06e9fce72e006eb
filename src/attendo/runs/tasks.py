"""The four kinds of tasks as the training loop sees them: batches, evaluation, and facts for the card."""

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
    """The common parts of all tasks: batches, validation rows, and the comparison of values."""

    material: DatasetT
    batch_tokens: int
    validation: Any
    all_validation: Sequence[Any] = ()
    higher_is_better: ClassVar[bool] = True

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """The batches of an epoch from number `start` on."""
        return self.material.batches(self.batch_tokens, seed, epoch)[start:]

    def better(self, value: float, than: float) -> bool:
        """Return whether one value of the deciding measure beats another."""
        return value > than if self.higher_is_better else value < than

    @property
    def final(self) -> Self | None:
        """The task with all validation rows; None where each evaluation has all of them."""
        if not self.all_validation or len(self.all_validation) <= len(self.validation):
            return None
        return replace(self, validation=self.all_validation)  # pyright: ignore[reportArgumentType, reportReturnType]


# ---- translation


TRANSLATION_SAMPLES = 32
"""Texts of an evaluation that are passed on, to be looked at; too few would not show that all are alike."""


@dataclass(frozen=True, eq=False)
class TranslationTask(TokenTask[PairDataset]):
    """Batches from a token store, and evaluation by greedy translation.

    The deciding measure is chrF, which needs no tokenizer and also suits languages without spaces.
    """

    material: PairDataset
    translator: Translator
    validation: Sequence[tuple[str, str]]
    batch_tokens: int
    all_validation: Sequence[tuple[str, str]] = ()

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Loss in nats a token, perplexity, and BLEU, chrF and exact match of greedy translations."""
        assert model is self.translator.model
        found = self.translator.prepare().evaluate(self.validation, beam=1, ranks=ranks)
        samples = [(s, t, text) for (s, t), text in zip(self.validation, found.texts, strict=True)]
        return Evaluation(found.measures, "chrf", samples[:TRANSLATION_SAMPLES])

    def describe(self) -> dict[str, Any]:
        """Rows, tokens and padding of the training data."""
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
"""The names of the baselines' measures."""
MOST_WORD_COUNTS = 1 << 23
"""Words are counted up to this many counts (classes times words): 64 MiB."""
COUNTED_TOKENS = 1 << 20
"""Tokens that are counted at a time."""
CLASSIFICATION_SAMPLES = 31
"""Rows of an evaluation that are passed on, at equal distances: they may be sorted by label. It is a prime number, so
steps at equal distances reach all of them."""


@dataclass(frozen=True)
class Baselines:
    """Accuracy and macro-F1, in [0, 1], of the `commonest` class for all texts, and of naive Bayes, if done."""

    commonest: int
    always: tuple[float, float]
    counting: tuple[float, float] | None

    def measures(self) -> dict[str, float]:
        """The scores by the names in BASELINE_MEASURES."""
        return dict(zip(BASELINE_MEASURES, self.always + (self.counting or ()), strict=False))


def baselines(
    store: LabelledStore,
    texts: Sequence[Sequence[int]],
    true: Integer[ndarray, " texts"],
    n_classes: int,
    n_ids: int,
) -> Baselines:
    """The scores of both on `texts` of token ids and their classes `true`, learned from a store that is read once."""
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
    """log P(c), and log P(w | c) = log (n_cw + 1) / (Σ_w n_cw + V) (Manning et al. 2008, section 13.2).

    Multinomial naive Bayes with add-one smoothing over the V words that occur; `sizes` counts rows, `counts` words by
    class.

    >>> prior, words = naive_bayes(np.array([3, 1]), np.array([[5, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 1, 0]]))
    >>> [round(float(p), 4) for p in np.exp(prior + words[:, [0, 0, 0, 4, 5]].sum(1))]  # as in their example 13.1
    [0.0003, 0.0001]
    """
    seen = counts.sum(0) > 0
    smoothed = np.log((counts + 1.0) / (counts.sum(1, keepdims=True) + seen.sum()))
    return np.log(sizes / sizes.sum()), np.where(seen, smoothed, 0.0)


def word_counts(store: LabelledStore, n_classes: int, n_ids: int) -> Int[ndarray, "classes ids"]:
    """The count of each token in the rows of each class."""
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
    """Batches from a token store; evaluation by classifying validation texts, which `name` names in messages."""

    material: LabelledDataset
    classifier: Classifier
    validation: Sequence[LabelledRow]
    batch_tokens: int
    name: str = "validation"
    all_validation: Sequence[LabelledRow] = ()

    def __post_init__(self) -> None:
        for rows in (self.validation, self.all_validation):
            self.classifier.ids_of(rows, self.name)  # an unseen label is an error before anything is trained

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Fits the temperature; measures accuracy, macro-F1, loss (nats per text), calibration error, and baselines."""
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
        """The scores of baselines on the validation texts."""
        tokenizer = self.classifier.tokenizer
        true = self.classifier.ids_of(self.validation, self.name)
        texts = tokenizer.encode_batch(row.text for row in self.validation)
        return baselines(self.material.store, texts, true, len(self.classifier.labels), tokenizer.vocab_size)

    @property
    def what_to_beat(self) -> str:
        """The baselines in a line for people, by accuracy and by the measure that decides."""
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
        """The measure that decides."""
        return "accuracy" if self.material.weights is None else "macro_f1"

    def describe(self) -> dict[str, Any]:
        """Rows, tokens, classes and padding of the training data."""
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


@dataclass(frozen=True, eq=False)
class LanguageModelTask(TokenTask[WindowDataset]):
    """Windows of a token stream, and evaluation on validation documents of at most `evaluate_tokens` targets.

    `go_on` continues a text for the samples. Raises AttendoError if the stream is shorter than a window, or without
    validation documents.
    """

    material: WindowDataset
    validation: TokenStream
    tokenizer: Tokenizer
    batch_tokens: int
    evaluate_tokens: int = 100_000
    go_on: Callable[[str], str] | None = None
    name: str = "the training text"
    higher_is_better = False

    def __post_init__(self):
        require_window(self.stream, self.material.context, self.name)
        if not len(self.validation):
            raise AttendoError("there is no validation document. Give a file with at least one")

    @property
    def stream(self) -> TokenStream:
        """The training documents."""
        return self.material.stream

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Loss in nats per token, perplexity and bits per byte, each with the ends of documents."""
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
        """Documents, tokens and bytes of the training data, and windows per epoch."""
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
        """The scored documents, the same at every evaluation."""
        return self.validation.sample(self.evaluate_tokens, self.tokenizer)

    def _samples(self) -> list[tuple[str, str, str]]:
        """The beginning of a validation document, its continuation, and the model's continuation."""
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
        share: Share of the tokens that are hidden, drawn again in each epoch.
        rule: Replacement of hidden tokens: always the mask token, or in `80/10/10` percent of the cases the mask token,
            a random token and the token itself.
    """

    share: float = 0.15
    rule: Rule = "mask"

    def __post_init__(self):
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"share={self.share} must be above 0 and below 1")


@dataclass(frozen=True, eq=False)
class MaskedDataset(TokenDataset):
    """Documents cut into pieces of nearly equal length, at most `context` tokens, with bos first.

    The hidden tokens are drawn from (seed, epoch, piece).
    """

    stream: TokenStream
    context: int
    vocab_size: int
    masking: MaskingConfig
    specials: SpecialTokens = OWN
    text_ids: NDArray[np.int64] | None = None

    @property
    def facts(self) -> StoreFacts:
        """The stream's."""
        assert self.stream.facts is not None, "a stream in memory has no store"
        return self.stream.facts

    @cached_property
    def stretches(self) -> Stretches:
        """The borders of each piece among the ids."""
        return Stretches(self.stream.offsets, self.context - self.specials.n_around_text)

    @property
    def n_rows(self) -> int:
        """Stretches."""
        return len(self.stretches)

    @property
    def n_tokens(self) -> int:
        """Tokens of an epoch, with the start of each stretch."""
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
    """Batches with hidden tokens; evaluation on hidden tokens of validation texts."""

    material: MaskedDataset
    validation: MaskedDataset
    batch_tokens: int
    higher_is_better = False

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Loss in nats per hidden token, and the share predicted correctly; the same tokens at every evaluation."""
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
        """Documents and tokens of the training data."""
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
