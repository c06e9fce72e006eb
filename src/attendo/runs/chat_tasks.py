"""The tasks of assistants for the training loop: supervised fine-tuning on conversations, and preferences (DPO)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from torch import Tensor, nn

from attendo.data.batches import Batch
from attendo.data.chat_corpus import ChatDataset, PreferenceDataset, template_of, versions
from attendo.data.labelled import LabelledRow
from attendo.decoding.sampling import SamplingConfig
from attendo.inference.generation import WrittenText, all_written
from attendo.inference.generator import Generator
from attendo.runs.tasks import DatasetT, TokenTask
from attendo.training.distributed import ALONE, Ranks
from attendo.training.losses import Trainable, answer_log_probs, preference_losses, token_losses
from attendo.training.run import Evaluation

PROMPTS, MOST_ANSWERED = 16, 256
"""The number of validation conversations that an evaluation answers, and the maximum tokens of an answer."""
REFERENCE = "reference.safetensors"
"""The file in a run folder with the log-probabilities of the reference model."""


def greedy_answers(generator: Generator, prompts: Sequence[list[int]], most: int) -> list[tuple[str, bool]]:
    """Return a greedy answer to each prompt, and whether the answer has its end mark within `most` tokens."""
    tokenizer, context = generator.tokenizer, generator.model.config.max_len
    template = template_of(tokenizer)
    config = SamplingConfig(temperature=0.0, max_tokens=most)
    texts = [WrittenText(tokenizer, context, ids, config, template) for ids in prompts]
    found = all_written(generator.writing(), texts, len(texts))
    return [(answer.text.strip(), answer.finished_by == "end") for answer in found]


@dataclass(frozen=True, eq=False)
class _AnswerTask(TokenTask[DatasetT], ABC):
    """Batches of conversations, and evaluation on validation conversations and on greedy answers to `rows`."""

    material: DatasetT
    generator: Generator
    validation: DatasetT
    rows: Sequence[LabelledRow]
    batch_tokens: int
    higher_is_better = False

    def measured(self, n: int, ranks: Ranks) -> list[float]:
        """Return the sums of the `n` values of `values_of` over all validation batches, which the ranks share."""
        sums = torch.zeros(n, dtype=torch.float64)
        for number, batch in enumerate(self.validation.batches(self.batch_tokens, 0, 0)):
            if number % ranks.world == ranks.rank:
                sums += torch.tensor(self.values_of(batch.to(self.generator.device)), dtype=torch.float64)
        return ranks.total(sums).tolist()

    @abstractmethod
    def values_of(self, batch: Batch) -> list[float]:
        """Return the values of a batch that are summed over all validation batches."""

    def answers(self) -> list[tuple[tuple[str, str, str], bool]]:
        """Return the question, the true answer and a greedy answer of some conversations, and whether it ends."""
        tokenizer, most = self.generator.tokenizer, self.generator.model.config.max_len // 2
        encode = template_of(tokenizer).encode
        talks = [versions(row)[0] for row in self.rows]
        asked = [
            (talk, encode(tokenizer, talk[:-1], True)[0]) for talk in talks if talk[-1].role == "assistant"
        ]
        asked = [(talk, ids) for talk, ids in asked if len(ids) <= most][:PROMPTS]
        found = greedy_answers(self.generator, [ids for _, ids in asked], min(MOST_ANSWERED, most))
        return [
            ((talk[-2].content, talk[-1].content, answer), ended)
            for (talk, _), (answer, ended) in zip(asked, found, strict=True)
        ]

    def describe(self) -> dict[str, Any]:
        """Return the numbers of rows, tokens and tokens of answers of the training data."""
        material = cast(ChatDataset, self.material)
        return {
            "conversations": material.n_rows,
            "tokens": material.n_tokens,
            "answer_tokens": int(material.store.labels.sum()),
            "batches_per_epoch": len(self.batches(0, 0, 0)),
            "validation_conversations": self.validation.n_rows,
        }


class ChatTask(_AnswerTask[ChatDataset]):
    """Batches of conversations, and evaluation on the answers in validation conversations."""

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Compute loss (nats per token of answers), perplexity, bits per byte, and the share of answers that end.

        The end marks of answers are included in the loss. The share of answers that end by themselves is measured on
        greedy answers to PROMPTS conversations.
        """
        loss, n, n_bytes = self.measured(3, ranks)
        measures = {"loss": loss / n, "perplexity": math.exp(loss / n)}
        measures["bits_per_byte"] = loss / math.log(2) / n_bytes
        if answers := self.answers():
            measures["ended"] = sum(ended for _, ended in answers) / len(answers)
        return Evaluation(measures, "loss", [sample for sample, _ in answers])

    def values_of(self, batch: Batch) -> list[float]:
        """Return the loss, the number of tokens and the number of bytes of the answers."""
        reader, asked = cast(Trainable, self.generator.model), batch.targets != batch.pad_id
        logits = reader.output_proj(reader.hidden(**batch.inputs)[asked]).float()
        loss = token_losses(logits, batch.targets[asked]).sum(dtype=torch.float64)
        texts = [self.generator.tokenizer.decode(row[row != batch.pad_id].tolist()) for row in batch.targets]
        return [float(loss), batch.n_targets, sum(len(text.encode()) for text in texts)]


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig:
    """The settings of preference tuning with DPO (Rafailov et al. 2023).

    Attributes:
        beta: Weight β of the reference model. A larger value keeps the model closer to the model at the start.
    """

    beta: float = 0.1

    def __post_init__(self):
        if self.beta <= 0:
            raise ValueError(f"beta={self.beta} must be above 0")


