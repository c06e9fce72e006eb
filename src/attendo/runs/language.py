"""The language modelling task: what the training loop is told about documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from attendo.data.batches import EpochBatches
from attendo.data.token_stream import Document, TokenStream
from attendo.data.tokenizers import Tokenizer
from attendo.data.windows import require_window, window_batches
from attendo.errors import AttendoError
from attendo.inference.perplexity import shared_text_loss
from attendo.training.distributed import ALONE, Ranks
from attendo.training.run import Evaluation

PROMPT_TOKENS = 32
SHOWN_TOKENS = 32


@dataclass(frozen=True, eq=False)
class LanguageModelTask:
    """Windows of `context` tokens from a stream of documents; evaluation on whole validation documents.

    evaluate_tokens: at most so many targets of the validation documents are scored, in windows of `context` side by
    side (stride = context). go_on: continues a text, to have something to look at; None: no samples. name: of the
    training text, for messages. Raises AttendoError if the stream doesn't fill one window, or there is no validation
    document.
    """

    stream: TokenStream
    validation: TokenStream
    tokenizer: Tokenizer
    context: int
    batch_tokens: int
    evaluate_tokens: int = 100_000
    go_on: Callable[[str], str] | None = None
    name: str = "the training text"
    final: None = None

    def __post_init__(self):
        require_window(self.stream, self.context, self.name)
        if not len(self.validation):
            raise AttendoError("there is no validation document; give a file with at least one")

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """The batches of an epoch from number `start` on."""
        return window_batches(
            self.stream,
            self.context,
            self.batch_tokens,
            seed,
            epoch,
            specials=self.tokenizer.specials,
        )[start:]

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Loss in nats a token, perplexity and bits per byte, each with the ends of documents."""
        at_once = max(4096, self.batch_tokens)
        found = shared_text_loss(
            model, self.validation_documents, self.context, at_once, ranks, self.tokenizer.specials
        )
        measures = {
            "loss": found.nats_per_token,
            "perplexity": found.perplexity,
            "bits_per_byte": found.bits_per_byte,
        }
        return Evaluation(measures, "loss", self._samples())

    def better(self, value: float, than: float) -> bool:
        """Less loss is better."""
        return value < than

    def describe(self) -> dict[str, Any]:
        """Documents, tokens and bytes of the training data, and windows per epoch."""
        first = self.batches(0, 0, 0)
        return {
            "documents": len(self.stream),
            "tokens": self.stream.n_tokens,
            "bytes": int(self.stream.n_bytes.sum()),
            "characters": int(self.stream.n_characters.sum()),
            "context": self.context,
            "windows_per_epoch": sum(map(len, first.rows)),
            "batches_per_epoch": len(first),
            "validation_documents": len(self.validation),
            "validation_tokens": self.validation.n_tokens,
            "validation_targets_scored": sum(d.n_targets for d in self.validation_documents),
        }

    @cached_property
    def validation_documents(self) -> list[Document]:
        """What is scored: the same at every evaluation."""
        return self.validation.sample(self.evaluate_tokens, self.tokenizer)

    def _samples(self) -> list[tuple[str, str, str]]:
        """The beginning of a validation document, how it goes on, and how the model would have it go on."""
        if self.go_on is None:
            return []
        ids = self.validation_documents[0].ids[: PROMPT_TOKENS + SHOWN_TOKENS].tolist()
        text = self.tokenizer.decode(ids)
        prompt = self.tokenizer.decode(ids[:PROMPT_TOKENS]).rstrip("\ufffd")
        return [(prompt, text[len(prompt) :], self.go_on(prompt))]
