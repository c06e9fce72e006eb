"""Edits in the words of a compiled model, which then searches with them as fast as without."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from attendo.decoding.native.compiled import Change
from attendo.inspecting.edits import Edit, LayerEdits, OffByRow, Replace, Temper, resolve
from attendo.models import Model
from attendo.nn.attention import Attention
from attendo.nn.feedforward import FeedForward


def changes_of(model: Model, edits: Sequence[Edit]) -> dict[str, Change] | None:
    """What the edits change in each layer, by its path. None where a compiled model cannot be told them: attention that
    is hard, weights that are given, and what differs from row to row of a batch."""
    layers = {
        path: module for path, module in model.named_modules() if isinstance(module, Attention | FeedForward)
    }
    places = {path: layer.n_heads if isinstance(layer, Attention) else None for path, layer in layers.items()}
    changes = {
        path: _change(layers[path], own, model.config.d_model) for path, own in resolve(edits, places).items()
    }
    found = {path: change for path, change in changes.items() if change is not None}
    return found if len(found) == len(changes) else None


def _change(layer: Attention | FeedForward, own: LayerEdits, width: int) -> Change | None:
    if any(isinstance(edit, OffByRow | Replace) for edit in own.edits):
        return None
    if own.on_output:
        return Change(output=own.output(torch.zeros(width)))
    assert isinstance(layer, Attention)
    betas = torch.full((layer.n_heads,), layer.attend.inverse_temperature)
    for edit in own.edits:
        if isinstance(edit, Temper):
            betas[slice(None) if edit.heads is None else list(edit.heads)] = edit.inverse_temperature
    if betas.max() == math.inf:
        return None
    # what the edits do to mixed values is a gain and a sum, which those of zeros and of ones tell
    means = own.mixed(torch.zeros(1, layer.n_heads, 1, layer.value_dim))[0, :, 0]
    sums = own.mixed(torch.ones(1, layer.n_heads, 1, layer.value_dim))[0, :, 0]
    return Change(betas, (sums - means)[:, 0], means)
