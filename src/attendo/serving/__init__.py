"""The HTTP server: its APIs, the engine that computes the results, and the web page.

>>> from attendo.serving import ModelRegistry, ServingConfig, State, create_app
>>> app = create_app(State(ModelRegistry([]), ServingConfig(max_requests=8)))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo.serving.app import create_app as create_app
    from attendo.serving.monitoring import Log as Log
    from attendo.serving.registry import ModelRegistry as ModelRegistry
    from attendo.serving.run import serve as serve
    from attendo.serving.state import Keys as Keys
    from attendo.serving.state import ServingConfig as ServingConfig
    from attendo.serving.state import State as State

_MODULES = {
    "Keys": "state",
    "Log": "monitoring",
    "ModelRegistry": "registry",
    "ServingConfig": "state",
    "State": "state",
    "create_app": "app",
    "serve": "run",
}

__all__ = ["Keys", "Log", "ModelRegistry", "ServingConfig", "State", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    """Return the public object of a name. Its module is imported on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'attendo.serving' has no attribute {name!r}")
    return getattr(import_module(f"attendo.serving.{_MODULES[name]}"), name)
