"""Texts that are handed over from Python, before anything is done with them."""

from collections.abc import Sequence

from attendo.errors import AttendoError


def require_list(texts: Sequence[str]) -> None:
    """Raises AttendoError for one bare text, which would be taken for a text a letter.

    >>> require_list("rain")
    Traceback (most recent call last):
    attendo.errors.AttendoError: 'rain' is one text; give a list of texts, [text]
    """
    if isinstance(texts, str):
        shown = texts if len(texts) <= 30 else f"{texts[:29]}…"
        raise AttendoError(f"{shown!r} is one text; give a list of texts, [text]")
