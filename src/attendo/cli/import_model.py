"""attendo import: a model from elsewhere as a run folder."""

from __future__ import annotations

from pathlib import Path

from attendo.cli.options import argument, option
from attendo.cli.reporting import say


def import_(
    source: Path = argument("SRC", "A folder with config.json, *.safetensors and tokenizer files."),
    out: Path = argument("DIR", "The run folder, new or empty."),
    source_language: str | None = option("L", "A translator's source language, for its card.", "--from"),
    target_language: str | None = option("L", "Its target language; of several, the one to write.", "--to"),
) -> int:
    """Bring a model of Hugging Face's here: all other commands take the folder as one of their own runs.

    BERT, RoBERTa, DistilBERT and sentence embeddings made of them; GPT-2, Llama, Qwen2 and Qwen3; MarianMT (OPUS-MT),
    Pegasus, BART, mBART and T5. Nothing is downloaded; pickles are not read.

    Example: attendo import opus-mt-en-de runs/opus --from en --to de
    """
    from attendo.interop import import_model

    import_model(source, out, say, source_language=source_language, target_language=target_language)
    return 0
