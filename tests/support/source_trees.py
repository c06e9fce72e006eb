"""The syntax trees of the source files, each parsed and walked once for all tests that look through them."""

import ast
from functools import cache
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"
SOURCES = sorted(SRC.rglob("*.py"))


@cache
def parsed(file):
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes(file):
    """All nodes of a file: most rules look through them."""
    return tuple(ast.walk(parsed(file)))


def files_of(package):
    return [file for file in SOURCES if file.is_relative_to(SRC / package)]
