"""The theory as code: the sources' algorithms, claims, errata and figures, on the modules that train and serve.

Names are imported when they are first used, so that commands can refer to them without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo_course.grader.checker import check as check

_HOMES = {"check": "attendo_course.grader.checker"}

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    """The public object of this name, imported from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'attendo_course' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next look-up no longer comes here
    return value


def __dir__() -> list[str]:
    """The names that completion offers, looked up or not."""
    return sorted({*globals(), *__all__})
