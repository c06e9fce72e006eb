"""The command `attendo import`: conversion of a Hugging Face model or a GGUF file to a run folder."""

from __future__ import annotations

from pathlib import Path

from attendo.cli.options import argument, option
from attendo.cli.reporting import say


def import_(
    source: Path = argument(
        "SRC", "Folder with config.json, *.safetensors and tokenizer files, or a GGUF file."
    ),
    out: Path = argument("DIR", "New or empty run folder."),
    source_language: str | None = option(
        "L", "Source language of a translator, stored in the run.", "--from"
    ),
    target_language: str | None = option("L", "Target language of a translator, stored in the run.", "--to"),
) -> int:
    """Convert a local Hugging Face model or GGUF file to a run folder, which all other commands accept.

    Supported models: BERT, RoBERTa, DistilBERT and sentence embeddings based on them; GPT-2, Llama, Mistral, Qwen2,
    Qwen3, SmolLM3 and Phi-3; MarianMT (OPUS-MT), Pegasus, BART, mBART and T5. The command downloads nothing. First
    download the model, for example with: hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de. Pickle files
    are not read. For a multilingual model, --to selects the output language. GGUF files can contain Llama, Mistral,
    Qwen2 or Qwen3 models.

    Example: attendo import opus-mt-en-de runs/opus --from en --to de
    """
    from attendo.interop import import_model

    import_model(source, out, say, source_language=source_language, target_language=target_language)
    return 0
