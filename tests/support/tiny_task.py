"""A task small enough to train in a test: pairs of random ids, and a fake measure."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attendo.data.batches import Batch, pad_rows
from attendo.models import EncoderDecoder, ModelConfig
from attendo.training.checkpoints import CheckpointConfig
from attendo.training.distributed import ALONE, Ranks
from attendo.training.optimizer import OFF, LoraConfig, TrainingConfig
from attendo.training.run import Evaluation, Run

PAD, BOS, EOS = 0, 2, 3


def collated(rows: list[tuple[list[int], list[int]]], ids: list[int]) -> Batch:
    """Source, target and shifted target, padded."""
    src, lengths = pad_rows([[*source, EOS] for source, _ in rows], PAD)
    tgt, _ = pad_rows([[BOS, *target] for _, target in rows], PAD)
    targets, _ = pad_rows([[*target, EOS] for _, target in rows], PAD)
    inputs = {"src": src, "tgt": tgt} | ({} if lengths is None else {"src_lengths": lengths})
    return Batch(inputs, targets, int((targets != PAD).sum()), np.array(ids))


@dataclass
class TinyTask:
    """Rows in a drawn order, `rows_per_batch` at a time; evaluations are read from a list, the last for ever."""

    n_rows: int = 10
    rows_per_batch: int = 3
    values: list[float] = field(default_factory=lambda: [1.0])
    seen: list[tuple[int, ...]] = field(default_factory=list)
    final: "TinyTask | None" = None

    def rows(self) -> list[tuple[list[int], list[int]]]:
        """The data."""
        rng = np.random.default_rng(5)
        return [
            (
                rng.integers(4, 20, rng.integers(1, 6)).tolist(),
                rng.integers(4, 20, rng.integers(1, 6)).tolist(),
            )
            for _ in range(self.n_rows)
        ]

    def batches(self, seed: int, epoch: int, start: int) -> list[Batch]:
        """The batches of an epoch."""
        rows, order = self.rows(), np.random.default_rng((seed, epoch)).permutation(self.n_rows).tolist()
        parts = [order[i : i + self.rows_per_batch] for i in range(0, self.n_rows, self.rows_per_batch)]
        return [collated([rows[i] for i in part], part) for part in parts[start:]]

    def evaluate(self, model: torch.nn.Module, ranks: Ranks = ALONE) -> Evaluation:
        """The next value of the list; draws random numbers, which must not matter."""
        assert not model.training and torch.rand(3).sum() >= 0
        return Evaluation({"value": self.values.pop(0) if len(self.values) > 1 else self.values[0]}, "value")

    def better(self, value: float, than: float) -> bool:
        """More is better."""
        return value > than

    def describe(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def tiny_model(dropout: float = 0.1, seed: int = 0) -> EncoderDecoder:
    """One layer, 16 wide."""
    torch.manual_seed(seed)
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    return EncoderDecoder(ModelConfig(vocab_size=20, d_model=16, d_ff=32, n_heads=2, dropout=dropout, **layers))


def tiny_run(
    folder,
    task: TinyTask | None = None,
    dropout: float = 0.1,
    keep_last: int = 3,
    checkpoint_every: int = 0,
    lora: LoraConfig = OFF,
    **settings,
) -> Run:
    """A run of the tiny task; settings of training as keywords."""
    if not settings.keys() & {"steps", "epochs", "minutes", "cpu_minutes"}:
        settings["steps"] = 10
    config = TrainingConfig(**{"evaluate_every": 4, "warmup_steps": 2, **settings})
    torch.manual_seed(config.seed)
    return Run(
        tiny_model(dropout),
        task or TinyTask(),
        config,
        CheckpointConfig(keep_last=keep_last, every_steps=checkpoint_every),
        folder,
        lora=lora,
    )
