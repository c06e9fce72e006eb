"""A real but tiny translation run: some forecasts in a TSV file, a model of one layer, a few steps."""

from pathlib import Path
from typing import Any

from attendo.data import forecasts
from attendo.runs.settings import joined
from attendo.runs.task_specs import family_of
from attendo.runs.training_run import TrainingRun, new_run

SMALL = {
    "model": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1},
    "tokenizer": {"vocab_size": 600},
    "training": {
        "steps": 12,
        "batch_tokens": 512,
        "evaluate_every": 5,
        "evaluate_rows": 6,
        "precision": "float32",
        "products": "torch",  # not the faster one, which may differ from run to run
        "warmup_steps": 2,
    },
    "decoding": {"max_length_ratio": 0.0, "max_length_extra": 8},  # what an untrained model says never ends
}


def pairs_file(folder: Path, n: int = 120, name: str = "pairs.tsv") -> Path:
    """A TSV file of `n` pairs."""
    path = folder / name
    rows = forecasts.pairs(n, "train")
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return path


def small_run(folder: Path, file: Path, **tables: dict[str, Any]) -> TrainingRun:
    """A new run in `folder` on that file; tables laid over SMALL."""
    return new_run(family_of("translation"), joined(SMALL, {"data": {"train": [str(file)]}}, tables), folder)
