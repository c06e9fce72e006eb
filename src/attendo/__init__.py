"""attendo: train, run, inspect and serve your own Transformer.

The module contains the public names of the library. Each name is imported when it is first used, because importing
torch takes seconds. The packages, such as `attendo.nn`, list their public names in `__all__`.
"""

from typing import TYPE_CHECKING

from attendo.lazy_imports import names_from

if TYPE_CHECKING:
    from attendo.decoding import DecodingConfig, SamplingConfig
    from attendo.errors import AttendoError
    from attendo.inference import Classifier, Embedder, Generator, Tagger, Translator, load
    from attendo.microscope import View, look
    from attendo.model_config import ModelConfig
    from attendo.models import build_model
    from attendo.runs import train

__version__ = "0.1.0"

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

__getattr__ = names_from(
    __name__,
    decoding=["DecodingConfig", "SamplingConfig"],
    errors=["AttendoError"],
    inference=["Classifier", "Embedder", "Generator", "Tagger", "Translator", "load"],
    microscope=["View", "look"],
    model_config=["ModelConfig"],
    models=["build_model"],
    runs=["train"],
)


def __dir__() -> list[str]:
    """Return the names that completion offers, including names that have not been imported yet."""
    return sorted({*globals(), *__all__})
