"""The registry of the served models, which loads models, returns models by name, and reloads changed models."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.bundle import EXAMPLES, TaskName, examples_of
from attendo.data.segments import Segment
from attendo.decoding.options import Bits, CacheBits
from attendo.errors import AttendoError
from attendo.inference import Embedder, Generator, Translator, load
from attendo.inference.generator import in_float32
from attendo.inference.ngram_classifier import NGRAMS
from attendo.serving.engine import Engine

if TYPE_CHECKING:
    from attendo.microscope.session import Session
    from attendo.serving.state import State


@dataclass(eq=False)
class ServedModel:
    """A served model with its engine. `user` is the loaded object, for example a Translator.

    `source` and `target` are the languages of a translator, or None if unknown. `created` is the modification time of
    the weights, in seconds since 1970. `examples` are the example texts of the run that clients may see.
    """

    name: str
    folder: Path
    user: Any
    engine: Engine
    source: str | None = None
    target: str | None = None
    created: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def family(self) -> TaskName:
        """The task of the model, for example "translation"."""
        return self.user.task

    @cached_property
    def embedder(self) -> Embedder:
        """An Embedder that uses this model. Mapped weights of few bits are converted to float32 on first use."""
        user = self.user
        if isinstance(user, Embedder):
            return user
        model = in_float32(user.model) if isinstance(user, Generator) else user.model
        return Embedder(model, user.tokenizer)

    @cached_property
    def session(self) -> Session:
        """The microscope session of the model, created on first use."""
        from attendo.microscope.session import Session

        return Session(self.user, self.folder, self.examples)


class ModelRegistry:
    """The served models by name, in the order of the folders. `swap` reloads a model while its running jobs finish.

    Args:
        folders: The run folders of the models. Two folders with the same name raise AttendoError.
        rows: The maximum number of texts or beams per step of a model.
        device: The device of all models, "cpu" or "cuda".
        source: The source language of translators whose run has no languages.
        target: The target language of translators whose run has no languages.
        bits: Bits of each weight on a CPU: 32, 16, 8 or 4 (default: those of a quantized run, otherwise 32).
        cache_bits: Bits of each key and value in the cache of a language model (default: 32 if `bits` is 32, otherwise
            16).
        segment: The default unit of translation: "sentence", "paragraph" or "none".
        examples: Whether clients may see the example texts of the runs, which can be private.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        rows: int = 128,
        device: str = "cpu",
        source: str | None = None,
        target: str | None = None,
        bits: Bits | None = None,
        cache_bits: CacheBits | None = None,
        segment: Segment = "sentence",
        examples: bool = False,
    ) -> None:
        """Store the folders, which `load` loads later. Raise AttendoError for two folders with the same name."""
        self.folders: dict[str, Path] = {}
        for folder in folders:
            name = folder.resolve().name
            if name in self.folders:
                if self.folders[name].resolve() == folder.resolve():
                    raise AttendoError(f"{folder} is given twice. Give it once")
                raise AttendoError(f"{self.folders[name]} and {folder} have the same name {name}. Rename one of them")
            self.folders[name] = folder
        self._options = {"rows": rows, "device": device, "source": source, "target": target, "bits": bits}
        self._cache_bits: CacheBits | None = cache_bits
        self._segment: Segment = segment
        self._examples = examples
        self._served: dict[str, ServedModel] = {}
        self._swapping = threading.Lock()

    def __iter__(self) -> Iterator[ServedModel]:
        """Iterate over the loaded models."""
        return iter([self._served[name] for name in self.folders if name in self._served])

    @property
    def ready(self) -> bool:
        """Whether all models are loaded."""
        return len(self._served) == len(self.folders)

    def load(self) -> None:
        """Load all models.

        Raises:
            AttendoError: A folder is not a run folder, or a run folder is damaged.
        """
        for name in self.folders:
            self.swap(name)

    def swap(self, name: str) -> None:
        """Load a model again for new requests. The old model stops when its running jobs are finished.

        Args:
            name: The name of the model.

        Raises:
            AttendoError: The run folder is damaged. The old model then remains in use.
        """
        with self._swapping:
            new = self._loaded(name)
            old, self._served[name] = self._served.get(name), new
        if old is not None:
            old.engine.stop()

    def named(self, name: str) -> ServedModel:
        """Return the loaded model with a given name.

        Args:
            name: The name of the model, which is the name of its run folder.

        Raises:
            KeyError: No loaded model has this name.
        """
        return self._served[name]

    def of_family(self, family: TaskName) -> list[ServedModel]:
        """Return all loaded models of a task.

        Args:
            family: The task, for example "translation".
        """
        return [served for served in self if served.family == family]

    def stop(self) -> None:
        """Stop the engines of all models when their running jobs are finished."""
        for served in self:
            served.engine.stop()

    def _loaded(self, name: str) -> ServedModel:
        folder = self.folders[name]
        options = self._options
        user = load(folder, options["device"], bits=options["bits"])
        if isinstance(user, Generator):
            user.prepare(cache_bits=self._cache_bits)
        if isinstance(user, Translator):
            user.prepare()
            user.segment = self._segment
        languages = getattr(user, "card", {}).get("languages", {}) if isinstance(user, Translator) else {}
        created = int((folder / "model.safetensors").stat().st_mtime)
        source = languages.get("source") or options["source"]
        target = languages.get("target") or options["target"]
        engine = Engine(user, options["rows"], name)
        examples = examples_of(folder) if self._examples else []
        return ServedModel(name, folder, user, engine, source, target, created, examples)


