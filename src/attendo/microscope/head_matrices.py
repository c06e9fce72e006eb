"""What each head of a layer writes into the stream: its matrix W^(h), and what it added at each query."""

from __future__ import annotations

from typing import Any

import torch

from attendo.errors import AttendoError
from attendo.inspecting.contributions import contribution_norms, head_ranks, head_singular_values
from attendo.inspecting.recording import recording
from attendo.microscope.seen import Seen
from attendo.nn.attention import Attention


def matrices_answer(seen: Seen, path: str) -> dict[str, Any]:
    """The rank and Frobenius norm of W^(h) = W_hᵒ W_hᵛ, and ‖contribution‖ of each head at each query, with the edits.

    The contributions of all heads, plus the bias, are the layer's output (Vaswani et al. 2017, section 3.2.2; Bishop &
    Bishop 2024, exercise 12.5). Raises AttendoError for a path that is no attention layer.
    """
    layer = dict(seen.model.named_modules()).get(path)
    if not isinstance(layer, Attention):
        raise AttendoError(f"{path} is no attention layer of this model")
    with torch.inference_mode(), recording(seen.model, keep=f"{path}.mixed", edits=seen.edits) as record:
        record.model.hidden(**seen.inputs)
        added = contribution_norms(layer, record[path].mixed)[0]
    return {
        "path": path,
        "rank": head_ranks(layer).tolist(),
        "norms": head_singular_values(layer).norm(dim=-1).tolist(),
        "contribution": added.tolist(),
    }
