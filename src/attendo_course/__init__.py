"""The theory as code: algorithms, claims, errata and figures of the sources, computed with the modules of attendo.

Names are imported when they are first used. Importing this package therefore does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo_course.grader.checker import check as check

_HOMES = {"check": "attendo_course.grader.checker"}

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    """Import the public object of this name from its module, and return it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'attendo_course' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next look-up no longer comes here
    return value


def __dir__() -> list[str]:
    """Return all public names for tab completion, including names that are not imported yet."""
    return sorted({*globals(), *__all__})
