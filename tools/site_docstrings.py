"""Docstrings for mkdocstrings, as griffe reads them: doctests become code blocks."""

from __future__ import annotations

from typing import Any

import griffe


def fenced(text: str) -> str:
    """A docstring with each doctest in a fence; it begins at `>>>` and ends at an empty line.

    >>> print(fenced("Twice.\\n\\n>>> twice(2)\\n4\\n\\nMore."))
    Twice.
    <BLANKLINE>
    ```pycon
    >>> twice(2)
    4
    ```
    <BLANKLINE>
    More.
    """
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if line.startswith(">>>") and not inside:
            lines += [] if not lines or not lines[-1] else [""]
            lines.append("```pycon")
            inside = True
        elif not line and inside:
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join(lines).rstrip()


class Doctests(griffe.Extension):
    """Puts every doctest of the package into a fence."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute that is read."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
