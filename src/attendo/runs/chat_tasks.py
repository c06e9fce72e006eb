"""The tasks of assistants for the training loop: conversations, preferences (DPO) and rewards (REINFORCE)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from runpy import run_path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from torch import Tensor, nn

from attendo.data.batches import Batch, EpochBatches, Rows
from attendo.data.chat_corpus import (
    ChatDataset,
    PreferenceDataset,
    PromptDataset,
    prompt,
    template_of,
    versions,
)
from attendo.data.labelled import LabelledRow
from attendo.decoding.sampling import SamplingConfig
from attendo.errors import AttendoError
from attendo.inference.generation import WrittenText, all_written
from attendo.inference.generator import Generator
from attendo.runs.tasks import DatasetT, TokenTask, summed
from attendo.training.distributed import ALONE, Ranks
from attendo.training.losses import Trainable, answer_log_probs, preference_losses, token_losses
from attendo.training.run import Evaluation

PROMPTS, MOST_ANSWERED = 16, 256
"""The number of validation conversations that an evaluation answers, and the maximum tokens of an answer."""
REFERENCE = "reference.safetensors"
"""The file in a run folder with the log-probabilities of the reference model."""
SOURCE = "reward.py"
"""The file in a run folder with a copy of the file of the reward function."""


def answers_of(
    generator: Generator, prompts: Sequence[list[int]], most: int, seeds: Sequence[int] = (), rows: int = 256
) -> list[tuple[str, bool, list[int]]]:
    """Return an answer of at most `most` tokens to each prompt, whether it has its end mark, and its token ids.

    The answers are greedy, or sampled if there is a seed for each prompt. At most `rows` texts are in memory.
    """
    tokenizer, context = generator.tokenizer, generator.model.config.max_len
    template, greedy = template_of(tokenizer), SamplingConfig(temperature=0.0, max_tokens=most)
    configs = [replace(greedy, temperature=1.0, seed=seed) for seed in seeds] or [greedy] * len(prompts)
    pairs = zip(prompts, configs, strict=True)
    texts = [WrittenText(tokenizer, context, ids, config, template) for ids, config in pairs]
    found = zip(all_written(generator.writing(), texts, rows), texts, strict=True)
    return [(answer.text.strip(), answer.finished_by == "end", text.drawn_ids) for answer, text in found]


@dataclass(frozen=True, eq=False)
class _AnswerTask(TokenTask[DatasetT]):
    """Batches of conversations, and evaluation on validation conversations and on greedy answers to `rows`."""

    material: DatasetT
    generator: Generator
    validation: DatasetT
    rows: Sequence[LabelledRow]
    batch_tokens: int
    higher_is_better = False

    def answers(self) -> list[tuple[tuple[str, str, str], bool]]:
        """Return the question, the true answer and a greedy answer of some conversations, and whether it ends."""
        tokenizer, most = self.generator.tokenizer, self.generator.model.config.max_len // 2
        encode = template_of(tokenizer).encode
        talks = [versions(row)[0] for row in self.rows]
        asked = [(talk, encode(tokenizer, talk[:-1], True)[0]) for talk in talks if talk[-1].role == "assistant"]
        asked = [(talk, ids) for talk, ids in asked if len(ids) <= most][:PROMPTS]
        found = answers_of(self.generator, [ids for _, ids in asked], min(MOST_ANSWERED, most))
        return [
            ((talk[-2].content, talk[-1].content, answer), ended)
            for (talk, _), (answer, ended, _) in zip(asked, found, strict=True)
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
        loss, n, n_bytes = summed(
            self.validation.batches(self.batch_tokens, 0, 0), self.values_of, self.generator.device, ranks
        )
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

    def with_reference(self) -> "PreferenceTask":
        """Return the task with the log-probabilities of the reference, from the run folder or from the model."""
        path = None if self.generator.folder is None else self.generator.folder / REFERENCE
        sides = {"train": self.material, "valid": self.validation}
        if path is not None and path.exists():
            found = load_file(path)
        else:
            self.generator.model.eval()
            found = {name: self._margins_of(data) for name, data in sides.items()}
        train, valid = (replace(data, beta=self.material.beta, reference=found[name]) for name, data in sides.items())
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
        loss, right, n = summed(
            self.validation.batches(self.batch_tokens, 0, 0), self.values_of, self.generator.device, ranks
        )
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


class RewardTask(_AnswerTask[PromptDataset]):
    """Batches of prompts, whose answers are sampled immediately before each update, and evaluation by the mean reward.

    An update maximizes the mean reward r of the answers y to the prompts x with the policy gradient (REINFORCE with a
    leave-one-out baseline; Kool et al. 2019, Ahmadian et al. 2024):

        1/n Σᵢ (rᵢ - bᵢ) ∇ ln p(yᵢ | xᵢ), where bᵢ is the mean reward of the other answers to xᵢ

    Each answer is used for a single update with the weights from which it was sampled, so importance ratios and
    clipping are not needed. The distance from the model at the start is not penalized. Samples depend only on the
    weights, the seed, the epoch and the row, so a run resumes exactly.
    """

    higher_is_better = True
    evaluate_first = True

    @cached_property
    def function(self) -> Callable[[list[dict[str, str]], str, str | None], float]:
        """The reward function. Raises AttendoError if it cannot be loaded or has changed since the run started."""
        place = self.material.config.function
        file, _, name = place.rpartition(":")
        copy = Path(self.generator.folder or file) / SOURCE  # a new run has no folder yet
        try:
            changed = copy.exists() and copy.read_bytes() != Path(file).read_bytes()
            function = run_path(file)[name]
        except Exception as error:
            problem = f"the reward function {place} cannot be loaded ({type(error).__name__}: {error})"
            raise AttendoError(f"{problem}. Fix the file, or set reward.function to FILE.py:NAME") from error
        if changed:
            raise AttendoError(f"{file} has changed since the run started. Restore it (a copy is {copy})")
        return function

    def files(self) -> dict[str, bytes]:
        """Return the file of the reward function for the run folder."""
        return {SOURCE: Path(self.material.config.function.rpartition(":")[0]).read_bytes()}

    def batches(self, seed: int, epoch: int, start: int) -> EpochBatches:
        """Return the batches of an epoch from number `start` on, which are sampled before their update."""
        prompts = super().batches(seed, epoch, start)

        def collate(rows: Rows) -> Batch:
            return replace(prompts.collate(rows), sample=partial(self.sampled, seed, epoch, rows))

        return EpochBatches(prompts.rows, collate)

    def sampled(self, seed: int, epoch: int, rows: Rows) -> Batch:
        """Return a batch of answers of the present model to the prompts of some rows, with their rewards."""
        random = np.random.default_rng((seed, epoch, rows[0]))
        rows = np.repeat(rows, self.material.config.answers)
        answers = self.rewarded(self.material, rows, random.integers(2**53, size=len(rows)).tolist())
        rewards = np.array([reward for *_, reward in answers], np.float32)
        return self.material.answered(rows, [ids for _, _, ids, _ in answers], rewards)

    def rewarded(
        self, data: PromptDataset, rows: Rows, seeds: Sequence[int] = ()
    ) -> list[tuple[str, bool, list[int], float]]:
        """Return an answer to the prompt of each row as in `answers_of`, with its reward."""
        self.generator.model.eval()
        prompts = [data.store.texts[row].tolist() for row in rows.tolist()]
        most = self.material.config.max_tokens
        together = max(1, self.batch_tokens // (max(map(len, prompts)) + most))
        found = answers_of(self.generator, prompts, most, seeds, together)
        pairs = zip(rows.tolist(), found, strict=True)
        return [(*answer, self.reward(data.rows[row], *answer[:2])) for row, answer in pairs]

    def reward(self, row: LabelledRow, answer: str, ended: bool) -> float:
        """Return the reward of an answer. Raises AttendoError if the function fails or returns no finite number."""
        if not ended:
            return self.material.config.unfinished
        messages, reference = prompt(row)
        try:
            reward = self.function([message._asdict() for message in messages], answer, reference)
            if not isinstance(reward, Real | np.bool_) or not math.isfinite(reward):
                raise ValueError(f"returned {reward!r}, expected a finite number")
            return float(reward)
        except Exception as error:
            problem = f"the reward function failed for row {row.number} ({type(error).__name__}: {error})"
            raise AttendoError(
                f"{problem}. Fix {self.material.config.function}: messages={messages[-1].content[:40]!r},"
                f" answer={answer[:40]!r}, reference={reference and reference[:40]!r}"
            ) from error

    def evaluate(self, model: nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """Compute the mean reward of greedy answers to the validation prompts, and the share of answers that end."""
        answers = self.rewarded(self.validation, np.arange(self.validation.n_rows))
        texts, ended, _, rewards = zip(*answers, strict=True)
        samples = [
            (prompt(row)[0][-1].content, prompt(row)[1] or text, text)
            for row, text in zip(self.validation.rows[:PROMPTS], texts, strict=False)
        ]
        measures = {"reward": sum(rewards) / len(rewards), "ended": sum(ended) / len(ended)}
        return Evaluation(measures, "reward", samples)
