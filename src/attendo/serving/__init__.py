"""The HTTP server: its APIs, the engine that computes the results, and the web page.

>>> from attendo.serving import ModelRegistry, ServingConfig, State, create_app
>>> app = create_app(State(ModelRegistry([]), ServingConfig(max_requests=8)))
"""

from typing import TYPE_CHECKING

from attendo.lazy_imports import names_from

if TYPE_CHECKING:
    from attendo.serving.app import create_app
    from attendo.serving.monitoring import Log
    from attendo.serving.registry import ModelRegistry
    from attendo.serving.run import serve
    from attendo.serving.state import Keys, ServingConfig, State

__all__ = ["Keys", "Log", "ModelRegistry", "ServingConfig", "State", "create_app", "serve"]

__getattr__ = names_from(
    __name__,
    app=["create_app"],
    monitoring=["Log"],
    registry=["ModelRegistry"],
    run=["serve"],
    state=["Keys", "ServingConfig", "State"],
)
