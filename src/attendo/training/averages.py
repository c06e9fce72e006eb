"""The exponential moving average of a model's weights, which is often better than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """a ← β a + (1 - β) w after each update of the weights w (Polyak & Juditsky 1992, with a window that moves).

    decay: β at most; at update n it is (1 + n) / (10 + n) if that is less, so that the start is soon forgotten.
    Keeps one tensor a parameter that is trained, in its format; parameters that two places share once.
    Raises ValueError for a decay outside 0 < β < 1.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> average = WeightAverage(model, decay=0.5)
    >>> _ = nn.init.ones_(model.weight)
    >>> average.update(model, step=100)
    >>> with average.swapped(model):
    ...     model.weight.item()
    0.5
    >>> model.weight.item()
    1.0
    """

    def __init__(self, model: nn.Module, decay: float):
        if not 0.0 < decay < 1.0:
            raise ValueError(
                f"ema_decay={decay} must lie between 0 and 1; 0.999 is usual, 0 in the config is off"
            )
        self.decay = decay
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Takes in the weights after update number `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        parameters = dict(model.named_parameters())
        for name, tensor in self.tensors.items():
            tensor.lerp_(parameters[name], 1.0 - decay)

    @contextmanager
    def swapped(self, model: nn.Module) -> Iterator[None]:
        """Within it the model has the average as its weights; afterwards its own again, the same bits."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over a saved average. Raises ValueError where a name is missing or too many."""
        if unlike := sorted(self.tensors.keys() ^ tensors.keys()):
            raise ValueError(f"the saved average and the model differ in {unlike[0]}")
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        parameters = dict(model.named_parameters())
        for name, tensor in self.tensors.items():
            own = parameters[name].clone()
            parameters[name].copy_(tensor)
            tensor.copy_(own)
