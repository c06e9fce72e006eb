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

from attendo.display.i18n import Language, Localized, labelled

SOURCE_PAGES = ("exercises", "bishop", "nyu", "weather", "slides", "papers")
"""The pages that contain claims and errata, one page per source."""
CONDITION = Localized("**Condition:**", "**条件：**")
FALSE = Localized("**False:**", "**偽：**")
WHY = Localized("**Why**", "**導出**")
WRONG = Localized("**Wrong:**", "**誤：**")
RIGHT = Localized("**Right:**", "**正：**")
RELATED = Localized("**See also:**", "**関連：**")
"""The labels at the beginning of a paragraph."""
ANALOGY = Localized(" The code shows it by analogy.", "コードは類例である。")
"""The sentence after the source of an erratum if its code only imitates the original, which cannot be run here."""
_BLOCKS = re.compile(r"^```.*?^```$|^(?=\S).+?$(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)
_QUOTATION = re.compile(r"> ([A-Z]+\d?)(?:, |、)([^`]+?)(?:: ?|：)(`+)(.+?)\3(.*)")


@dataclass(frozen=True)
class Quotation:
    """Words of a source.

    Attributes:
        source: The key of the source in `book/sources.toml`.
        place: The place in the source, for example "line 137".
        words: The words of the source, where " … " replaces omitted words.
        remark: A translation of the words in parentheses, or an empty text.
    """

    source: str
    place: str
    words: str
    remark: str

    def text(self, language: Language) -> str:
        """Return the place, the words in quotation marks, and the remark as one line."""
        start, end = ("「", "」") if language == "ja" else ("“", "”")
        label = Localized(f"{self.source}, {self.place}", f"{self.source}、{self.place}")
        return labelled(label, f"{start}{self.words}{end}{self.remark}", language)


@dataclass(frozen=True)
class Section:
    """A section of a page in one language.

    Attributes:
        page: The file name of the page.
        place: The file and the section id, for error messages.
        title: The heading without the section id.
        blocks: The paragraphs without Markdown escapes, and the fenced code blocks with their fences. The first
            paragraph names the source.
        quotations: The quotations of the source.
        related: The ids of the claims and errata about the same subject.
    """

    page: str
    place: str
    title: str
    blocks: tuple[str, ...]
    quotations: tuple[Quotation, ...] = ()
    related: tuple[str, ...] = ()

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
    text_code_fence = re.split(r"((`+).+?(?<!`)\2(?!`))", paragraph)
    plain, code = text_code_fence[::3], text_code_fence[1::3]
    plain = [re.sub(r"\\([^\w\s]|_|$)", r"\1", part, flags=re.MULTILINE) for part in plain]
    return "".join(part for pair in zip(plain, [*code, ""], strict=True) for part in pair)


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
            found[name] = _section(page, f"{place}, {name}", _unescaped(title), read_blocks(body))
    return found


def _section(page: str, place: str, title: str, blocks: tuple[str, ...]) -> Section:
    """Return a section, with the quotations and the related ids separated from the other blocks."""
    quotations, related, others = [], [], []
    for block in blocks:
        if block.startswith("> "):
            quotations += [_quotation(line, place) for line in block.splitlines()]
        elif block.startswith((RELATED.en, RELATED.ja)):
            related += re.findall(r"\[([CE]\d\d)\]", block)
        else:
            others.append(block)
    return Section(page, place, title, tuple(others), tuple(quotations), tuple(related))


def _quotation(line: str, place: str) -> Quotation:
    found = _QUOTATION.fullmatch(line)
    if found is None:
        raise LookupError(f"{place}: the quotation is not '> SOURCE, line N: `words`': {line}")
    return Quotation(found[1], found[2], found[4].strip(), found[5].rstrip())


@dataclass(frozen=True)
class Source:
    """A text that the book treats: its authors, year, title and link, and the page of the book about it."""

    page: str
    authors: str
    year: int
    title: Localized
    link: str = ""

    def markdown(self, language: Language) -> str:
        """Return the authors, year and title with its link in Markdown."""
        title = self.title.text(language)
        return self.text(language).replace(title, f"[{title}]({self.link})" if self.link else title)

    def text(self, language: Language) -> str:
        """Return the authors, year and title as one line."""
        unknown = "" if self.link else Localized(" (no public link known)", "（公開リンクは不明）").text(language)
        return f"{self.authors} ({self.year}). {self.title.text(language)}{unknown}"


@cache
def sources() -> dict[str, Source]:
    """Return the sources in `book/sources.toml` by key.

    >>> sources()["V"].title.en, sources()["V"].year
    ('Attention Is All You Need', 2017)
    """
    return {
        key: Source(**{**facts, "title": Localized(**facts["title"])})
        for key, facts in table("book/sources.toml").items()
    }


@cache
def topics() -> dict[str, Localized]:
    """Return the names of the topics in `book/topics.toml`.

    >>> topics()["heads"].ja
    'ヘッド'
    """
    return {key: Localized(**facts["name"]) for key, facts in table("book/topics.toml").items()}


@dataclass(frozen=True)
class Entry:
    """What a claim and an erratum have in common.

    Attributes:
        id: The id, for example "C08" or "E42".
        page: The page of the book, which is one of `SOURCE_PAGES`.
        topic: A key of `topics`.
        title: The heading.
        source: The place in the source.
        quotations: The words of the source.
        related: The ids of claims and errata about the same subject.
    """

    id: str
    page: str
    topic: str
    title: Localized
    source: Localized
    quotations: tuple[Localized, ...]
    related: tuple[str, ...]
    cited: tuple[str, ...]


def entry_facts(name: str) -> dict[str, Any]:
    """Return the values of the fields of `Entry` for an id. Raise LookupError if the id has no topic.

    >>> entry_facts("C08")["topic"], entry_facts("C08")["page"]
    ('heads', 'bishop')
    """
    en, ja = (sections(language)[name] for language in ("en", "ja"))
    topic = next((key for key, facts in table("book/topics.toml").items() if name in facts["items"].split()), None)
    if topic is None:
        raise LookupError(f"book/topics.toml: {name} has no topic")
    quotations = zip(en.quotations, ja.quotations, strict=True)
    return {
        "id": name,
        "page": en.page,
        "topic": topic,
        "title": Localized(en.title, ja.title),
        "source": Localized(
            en.blocks[0].removesuffix(ANALOGY.en).removesuffix("."),
            ja.blocks[0].removesuffix(ANALOGY.ja).removesuffix("。"),
        ),
        "quotations": tuple(Localized(one.text("en"), other.text("ja")) for one, other in quotations),
        "related": en.related,
        "cited": tuple(dict.fromkeys(quotation.source for quotation in en.quotations)),
    }


@cache
def table(path: str) -> dict[str, Any]:
    """Return the contents of a TOML file of the course.

    >>> sorted(table("book/topics.toml")["heads"])
    ['items', 'name']
    """
    return tomllib.loads((files("attendo_course") / path).read_text(encoding="utf-8"))


def translated(english: str, /, **values: Any) -> Localized:
    """Return a short text with its Japanese translation from `book/ja/messages.toml`, with each {name} filled in.

    >>> translated("layer").ja, translated("memory {shape}", shape=2).en
    ('層', 'memory 2')
    """
    return _filled(english, table("book/ja/messages.toml")[english], values)


def passage(name: str, /, **values: Any) -> Localized:
    """Return a longer text from `book/en/passages.toml` with its Japanese translation. `name` is "module.function".

    >>> passage("toys.question").en.endswith("?")
    True
    """
    module, _, function = name.partition(".")
    en, ja = (table(f"book/{language}/passages.toml")[module][function] for language in ("en", "ja"))
    return _filled(en, ja, values)


def _filled(en: str, ja: str, values: dict[str, Any]) -> Localized:
    return Localized(en.format(**values), ja.format(**values)) if values else Localized(en, ja)
