"""Packages whose public names are imported when they are first used, because importing torch takes seconds."""

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def names_from(package: str) -> Callable[[str], Any]:
    """Return the function `__getattr__` of a package, which imports a name when it is first used.

    The names are those that the file of the package imports under TYPE_CHECKING, where type checkers also find them.

    >>> names_from("attendo")("AttendoError").__module__
    'attendo.errors'
    """

    @cache
    def homes() -> dict[str, str]:
        source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
        blocks = [node.body for node in ast.parse(source).body if isinstance(node, ast.If)]
        imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
        return {name.name: str(node.module) for node in imports for name in node.names}

    def import_name(name: str) -> Any:
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes()[name]), name)

    return import_name
