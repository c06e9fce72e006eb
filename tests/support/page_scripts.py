"""The JavaScript modules of the pages, read without a browser."""

import re

DECLARED = re.compile(r"^(export )?(?:async )?(?:function|const|let) (?:(\w+)|\[([\w, ]+)\])", re.M)


def declared(text):
    """The names of the top level, and whether each is exported."""
    found = {}
    for export, name, several in DECLARED.findall(text):
        found |= {one.strip(): bool(export) for one in (name or several).split(",")}
    return found


NOT_OF = r"(?<![\w$-])(?<![^.]\.)"
"""Before a name: it is no property of something."""


def code_of(text):
    """Without comments and imports."""
    return re.sub(r"(?m)^import .*$|(?<!:)//.*$", "", text)
