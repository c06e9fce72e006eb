"""Comparison of two models on the same test set: sums per row of each score, for the paired bootstrap."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from attendo.bootstrap import Comparison, RowSums, interval, paired_bootstrap, ratio_sums
from attendo.data.labelled import LabelledRow
from attendo.data.labelled_corpus import MultiLabelCorpus, numbers_of
from attendo.data.tagged import Span, spans_of
from attendo.data.token_stream import Document, TokenStream
from attendo.data.tokenizers import WORDS, Tokenizer
from attendo.errors import AttendoError
from attendo.inference.classifier import Classifier
from attendo.inference.generator import Generator
from attendo.inference.label_model import LabelModel
from attendo.inference.multi_label import Regressor
from attendo.inference.perplexity import Window, document_windows, scored_batches
from attendo.inference.tagger import Tagger
from attendo.inference.translator import Translator
from attendo.metrics import bleu_sums, bleu_tokenizer, chrf_sums, macro_f1_sums

TRANSLATION_METRICS = ("bleu", "chrf", "exact")
LABEL_METRICS = {
    "classification": ("accuracy", "macro-f1"),
    "tagging": ("f1",),
    "multi-label": ("f1",),
    "regression": ("mae",),
}
ERRORS = ("loss", "perplexity", "bits-per-byte", "mae")
"""Metrics whose lower values are better. Higher values of all other metrics are better."""
TEXT_METRICS = ERRORS[:3]
"""Metrics of language models."""
PASSAGE = 1000
"""Number of bytes in a passage of a document. Longer documents are cut into passages, and each passage is one row."""

_BATCH_TOKENS = 4096


@dataclass(frozen=True, eq=False)
class Verdict:
    """Comparison of one score of two models on the same rows.

    `metric` is the short name of the score, for example "bleu". `signature` describes how the score is computed.
    """

    metric: str
    name: str
    signature: str
    comparison: Comparison

    @property
    def first_interval(self) -> tuple[float, float]:
        """95% confidence interval of the first model's score."""
        return interval(self.comparison.samples[0])

    @property
    def second_interval(self) -> tuple[float, float]:
        """95% confidence interval of the second model's score."""
        return interval(self.comparison.samples[1])

    @property
    def difference_interval(self) -> tuple[float, float]:
        """95% confidence interval of the second score minus the first score."""
        return interval(self.comparison.differences)

    @property
    def better(self) -> str | None:
        """The better model, "first" or "second". None means that the difference may be due to chance (p > 0.05)."""
        if self.comparison.p_value > 0.05:
            return None
        return "second" if (self.comparison.difference > 0) != (self.metric in ERRORS) else "first"


def verdicts(
    first: Mapping[str, RowSums], second: Mapping[str, RowSums], n_samples: int = 1000, seed: int = 12345
) -> list[Verdict]:
    """Compare two models by each score in `first`. Raises the same errors as `paired_bootstrap`."""
    found = []
    for metric, sums in first.items():
        other = second[metric]
        alike = sums.signature == other.signature
        signature = sums.signature if alike else f"A: {sums.signature}; B: {other.signature}"
        comparison = paired_bootstrap(sums, other, n_samples, seed)
        found.append(Verdict(metric, sums.name, signature, comparison))
    return found


def translation_sums(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    metrics: Sequence[str] = ("bleu", "chrf"),
    beam: int | None = None,
    tokenize: str | None = None,
) -> dict[str, RowSums]:
    """Return the scores of `Translator.evaluate` as sums per sentence pair.

    `tokenize` is the BLEU tokenizer (default: the tokenizer that `Translator.evaluate` chooses).
    """
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    texts = [found.text for found in translator.translate(sources, beam=beam, segment="none", guard=False)]
    equal = np.array([text == target for text, target in zip(texts, targets, strict=True)])
    known = {
        "bleu": lambda: bleu_sums(texts, targets, tokenize or bleu_tokenizer(targets)),
        "chrf": partial(chrf_sums, texts, targets),
        "exact": lambda: ratio_sums("exact match", 100.0 * equal, np.ones(len(equal))),
    }
    return _sums(metrics, known)


def _sums(metrics: Sequence[str], known: Mapping[str, Callable[[], RowSums]]) -> dict[str, RowSums]:
    """Return the sums of the chosen metrics. Raises AttendoError for an unknown metric."""
    for metric in metrics:
        if metric not in known:
            raise AttendoError(f"metric {metric!r} is unknown for this task (expected {' or '.join(known)})")
    return {metric: known[metric]() for metric in metrics}


