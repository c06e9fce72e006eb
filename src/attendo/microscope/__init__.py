"""The attention microscope, which shows a model's attention in a terminal, as an image, and as an offline page.

Names are imported on first use. Importing only the types of the protocol does not import torch.
"""

from typing import TYPE_CHECKING

from attendo.lazy_imports import names_from

if TYPE_CHECKING:
    from attendo.microscope.attention_map import AttentionMap, Steps
    from attendo.microscope.effects import Importance, importance
    from attendo.microscope.protocol import EditRequest, LookRequest
    from attendo.microscope.run_model import LookResult
    from attendo.microscope.server import LookServer
    from attendo.microscope.session import Session
    from attendo.microscope.view import View, look

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

__getattr__ = names_from(
    __name__,
    attention_map=["AttentionMap", "Steps"],
    effects=["Importance", "importance"],
    protocol=["EditRequest", "LookRequest"],
    run_model=["LookResult"],
    server=["LookServer"],
    session=["Session"],
    view=["View", "look"],
)
