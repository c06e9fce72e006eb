"""The pages' commands, run in this process on files of a few rows: each line of a block that begins with ```sh."""

import asyncio
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from unittest.mock import patch

from command_line import Outcome, attendo, settings
from curl_lines import request_of
from served_models import client_of
from tiny_corpus import SMALL as PAIRS
from tiny_corpus import pairs_file
from tiny_texts import SMALL as TEXTS
from tiny_texts import forecast_texts

from attendo.data import forecasts
from attendo.microscope.server import LabelServer, LookServer
from attendo.runs import planning
from attendo.runs import settings as run_settings
from attendo.serving.app import create_app

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
KINDS = ("attendo", "curl", "make", "pip", "shell", "activate")
SHELL = ("export", "head", "mkdir", "python3")
"""Programs of every machine that the pages use; any other is a line that nobody has thought of."""

LAYERS = {
    "translation": ("model.n_encoder_layers=1", "model.n_decoder_layers=2"),
    "classification": ("model.n_encoder_layers=1",),
    "masked-language-model": ("model.n_encoder_layers=1", "model.max_len=32"),
    "language-model": ("model.n_decoder_layers=1", "model.max_len=32"),
}
WITHOUT_THREADS = (
    "verify-resume", "info", "runs", "report", "doctor", "import",
    "lesson", "claims", "errata", "figure",
)  # fmt: skip
BUDGETS = ("--minutes", "--cpu-minutes", "--epochs", "--steps")


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each fenced block."""
    return BLOCK.findall(page)


def commands(page: str, language: str | None = "sh") -> list[str]:
    """The lines of the blocks to be typed, without what stands behind #; a line that ends in a backslash goes on."""
    text = "".join(text for name, text in blocks(page) if language in (name, None)).replace("\\\n", " ")
    return [line for line in map(_uncommented, text.splitlines()) if line]


def kind_of(line: str) -> str:
    """Of KINDS. Raises ValueError for a program that no page should ask for."""
    program = shlex.split(line)[0]
    if program in KINDS:
        return program
    if program in SHELL:
        return "shell"
    if program == ".":
        return "activate"
    raise ValueError(f"no test knows what to do with: {line}")


def _uncommented(line: str) -> str:
    return re.sub(r"(^|\s+)# .*$", "", line).strip()


