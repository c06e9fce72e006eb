"""Small corpora for classifiers and language models: forecasts, labelled by what they foretell."""

from pathlib import Path

from attendo.data import forecasts

SMALL = {
    "model": {"d_model": 16, "d_ff": 32, "n_heads": 2},
    "tokenizer": {"vocab_size": 400},
    "training": {
        "steps": 12,
        "batch_tokens": 256,
        "evaluate_every": 5,
        "precision": "float32",
        "products": "torch",  # not the faster one, which may differ from run to run
        "warmup_steps": 2,
        "learning_rate": 0.01,
    },
}


def forecast_texts(n: int) -> list[str]:
    """So many English forecasts."""
    return [source for source, _ in forecasts.pairs(n, "train")]


def labelled_file(folder: Path, n: int = 120, name: str = "labelled.tsv") -> Path:
    """Forecasts with the label "snow" or "other"."""
    path = folder / name
    rows = [("snow" if "snow" in text else "other", text) for text in forecast_texts(n)]
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    return path


def text_file(folder: Path, n: int = 120, name: str = "texts.txt") -> Path:
    """Forecasts, one a line."""
    path = folder / name
    path.write_text("".join(f"{text}\n" for text in forecast_texts(n)), encoding="utf-8")
    return path
