"""What an erratum is: the wrong form, the right one, and snippets that show both."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any, Literal

from attendo.display.i18n import Localized

Mark = Literal["run", "shown by analogy", "words only"]


@dataclass(frozen=True)
class Snippet:
    """A few lines of Python whose last line is an expression, and what they must give.

    gives: a regular expression that the whole outcome matches: the value as text, or the exception's name
    and message.
    """

    code: str
    gives: str

    def outcome(self) -> str:
        """Runs the lines in a namespace of their own; gives the last line's value or the exception as text.

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
                raise TypeError("the last line is no expression")
            return str(eval(compile(ast.Expression(last.value), "snippet", "eval"), namespace))  # noqa: S307
        except Exception as error:  # noqa: BLE001  (whatever the wrong form raises is what is shown)
            return f"{type(error).__name__}: {error}"

    def matches(self, outcome: str) -> bool:
        """Whether an outcome is the one it must be."""
        return re.fullmatch(self.gives, outcome, re.DOTALL) is not None


@dataclass(frozen=True)
class Erratum:
    """A mistake of a source; `wrong_code` and `right_code` show both forms where they can be run."""

    number: int
    source: str
    title: Localized
    wrong: Localized
    right: Localized
    mark: Mark
    wrong_code: Snippet | None = None
    right_code: Snippet | None = None
