"""The kinds of tasks for the training loop: batches, evaluation, and facts for the model card."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import compress, islice
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int
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
from attendo.data.labelled import LabelledRow
from attendo.data.labelled_corpus import LabelledDataset
from attendo.data.masking import Rule, hidden_tokens
from attendo.data.pair_corpus import PairDataset
from attendo.data.segments import usual_of
from attendo.data.store import Stretches
from attendo.data.tagged import Span, dictionary_spans, spans_of
from attendo.data.text_corpus import WindowDataset
from attendo.data.token_stream import Document, TokenStream, require_window
from attendo.data.tokenizers import OWN, SpecialTokens, Tokenizer
from attendo.display.formats import plural
from attendo.errors import AttendoError
from attendo.inference.label_model import TextClassifier, mixed
from attendo.inference.ngram_classifier import NGRAMS, even_rows, fit_linear, fit_ngrams
from attendo.inference.perplexity import shared_text_loss
from attendo.inference.tagger import Tag, Tagger, span_scores
from attendo.inference.translations import ROWS
from attendo.inference.translator import Translator
from attendo.metrics import calibration_error, fit_temperature, log_loss, log_softmax
from attendo.models import MaskedLM
from attendo.training.distributed import ALONE, Ranks
from attendo.training.lora import parameters_of
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


def summed(
    batches: Iterable[Batch], values_of: Callable[[Batch], list[float]], device: torch.device, ranks: Ranks
) -> list[float]:
    """Return the sums of three values of each batch over all batches, which the ranks share."""
    sums = torch.zeros(3, dtype=torch.float64)
    for number, batch in enumerate(batches):
        if number % ranks.world == ranks.rank:
            sums += torch.tensor(values_of(batch.to(device)), dtype=torch.float64)
    return ranks.total(sums).tolist()


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
        lengths = zip(store.sources.lengths.pieces(), store.targets.lengths.pieces(), strict=True)
        decode = self.translator.tokenizer.decode
        sources = (decode(store.sources[i].tolist()) for i in range(min(len(store), ROWS)))
        return {
            "pairs": len(store),
            "source_tokens": int(store.sources.lengths.sum()) + len(store),
            "target_tokens": self.material.n_tokens,
            "batches_per_epoch": len(first),
            "padding_share": round(padding_share(first, store.sources.lengths, store.targets.lengths), 4),
            "validation_pairs": max(len(self.validation), len(self.all_validation)),
            "usual": usual_of(lengths, sources)._asdict(),
        }


# ---- classification


MAIN_MEASURES = ("accuracy", "micro_f1", "mae")
FURTHER_MEASURES = ("macro_f1", "exact", "rmse", "r2")
PART_MEASURES = (
    *(f"{m}_{part}" for part in ("always_commonest", "ngrams") for m in (*MAIN_MEASURES, *FURTHER_MEASURES)),
    *(f"{measure}_encoder" for measure in MAIN_MEASURES),
    "encoder_temperature",
    "share",
)
"""Names of the measures of a classifier's parts and of the most frequent label."""
SHARES = tuple(n / 20 for n in range(1, 21))
"""Shares of the encoder in a classifier's log-probabilities, of which the validation rows choose one. None is 0: the
loss would not depend on the encoder, and the first checkpoint would be kept.
"""
HEAD_STRENGTHS = (1e-3, 1e-2, 0.1, 1.0)
"""Values of C, the inverse strength of the L2 penalty, for an output layer on frozen vectors."""
MOST_HEAD_STEPS = 500
"""The maximum number of steps of the solver for an output layer."""
MOST_FITTED = 100_000
"""The maximum number of validation rows times classes with which the share is chosen: about one second."""
CLASSIFICATION_SAMPLES = 31
"""Number of rows that an evaluation returns as samples. The rows are equally spaced, because they may be sorted by
label. The number is prime, so steps at equal distances reach all samples.
"""


