"""The packages of `attendo[interop]`, asked for only where they are needed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from attendo.errors import AttendoError


def required(name: str) -> ModuleType:
    """The module of that name. Raises AttendoError with the remedy where its package is not installed.

    >>> required("json").__name__
    'json'
    >>> required("no_such_package")
    Traceback (most recent call last):
    attendo.errors.AttendoError: no_such_package is not installed; pip install "attendo[interop]"
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0] if error.name is None else error.name.partition(".")[0]
        raise AttendoError(f'{package} is not installed; pip install "attendo[interop]"') from None
