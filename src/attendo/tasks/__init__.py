"""What a person does with a model: raw text in and out, and the runs that train for it."""

from __future__ import annotations

from pathlib import Path

from attendo.tasks.translator import Candidate, Translation, Translator

__all__ = ["Candidate", "Translation", "Translator", "load"]


def load(folder: str | Path, device: str = "cpu") -> Translator:
    """The trained model of a run folder, ready to use.

    Raises AttendoError naming what is missing or damaged.
    """
    return Translator.load(Path(folder), device)
