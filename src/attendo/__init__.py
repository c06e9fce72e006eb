"""attendo: train, run, inspect and serve your own Transformer.

The module contains the public names of the library. Each name is imported when it is first used, because importing
torch takes seconds. The packages, such as `attendo.nn`, list their public names in `__all__`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo.decoding.logit_filters import SamplingConfig as SamplingConfig
    from attendo.decoding.options import DecodingConfig as DecodingConfig
    from attendo.errors import AttendoError as AttendoError
    from attendo.inference import Classifier as Classifier
    from attendo.inference import Embedder as Embedder
    from attendo.inference import Generator as Generator
    from attendo.inference import Tagger as Tagger
    from attendo.inference import Translator as Translator
    from attendo.inference import load as load
    from attendo.microscope.view import View as View
    from attendo.microscope.view import look as look
    from attendo.model_config import ModelConfig as ModelConfig
    from attendo.models import build_model as build_model
    from attendo.runs import train as train

__version__ = "0.1.0"

_MODULES = {
    "AttendoError": "attendo.errors",
    "Classifier": "attendo.inference",
    "DecodingConfig": "attendo.decoding.options",
    "Embedder": "attendo.inference",
    "Generator": "attendo.inference",
    "ModelConfig": "attendo.model_config",
    "SamplingConfig": "attendo.decoding.logit_filters",
    "Tagger": "attendo.inference",
    "Translator": "attendo.inference",
    "View": "attendo.microscope.view",
    "build_model": "attendo.models",
    "load": "attendo.inference",
    "look": "attendo.microscope.view",
    "train": "attendo.runs",
}
"""The module that each public name is imported from."""

__all__ = [
    "AttendoError",
    "Classifier",
    "DecodingConfig",
    "Embedder",
    "Generator",
    "ModelConfig",
    "SamplingConfig",
    "Tagger",
    "Translator",
    "View",
    "__version__",
    "build_model",
    "load",
    "look",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import the public object with this name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module 'attendo' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value  # the next access no longer calls this function
    return value


def __dir__() -> list[str]:
    """Return the names that completion offers, including names that have not been imported yet."""
    return sorted({*globals(), *__all__})
