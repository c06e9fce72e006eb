"""Where each fact of the sources stands.

formulas.toml and algorithms.toml: what is computed, and by which lines; glossary.toml: how it is said; index.toml:
every id and its tests.
"""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from operator import attrgetter
from typing import Any

from attendo.display.i18n import Localized


@dataclass(frozen=True)
class CodeLine:
    """A line of code that computes a formula: `name` in `module`, and how the line begins or what it holds.

    name: a function or a method, or, where the figures of a formula are settings, a TOML file.
    """

    module: str
    name: str
    part: str

    @property
    def path(self) -> str:
        """The file below src/.

        >>> CodeLine("attendo.training.optimizer", "noam", "return ").path
        'attendo/training/optimizer.py'
        """
        folder = self.module.replace(".", "/")
        return f"{folder}/{self.name}" if self._is_file else f"{folder}.py"

    @property
    def _is_file(self) -> bool:
        return self.name.endswith(".toml")

    def home(self) -> Any:
        """The function or method, or the file's text."""
        if self._is_file:
            folder = self.module.split(".")
            return files(folder[0]).joinpath(*folder[1:], self.name).read_text(encoding="utf-8")
        return attrgetter(self.name)(import_module(self.module))

    def quoted(self) -> str:
        """The statement in which the line stands, without its indentation. Raises LookupError if it is not there.

        >>> CodeLine("attendo.training.optimizer", "noam", "return ").quoted()
        'return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)'
        >>> CodeLine("attendo.presets", "big.toml", "d_ff").quoted()
        'd_ff = 4096'
        """
        home = self.home()
        lines = (home if self._is_file else inspect.getsource(home)).splitlines()
        docstring = "" if self._is_file else inspect.getdoc(home) or ""
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
    """A formula (F), task (T) or algorithm (A) of the sources: where it comes from, and its lines of code.

    about_ja: of an algorithm, what its docstring says first.
    """

    id: str
    title: Localized
    latex: tuple[str, ...]
    sources: tuple[str, ...] = ()
    code: tuple[CodeLine, ...] = ()
    about_ja: str = ""


@dataclass(frozen=True)
class Term:
    """A word of the field, how the sources differ about it, and how it is said here."""

    name: Localized
    variants: Localized
    here: Localized


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((files("attendo_course") / name).read_text(encoding="utf-8"))


def _code_lines(home: str, *parts: str) -> tuple[CodeLine, ...]:
    module, _, name = home.partition(":")
    return tuple(CodeLine(module, name, part) for part in parts)


def formulas() -> tuple[Formula, ...]:
    """F01 to F30, the tasks T01, T02, T03 and T11, and A1 to A15.

    >>> formulas()[0].title.text("en")
    'Hard and soft arg max with an inverse temperature'
    """
    return tuple(
        Formula(
            id=key,
            title=Localized(entry["title"], entry["title_ja"]),
            latex=tuple(entry["latex"]),
            sources=tuple(entry.get("sources", ["A"])),
            code=tuple(line for lines in entry["code"] for line in _code_lines(*lines)),
            about_ja=entry.get("about_ja", ""),
        )
        for key, entry in (_table("formulas.toml") | _table("algorithms.toml")).items()
    )


def glossary() -> tuple[Term, ...]:
    """The table of conventions, one term after another.

    >>> glossary()[0].name.text("ja")
    '並べ方'
    """
    return tuple(
        Term(
            Localized(term["en"], term["ja"]),
            Localized(term["variants_en"], term["variants_ja"]),
            Localized(term["here"], term.get("here_ja", term["here"])),
        )
        for term in _table("glossary.toml")["term"]
    )


def checked_by() -> dict[str, list[str]]:
    """Every id, and the tests that check it: a file, or one function in it.

    >>> checked_by()["F27"]
    ['tests/course/test_formulas_learning.py::test_f27_noam']
    """
    return _table("index.toml")
