"""The translation task: what the training loop is told about pairs of sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from torch import nn

from attendo.data.batches import Batch, padding_share, pair_batch, token_batches
from attendo.data.store import PairStore
from attendo.data.tokenizers import Tokenizer
from attendo.tasks.translator import Translator
from attendo.training.loop import Evaluation

N_SAMPLES = 3


class EpochBatches(Sequence[Batch]):
    """The batches of one epoch from `start` on, collated when asked for."""

    def __init__(self, store: PairStore, rows: list[NDArray[np.int64]]):
        self.store = store
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> EpochBatches: ...

    def __getitem__(self, index: int | slice) -> Batch | EpochBatches:
        if isinstance(index, slice):
            return EpochBatches(self.store, self.rows[index])
        return self._collate(self.rows[index])

    def __iter__(self) -> Iterator[Batch]:
        return map(self._collate, self.rows)

    def _collate(self, rows: NDArray[np.int64]) -> Batch:
        return pair_batch(self.store, rows, Tokenizer.pad_id, Tokenizer.bos_id, Tokenizer.eos_id)


@dataclass(frozen=True, eq=False)
class TranslationTask:
    """Batches from a token store; evaluation by translating validation pairs greedily.

    validation: (source, target) texts. The deciding measure is chrF, which needs no tokenizer and suits
    languages without spaces as well.
    """

    store: PairStore
    translator: Translator
    validation: Sequence[tuple[str, str]]
    batch_tokens: int

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """The batches of an epoch from number `start` on."""
        lengths = self.store.source_lengths, self.store.target_lengths
        return EpochBatches(self.store, token_batches(*lengths, self.batch_tokens, seed, epoch)[start:])

    def evaluate(self, model: nn.Module) -> Evaluation:
        """Loss in nats a token, perplexity, and BLEU, chrF and exact match of greedy translations."""
        assert model is self.translator.model
        found = self.translator.evaluate(self.validation, beam=1)
        samples = [(s, t, text) for (s, t), text in zip(self.validation, found.texts, strict=True)][
            :N_SAMPLES
        ]
        return Evaluation(found.measures, "chrf", samples)

    def better(self, value: float, than: float) -> bool:
        """More chrF is better."""
        return value > than

    def describe(self) -> dict[str, Any]:
        """Rows, tokens and padding of the training data."""
        first = token_batches(self.store.source_lengths, self.store.target_lengths, self.batch_tokens, 0, 0)
        share = padding_share(first, self.store.source_lengths, self.store.target_lengths)
        return {
            "pairs": len(self.store),
            "source_tokens": int(self.store.source_lengths.sum()) + len(self.store),
            "target_tokens": int(self.store.target_lengths.sum()) + len(self.store),
            "batches_per_epoch": len(first),
            "padding_share": round(share, 4),
            "validation_pairs": len(self.validation),
        }
