"""What a person does with a model: raw text in and out, and the runs that train for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attendo.bundle import load_bundle, load_model
from attendo.own_parts import OwnParts
from attendo.tasks.alignment import Link
from attendo.tasks.classifier import Classification, Classifier
from attendo.tasks.embedder import Embedder
from attendo.tasks.family import TaskName
from attendo.tasks.generator import Generator
from attendo.tasks.translations import Assessment, Candidate, Translation
from attendo.tasks.translator import Translator
from attendo.tasks.writing import Generation

__all__ = [
    "Assessment",
    "Candidate",
    "Classification",
    "Classifier",
    "Embedder",
    "Generation",
    "Generator",
    "Link",
    "Translation",
    "Translator",
    "load",
    "train",
]


def load(folder: str | Path, device: str = "cpu", own_parts: OwnParts | None = None) -> Any:
    """The trained model of a run folder, ready to use, as its task has it.

    A Translator, a Classifier, a Generator, or, for a masked language model and one of embeddings, an Embedder; each
    has a `load` of its own, which takes no other. own_parts: those that it was trained with. Raises AttendoError naming
    what is missing or damaged.
    """
    from attendo.tasks.families import family_of

    bundle = load_bundle(Path(folder), own_parts)
    if (task := bundle.card.get("task", "")) == "embedding":
        return Embedder.from_bundle(bundle, load_model(Path(folder), bundle).to(device)).prepare()
    return family_of(task).user(bundle, load_model(Path(folder), bundle).to(device))


def train(
    train: str | Path | tuple[str | Path, str | Path],
    out: str | Path,
    *,
    task: TaskName = "translation",
    valid: str | Path | tuple[str | Path, str | Path] | None = None,
    preset: str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    init_from: str | Path | None = None,
    own_parts: OwnParts | None = None,
    device: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> Any:
    """Trains a model as `attendo train TASK` does, and gives its best state, as `load` does.

    task: "translation", "classification", "language-model" or "masked-language-model". train, valid: a file of pairs,
    labelled texts or texts, or two parallel files. settings: tables as in config.toml, which win over the preset's:
    `{"training": {"minutes": 30}, "data": {"reverse": True}}`. init_from: a run that this one starts from. own_parts: a
    function that puts modules of one's own into the fresh model; `load` wants it again. say: takes the lines that the
    command prints, but for its progress: of the preparation, of each evaluation, of the end. `attendo.tasks.runs` has
    the parts, each step reported. In the main thread Ctrl-C and SIGTERM save before they go on, as KeyboardInterrupt
    and SystemExit. Raises AttendoError for wrong settings, unusable data, and a folder that holds a run already.
    """
    from attendo.tasks.families import family_of
    from attendo.tasks.runs import new_run
    from attendo.tasks.settings import joined, preset_tables

    files = {"train": train} if valid is None else {"train": train, "valid": valid}
    data = {name: list(map(str, f if isinstance(f, tuple) else (f,))) for name, f in files.items()}
    tables = joined(preset_tables(preset) if preset else {}, settings or {}, {"data": data})
    start = None if init_from is None else Path(init_from)
    run = new_run(
        family_of(task), tables, Path(out), say, device=device, init_from=start, own_parts=own_parts
    )
    run.to_end(say)
    return load(out, "cpu" if device == "auto" else device, own_parts)
