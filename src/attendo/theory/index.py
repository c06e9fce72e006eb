"""Where each fact of the sources stands: formulas.toml, glossary.toml, and the ids with their tests, index.toml."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from attendo.words import Words


@dataclass(frozen=True)
class CodeLine:
    """A line of code that computes a formula: `name` in `module`, and how the line begins or what it holds."""

    module: str
    name: str
    part: str

    def home(self) -> Any:
        """The function or class."""
        return getattr(import_module(self.module), self.name)

    def quoted(self) -> str:
        """The statement in which the line stands, without its indentation. Raises LookupError if it is not there.

        >>> CodeLine("attendo.training.schedules", "noam", "return ").quoted()
        'return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)'
        """
        lines = inspect.getsource(self.home()).splitlines()
        docstring = inspect.getdoc(self.home()) or ""
        for number, line in enumerate(lines):
            if self.part in line and line.strip() not in docstring:
                found = [line]
                while "".join(found).count("(") > "".join(found).count(")"):
                    found.append(lines[number + len(found)])
                indent = len(line) - len(line.lstrip())
                return "\n".join(row[indent:] for row in found)
        raise LookupError(f"{self.module}:{self.name} has no line with {self.part!r}")


@dataclass(frozen=True)
class Formula:
    """A formula (F), task (T) or algorithm (A) of the sources: where it comes from, and its lines of code."""

    id: str
    title: Words
    latex: tuple[str, ...]
    sources: tuple[str, ...] = ()
    code: tuple[CodeLine, ...] = ()


@dataclass(frozen=True)
class Term:
    """A word of the field, how the sources differ about it, and how it is said here."""

    name: Words
    variants: Words
    here: str


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((files("attendo.theory") / name).read_text(encoding="utf-8"))


def _code_line(home: str, part: str) -> CodeLine:
    module, _, name = home.partition(":")
    return CodeLine(module, name, part)


def formulas() -> tuple[Formula, ...]:
    """F01 to F30, the tasks T01, T02, T03 and T11, and A1 to A15.

    >>> formulas()[0].title.in_language("en")
    'Hard and soft arg max with an inverse temperature'
    """
    return tuple(
        Formula(
            id=key,
            title=Words(entry["title"], entry["title_ja"]),
            latex=tuple(entry["latex"]),
            sources=tuple(entry.get("sources", ["A"])),
            code=tuple(_code_line(home, part) for home, part in entry.get("code", [])),
        )
        for key, entry in _table("formulas.toml").items()
    )


def glossary() -> tuple[Term, ...]:
    """The table of conventions, one term after another.

    >>> glossary()[0].name.in_language("ja")
    '並べ方'
    """
    return tuple(
        Term(Words(term["en"], term["ja"]), Words(term["variants_en"], term["variants_ja"]), term["here"])
        for term in _table("glossary.toml")["term"]
    )


def checked_by() -> dict[str, list[str]]:
    """Every id, and the tests that check it: a file, or one function in it.

    >>> checked_by()["F27"]
    ['tests/test_formulas_learning.py::test_f27_noam']
    """
    return _table("index.toml")
