"""The translation task: what the training loop is told about pairs of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from attendo.data.batches import EpochBatches, padding_share
from attendo.data.pair_corpus import PairDataset
from attendo.data.segments import usual_of
from attendo.inference.translations import ROWS
from attendo.inference.translator import Translator
from attendo.training.distributed import ALONE, Ranks
from attendo.training.run import Evaluation

N_SAMPLES = 32
"""Texts of an evaluation that are passed on, to be looked at; too few would not show that all are alike."""


@dataclass(frozen=True, eq=False)
class TranslationTask:
    """Batches from a token store; evaluation by translating validation pairs greedily.

    validation: (source, target) texts; all_validation: those that decide at the end, if they are more. The deciding
    measure is chrF, which needs no tokenizer and suits languages without spaces as well.
    """

    material: PairDataset
    translator: Translator
    validation: Sequence[tuple[str, str]]
    batch_tokens: int
    all_validation: Sequence[tuple[str, str]] = ()

    @property
    def final(self) -> TranslationTask | None:
        """The task with all validation pairs; None where it has them."""
        if len(self.all_validation) <= len(self.validation):
            return None
        return replace(self, validation=self.all_validation)

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """The batches of an epoch from number `start` on."""
        return self.material.batches(self.batch_tokens, seed, epoch)[start:]

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Loss in nats a token, perplexity, and BLEU, chrF and exact match of greedy translations."""
        assert model is self.translator.model
        found = self.translator.prepare().evaluate(self.validation, beam=1, ranks=ranks)
        samples = [(s, t, text) for (s, t), text in zip(self.validation, found.texts, strict=True)][
            :N_SAMPLES
        ]
        return Evaluation(found.measures, "chrf", samples)

    def better(self, value: float, than: float) -> bool:
        """More chrF is better."""
        return value > than

    def describe(self) -> dict[str, Any]:
        """Rows, tokens and padding of the training data."""
        store, first = self.material.store, self.batches(0, 0, 0).rows
        lengths = zip(store.source_lengths.pieces(), store.target_lengths.pieces(), strict=True)
        decode, n = self.translator.tokenizer.decode, min(len(store), ROWS)
        sources = (decode(store.source(i).tolist()) for i in range(n))
        return {
            "pairs": len(store),
            "source_tokens": int(store.source_lengths.sum()) + len(store),
            "target_tokens": self.material.n_tokens,
            "batches_per_epoch": len(first),
            "padding_share": round(padding_share(first, store.source_lengths, store.target_lengths), 4),
            "validation_pairs": max(len(self.validation), len(self.all_validation)),
            "usual": usual_of(lengths, sources)._asdict(),
        }
