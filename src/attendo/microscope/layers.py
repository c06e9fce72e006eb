"""The attention layers of a look as the page is told of them: shapes, measures, thumbnails, and their numbers."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attendo.errors import AttendoError
from attendo.inference import Classifier
from attendo.inspecting.contributions import value_norms
from attendo.inspecting.edits import Edit, Mean, Off, Temper
from attendo.inspecting.lens import lens_cosines, lens_logits, pooled_lens
from attendo.inspecting.measures import head_measures
from attendo.microscope.seen import Seen
from attendo.microscope.shades import darkest
from attendo.models import EncoderClassifier, EncoderDecoder, Model
from attendo.nn.attention import Attention
from attendo.nn.positions import Alibi, DistanceBias


def float_bytes(numbers: Float[Tensor, "..."]) -> bytes:
    """A tensor's numbers as bytes.

    >>> import torch
    >>> float_bytes(torch.tensor([1.0, 0.5])).hex(" ", 4)
    '0000803f 0000003f'
    """
    return np.ascontiguousarray(numbers.detach().float().cpu().numpy(), "<f4").tobytes()


def encoded(numbers: Float[Tensor, "..."]) -> str:
    """The same in base64, for JSON.

    >>> import torch
    >>> encoded(torch.tensor([1.0]))
    'AACAPw=='
    """
    return base64.b64encode(float_bytes(numbers)).decode()


@torch.inference_mode()
def lens_answer(seen: Seen, stack: str) -> dict[str, Any]:
    """The first choice of each position by layer, with p, and rank and p of what is the first choice in the end.

    {stack, kind, layers, positions, tokens [layer][position]}; layer 0 is the embedding. kind "vocabulary": tokens that
    may follow (of a masked model: stand there); "classes": labels, and `pooled` [layer] = {label: p} of the whole text;
    "nearest embedding", of a translator's encoder, which predicts nothing: the source token whose embedding points most
    nearly the same way, p being the cosine. Of the last layer it is the model's own answer. nostalgebraist 2020.

    Raises AttendoError for a stack that the model has not.
    """
    states = _states(seen, stack)
    last = _values(seen, states[-1], stack)
    final = last.argmax(-1)
    tokens = [list(_row(seen, _values(seen, layer, stack), final)) for layer in states]
    answer: dict[str, Any] = {
        "stack": stack,
        "kind": _kind(seen, stack),
        "layers": ["embedding", *(f"block {number}" for number in range(1, len(states)))],
        "positions": len(final),
        "tokens": tokens,
    }
    if isinstance(seen.user, Classifier):
        answer["pooled"] = [_pooled(seen.user, layer) for layer in states]
    return answer


def _kind(seen: Seen, stack: str) -> str:
    if seen.family == "classification":
        return "classes"
    return "nearest embedding" if seen.family == "translation" and stack == "encoder" else "vocabulary"


def _states(seen: Seen, stack: str) -> list[Float[Tensor, "len d_model"]]:
    """What left the embedding and each block of a stack, with the edits."""
    model = seen.model
    if stack not in dict(model.named_children()) or stack not in ("encoder", "decoder"):
        there = [name for name, _ in model.named_children() if name in ("encoder", "decoder")]
        raise AttendoError(f"stack={stack!r}: the lens of this model is on {' and '.join(there)}")
    side = ("source_" if stack == "encoder" else "target_") if isinstance(model, EncoderDecoder) else ""
    blocks = [path for path in seen.record if path.startswith(f"{stack}.blocks.") and path.count(".") == 2]
    return [seen.record[path].output[0] for path in (f"{side}embedding", *blocks)]


def _values(seen: Seen, states: Float[Tensor, "len d_model"], stack: str) -> Float[Tensor, "len n"]:
    """Probabilities of the vocabulary or the labels, or cosines."""
    model = seen.model
    if isinstance(model, EncoderDecoder) and stack == "encoder":
        return lens_cosines(model, states).double()
    logits = lens_logits(model, states, "encoder" if stack == "encoder" else "decoder").double()
    if isinstance(seen.user, Classifier):
        logits = logits / seen.user.temperature
    return logits.softmax(-1)


def _row(seen: Seen, values: Float[Tensor, "len n"], final: Tensor) -> Iterator[dict[str, Any]]:
    best, ids = values.max(-1)
    of_final = values.gather(-1, final[:, None])
    ranks = 1 + (values > of_final).sum(-1)
    columns = zip(ids.tolist(), best.tolist(), ranks.tolist(), of_final[:, 0].tolist(), strict=True)
    shown = {token: _shown(seen, token) for token in set(ids.tolist())}
    for token, p, rank, p_of_final in columns:
        yield shown[token] | {"p": p, "rank_of_final": rank, "p_of_final": p_of_final}


def _shown(seen: Seen, token: int) -> dict[str, Any]:
    if not isinstance(seen.user, Classifier):
        return seen.token(token)
    label = seen.user.labels.names[token]
    return {"id": token, "piece": label, "text": label}


def _pooled(user: Classifier, states: Float[Tensor, "len d_model"]) -> dict[str, float]:
    assert isinstance(user.model, EncoderClassifier)
    logits = pooled_lens(user.model, states[None])[0].double() / user.temperature
    return dict(zip(user.labels.names, logits.softmax(-1).tolist(), strict=True))


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
