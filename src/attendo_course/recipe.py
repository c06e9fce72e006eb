"""How the paper trained and decoded, as the tables of a configuration."""

from __future__ import annotations

from typing import Any, Literal

from attendo.runs.settings import preset_tables


def vaswani_recipe(
    size: Literal["base", "big"] = "base", vocab_size: int = 37_000
) -> dict[str, dict[str, Any]]:
    """The tables [model], [tokenizer], [training] and [decoding] of Vaswani et al. 2017, sections 5 and 6.1.

    100,000 steps of some 25,000 source and 25,000 target tokens (300,000 for "big"), Adam with the Noam schedule, the
    mean of the last 5 (20) checkpoints, beam 4 with α = .6 and at most 50 tokens more than the source. They are what
    `--config` reads, but for [data].

    >>> vaswani_recipe("big")["training"]["average_last"]
    20
    """
    tables = {name: dict(table) for name, table in preset_tables(size).items()}
    tables["model"] |= {"vocab_size": vocab_size}
    tables["tokenizer"] = {"vocab_size": vocab_size}
    tables["training"] = {
        "steps": 100_000 if size == "base" else 300_000,
        "batch_tokens": 25_000,
        "schedule": "noam",
        "warmup_steps": 4000,
        "learning_rate": 1.0,
        "beta1": 0.9,
        "beta2": 0.98,
        "epsilon": 1e-9,
        "weight_decay": 0.0,
        "clip_norm": 0.0,
        "label_smoothing": 0.1,
        "average_last": 5 if size == "base" else 20,
    }
    tables["decoding"] = {
        "beam": 4,
        "length_penalty": 0.6,
        "max_length_ratio": 1.0,
        "max_length_extra": 50,
    }
    return tables
