"""The attention layers of a look as the page is told of them: shapes, measures, thumbnails, and their numbers."""

from __future__ import annotations

import base64
import math
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attendo.errors import AttendoError
from attendo.inspecting.contributions import value_norms
from attendo.inspecting.edits import Edit, Mean, Off, Temper
from attendo.inspecting.measures import head_measures
from attendo.microscope.as_bytes import float_bytes
from attendo.microscope.seen import Seen
from attendo.microscope.shades import darkest
from attendo.models import Model
from attendo.nn.attention import Attention
from attendo.nn.positions import Alibi, DistanceBias

THUMB = 40
"""The most cells on a side of a thumbnail."""


def attention_layers(model: Model) -> dict[str, Attention]:
    """A model's attention layers by path, in its order."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Attention)}


def attention_paths(model: Model) -> dict[str, list[str]]:
    """The paths of a model's attention layers by stack: encoder, decoder, cross."""
    found: dict[str, list[str]] = {}
    for path in attention_layers(model):
        stack = "cross" if path.endswith("cross_attention") else path.partition(".")[0]
        found.setdefault(stack, []).append(path)
    return found


def effect_paths(model: Model) -> list[str]:
    """What can be switched off: attention layers and feed-forward nets, in the order of the model."""
    ends = ("self_attention", "cross_attention", "feed_forward")
    return [path for path, _ in model.named_modules() if path.endswith(ends)]


def stacks_of(seen: Seen) -> list[dict[str, Any]]:
    """Every attention layer of a look, by stack."""
    return [
        {"name": name, "layers": [layer_of(seen, path) for path in paths]}
        for name, paths in attention_paths(seen.model).items()
    ]


def layer_of(seen: Seen, path: str) -> dict[str, Any]:
    """One attention layer: its shape, how it is edited, and each head's measures and thumbnail."""
    attention = seen.model.get_submodule(path)
    assert isinstance(attention, Attention)
    record = seen.record[path]
    weights = record.weights[0]
    n_heads, q_len, k_len = weights.shape
    queries, keys = seen.sides(path)
    cross = queries != keys
    causal = queries == "target" and not cross
    positions = attention.positions
    slopes = positions.slopes.tolist() if type(positions) is Alibi else None
    return {
        "path": path,
        "heads": n_heads,
        "kv_heads": attention.n_kv_heads,
        "queries": queries,
        "keys": keys,
        "q_len": q_len,
        "k_len": k_len,
        "causal": causal,
        "scale": attention.head_dim**-0.5 if attention.attend.scale is None else attention.attend.scale,
        "slopes": slopes,
        "biases": None if slopes or not isinstance(positions, DistanceBias) else _biases(attention, k_len),
        "head_dim": attention.head_dim,
        "value_dim": attention.value_dim,
        "beta": [_told(beta) for beta in _betas(seen, path, n_heads, attention.attend.inverse_temperature)],
        "off": _off(seen, path, n_heads),
        "measures": head_measures(weights, seen.ids(queries), seen.ids(keys), cross=cross),
        "thumb": thumbnail(weights, causal=causal),
    }


def thumbnail(weights: Float[Tensor, "heads q_len k_len"], *, causal: bool) -> dict[str, Any]:
    """Small pictures of heads: the largest weight of each patch, of which 255 is the head's `darkest` or more."""
    rows, columns = (min(THUMB, n) for n in weights.shape[1:])
    small = F.adaptive_max_pool2d(weights[None].float(), (rows, columns))[0].cpu()
    tops = [darkest(head, causal=causal) for head in weights.float().cpu().numpy()]
    data = (small / torch.tensor(tops)[:, None, None] * 255).round().clamp(max=255).to(torch.uint8).numpy()
    return {
        "rows": rows,
        "columns": columns,
        "darkest": tops,
        "data": base64.b64encode(data.tobytes()).decode(),
    }


@torch.no_grad()
def tensor_answer(seen: Seen, path: str, head: int | None = None) -> bytes:
    """query, key, value and ‖v Wᵒ‖ of each head, as float32 in little-endian order: what the page computes from.

    head: those of one alone, with the key and value that it reads. Raises AttendoError where there is none of that
    number.
    """
    attention = seen.model.get_submodule(path)
    assert isinstance(attention, Attention)
    record = seen.record[path]
    parts = [record.query[0], record.key[0], record.value[0], value_norms(attention, record.value)[0]]
    if head is not None:
        if head >= attention.n_heads:
            raise AttendoError(
                f"{path} has {attention.n_heads} heads, numbered from 0; there is no head {head}"
            )
        shared = head * attention.n_kv_heads // attention.n_heads
        parts = [part[at] for part, at in zip(parts, (head, shared, shared, head), strict=True)]
    return b"".join(map(float_bytes, parts))


def _of(edits: tuple[Edit, ...], path: str) -> list[Edit]:
    return [edit for edit in edits if fnmatchcase(path, edit.path)]


def _betas(seen: Seen, path: str, n_heads: int, own: float) -> list[float]:
    betas = [own] * n_heads
    for edit in _of(seen.edits, path):
        if isinstance(edit, Temper):
            for head in range(n_heads) if edit.heads is None else edit.heads:
                betas[head] = edit.inverse_temperature
    return betas


def _off(seen: Seen, path: str, n_heads: int) -> list[int]:
    off: set[int] = set()
    for edit in _of(seen.edits, path):
        if isinstance(edit, Off | Mean):
            off |= set(range(n_heads) if edit.heads is None else edit.heads)
    return sorted(off)


def _told(beta: float) -> float | str:
    return "inf" if beta == float("inf") else beta


@torch.no_grad()
def _biases(attention: Attention, n: int) -> list[list[float | None]]:
    """What each head adds to a score at each distance key - query, from -(n - 1) to n - 1; None for -inf."""
    device = attention.q_proj.weight.device
    here, distances = (
        torch.zeros(1, 1, dtype=torch.long, device=device),
        torch.arange(1 - n, n, device=device),
    )
    assert isinstance(attention.positions, DistanceBias)
    added = attention.positions(here, distances)[0, :, 0]
    rows = added.expand(attention.n_heads, -1).tolist()
    return [[None if number == -math.inf else number for number in row] for row in rows]
