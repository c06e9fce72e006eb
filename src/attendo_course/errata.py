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
from attendo.errors import install_command
from attendo_course.book import ANALOGY, RIGHT, WRONG, Entry, Section, entry_facts, sections

Mark = Literal["run", "shown by analogy", "words only"]


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
        except ModuleNotFoundError as error:  # only JAX and Equinox are optional
            return f"{error}. Run: {install_command('jax')}"
        except Exception as error:  # noqa: BLE001  (whatever the wrong form raises is what is shown)
            return f"{type(error).__name__}: {error}"

    def matches(self, outcome: str) -> bool:
        """Return whether an outcome is the expected outcome."""
        return re.fullmatch(self.gives, outcome, re.DOTALL) is not None


@dataclass(frozen=True)
class Erratum(Entry):
    """A mistake of a source. `wrong_code` and `right_code` contain both forms if they can be run."""

    wrong: Localized
    right: Localized
    mark: Mark
    wrong_code: Snippet | None = None
    right_code: Snippet | None = None

    @property
    def number(self) -> int:
        """The number of the erratum, for example 42 for the id E42."""
        return int(self.id[1:])


@cache
def all_errata() -> tuple[Erratum, ...]:
    """Return the errata of the book in the order of their numbers.

    >>> len(all_errata()), all_errata()[-1].number
    (47, 50)
    """
    return tuple(_erratum(name) for name in sorted(sections("en")) if name.startswith("E"))


def _erratum(name: str) -> Erratum:
    en, ja = (sections(language)[name] for language in ("en", "ja"))
    wrong_code, right_code = (_snippet(en, label.en) for label in (WRONG, RIGHT))
    if wrong_code is None and right_code is None:
        mark: Mark = "words only"
    else:
        mark = "shown by analogy" if en.blocks[0].endswith(ANALOGY.en) else "run"
    wrong, right = (Localized(en.labeled(label.en), ja.labeled(label.ja)) for label in (WRONG, RIGHT))
    return Erratum(
        **entry_facts(name), wrong=wrong, right=right, mark=mark, wrong_code=wrong_code, right_code=right_code
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