FILES = ("model.safetensors", "config.toml", "tokenizer.json", "card.json", NGRAMS, EXAMPLES)

Stamp = tuple[tuple[int, int, int] | None, ...]
"""The modification time, size and inode of each file of a run, or None for a missing file."""


def stamp_of(folder: Path) -> Stamp:
    """Return a value that changes when a file of a run folder changes."""
    found: list[tuple[int, int, int] | None] = []
    for name in FILES:
        try:
            facts = (folder / name).stat()
        except OSError:
            found.append(None)
        else:
            found.append((facts.st_mtime_ns, facts.st_size, facts.st_ino))
    return tuple(found)


class Reloading:
    """The loading of models and the reloading of changed models, which are slow and must run outside the event loop.

    If a changed folder is damaged, the old model remains in use, and the reason is written to the log.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._models = state.models
        self._log = state.log
        self._loaded: dict[str, Stamp] = {}
        self._tried: dict[str, Stamp] = {}

    def load(self) -> None:
        """Load all models. Raise AttendoError if a run folder is missing or damaged."""
        began = time.perf_counter()
        self._loaded = {name: stamp_of(folder) for name, folder in self._models.folders.items()}
        self._tried = dict(self._loaded)
        self._models.load()
        self._state.loaded = dict.fromkeys(self._models.folders, time.time())
        names = ",".join(self._models.folders)
        self._log.event("ready", {"models": names, "seconds": round(time.perf_counter() - began, 2)})

    def look_again(self, *, watching: bool = False) -> list[str]:
        """Reload the models whose files have changed, and return their names.

        If `watching` is true, a damaged model is loaded again only after another change.
        """
        swapped: list[str] = []
        for name, folder in self._models.folders.items():
            now = stamp_of(folder)
            if now == self._loaded[name] or (watching and now == self._tried[name]):
                continue
            self._tried[name] = now
            began = time.perf_counter()
            try:
                self._models.swap(name)
            except Exception as error:  # noqa: BLE001  (any error of the new model leaves the old model in use)
                why = str(error) if isinstance(error, AttendoError) else type(error).__name__
                self._state.metrics.swapped(name, "kept")
                self._log.event("kept", {"model": name, "why": why})
            else:
                self._loaded[name] = now
                self._state.loaded[name] = time.time()
                self._state.metrics.swapped(name, "swapped")
                swapped.append(name)
                self._log.event("swapped", {"model": name, "seconds": round(time.perf_counter() - began, 2)})
        return swapped
