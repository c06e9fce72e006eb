"""Trained models with raw text as input: translation, classification, tagging, text generation and embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attendo.bundle import load_bundle, load_model
from attendo.custom_modules import CustomModules
from attendo.decoding.options import Bits
from attendo.errors import AttendoError
from attendo.inference.alignment import Link
from attendo.inference.classifier import Classification, Classifier
from attendo.inference.embedder import Embedder
from attendo.inference.generation import Generation
from attendo.inference.generator import Generator
from attendo.inference.multi_label import MultiLabelClassifier, Regressor
from attendo.inference.tagger import Tag, Tagger, Tagging
from attendo.inference.translations import Assessment, Candidate, Translation
from attendo.inference.translator import Translator

__all__ = [
    "Assessment",
    "Candidate",
    "Classification",
    "Classifier",
    "Embedder",
    "Generation",
    "Generator",
    "Link",
    "Tag",
    "Tagger",
    "Tagging",
    "Translation",
    "Translator",
    "load",
]

_KINDS: dict[str, Any] = {
    kind.task: kind for kind in (Translator, Classifier, MultiLabelClassifier, Regressor, Tagger, Generator, Embedder)
}
_KINDS |= {"chat": Generator, "preference": Generator, "reward": Generator}


def load(
    folder: str | Path, device: str = "cpu", own_parts: CustomModules | None = None, bits: Bits | None = None
) -> Any:
    """Load the trained model of a run folder, ready to use.

    Args:
        folder: Path of the run folder.
        device: Device of the model, "cpu" or "cuda".
        own_parts: The function that adds the custom modules of the run (default: no custom modules).
        bits: The bits of each weight of a translator or a language model on a CPU: 32, 16, 8 or 4 (default: those of
            a quantized run, otherwise 32).

    Returns:
        A Translator, Classifier, MultiLabelClassifier, Regressor, Tagger or Generator, depending on the task in
        card.json. For a masked language model or an embedding model, the result is an Embedder.

    Raises:
        AttendoError: A file is missing or damaged, or the task is unknown.
    """
    bundle = load_bundle(Path(folder), own_parts)
    if (task := bundle.card.get("task", "")) == "embedding":
        return Embedder.from_bundle(bundle, load_model(Path(folder), bundle).to(device)).prepare()
    if task not in _KINDS:
        raise AttendoError(f"unknown task {task!r} (expected {', '.join(_KINDS)})")
    kind = _KINDS[task]
    is_text = kind.task == "language-model"
    bits = bundle.chosen_bits(bits, device) if is_text or kind.task == "translation" else 32
    model = load_model(Path(folder), bundle, mapped=bits < 32 and is_text, quantized=bits < 32)
    user = kind.from_bundle(bundle, model.to(device))
    if bits < 32:
        user.bits = bits
    return user
