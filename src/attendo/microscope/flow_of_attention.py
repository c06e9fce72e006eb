"""Attention rollout of a look: through all layers at once, an approximation."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from attendo.errors import AttendoError
from attendo.inspecting.rollout import cross_rollout, rollout
from attendo.microscope.as_bytes import encoded
from attendo.microscope.seen import Seen

SOURCE = "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers, equation 1"
LABEL = (
    "approximation: heads count alike, the residual stream for half, values and feed-forward nets not at all"
)


def rollout_answer(seen: Seen, stack: str) -> dict[str, Any]:
    """How much of each position, behind the last layer, is said to come from each input token `[q_len, k_len]`.

    "encoder", "decoder": through the self-attention of that stack; rows sum to 1. "cross": from the source's tokens to
    the target's positions, through both stacks; what is left of 1 comes from the target's own tokens. With the edits of
    weights (a head that is switched off still attends). Raises AttendoError for a stack that the model has not.
    """
    layers = weights_of(seen, stack)
    if stack == "cross":
        found, _ = cross_rollout(weights_of(seen, "decoder"), layers, rollout(weights_of(seen, "encoder")))
    else:
        found = rollout(layers)
    q_len, k_len = found.shape
    return {"q_len": q_len, "k_len": k_len, "data": encoded(found), "label": LABEL, "source": SOURCE}


def weights_of(seen: Seen, stack: str) -> list[Float[Tensor, "heads q_len k_len"]]:
    """The weights of each layer of a stack. Raises AttendoError for one that the model has not."""
    ends = {"encoder": "self_attention", "decoder": "self_attention", "cross": "cross_attention"}
    start = "decoder" if stack == "cross" else stack
    paths = [path for path in seen.record if path.startswith(start) and path.endswith(ends.get(stack, "/"))]
    if not paths:
        raise AttendoError(f"stack={stack!r}: this model has no such attention")
    return [seen.record[path].weights[0] for path in paths]
