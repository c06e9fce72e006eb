"""Models whose files have changed, loaded anew while the old ones answer."""

from __future__ import annotations

import time
from pathlib import Path

from attendo.errors import AttendoError
from attendo.serving.state import State

FILES = ("model.safetensors", "config.toml", "tokenizer.json", "card.json")

Stamp = tuple[tuple[int, int, int] | None, ...]
"""When each file was written, its size and its inode; None for a file that isn't there."""


def stamp_of(folder: Path) -> Stamp:
    """What changes when the run in a folder does."""
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
    """Loads models and, when told to look again, those that have changed. It takes long: not for the event loop.

    A folder that is damaged keeps the model that is served, and the log says why.
    """

    def __init__(self, state: State) -> None:
        self._state, self._models, self._log = state, state.models, state.log
        self._loaded: dict[str, Stamp] = {}
        self._tried: dict[str, Stamp] = {}

    def load(self) -> None:
        """Loads all. Raises AttendoError naming the folder that is none, or damaged."""
        began = time.perf_counter()
        self._loaded = {name: stamp_of(folder) for name, folder in self._models.folders.items()}
        self._tried = dict(self._loaded)
        self._models.load()
        self._state.loaded = dict.fromkeys(self._models.folders, time.time())
        names = ",".join(self._models.folders)
        self._log.event("ready", {"models": names, "seconds": round(time.perf_counter() - began, 2)})

    def look_again(self, *, watching: bool = False) -> list[str]:
        """Swaps the models that have changed since they were loaded, and names them.

        watching: a damaged folder is tried again only when it has changed again.
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
            except Exception as error:  # noqa: BLE001  (the old model goes on, whatever is wrong with the new one)
                why = str(error) if isinstance(error, AttendoError) else type(error).__name__
                self._state.metrics.swapped(name, "kept")
                self._log.event("kept", {"model": name, "why": why})
            else:
                self._loaded[name], self._state.loaded[name] = now, time.time()
                self._state.metrics.swapped(name, "swapped")
                swapped.append(name)
                self._log.event("swapped", {"model": name, "seconds": round(time.perf_counter() - began, 2)})
        return swapped
