"""The mistakes of the sources, 1 to 50: wrong form, right form, and a demonstration of both.

Numbers are never given again: 39, 40 and 43 were withdrawn, as their sources are right.
`ERRATA` holds them all, ordered by number; it is gathered when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo_course.errata.erratum import Erratum

    ERRATA: tuple[Erratum, ...]

_MODULES = ("nyu", "nyu_notebook", "slides", "weather", "weather_training", "exercises", "papers")

__all__ = ["ERRATA"]


def __getattr__(name: str) -> Any:
    """`ERRATA`: the errata of every module of this package, in the order of their numbers."""
    if name != "ERRATA":
        raise AttributeError(f"module 'attendo_course.errata' has no attribute {name!r}")
    found = [erratum for module in _MODULES for erratum in import_module(f"{__name__}.{module}").ERRATA]
    gathered = tuple(sorted(found, key=lambda erratum: erratum.number))
    assert len({erratum.number for erratum in gathered}) == len(gathered), "two errata have one number"
    globals()[name] = gathered  # the next look-up no longer comes here
    return gathered
