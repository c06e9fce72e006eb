"""attendo: train, run, look inside and serve your own Transformer.

The public face, and nothing else. The names are looked up when they are first used, so that `import attendo`
costs nothing (torch alone takes seconds to load).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo.errors import AttendoError as AttendoError
    from attendo.inference import Translator as Translator
    from attendo.inference import load as load
    from attendo.microscope.view import look as look
    from attendo.runs import train as train

__version__ = "0.1.0"

_HOMES = {
    "AttendoError": "attendo.errors",
    "Translator": "attendo.inference",
    "load": "attendo.inference",
    "look": "attendo.microscope.view",
    "train": "attendo.runs",
}

__all__ = ["AttendoError", "Translator", "__version__", "load", "look", "train"]


def __getattr__(name: str) -> Any:
    """The public object of this name, imported from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'attendo' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next look-up no longer comes here
    return value


def __dir__() -> list[str]:
    """The names that completion offers, looked up or not."""
    return sorted({*globals(), *__all__})
