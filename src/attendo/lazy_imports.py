"""Packages whose public names are imported when they are first used, because importing torch takes seconds."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def names_from(package: str, **modules: Sequence[str]) -> Callable[[str], Any]:
    """Return the function `__getattr__` of a package, from the public names by module.

    A type checker does not evaluate this function. Therefore a package imports the names under TYPE_CHECKING as well.

    >>> names_from("attendo", errors=["AttendoError"])("AttendoError").__module__
    'attendo.errors'
    """
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return import_name
