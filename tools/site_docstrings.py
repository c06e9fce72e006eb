"""Docstrings for mkdocstrings in the format that griffe reads: doctests become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe


def escaped(line: str) -> str:
    """Escape a line of prose, so only code in backticks is Markdown. Parameter names in a section do not change.

    >>> escaped("scores[i][j] < `a[i]`")
    'scores\\\\[i]\\\\[j] &lt; `a[i]`'
    >>> escaped("    n_heads: n_heads * 2")
    '    n_heads: n\\\\_heads \\\\* 2'
    """
    name = re.match(r" +\*{0,2}\w+: ", line)
    start = name.end() if name else 0
    pieces = re.split(r"(`+[^`]+`+)", line[start:])
    pieces[::2] = [re.sub(r"([\[*_$])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]]
    return line[:start] + "".join(pieces)


def as_markdown(text: str) -> str:
    """Return a plain-text docstring as Markdown. Each doctest, from `>>>` to an empty line, is in a code fence.

    >>> as_markdown("Twice x[0].\\n\\n>>> twice(x[0])\\n4").splitlines()
    ['Twice x\\\\[0].', '', '```pycon', '>>> twice(x[0])', '4', '```']
    """
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if line.startswith(">>>") and not inside:
            lines += ["```pycon"] if lines and not lines[-1] else ["", "```pycon"]
            inside = True
        elif not line and inside:
            lines.append("```")
            inside = False
        lines.append(line if inside or line == "```" else escaped(line))
    return "\n".join(lines).strip()


class Doctests(griffe.Extension):
    """Extension that puts every doctest of the package into a code fence."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Convert the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
