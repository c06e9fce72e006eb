"""Edits in the words of a compiled model, which then searches with them as fast as without."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from attendo.decoding.native.compiled import Change
from attendo.inspecting.edits import Edit, LayerEdits, OffByRow, Replace, Temper, resolve
from attendo.models import Model
from attendo.nn.attention import Attention
from attendo.nn.feedforward import FeedForward


def changes_of(model: Model, edits: Sequence[Edit]) -> dict[str, Change] | None:
    """What the edits change in each layer, by its path. None where a compiled model cannot be told them: attention that
    is hard, weights that are given, and what differs from row to row of a batch."""
    layers: dict[nn.Module, list[str]] = {}  # one that stands at several places is edited at all of them
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Attention | FeedForward):
            layers.setdefault(module, []).append(path)
    heads = {
        paths[0]: layer.n_heads if isinstance(layer, Attention) else None for layer, paths in layers.items()
    }
    own, found = resolve(edits, heads), dict[str, Change]()
    for layer, paths in layers.items():
        if paths[0] in own:
            change = _change(layer, own[paths[0]], model.config.d_model)
            if change is None:
                return None
            found |= dict.fromkeys(paths, change)
    return found


def _change(layer: nn.Module, own: LayerEdits, width: int) -> Change | None:
    if any(isinstance(edit, OffByRow | Replace) for edit in own.edits):
        return None
    if own.on_output:
        return Change(output=own.output(torch.zeros(width)))
    assert isinstance(layer, Attention)
    betas = torch.full((layer.n_heads,), layer.attend.inverse_temperature, dtype=torch.double)
    for edit in own.edits:
        if isinstance(edit, Temper):
            betas[slice(None) if edit.heads is None else list(edit.heads)] = edit.inverse_temperature
    if betas.max() > torch.finfo(torch.float).max:
        return None
    # what the edits do to mixed values is a gain and a sum, which those of zeros and of ones tell
    means = own.mixed(torch.zeros(1, layer.n_heads, 1, layer.value_dim))[0, :, 0]
    sums = own.mixed(torch.ones(1, layer.n_heads, 1, layer.value_dim))[0, :, 0]
    return Change(betas, (sums - means)[:, 0], means)
