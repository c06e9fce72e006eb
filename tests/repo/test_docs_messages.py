"""The troubleshooting page: each message that it quotes is in the source, in one piece."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from source_trees import files_of, nodes

from attendo.cli.reporting import with_flags

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    language: (ROOT / "docs" / language / "troubleshooting.md").read_text(encoding="utf-8") for language in ("en", "ja")
}


def quoted(page):
    """The messages in the first column of the page's tables."""
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    return [message for cell in cells for message in re.findall(r"`(.+?)`", cell)]


def text_of(node):
    """A text of the source as the page writes it: … for what is put in; None for what is no text."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr():
            return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


@cache
def source():
    """Every text of the source but its docstrings, a line each, with the options as the command line prints them."""
    every = [node for file in files_of("attendo") for node in nodes(file)]
    docstrings = {id(node.value) for node in every if isinstance(node, ast.Expr)}
    found = {text_of(node) for node in every if id(node) not in docstrings}
    return "\n".join(with_flags(text.replace("\n", " ")) for text in found if text is not None)


@pytest.mark.parametrize("message", quoted(PAGES["en"]))
def test_a_message_stands_in_the_source(message):
    fixed = message.removeprefix("… ").removeprefix("…: ").removesuffix(": …").removesuffix(" …")
    assert len(fixed) >= 10, "so short that it would be found anywhere"
    assert fixed in source()


def test_there_are_enough_and_both_languages_have_the_same():
    english, japanese = map(quoted, PAGES.values())
    assert english == japanese
    assert len(set(english)) == len(english) >= 38