class PreferenceTask(_AnswerTask[PreferenceDataset]):
    """Batches of preferences, and evaluation on validation preferences."""

    def with_reference(self) -> PreferenceTask:
        """Return the task with the log-probabilities of the reference, from the run folder or from the model."""
        path = None if self.generator.folder is None else self.generator.folder / REFERENCE
        sides = {"train": self.material, "valid": self.validation}
        if path is not None and path.exists():
            found = load_file(path)
        else:
            self.generator.model.eval()
            found = {name: self._margins_of(data) for name, data in sides.items()}
        train, valid = (
            replace(data, beta=self.material.beta, reference=found[name]) for name, data in sides.items()
        )
        return replace(self, material=train, validation=valid)

    def _margins_of(self, data: PreferenceDataset) -> NDArray[np.float32]:
        margins = np.zeros(data.n_rows, np.float32)
        with torch.inference_mode():
            for batch in data.batches(self.batch_tokens, 0, 0):
                margins[batch.ids] = self._margins(batch.to(self.generator.device)).cpu().numpy()
        return margins

    def _margins(self, batch: Batch) -> Tensor:
        better, worse = answer_log_probs(cast(Trainable, self.generator.model), batch).unbind(1)
        return better - worse

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Compute the DPO loss, and the share of pairs whose better answer gained more probability (accuracy)."""
        loss, right, n = self.measured(3, ranks)
        samples = [sample for sample, _ in self.answers()]
        return Evaluation({"loss": loss / n, "accuracy": right / n}, "loss", samples)

    def values_of(self, batch: Batch) -> list[float]:
        """Return the loss, the number of pairs with a gain, and the number of pairs."""
        assert batch.reference is not None and batch.weights is not None
        margins = self._margins(batch)
        losses = preference_losses(margins, batch.reference, batch.weights)
        return [float(losses.sum()), float((margins > batch.reference).sum()), len(margins)]

    def files(self) -> dict[str, bytes]:
        """Return the log-probabilities of the reference model for the run folder."""
        train, valid = self.material.reference, self.validation.reference
        assert train is not None and valid is not None
        return {REFERENCE: save({"train": train, "valid": valid})}
