"""The mistakes of the sources, with numbers from 1 to 50.

Each erratum has a wrong and a right form in words, and most errata also in code that runs.
A number is never used twice. Numbers 39, 40 and 43 were withdrawn because their sources are right.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from attendo.display.i18n import Localized
from attendo_course.book import RIGHT, WRONG, Section, sections

SOURCES = {"exercises": "S0", "nyu": "S1", "bishop": "S2", "weather": "S3", "slides": "S4", "papers": "R"}
"""The letters that identify the source of each page of the book."""
Mark = Literal["run", "shown by analogy", "words only"]
ANALOGY = Localized(" The code shows it by analogy.", "コードは類例である。")
"""The sentence after the source of an erratum if its code only imitates the original, which cannot be run here."""


@dataclass(frozen=True)
class Snippet:
    """A few lines of Python whose last line is an expression, and the expected outcome.

    `gives` is a regular expression for the complete outcome: the value as text, or the name and message of an
    exception.
    """

    code: str
    gives: str

    def outcome(self) -> str:
        """Run the lines in a new namespace, and return the value of the last line or the exception as text.

        >>> Snippet("a = 2\\na + 1", "3").outcome()
        '3'
        >>> Snippet("[1][2]", "IndexError.*").outcome()
        'IndexError: list index out of range'
        """
        namespace: dict[str, Any] = {"__name__": "snippet"}
        try:
            body = ast.parse(self.code).body
            last = body.pop()
            exec(compile(ast.Module(body, []), "snippet", "exec"), namespace)
            if not isinstance(last, ast.Expr):
                raise TypeError("the last line is not an expression")
            return str(eval(compile(ast.Expression(last.value), "snippet", "eval"), namespace))  # noqa: S307
        except Exception as error:  # noqa: BLE001  (whatever the wrong form raises is what is shown)
            return f"{type(error).__name__}: {error}"

    def matches(self, outcome: str) -> bool:
        """Return whether an outcome is the expected outcome."""
        return re.fullmatch(self.gives, outcome, re.DOTALL) is not None


@dataclass(frozen=True)
class Erratum:
    """A mistake of a source. `wrong_code` and `right_code` contain both forms if they can be run.

    `letters` are the letters of the source in `SOURCES`.
    """

    number: int
    letters: str
    source: Localized
    title: Localized
    wrong: Localized
    right: Localized
    mark: Mark
    wrong_code: Snippet | None = None
    right_code: Snippet | None = None


@cache
def all_errata() -> tuple[Erratum, ...]:
    """Return the errata of the book in the order of their numbers.

    >>> len(all_errata()), all_errata()[-1].number
    (47, 50)
    """
    names = sorted(name for name in sections("en") if name.startswith("E"))
    return tuple(_erratum(int(name[1:]), sections("en")[name], sections("ja")[name]) for name in names)


def _erratum(number: int, en: Section, ja: Section) -> Erratum:
    wrong_code, right_code = (_snippet(en, label.en) for label in (WRONG, RIGHT))
    is_analogy = en.blocks[0].endswith(ANALOGY.en)
    if wrong_code is None and right_code is None:
        mark: Mark = "words only"
    else:
        mark = "shown by analogy" if is_analogy else "run"
    return Erratum(
        number,
        SOURCES[en.page],
        Localized(
            en.blocks[0].removesuffix(ANALOGY.en).removesuffix("."),
            ja.blocks[0].removesuffix(ANALOGY.ja).removesuffix("。"),
        ),
        Localized(en.title, ja.title),
        Localized(en.labeled(WRONG.en), ja.labeled(WRONG.ja)),
        Localized(en.labeled(RIGHT.en), ja.labeled(RIGHT.ja)),
        mark,
        wrong_code,
        right_code,
    )


def _snippet(section: Section, label: str) -> Snippet | None:
    """Return the code after a labeled paragraph. Its last line is `# → OUTCOME`, where … matches any text."""
    _, _, block = "".join(section.blocks[section.index(label) + 1 :][:1]).partition("```python\n")
    if not block:
        return None
    code, arrow, outcome = block.removesuffix("\n```").rpartition("\n# → ")
    if not arrow:
        raise LookupError(f"{section.place}: the code after {label} does not end with '# → OUTCOME'")
    pattern = re.sub(r'[.()\[\]{}*+?^$|"\\]', r"\\\g<0>", outcome)
    return Snippet(code, re.sub(r"(?<= )…(?=\w)", r"\\S*", pattern).replace("…", ".*"))
