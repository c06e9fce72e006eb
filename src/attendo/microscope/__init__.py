"""The attention microscope: a model's attention in a terminal, as a picture, and as a page that works offline.

Names are imported when they are first used: the types of the protocol alone do not load torch.
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
    """The public object of this name, imported from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'attendo.microscope' has no attribute {name!r}")
    return getattr(import_module(f"attendo.microscope.{_HOMES[name]}"), name)
