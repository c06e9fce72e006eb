"""How a head came to look as it does: the same text seen by every checkpoint that a run has kept."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from attendo.errors import AttendoError
from attendo.inspecting.measures import head_measures
from attendo.inspecting.recording import recording
from attendo.microscope.as_bytes import encoded
from attendo.microscope.seen import Seen
from attendo.models import Model
from attendo.nn.attention import Attention
from attendo.runs.adapters import kept_weights
from attendo.training.checkpoints import sound_checkpoints
from attendo.training.state import load_weights

MOST_FRAMES = 24
"""Of a long run, so many checkpoints are shown, evenly chosen, the first and the last among them."""
HOW_TO_KEEP_MORE = "--set checkpoint.keep_last=20 --set checkpoint.every_steps=200"


def film_answer(seen: Seen, path: str, head: int) -> dict[str, Any]:
    """A head's weights over the same tokens (teacher-forced) by checkpoint, the trained model last.

    A frame: step, weights `[q_len, k_len]` as base64 float32, the head's measures, and final, True for the trained
    model, which may be an average or the best of all. A damaged checkpoint is passed over and named in `note`, which
    also says how to keep more. The edits hold in every frame. Raises AttendoError for a head that the model has
    not, and for a model that came from no run folder.
    """
    layer = dict(seen.model.named_modules()).get(path)
    if not isinstance(layer, Attention) or not 0 <= head < layer.n_heads:
        raise AttendoError(f"{path} with head {head} is no attention head of this model")
    if seen.folder is None:
        raise AttendoError(
            "the model is in memory alone; a film needs the run folder that keeps its checkpoints"
        )
    newest, notes = sound_checkpoints(seen.folder / "checkpoints", most=1_000_000)
    chosen = _evenly(newest[::-1], MOST_FRAMES - 1)
    if len(chosen) < len(newest):
        notes.append(f"{len(chosen)} of {len(newest)} checkpoints are shown")
    if not newest:
        notes.append(f"this run has kept no checkpoints; train with {HOW_TO_KEEP_MORE} to keep more")
    frames = [
        _frame(seen, path, weights) | {"step": step, "final": final}
        for step, final, weights in _weights(seen, path, head, chosen)
    ]
    q_len, k_len = seen.record[path].weights.shape[2:]
    return {"frames": frames, "q_len": q_len, "k_len": k_len, "note": "; ".join(notes)}


def _evenly(paths: list[Path], most: int) -> list[Path]:
    """At most so many of them, the first and the last among them.

    >>> [path.name for path in _evenly([Path(name) for name in "abcde"], 3)]
    ['a', 'c', 'e']
    """
    if len(paths) <= most:
        return paths
    return [paths[round(i * (len(paths) - 1) / (most - 1))] for i in range(most)]


def _weights(
    seen: Seen, path: str, head: int, checkpoints: list[Path]
) -> Iterator[tuple[int, bool, Float[Tensor, "q_len k_len"]]]:
    assert seen.folder is not None
    model = copy.deepcopy(seen.model) if checkpoints else seen.model
    for folder in checkpoints:
        load_weights(model, kept_weights(seen.folder, folder), str(folder))
        yield int(folder.name.removeprefix("step-")), False, _seen_by(model, seen, path, head)
    yield _trained_steps(seen.folder), True, seen.record[path].weights[0, head]


@torch.inference_mode()
def _seen_by(model: Model, seen: Seen, path: str, head: int) -> Float[Tensor, "q_len k_len"]:
    with recording(model, keep=f"{path}.weights", edits=seen.edits) as record:
        record.model.hidden(**seen.inputs)
    return record[path].weights[0, head]


def _trained_steps(folder: Path) -> int:
    """The step that the trained weights name."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return int((file.metadata() or {}).get("step", 0))


def _frame(seen: Seen, path: str, weights: Float[Tensor, "q_len k_len"]) -> dict[str, Any]:
    queries, keys = seen.sides(path)
    measures = head_measures(weights[None], seen.ids(queries), seen.ids(keys), cross=queries != keys)
    return {"weights": encoded(weights), "measures": {name: values[0] for name, values in measures.items()}}
