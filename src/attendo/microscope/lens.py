"""The logit lens of a look: what the model would say of each position if it ended after each layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.errors import AttendoError
from attendo.inference import Classifier
from attendo.inspecting.lens import lens_cosines, lens_logits, pooled_lens
from attendo.microscope.seen import Seen
from attendo.models import EncoderClassifier, EncoderDecoder


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
