"""Count the files of attendo that an action executes when it runs a second time.

    python tools/files_executed.py [--list]

The model is small and untrained, because the executed files do not depend on its weights. --list prints the files.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from fastapi.testclient import TestClient

from attendo.cli import main as attendo
from attendo.serving.app import State, create_app
from attendo.serving.registry import ModelRegistry
from attendo.serving.state import Keys, ServingConfig

SOURCE = Path(__file__).resolve().parent.parent / "src" / "attendo"
MOST = {"translate a sentence": 28, "look --out": 45, "three training steps": 60, "POST /translate": 24}
TEXT = "It will rain in Oslo tomorrow."
PAIRS = "".join(f"It will rain in town {i}.\t町 {i} で雨が降る。\n" for i in range(200))
SMALL = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_encoder_layers": 1, "n_decoder_layers": 1}


class Calls:
    """Recorder of the attendo files with a function call while `counting` is set, in this thread and new threads."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.counting = False
        threading.setprofile(self.saw)
        sys.setprofile(self.saw)

    def saw(self, frame: FrameType, event: str, _: object) -> None:
        """Record the file of a called function."""
        if self.counting and event == "call" and frame.f_code.co_name != "<module>":
            self.files.add(frame.f_code.co_filename)

    def of(self, action: Callable[[], Any]) -> list[str]:
        """Return the files in src/attendo that an action executes, sorted."""
        action()  # objects that are built only once are built here
        self.files.clear()
        self.counting = True
        action()
        self.counting = False
        paths = map(Path, self.files)
        return sorted(path.relative_to(SOURCE).as_posix() for path in paths if path.is_relative_to(SOURCE))


def actions(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name and the function of each action."""
    run, number = folder / "run", count()
    (folder / "pairs.tsv").write_text(PAIRS, encoding="utf-8")
    options = [f"--set=model.{key}={value}" for key, value in SMALL.items()]
    options += [
        "--from=en",
        "--to=ja",
        "--steps=3",
        "--threads=1",
        "--set=tokenizer.vocab_size=300",
        "--set=training.evaluate_every=3",
    ]

    def train(out: Path) -> None:
        command = ["train", "translation", "--train", str(folder / "pairs.tsv"), "--out", str(out), *options]
        assert attendo(command) == 0

    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        train(run)
    yield "translate a sentence", lambda: attendo(["translate", str(run), TEXT])
    yield "look --out", lambda: attendo(["look", str(run), TEXT, "--out", str(folder / "look.html")])
    yield "three training steps", lambda: train(folder / f"run-{next(number)}")
    models = ModelRegistry([run])
    models.load()
    app = create_app(State(models, ServingConfig(), Keys(())))
    with TestClient(app, "http://127.0.0.1") as client:
        yield (
            "POST /translate",
            lambda: client.post("/translate", json={"q": TEXT, "source": "en", "target": "ja"}).raise_for_status(),
        )


def main() -> int:
    """Print a line for each action. Return 1 if an action executes more files than MOST allows."""
    calls, too_many = Calls(), False
    with tempfile.TemporaryDirectory() as folder:
        for name, action in actions(Path(folder)):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                files = calls.of(action)
            too_many |= len(files) > MOST[name]
            print(f"{name:<22} {len(files):>3} files (at most {MOST[name]})")
            if "--list" in sys.argv[1:]:
                print("\n".join(f"    {file}" for file in files))
    return int(too_many)


if __name__ == "__main__":
    sys.exit(main())
