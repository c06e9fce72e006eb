"""The attention microscope, which shows a model's attention in a terminal, as an image, and as an offline page.

Names are imported on first use. Importing only the types of the protocol does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo.microscope.attention_map import AttentionMap, Steps
    from attendo.microscope.effects import Importance, importance
    from attendo.microscope.protocol import EditRequest, LookRequest
    from attendo.microscope.run_model import LookResult
    from attendo.microscope.server import LookServer
    from attendo.microscope.session import Session
    from attendo.microscope.view import View, look

_HOMES = {
    "AttentionMap": "attention_map",
    "EditRequest": "protocol",
    "Importance": "effects",
    "LookRequest": "protocol",
    "LookResult": "run_model",
    "LookServer": "server",
    "Session": "session",
    "Steps": "attention_map",
    "View": "view",
    "importance": "effects",
    "look": "view",
}

__all__ = [
    "AttentionMap",
    "EditRequest",
    "Importance",
    "LookRequest",
    "LookResult",
    "LookServer",
    "Session",
    "Steps",
    "View",
    "importance",
    "look",
]


def __getattr__(name: str) -> Any:
    """Return the public object of a name. Its module is imported on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'attendo.microscope' has no attribute {name!r}")
    return getattr(import_module(f"attendo.microscope.{_HOMES[name]}"), name)