def _spread(samples: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return CLASSIFICATION_SAMPLES equally spaced samples."""
    return samples[:: max(1, len(samples) // CLASSIFICATION_SAMPLES)][:CLASSIFICATION_SAMPLES]


class _LabelledTask(TokenTask[LabelledDataset]):
    """The base class of tasks on labeled texts."""

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


@dataclass(frozen=True, eq=False)
class ClassificationTask(_LabelledTask):
    """Batches from a token store, and evaluation by classifying validation texts, which messages call `name`.

    If `evaluate_first` is set, the model is also evaluated before the first step.
    """

    material: LabelledDataset
    classifier: TextClassifier
    validation: Sequence[LabelledRow]
    batch_tokens: int
    name: str = "validation"
    all_validation: Sequence[LabelledRow] = ()
    evaluate_first: bool = False

    def __post_init__(self) -> None:
        for rows in (self.validation, self.all_validation):
            self.classifier.classes_of(rows, self.name)  # raises an error for an unseen label before training

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Fit share and temperature, and compute scores, loss (nats per decision) and calibration errors."""
        classifier = self.classifier
        assert model is classifier.model
        if self.material.contrastive:
            self.fit_head()
        true = self._true.ravel()
        texts = [row.text for row in self.validation]
        read = np.array(ranks.shared(texts, lambda part: classifier.read(part, alone=True)[0].tolist()))
        encoder = classifier.decisions(read)
        classifier.encoder_temperature = own = fit_temperature(encoder, true)
        classifier.share = self._best_share(encoder / own)
        logits = encoder if classifier.share == 1.0 else mixed(encoder / own, self._ngram_logits, classifier.share)
        classifier.temperature = fit_temperature(logits, true)
        log_probs = log_softmax(logits / classifier.temperature)
        alone = classifier.scores(log_softmax(encoder / own), self.validation)
        measures = {
            "loss": log_loss(log_probs, true),
            **(scores := classifier.scores(log_probs, self.validation)),
            "ece": calibration_error(np.exp(log_probs), true),
            "ece_uncalibrated": calibration_error(np.exp(log_softmax(logits)), true),
            "temperature": classifier.temperature,
            "share": classifier.share,
            "encoder_temperature": own,
            f"{(first := next(iter(scores)))}_encoder": alone[first],
            **{
                f"{measure}_{name}": value
                for name, scores in self._baselines.items()
                for measure, value in scores.items()
            },
        }
        predicted = classifier.predicted(log_probs)
        samples = [(row.text, row.label, own) for row, own in zip(self.validation, predicted, strict=True)]
        return Evaluation(measures, self.deciding, _spread(samples))

    def _best_share(self, encoder: Float[ndarray, "decisions classes"]) -> float:
        """Return the share of the calibrated encoder with the lowest loss on evenly spaced validation decisions."""
        if self.classifier.ngrams is None:
            return 1.0
        some = slice(None, None, -(-encoder.size // MOST_FITTED))
        true = self._true.ravel()[some]

        def loss(share: float) -> float:
            logits = mixed(encoder[some], self._ngram_logits[some], share)
            return log_loss(log_softmax(logits / fit_temperature(logits, true)), true)

        return min(SHARES, key=loss)

    def fit_ngrams(self, rows: Callable[[], Iterable[LabelledRow]]) -> None:
        """Fit the linear classifier of n-grams on the training rows of a new run. `rows` returns an iterator."""
        classifier = self.classifier
        if classifier.folder is not None:  # a resumed run has loaded its n-grams, or is older than they are
            return
        by_label = self._true.ndim == 1  # otherwise, a row has several decisions
        sizes = [(row.label if by_label else "", len(row.text)) for row in rows()]
        n_outputs = classifier.n_outputs
        kept = even_rows([label for label, _ in sizes], sum(n for _, n in sizes), n_outputs)
        fitted = [*compress(rows(), kept)]
        classes = classifier.classes_of(fitted, self.name)
        valid = [row.text for row in self.validation]
        texts = [row.text for row in fitted]
        classifier.ngrams = fit_ngrams(texts, classes, n_outputs, self.material.weights, valid, self._true)

    def learns_head_only(self, frozen: Sequence[str]) -> bool:
        """Return whether all parts of a new model except the output layer are frozen."""
        model = self.classifier.model
        fixed = {id(parameter) for parameter in parameters_of(model, frozen, "training.frozen")}
        learned = [path for path, parameter in model.named_parameters() if id(parameter) not in fixed]
        return learned == ["output_proj.weight", "output_proj.bias"] and self.classifier.folder is None

    def fit_head(self) -> None:
        """Fit the output layer by logistic regression. The validation texts choose the strength of the penalty."""
        classifier, model = self.classifier, self.classifier.model
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            batches = replace(self.material, token_dropout=0.0).batches(self.batch_tokens, 0, 0)
            found = [
                (model.hidden(**batch.to(classifier.device).inputs).double().cpu(), batch.targets.cpu())
                for batch in batches
            ]
        vectors, classes = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
        mean, scale = vectors.mean(0), vectors.std(0) + 1e-6
        classes = classes.astype(np.int64).reshape(len(vectors), -1)
        classes = classes[:, 0] if self._true.ndim == 1 else classes
        true = self._true.ravel()
        heads = []
        scaled = (vectors - mean) / scale
        for strength in HEAD_STRENGTHS:
            coef, bias = fit_linear(scaled, classes, strength, self.material.weights, MOST_HEAD_STEPS)
            head = torch.from_numpy(coef / scale[:, None]).T, torch.from_numpy(bias - mean / scale @ coef)
            self._set_head(*head)
            read = classifier.read([row.text for row in self.validation], alone=True)[0]
            logits = classifier.decisions(read)
            loss = log_loss(log_softmax(logits / fit_temperature(logits, true)), true)
            heads.append((loss, strength, head))
        self._set_head(*min(heads, key=lambda head: head[:2])[2])
        model.train(was_training)

    def _set_head(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        with torch.no_grad():
            self.classifier.model.output_proj.weight.copy_(weight)
            self.classifier.model.output_proj.bias.copy_(bias)

    def files(self) -> dict[str, bytes]:
        """Return the n-grams and their weights."""
        ngrams = self.classifier.ngrams
        return {} if ngrams is None else {NGRAMS: ngrams.to_bytes()}

    @cached_property
    def _true(self) -> Int[ndarray, "texts *outputs"]:
        return self.classifier.classes_of(self.validation, self.name)

    @cached_property
    def _ngram_logits(self) -> Float[ndarray, "decisions classes"]:
        ngrams, texts = self.classifier.ngrams, [row.text for row in self.validation]
        return self._always if ngrams is None else self.classifier.decisions(ngrams.scores(texts))

    @cached_property
    def _baselines(self) -> dict[str, dict[str, float]]:
        """The scores without the text and of the n-grams alone, which are the same in each evaluation."""
        found = {"always_commonest": self._always, "ngrams": self._ngram_logits}
        scores = self.classifier.scores
        return {name: scores(log_softmax(logits), self.validation) for name, logits in found.items()}

    @property
    def _always(self) -> Float[ndarray, "decisions classes"]:
        """The logits of the baseline that never reads the text."""
        return self.classifier.decisions(np.tile(self.classifier.prior, (len(self.validation), 1)))

    @property
    def what_to_beat(self) -> str:
        """One line with the main score of the baselines, and with their macro-F1 if it is the deciding measure."""
        n_measures = 2 if self.deciding == "macro_f1" else 1
        parts = (
            ", ".join([name, *measured(dict(islice(own.items(), n_measures)))])
            for name, own in zip((self.classifier.baseline, "n-grams"), self._baselines.values(), strict=True)
        )
        return f"baselines on {plural(len(self.validation), 'validation text')}: {'; '.join(parts)}"

    @property
    def deciding(self) -> str:
        """Name of the deciding measure: the loss, or macro-F1 if the classes have weights.

        For a run that is older than the n-grams, the measure is the accuracy, with which it began.
        """
        if self.material.weights is not None:
            return "macro_f1"
        return "loss" if self.classifier.ngrams else "accuracy"

    def better(self, value: float, than: float) -> bool:
        """Return whether one value of the deciding measure is better than another value."""
        return value < than if self.deciding == "loss" else value > than


# ---- tagging


@dataclass(frozen=True, eq=False)
class TaggingTask(_LabelledTask):
    """Batches from a token store, and evaluation by tagging validation texts, which messages call `name`.

    The deciding measure is the F1 score of spans. `known` is the dictionary of the baseline.
    """

    material: LabelledDataset
    tagger: Tagger
    validation: Sequence[LabelledRow]
    batch_tokens: int
    known: Mapping[str, str]
    name: str = "validation"
    all_validation: Sequence[LabelledRow] = ()

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Fit the temperature, and compute precision, recall and F1 of spans, and loss (nats per word)."""
        tagger = self.tagger
        assert model is tagger.model
        texts = [row.text for row in self.validation]
        read = tagger.read(texts)
        borders, logits, _ = read
        classes = [tagger.tags.classes(*row) for row in zip(borders, self._true, strict=True)]
        tagger.temperature = fit_temperature(np.concatenate(logits), np.concatenate(classes).astype(np.int64))
        found = tagger.evaluate(self.validation, self.name, read)
        measures = found.measures | {"temperature": tagger.temperature, "f1_dictionary": self.baseline}
        samples = [
            (row.text, _named(row.text, true), _named(row.text, each.spans))
            for row, true, each in zip(self.validation, self._true, found.found, strict=True)
        ]
        return Evaluation(measures, "f1", _spread(samples))

    @cached_property
    def _true(self) -> list[list[Span]]:
        return [spans_of(row) for row in self.validation]

    @cached_property
    def baseline(self) -> float:
        """The F1 score of a dictionary of the training spans on the validation rows."""
        texts = [row.text for row in self.validation]
        borders = (self.tagger.borders(text) for text in texts)
        found = [dictionary_spans(*row, self.known) for row in zip(texts, borders, strict=True)]
        return span_scores(self._true, found)[1]["f1"]


def _named(text: str, spans: Iterable[Span | Tag]) -> str:
    return ", ".join(f"{span.label} {text[span.start : span.end]!r}" for span in spans) or "no span"


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
        return self.material.store

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

    store: TokenStream
    context: int
    vocab_size: int
    masking: MaskingConfig
    specials: SpecialTokens = OWN
    text_ids: NDArray[np.int64] | None = None

    @cached_property
    def stretches(self) -> Stretches:
        """Start and end of each part as positions in the token ids of all documents."""
        return Stretches(self.store.offsets, self.context - self.specials.n_around_text)

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
            ids = np.array(own.text(self.store.ids[start:end].tolist()), np.int64)
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

        def values_of(batch: Batch) -> list[float]:
            asked = batch.targets != batch.pad_id
            logits = model.output(model.hidden(**batch.inputs)[asked]).float()
            targets = batch.targets[asked]
            loss = float(token_losses(logits, targets).sum(dtype=torch.float64))
            return [loss, int((logits.argmax(-1) == targets).sum()), len(targets)]

        def first_batches() -> Iterator[Batch]:
            seen = 0
            for batch in self.validation.batches(max(4096, self.batch_tokens), MASKED_VALIDATION_SEED, 0):
                yield batch
                seen += batch.targets.numel()
                if seen >= MASKED_EVALUATION_TOKENS:
                    return

        loss, right, n = summed(first_batches(), values_of, model.output_proj.weight.device, ranks)
        measures = {"loss": loss / n, "perplexity": float(np.exp(loss / n)), "accuracy": right / n}
        return Evaluation(measures, "loss")

    def describe(self) -> dict[str, Any]:
        """Return the numbers of documents and tokens and the padding share of the training data."""
        material = self.material
        batches = self.batches(0, 0, 0)
        return {
            "documents": len(material.store),
            "tokens": material.n_tokens,
            "stretches": material.n_rows,
            "batches_per_epoch": len(batches),
            "padding_share": round(padding_share(batches.rows, material.stretches), 4),
            "validation_tokens": self.validation.n_tokens,
        }