def label_sums(
    user: LabelModel, rows: Sequence[LabelledRow], metrics: Sequence[str], name: str = "the rows"
) -> dict[str, RowSums]:
    """Return the accuracy and macro-F1 of labels, the F1 of spans or lists, or the mean absolute error, as row sums.

    Raises the errors of `evaluate` of the model.
    """
    every = np.ones(len(rows))
    if isinstance(user, Classifier):
        true = user.classes_of(rows, name)
        chosen = user.read([row.text for row in rows])[0].argmax(1)
        return _sums(
            metrics,
            {
                "accuracy": lambda: ratio_sums("accuracy", (true == chosen).astype(np.float64), every),
                "macro-f1": lambda: macro_f1_sums(true, chosen, len(user.labels)),
            },
        )
    found = user.evaluate(rows, name).found
    if isinstance(user, Regressor):
        errors = np.abs(np.array([answer.number for answer in found]) - numbers_of(rows))
        return _sums(metrics, {"mae": lambda: ratio_sums("mean absolute error", errors, every)})
    if isinstance(user, Tagger):
        title = "span F1"
        answers = [{Span(t.start, t.end, t.label) for t in each.spans} for each in found]
        truth = [{*spans_of(row)} for row in rows]
    else:
        title = "micro-F1"
        answers = [{*each.labels} for each in found]
        truth = [{*MultiLabelCorpus.labels_of(row)} for row in rows]
    counts = [(2 * len(a & b), len(a) + len(b)) for a, b in zip(truth, answers, strict=True)]
    right, sizes = np.array(counts, np.float64).T
    return _sums(metrics, {"f1": lambda: ratio_sums(title, right, sizes)})


def text_sums(
    generator: Generator, stream: TokenStream, metrics: Sequence[str], context: int | None = None
) -> dict[str, RowSums]:
    """Return the sums of `text_loss` per passage of about PASSAGE bytes. Shorter documents are one passage.

    The passages do not depend on the tokenizer. A token belongs to the passage that contains its last byte. Compare
    loss and perplexity only between models with the same tokenizer. Bits per byte are comparable between all models.
    Raises AttendoError for an invalid context, and if there is no text.
    """
    context = context or generator.model.config.max_len
    sizes = token_sizes(generator.tokenizer)
    parts = []
    documents = list(stream.documents())
    for document, losses in zip(documents, target_losses(generator, documents, context), strict=True):
        places = passages(document, sizes)
        n = int(places[-1]) + 1
        columns = np.bincount(places, losses, n), np.bincount(places, minlength=n)
        parts.append(np.stack((*columns, np.full(n, document.n_bytes / n)), 1))
    if not stream.n_bytes.sum():
        raise AttendoError("there is no text to score. Give at least one document")
    n_unknown = int((stream.ids == generator.tokenizer.unk_id).sum())
    unknown = f", {n_unknown:,} unknown words, each counted as one token" if n_unknown else ""
    return loss_sums(np.concatenate(parts), metrics, f"context {context}, stride {context}{unknown}")


def loss_sums(sums: Float[ndarray, "rows 3"], metrics: Sequence[str], signature: str) -> dict[str, RowSums]:
    """Return the scores of a language model from the nats, targets and bytes of each row."""
    nats, n_targets, n_bytes = sums.T
    rows = sums[:, :2]
    known = {
        "loss": lambda: ratio_sums("loss, nats per token", nats, n_targets, signature),
        "perplexity": lambda: RowSums(
            "perplexity", rows, lambda sums: math.exp(min(700.0, sums[0] / sums[1])), signature
        ),
        "bits-per-byte": lambda: ratio_sums("bits per byte", nats / math.log(2), n_bytes, signature),
    }
    return _sums(metrics, known)


def passages(document: Document, sizes: Int[ndarray, " vocab"], size: int = PASSAGE) -> Int[ndarray, " targets"]:
    """Return for each target token the number (from 0) of the passage that contains the last byte of the token.

    A document is cut into equal passages of about `size` bytes. The end token is in the last passage. `sizes` are the
    numbers of bytes by token id.

    >>> passages(Document(np.array([4, 5, 4, 5]), 6, 6), np.array([0, 0, 0, 0, 1, 2]), size=3).tolist()
    [0, 0, 1, 1, 1]
    """
    n = max(1, round(document.n_bytes / size))
    ends = np.cumsum(sizes[document.ids], dtype=np.float64)
    if len(ends) and 0 <= (more := ends[-1] - document.n_bytes) <= 1:
        ends -= more  # the space that a tokenizer puts before the first word
    elif len(ends):
        ends *= document.n_bytes / max(1.0, ends[-1])  # unknown words are of unknown size
    places = np.clip(np.ceil(ends * n / max(1, document.n_bytes)).astype(np.int64) - 1, 0, n - 1)
    return np.append(places, np.full(int(document.ended), n - 1))


def token_sizes(tokenizer: Tokenizer) -> Int[ndarray, " vocab"]:
    """Return the number of UTF-8 bytes of each token id, including the space before a word."""
    if tokenizer.kind in WORDS:
        return np.array([len(tokenizer.decode([i]).encode()) + 1 for i in range(tokenizer.vocab_size)])
    return np.array([len(tokenizer.bytes_of(i)) for i in range(tokenizer.vocab_size)])


def target_losses(
    generator: Generator, documents: Sequence[Document], context: int
) -> list[Float[ndarray, " targets"]]:
    """Return the losses -ln p of the targets of each document, in order."""
    specials = generator.tokenizer.specials
    sizes = [0] * len(documents)  # number of windows

    def windows() -> Iterator[Window]:
        for place, document in enumerate(documents):
            for window in document_windows(document, context, context, specials):
                sizes[place] += 1
                yield window

    batches = scored_batches(generator.scorer(), windows(), _BATCH_TOKENS)
    found = {number: losses for batch in batches for number, _, losses in batch}
    ordered = (found[number] for number in range(len(found)))
    return [np.concatenate([*islice(ordered, size)]) for size in sizes]
