"""The automatic choice: what the settings leave open, from the data, the measured speed and the budget.

The rules come from the grids in docs/log.md. Everything chosen is printed before training and stands in the run's
config.toml; whatever the user or a preset sets is left as it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attendo.data.batches import pair_batch, token_batches
from attendo.data.store import PairStore
from attendo.data.tokenizer_training import TokenizerConfig
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError
from attendo.models import EncoderDecoder, ModelConfig
from attendo.tasks.corpus import Corpus, Say
from attendo.tasks.settings import BUDGETS, Tables, section
from attendo.training.loop import batch_loss
from attendo.training.optimizer import TrainingConfig, build_optimizer
from attendo.training.precision import autocast, fastest_precision, fastest_products
from attendo.training.products import use_onednn

VOCABULARIES = ((5_000, 1_000), (20_000, 2_000), (100_000, 4_000), (500_000, 8_000), (3_000_000, 16_000))
LARGEST_VOCABULARY = 32_000
"""Up to so many pairs, so many pieces: each piece should be seen often enough to be learned."""

FEWEST_EPOCHS = 15
FEWEST_STEPS = 4_000
DEFAULT_EPOCHS = 25
PROBE_SECONDS = 2.0
UPDATING_SHARE = 0.9
"""Of a time budget: the rest goes into reading, evaluating and saving."""


@dataclass(frozen=True)
class Size:
    """One rung of the ladder, and the pairs that a corpus must have to be worth it."""

    d_model: int
    n_heads: int
    n_layers: int
    least_pairs: int

    @property
    def table(self) -> dict[str, Any]:
        """The keys of [model] that a size sets."""
        return {
            "d_model": self.d_model,
            "d_ff": 4 * self.d_model,
            "n_heads": self.n_heads,
            "n_encoder_layers": self.n_layers,
            "n_decoder_layers": self.n_layers,
            "norm_first": True,
        }


SIZES = (
    Size(512, 8, 6, 1_000_000),
    Size(384, 6, 4, 200_000),
    Size(256, 4, 3, 10_000),
    Size(192, 4, 3, 3_000),
    Size(128, 4, 2, 0),
)
"""Largest first."""


def choose_tokenizer(tables: Tables, corpus: Corpus, say: Say) -> tuple[dict[str, dict[str, Any]], Tokenizer]:
    """Learns the tokenizer; its size, if left open, follows the number of pairs. Gives the completed tables."""
    chosen = {name: dict(table) for name, table in tables.items()}
    table = chosen.setdefault("tokenizer", {})
    config = section(TokenizerConfig, chosen, "tokenizer", "the settings")
    automatic = config.vocab_size is None and config.kind in ("bpe", "unigram")
    if automatic:
        table["vocab_size"] = vocabulary_for(corpus.n_pairs)
    while True:
        try:
            tokenizer = corpus.tokenizer(section(TokenizerConfig, chosen, "tokenizer", "the settings"))
            break
        except AttendoError:
            # a script of many characters may need more than its rows alone suggest
            if not automatic or table["vocab_size"] >= LARGEST_VOCABULARY:
                raise
            table["vocab_size"] *= 2
    chosen.setdefault("model", {})["vocab_size"] = tokenizer.vocab_size
    say(f"tokenizer: {tokenizer.kind}, {tokenizer.vocab_size:,} pieces for {corpus.n_pairs:,} pairs")
    return chosen, tokenizer


def vocabulary_for(n_pairs: int) -> int:
    """Pieces for a corpus of that many pairs.

    >>> vocabulary_for(50_000), vocabulary_for(10_000_000)
    (4000, 32000)
    """
    return next((size for most, size in VOCABULARIES if n_pairs <= most), LARGEST_VOCABULARY)


def choose_training(
    tables: Tables, store: PairStore, device: torch.device, say: Say
) -> dict[str, dict[str, Any]]:
    """Completes [model] and [training]; says what was chosen and why.

    The size is the largest whose least_pairs the corpus has and which, at its measured pace, makes FEWEST_EPOCHS
    epochs or FEWEST_STEPS steps within the budget; the smallest if none does.
    """
    chosen = {name: dict(table) for name, table in tables.items()}
    training = chosen.setdefault("training", {})
    if not BUDGETS & training.keys():
        training["epochs"] = DEFAULT_EPOCHS
    training.setdefault("precision", fastest_precision(device))
    if training["precision"] == "float32":
        training.setdefault("products", fastest_products(device))
    training.setdefault("batch_tokens", batch_tokens_for(int(store.target_lengths.sum()) + len(store)))
    steps_per_epoch = len(_batches(store, training["batch_tokens"])) / training.get("accumulation", 1)
    model, steps = _fitting_size(chosen["model"], training, steps_per_epoch, store, device)
    chosen["model"] = model
    model.setdefault("dropout", dropout_for(steps / steps_per_epoch))
    training.setdefault("learning_rate", learning_rate_for(model["d_model"]))
    training.setdefault("warmup_steps", max(10, min(400, steps // 10)))
    training.setdefault("evaluate_every", max(20, steps // 12))
    say(
        f"model: {model['n_encoder_layers']}+{model['n_decoder_layers']} layers, d_model {model['d_model']},"
        f" dropout {model['dropout']}, {training['precision']}"
    )
    say(
        f"about {steps:,} steps of {training['batch_tokens']:,} tokens, {steps / steps_per_epoch:.1f} epochs;"
        f" peak rate {training['learning_rate']:.2g}"
    )
    return chosen


def _fitting_size(
    model: dict[str, Any],
    training: dict[str, Any],
    steps_per_epoch: float,
    store: PairStore,
    device: torch.device,
) -> tuple[dict[str, Any], int]:
    """The [model] table with its sizes filled in, and about how many steps it will make."""
    tables = [size.table | model for size in sizes_for(model, len(store))]
    budget = _seconds(training)
    if budget is None:
        return tables[0], training.get("steps") or max(1, int(training["epochs"] * steps_per_epoch))
    enough = min(FEWEST_EPOCHS * steps_per_epoch, FEWEST_STEPS)
    for table in tables[:-1]:
        steps = int(budget * UPDATING_SHARE / measured_pace(table, training, store, device))
        if steps >= enough:
            return table, steps
    return tables[-1], int(budget * UPDATING_SHARE / measured_pace(tables[-1], training, store, device))


def sizes_for(model: dict[str, Any], n_pairs: int) -> list[Size]:
    """The sizes to try, largest first; where the settings give a width, the one nearest to it."""
    if "d_model" in model:
        return [min(SIZES, key=lambda size: abs(size.d_model - model["d_model"]))]
    return [size for size in SIZES if size.least_pairs <= n_pairs]


def learning_rate_for(d_model: int) -> float:
    """The peak rate that a width bears: falling with its square root, 2e-3 at 256.

    >>> learning_rate_for(256), round(learning_rate_for(512), 5)
    (0.002, 0.00141)
    """
    return 2e-3 * (256 / d_model) ** 0.5


def dropout_for(epochs: float) -> float:
    """The more often a model sees the same rows, the more it must be kept from learning them by heart.

    >>> dropout_for(5), dropout_for(25), dropout_for(60)
    (0.1, 0.2, 0.3)
    """
    return 0.1 if epochs < 20 else 0.2 if epochs < 40 else 0.3


def batch_tokens_for(n_tokens: int) -> int:
    """Tokens in a batch for a corpus of that many target tokens: small batches make steps out of few rows.

    >>> batch_tokens_for(700_000), batch_tokens_for(100_000_000)
    (2048, 8192)
    """
    return (
        1024
        if n_tokens < 300_000
        else 2048
        if n_tokens < 3_000_000
        else 4096
        if n_tokens < 30_000_000
        else 8192
    )


def measured_pace(
    model: dict[str, Any], training: dict[str, Any], store: PairStore, device: torch.device
) -> float:
    """Seconds an update takes at this size, on the clock of the budget: the median over batches spread evenly."""
    config = TrainingConfig(
        steps=1, precision=training["precision"], products=training.get("products", "torch")
    )
    network = EncoderDecoder(section(ModelConfig, {"model": model}, "model", "the settings")).to(device)
    if config.products == "onednn":
        use_onednn(network)
    optimizer = build_optimizer(network, config)
    clock = time.monotonic if "minutes" in training else time.process_time
    batches = _batches(store, training["batch_tokens"])
    spread = [batches[i] for i in np.linspace(0, len(batches) - 1, 40).astype(int)]
    paces: list[float] = []
    began = clock()
    for rows in spread:
        start = clock()
        batch = pair_batch(store, rows, Tokenizer.pad_id, Tokenizer.bos_id, Tokenizer.eos_id)
        with autocast(config.precision, device):
            loss = batch_loss(network, batch, 0.1, 1.0 / batch.n_targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        paces.append(clock() - start)
        if clock() - began > PROBE_SECONDS and len(paces) >= 4:
            break
    return float(np.median(paces[1:] or paces)) * training.get("accumulation", 1)


def _batches(store: PairStore, batch_tokens: int) -> list[Any]:
    return token_batches(store.source_lengths, store.target_lengths, batch_tokens, 0, 0)


def _seconds(training: dict[str, Any]) -> float | None:
    minutes = training.get("minutes", training.get("cpu_minutes"))
    return None if minutes is None else 60.0 * minutes
