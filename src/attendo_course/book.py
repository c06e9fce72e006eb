"""The book in `book/en` and `book/ja`: Markdown pages whose sections the commands and the site use.

The heading of a section begins with its id, for example C08 for a claim and E42 for an erratum.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from attendo.display.i18n import Language, Localized

SOURCE_PAGES = ("exercises", "bishop", "nyu", "weather", "slides", "papers")
"""The pages that contain claims and errata, one page per source."""
CONDITION = Localized("**Condition:**", "**条件：**")
WHY = Localized("**Why**", "**導出**")
WRONG = Localized("**Wrong:**", "**誤：**")
RIGHT = Localized("**Right:**", "**正：**")
"""The labels at the beginning of a paragraph."""
_BLOCKS = re.compile(r"^```.*?^```$|^(?=\S).+?$(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Section:
    """A section of a page in one language.

    Attributes:
        page: The file name of the page.
        place: The file and the section id, for error messages.
        title: The heading without the section id.
        blocks: The paragraphs without Markdown escapes, and the fenced code blocks with their fences.
    """

    page: str
    place: str
    title: str
    blocks: tuple[str, ...]

    def find(self, label: str) -> int | None:
        """Return the index of the block that begins with a label, or None if there is no such block."""
        return next((i for i, block in enumerate(self.blocks) if block.startswith(label)), None)

    def index(self, label: str) -> int:
        """Return the index of the block that begins with a label. Raise LookupError if there is no such block."""
        found = self.find(label)
        if found is None:
            raise LookupError(f"{self.place} has no paragraph {label}")
        return found

    def labeled(self, label: str) -> str:
        """Return the text after a label. Raise LookupError if no paragraph begins with the label."""
        return self.blocks[self.index(label)].removeprefix(label).strip()


def read_blocks(text: str) -> tuple[str, ...]:
    r"""Return the paragraphs and fenced code blocks of a text in order.

    Backslashes at line breaks are removed, and so are Markdown escapes outside code.

    >>> read_blocks("a\\_b\\\nof `c\\_d`\n\n```text\nx\n\ny\n```\n")
    ('a_b\nof `c\\_d`', '```text\nx\n\ny\n```')
    """
    return tuple(block if block.startswith("```") else _unescaped(block) for block in _BLOCKS.findall(text))


def _unescaped(paragraph: str) -> str:
    parts = re.split(r"(`[^`]*`)", paragraph)
    parts[::2] = [re.sub(r"\\([^\w\s]|_|$)", r"\1", part, flags=re.MULTILINE) for part in parts[::2]]
    return "".join(parts)


@cache
def sections(language: Language) -> dict[str, Section]:
    """Return the claims and errata of all sources in one language by id. Raise LookupError if an id occurs twice.

    >>> sections("en")["E01"].title
    'The index of the sine lost its i'
    """
    found: dict[str, Section] = {}
    for page in SOURCE_PAGES:
        place = f"book/{language}/{page}.md"
        text = (files("attendo_course") / place).read_text(encoding="utf-8")
        for name, title, body in re.findall(r"^### ([CE]\d\d) (.*)\n((?:(?!##).*\n)*)", text, re.MULTILINE):
            if name in found:
                raise LookupError(f"{place} has {name}, as has {found[name].place}")
            found[name] = Section(page, f"{place}, {name}", _unescaped(title), read_blocks(body))
    return found


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((files("attendo_course") / "book" / name).read_text(encoding="utf-8"))


def translated(english: str, /, **values: Any) -> Localized:
    """Return a short text with its Japanese translation from `book/ja/messages.toml`, with each {name} filled in.

    >>> translated("layer").ja, translated("memory {shape}", shape=2).en
    ('層', 'memory 2')
    """
    return _filled(english, _table("ja/messages.toml")[english], values)


def passage(name: str, /, **values: Any) -> Localized:
    """Return a longer text from `book/en/passages.toml` with its Japanese translation. `name` is "module.function".

    >>> passage("toys.question").en.endswith("?")
    True
    """
    module, _, function = name.partition(".")
    en, ja = (_table(f"{language}/passages.toml")[module][function] for language in ("en", "ja"))
    return _filled(en, ja, values)


def _filled(en: str, ja: str, values: dict[str, Any]) -> Localized:
    return Localized(en.format(**values), ja.format(**values)) if values else Localized(en, ja)