class Workshop:
    """A folder with the files that the pages name, and what the commands made of them; each line runs once."""

    def __init__(self, folder: Path):
        self.folder, self.app, self.done = folder, None, {}
        self._write_files()

    def run(self, line: str) -> Outcome | None:
        """Runs one line; the outcome of what was printed, None where nothing is."""
        if line not in self.done or line.startswith("attendo serve"):
            self.done[line] = getattr(self, f"_{kind_of(line)}")(line)
        return self.done[line]

    def _attendo(self, line: str) -> Outcome:
        words = shlex.split(line)[1:]
        stdin, into = _taken(words, "<"), _taken(words, ">")
        given = b"" if stdin is None else Path(stdin).read_bytes()
        if words[0] == "train":  # a run of the same name on another page
            shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
        with (
            patch("attendo.serving.run.serve", self._served),
            patch("attendo.cli.serve._left", lambda code: code),  # else it ends the process while engines run
            patch.object(LookServer, "run", lambda server: server._socket.close()),
            patch.object(LabelServer, "run", lambda server: server._socket.close()),
            patch.object(run_settings, "measured_pace", lambda *arguments: 0.02),
            patch.object(planning, "measured_pace", lambda *arguments: 0.02),
        ):
            outcome = attendo(*quick(words), stdin=given)
        if into is not None:
            Path(into).write_text(outcome.out, encoding="utf-8")
        # 1: something was found, by the doctor
        assert outcome.code == 0 or (words[0] == "doctor" and outcome.code == 1), (line, outcome)
        return outcome

    def _served(self, state, *arguments, **options) -> int:
        """In place of the server's loop: its application, for the curl lines that follow."""
        state.models.load()
        self.app = create_app(state)
        return 0

    def _curl(self, line: str) -> Outcome:
        assert self.app is not None, f"nothing is served when the page says: {line}"
        method, path, headers, body = request_of(line)

        async def asked():
            async with client_of(self.app) as client:
                return await client.request(method, path, headers=headers, content=body)

        answer = asyncio.run(asked())
        assert answer.status_code == 200, (line, answer.text)
        return Outcome(0, answer.text, "")

    def _make(self, line: str) -> None:
        [target] = shlex.split(line)[1:]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), line

    def _pip(self, line: str) -> None:
        verb, what = shlex.split(line)[1:]
        wanted = re.fullmatch(r"(?:\.|attendo)(?:\[([a-z,]+)\])?", what)
        assert verb == "install" and wanted, line
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert set((wanted[1] or "serve").split(",")) <= set(project["optional-dependencies"]), line

    def _activate(self, line: str) -> None:
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert line == f". {re.search(r'^VENV := (.*)$', makefile, re.MULTILINE)[1]}/bin/activate"

    def _shell(self, line: str) -> Outcome:
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
        return Outcome(0, done.stdout, done.stderr)

    def _write_files(self) -> None:
        pairs_file(self.folder, 120)
        rows = forecasts.pairs(130, "train")[120:]
        test = "".join(f"{source}\t{target}\n" for source, target in rows)
        texts = forecast_texts(120)
        tickets = [f'{n},{"snow" if "snow" in text else "other"},"{text}"' for n, text in enumerate(texts)]
        sides = list(zip(*forecasts.pairs(120, "train"), strict=True))
        for name, text in {
            "test.tsv": test,
            "test.en": "".join(f"{source}\r\n" for source, _ in rows),
            "test.ja": "".join(f"{target}\r\n" for _, target in rows),
            "lines.txt": "".join(f"{source}\n" for source, _ in rows[:3]),
            "pairs.en": "".join(f"{text}\r\n" for text in sides[0]),
            "pairs.ja": "".join(f"{text}\r\n" for text in sides[1]),
            "pairs.csv": "en,ja\n" + "".join(f'"{a}","{b}"\n' for a, b in zip(*sides, strict=True)),
            "tickets.csv": "\ufeff" + "\r\n".join(["id,category,body", *tickets, ""]),
            "more-tickets.csv": "\r\n".join(["id,category,body", *tickets[:20], ""]),
            "new-tickets.csv": "\r\n".join(
                ["id,opened,body", *(f'{n},2026-11-22,"{text}"' for n, text in enumerate(texts[:5])), ""]
            ),
            "texts.txt": "".join(f"{text}\n" for text in texts),
            "novel.txt": "\n".join(texts),
            "other.txt": "\n".join(texts[:5]),
        }.items():
            (self.folder / name).write_bytes(text.encode())


def quick(words: list[str]) -> list[str]:
    """The same command for a model of one narrow layer and two updates, where it trains; one thread for all."""
    match words:
        case ["train", task, *options]:
            started = "--init-from" in options  # whose shape is the other run's
            return ["train", task, *_small(task, started), *_fewer(options), "--steps", "2", "--threads", "1"]
        case ["plan", task, *options] if task in LAYERS:
            return ["plan", task, *_small(task), *options, "--threads", "1"]
        case ["plan", *options]:
            return ["plan", *_small("translation"), *options, "--threads", "1"]
        case ["export", *options]:
            return ["export", *options, "--rows", "2"]
        case ["resume", folder, *options]:
            return ["resume", folder, *_fewer(options), "--threads", "1"]
        case [command, *_] if command in WITHOUT_THREADS:
            return words
    return [*words, "--threads", "1"]


def _small(task: str, started: bool = False) -> list[str]:
    """Settings for a narrow model and few updates; of one that starts from another run only those of the updates."""
    tables = PAIRS if task == "translation" else TEXTS
    kept = {name: table for name, table in tables.items() if not started or name not in ("model", "tokenizer")}
    if task == "classification":
        kept.pop("tokenizer", None)  # whose kind it chooses itself
    return settings(kept) + ([] if started else [word for one in LAYERS[task] for word in ("--set", one)])


def _fewer(options: list[str]) -> list[str]:
    """Options without budgets, but for updates more, of which 2 are enough."""
    kept, words = [], iter(options)
    for word in words:
        if word in BUDGETS:
            next(words)
        elif word == "--more-steps":
            next(words)
            kept += [word, "2"]
        else:
            kept.append(word)
    return kept


def _taken(words: list[str], sign: str) -> str | None:
    """The file behind < or >, taken out of the words."""
    if sign not in words:
        return None
    at = words.index(sign)
    file = words[at + 1]
    del words[at : at + 2]
    return file
