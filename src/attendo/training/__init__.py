"""Training: losses, learning rate schedules, the training loop and checkpoints."""

from typing import TYPE_CHECKING

from attendo.lazy_imports import names_from

if TYPE_CHECKING:
    from attendo.training.checkpoints import CheckpointConfig
    from attendo.training.loop import train
    from attendo.training.optimizer import LoraConfig, TrainingConfig
    from attendo.training.run import Evaluation, Report, Run, Task

__all__ = ["CheckpointConfig", "Evaluation", "LoraConfig", "Report", "Run", "Task", "TrainingConfig", "train"]

__getattr__ = names_from(
    __name__,
    checkpoints=["CheckpointConfig"],
    loop=["train"],
    lora=["LoraConfig"],
    optimizer=["TrainingConfig"],
    run=["Evaluation", "Report", "Run", "Task"],
)
