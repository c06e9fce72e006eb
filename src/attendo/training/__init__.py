"""Training: losses, learning rate schedules, the training loop and checkpoints."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo.training.checkpoints import CheckpointConfig
    from attendo.training.loop import train
    from attendo.training.optimizer import LoraConfig, TrainingConfig
    from attendo.training.run import Evaluation, Report, Run, Task

__all__ = ["CheckpointConfig", "Evaluation", "LoraConfig", "Report", "Run", "Task", "TrainingConfig", "train"]

_MODULES = {
    "CheckpointConfig": "checkpoints",
    "LoraConfig": "lora",
    "TrainingConfig": "optimizer",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    """Import and return the public object with this name."""
    if name not in __all__:
        raise AttributeError(f"module 'attendo.training' has no attribute {name!r}")
    return getattr(import_module(f"attendo.training.{_MODULES.get(name, 'run')}"), name)
