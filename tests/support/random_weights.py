"""Modules whose every parameter is drawn."""

import torch
from torch import nn


def randomized(module):
    """Every parameter random, dropout off: biases that are zero and norms that are one would hide a wrong place."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.eval()


def randn(*shape, seed=0):
    """Normal numbers in float64, the same in each run."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
