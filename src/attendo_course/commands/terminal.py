"""Functions that the commands of the course share: selecting and listing claims and errata, and the line width."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from attendo.display.i18n import Language, Localized, labelled
from attendo.display.width import beside, filled, flowed

if TYPE_CHECKING:
    from attendo_course.book import Entry

WIDEST = 100
"""The maximum width of a paragraph in columns on a wide terminal."""
EntryT = TypeVar("EntryT", bound="Entry")
FromSource = Annotated[
    Literal["exercises", "bishop", "nyu", "weather", "slides", "papers"] | None,
    typer.Option("--source", help="Only those of one source."),
]
AboutTopic = Annotated[
    Literal["positions", "weights", "attention", "heads", "masks", "models", "code"] | None,
    typer.Option("--topic", help="Only those about one topic."),
]


def pick(
    kind: str, known: Sequence[EntryT], ids: list[str], source: str | None = None, topic: str | None = None
) -> list[EntryT]:
    """Return the claims or errata with these ids, each once, or all, of one source and topic if these are given.

    The ids can have the forms "8" and "08" and, for a claim, "C8" and "c08". Raise AttendoError for an unknown id,
    and if nothing is left.
    """
    from attendo.errors import AttendoError

    by_number = {entry.id[1:].lstrip("0"): entry for entry in known}
    chosen = list(by_number)
    if ids:
        bare = [text.strip().upper().removeprefix(kind[0].upper()).lstrip("0") for text in ids]
        for text, number in zip(ids, bare, strict=True):
            if number not in by_number:
                raise AttendoError(f"unknown {kind} {text} (expected {known[0].id} to {known[-1].id})")
        chosen = list(dict.fromkeys(bare))
    found = [by_number[number] for number in chosen]
    left = [entry for entry in found if source in (None, entry.page) and topic in (None, entry.topic)]
    if not left:
        raise AttendoError(f"no {kind} is from the source {source or 'of any name'} about {topic or 'any topic'}")
    return left


def index_lines(entries: Iterable[EntryT], status: Callable[[EntryT], str], language: Language) -> Iterator[str]:
    """Yield one line per claim or erratum with its id, status and title, below the sources of each page of the book."""
    from attendo_course.book import SOURCE_PAGES

    in_order = sorted(entries, key=lambda entry: SOURCE_PAGES.index(entry.page))
    for _, group in groupby(in_order, lambda entry: entry.page):
        of_page = list(group)
        yield from [*_source_lines(of_page, language), ""]
        for entry in of_page:
            head = f"{filled(entry.id, 5)}{status(entry)}"
            yield from beside(head, entry.title.text(language), terminal_width())
        yield ""


def _source_lines(entries: Sequence[Entry], language: Language) -> list[str]:
    """Return authors, year, title and link of each cited source, or of the main source of the page."""
    from attendo_course.book import sources

    of_page = [key for key, source in sources().items() if source.page == entries[0].page]
    cited = {key for entry in entries for key in entry.cited or of_page[:1]}
    lines: list[str] = []
    for key, source in sources().items():
        if key in cited:
            lines += beside(filled(key, 4), source.text(language), terminal_width())
            lines += [f"    {source.link}"] * bool(source.link)
    return lines


def head_lines(entry: Entry, status: str, language: Language) -> list[str]:
    """Return the title of a claim or erratum, its source with authors and link, and the words of the source."""
    width = terminal_width()
    lines = flowed(f"{entry.id}  {status} — {entry.title.text(language)}", width)
    lines += [*flowed(entry.source.text(language), width), *_source_lines([entry], language)]
    for quotation in entry.quotations:
        lines += ["", *flowed(quotation.text(language), width)]
    return lines


def related_lines(entry: Entry, language: Language) -> list[str]:
    """Return a line with the claims and errata about the same subject, or no line."""
    label = Localized("See also", "関連")
    return [labelled(label, ", ".join(entry.related), language), ""] if entry.related else []


def entry_json(entry: Entry, language: Language) -> dict[str, Any]:
    """Return the JSON values that claims and errata have in common."""
    return {
        "id": entry.id,
        "page": entry.page,
        "topic": entry.topic,
        "title": entry.title.text(language),
        "source": entry.source.text(language),
        "quotations": [quotation.text(language) for quotation in entry.quotations],
        "related": list(entry.related),
    }


def terminal_width() -> int:
    """Return the maximum line width: the width of the terminal up to 100 columns, or 79 columns without a terminal."""
    return max(40, min(shutil.get_terminal_size((79, 24)).columns, WIDEST)) if sys.stdout.isatty() else 79
