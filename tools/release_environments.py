"""Empty environments for a release: the interpreters there are, the wheel in each, what runs there, and each extra."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
PLACES = (".pyenv/versions/{}.*/bin/python", ".local/share/uv/python/cpython-{}.*/bin/python3")
"""Below the home folder: where pyenv and uv keep interpreters."""
SMALL = [
    f"--set={name}"
    for name in (
        "model.d_model=16",
        "model.d_ff=16",
        "model.n_heads=2",
        "training.steps=2",
        "training.evaluate_rows=2",
    )
]
"""A model of no use, that is trained at once."""


def interpreters() -> dict[str, Path]:
    """An interpreter of each version that is here, one that can make environments."""
    found = {}
    for version in VERSIONS:
        named = shutil.which(f"python{version}")
        places = [Path(named)] if named else []
        for place in PLACES:
            places += sorted(Path.home().glob(place.format(version)))
        for python in places:
            code = "import sys, venv, ensurepip; print('{}.{}'.format(*sys.version_info))"
            run = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
            if run.stdout.strip() == version:
                found[version] = python
                break
    return found


@dataclass(frozen=True)
class Environment:
    """A virtual environment in a folder; its commands run in another, empty at first, where no source is near."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def elsewhere(self) -> Path:
        """Where its commands run."""
        return self.folder.with_name(f"{self.folder.name}-files")

    def make(self, python: Path) -> None:
        """Makes it anew, with pip alone."""
        subprocess.run([python, "-m", "venv", "--clear", self.folder], check=True)

    def clear_files(self) -> None:
        """Empties the folder where its commands run."""
        shutil.rmtree(self.elsewhere, ignore_errors=True)
        self.elsewhere.mkdir()

    def install(self, *arguments: str | Path) -> None:
        """What pip installs with these arguments. Raises CalledProcessError where it cannot."""
        pip = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
        subprocess.run(pip, check=True, env=_surroundings(), stderr=subprocess.PIPE, text=True)

    def see(self, other: Environment) -> None:
        """Lets it import what another one has, after its own."""
        (own,), (others,) = (e.folder.glob("lib/python*/site-packages") for e in (self, other))
        (own / "others.pth").write_text(f"{others}\n", encoding="utf-8")

    def run(self, *arguments: str | Path, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """`attendo` with these arguments, or Python, if the first is -c or -m."""
        program = [self.python if arguments[0] in ("-c", "-m") else self.folder / "bin" / "attendo"]
        return subprocess.run(
            [*program, *arguments],
            cwd=self.elsewhere,
            env=_surroundings(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def _surroundings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def install_core(environment: Environment, python: Path, lock: Path, wheel: Path) -> None:
    """The wheel and exactly what the lock names; what the lock names is kept from one call to the next."""
    stamp = environment.folder / "lock"
    if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
        environment.make(python)
        environment.install("-r", lock)
        shutil.copy(lock, stamp)
    environment.install("--force-reinstall", "--no-deps", wheel)


def core_faults(environment: Environment, golden: Path) -> Iterator[str]:
    """What does not work with the wheel and the lock alone: each golden run, a page, a claim, a training, the demo."""
    environment.clear_files()
    check = environment.run("-m", "pip", "check")
    if check.returncode:
        yield f"pip check: {check.stdout.strip()}"
    translation = golden / "translation"
    wanted = json.loads((translation / "expected.json").read_text(encoding="utf-8"))["answers"]
    texts = ("It will snow in Sapporo tomorrow.", "Rain.")
    commands: dict[Sequence[str | Path], str] = {
        ("--version",): "attendo ",
        ("translate", translation / "run", *texts): "\n".join(wanted),
        ("classify", golden / "classification" / "run", *texts): "other\t",
        ("generate", golden / "language-model" / "run", texts[0], "--temperature", "0"): "",
        ("embed", golden / "masked-language-model" / "run", texts[0]): "",
        ("look", translation / "run", texts[1], "--out", "look.html"): "",
        ("claims", "C01"): "C01",
        ("train", "classification", *training(golden / "classification"), *SMALL): "",
        ("demo", "--out", "demo", "--test", "2", *SMALL): "look.html",
    }
    for arguments, expected in commands.items():
        run = environment.run(*arguments)
        if run.returncode or expected not in run.stdout:
            yield f"attendo {arguments[0]} ({run.returncode}): {_end(run.stderr or run.stdout)}"


def training(family: Path) -> list[str]:
    """Options that train a classifier on a golden run's data."""
    data = str(family / "data.tsv")
    return ["--train", data, "--valid", data, "--out", family.name]


@dataclass(frozen=True)
class Extra:
    """What needs an extra: arguments of `attendo`, or a program; prepared: a program that makes its files first.

    is_refused: without the extra; else it goes on with less, and says so.
    """

    arguments: tuple[str, ...]
    prepared: str = ""
    is_refused: bool = True


PARQUET = """
import pyarrow, pyarrow.parquet
rows = {"source": ["Rain."], "target": ["Snow."]}
pyarrow.parquet.write_table(pyarrow.table(rows), "pairs.parquet")
"""
REVIEWS = """
for name in ("train.tsv", "test.tsv"):
    with open(name, "w") as file:
        for n in range(300):
            file.write(f"pos\\ta good film, number {n} in {name}\\nneg\\ta bad film, number {n} in {name}\\n")
"""
EXTRAS = {
    "plots": Extra(("look", "translation", "Rain.", "--out", "look.png")),
    "data": Extra(("score", "translation", "pairs.parquet"), PARQUET),
    "interop": Extra(("export", "translation", "exported", "--to", "onnx")),
    "notebook": Extra(("-c", "import attendo; attendo.look(attendo.load('translation'), 'Rain.').widget()")),
    "tensorboard": Extra(
        (
            *("train", "classification", "--train", "labels.tsv", "--valid", "labels.tsv", "--out", "labels"),
            *(*SMALL, "--set=training.tensorboard=true"),
        )
    ),
    "ray": Extra(("translate", "translation", "--input", "lines.txt", "--output", "out.txt", "--ray")),
    "lessons": Extra(
        ("lesson", "imdb", "--train", "train.tsv", "--train", "test.tsv", "--effort", "0.001"), REVIEWS, False
    ),
    "serve": Extra(("serve", "translation", "--port", "0")),
}


def extra_faults(
    name: str, core: Environment, own: Environment, wheel: Path, lock: Path, golden: Path
) -> Iterator[str]:
    """What is wrong with one extra: without it the command has to name it, with it the command has to work."""
    extra, remedy = EXTRAS[name], f'pip install "attendo[{name}]"'
    for environment in (core, own):
        _files(environment, golden)
    own.make(core.python)
    own.see(core)
    own.install("--force-reinstall", "--no-deps", wheel)
    own.install("--constraint", lock, "--find-links", wheel.parent, f"attendo[{name}]")
    if extra.prepared:
        for environment in (core, own) if name == "lessons" else (own,):
            environment.run("-c", extra.prepared)
    without = core.run(*extra.arguments)
    said = without.stdout + without.stderr
    is_refused = without.returncode == 2 or (extra.arguments[0] == "-c" and without.returncode != 0)
    if remedy not in said or is_refused != extra.is_refused:
        yield f"without attendo[{name}] ({without.returncode}): {_end(said)}"
    if name == "serve":
        yield from _serving_faults(own, extra.arguments)
        return
    having = own.run(*extra.arguments)
    if having.returncode or remedy in having.stdout + having.stderr:
        yield f"with attendo[{name}] ({having.returncode}): {_end(having.stdout + having.stderr)}"


def _files(environment: Environment, golden: Path) -> None:
    """A run, and small data, in the folder where an environment's commands run."""
    environment.clear_files()
    shutil.copytree(golden / "translation" / "run", environment.elsewhere / "translation")
    shutil.copy(golden / "classification" / "data.tsv", environment.elsewhere / "labels.tsv")
    (environment.elsewhere / "lines.txt").write_text("Rain.\nSnow.\n", encoding="utf-8")
    (environment.elsewhere / "pairs.parquet").write_bytes(b"PAR1")


def _serving_faults(environment: Environment, arguments: Sequence[str]) -> Iterator[str]:
    """What is wrong with a server: it has to give its page and its health, and to end by SIGTERM with 0."""
    command = [environment.folder / "bin" / "attendo", *arguments]
    with subprocess.Popen(
        command,
        cwd=environment.elsewhere,
        env=_surroundings(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        try:
            for path in ("", "livez", "openapi.json"):
                with urllib.request.urlopen(address + path, timeout=60) as answer:
                    if answer.status != 200:
                        yield f"serve: {path} was answered {answer.status}"
        except (OSError, ValueError) as error:
            yield f"serve: {address!r}: {error}"
        server.send_signal(signal.SIGTERM)
        if server.wait(60):
            yield f"serve: ended with {server.returncode}"


def _end(said: str) -> str:
    """The last line of what was said."""
    return next((line for line in reversed(said.splitlines()) if line.strip()), "nothing was said")
