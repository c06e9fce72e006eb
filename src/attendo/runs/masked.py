"""The masked language modelling task: what the training loop is told about texts with hidden tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
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
from attendo.data.lengths import Stretches
from attendo.data.masking import Rule, hidden_tokens
from attendo.data.special_tokens import OWN, SpecialTokens
from attendo.data.store import StoreFacts
from attendo.data.token_stream import TokenStream
from attendo.models import MaskedLM
from attendo.training.distributed import ALONE, Ranks
from attendo.training.losses import token_losses
from attendo.training.run import Evaluation

EVALUATION_TOKENS = 50_000
VALIDATION_SEED = 0


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """What is hidden: `share` of the tokens, drawn anew in each epoch, by `rule` as in `hidden_tokens`."""

    share: float = 0.15
    rule: Rule = "mask"

    def __post_init__(self):
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"share={self.share} must be above 0 and below 1")


@dataclass(frozen=True, eq=False)
class MaskedDataset(TokenDataset):
    """A stream of documents as a masked model's training sees it: stretches of at most `context` tokens, bos first.

    A document of more is cut into stretches of equal length, up to one token. vocab_size: of the tokenizer;
    specials, text_ids: of one that is not attendo's own. What is hidden is drawn from (seed, epoch, stretch).
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
        """Where each stretch begins and ends among the ids."""
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
        texts, wanted, own, masking = [], [], self.specials, self.masking
        nothing = own.no_target
        for row, start, end in zip(rows.tolist(), *self.stretches.edges(rows), strict=True):
            ids = np.array(own.text(self.stream.ids[start:end].tolist()), np.int64)
            rng = np.random.default_rng((seed, epoch, row))
            inputs, targets = hidden_tokens(
                ids,
                masking.share,
                masking.rule,
                self.vocab_size,
                rng,
                nothing,
                mask_id=own.mask_id,
                text_ids=self.text_ids,
            )
            texts.append(inputs.tolist())
            wanted.append(targets.tolist())
        src, lengths = pad_rows(texts, own.pad_id)
        targets, _ = pad_rows(wanted, nothing)
        inputs = {"src": src} if lengths is None else {"src": src, "src_lengths": lengths}
        n_targets = int((targets != nothing).sum())
        return Batch(inputs, targets, n_targets, rows, nothing, n_tokens=sum(map(len, texts)))


@dataclass(frozen=True, eq=False)
class MaskedTask:
    """Batches with hidden tokens; evaluation by how well hidden tokens of validation texts are found again."""

    material: MaskedDataset
    validation: MaskedDataset
    batch_tokens: int
    final: None = None

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """The batches of an epoch from number `start` on."""
        return self.material.batches(self.batch_tokens, seed, epoch)[start:]

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Loss in nats a hidden token, and the share of them that is found; the same ones at every evaluation."""
        model = cast(MaskedLM, model)
        device = model.output_proj.weight.device
        loss, right, n, seen = 0.0, 0, 0, 0
        for number, batch in enumerate(
            self.validation.batches(max(4096, self.batch_tokens), VALIDATION_SEED, 0)
        ):
            seen += batch.targets.numel()
            if number % ranks.world == ranks.rank:
                batch = batch.to(device)
                asked = batch.targets != batch.pad_id
                logits, targets = (
                    model.output(model.hidden(**batch.inputs)[asked]).float(),
                    batch.targets[asked],
                )
                loss += float(token_losses(logits, targets).sum(dtype=torch.float64))
                right += int((logits.argmax(-1) == targets).sum())
                n += len(targets)
            if seen >= EVALUATION_TOKENS:
                break
        loss, right, n = ranks.total(torch.tensor([loss, right, n], dtype=torch.float64)).tolist()
        measures = {"loss": loss / n, "perplexity": float(np.exp(loss / n)), "accuracy": right / n}
        return Evaluation(measures, "loss")

    def better(self, value: float, than: float) -> bool:
        """Less loss is better."""
        return value < than

    def describe(self) -> dict[str, Any]:
        """Documents and tokens of the training data."""
        material, batches = self.material, self.batches(0, 0, 0)
        return {
            "documents": len(material.stream),
            "tokens": material.n_tokens,
            "stretches": material.n_rows,
            "batches_per_epoch": len(batches),
            "padding_share": round(padding_share(batches.rows, material.stretches), 4),
            "validation_tokens": self.validation.n_tokens,
        }
