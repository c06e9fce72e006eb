"""What a head, a layer or a feed-forward net is worth: the change in log-probability when it is switched off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attendo.decoding.candidates import log_probs_of
from attendo.errors import AttendoError
from attendo.inference import Classifier
from attendo.inspecting.edits import Off, OffByRow
from attendo.inspecting.recording import recording
from attendo.microscope.seen import Seen
from attendo.models import EncoderDecoder
from attendo.nn.attention import Attention
from attendo.nn.feedforward import FeedForward

MOST_POSITIONS = 4096
"""Positions that go through the model at a time, over all rows: with 512 of them, 8 heads."""


def effects_answer(seen: Seen, path: str) -> dict[str, Any]:
    """What becomes of the same answer when each head of a layer is switched off alone, and when all of the layer is.

    delta: the sum of `deltas`, the change in log-probability (nats) of each token of the answer, teacher-forced; of a
    classifier, that of the label it gave. All beside the model with the edits, which stay. A feed-forward net has no
    heads: `layer` alone. Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 3.2.

    Raises AttendoError for a path that is neither.
    """
    module = dict(seen.model.named_modules()).get(path)
    if not isinstance(module, Attention | FeedForward):
        raise AttendoError(f"{path} is no attention layer or feed-forward net of this model")
    before = _told(seen, seen.logits[None])
    layer = _changes(seen, Off(path), 1, before)
    answer: dict[str, Any] = {"path": path, "layer": {"delta": float(layer.sum())}}
    if isinstance(module, FeedForward):
        return answer
    chunks = _sweep(module.n_heads, sum(tensor.shape[1] for tensor in seen.inputs.values()))
    heads = [row for off in chunks for row in _changes(seen, OffByRow(path, off), len(off), before)]
    answer["heads"] = [
        {"head": head, "delta": float(deltas.sum()), "deltas": deltas.tolist()}
        for head, deltas in enumerate(heads)
    ]
    if isinstance(seen.user, Classifier):
        for head in answer["heads"]:
            head["label_probability"] = float((before[0, 0] + head["delta"]).exp())
    return answer


def _sweep(n_heads: int, n_positions: int) -> Iterator[Bool[Tensor, "rows heads"]]:
    """Each head off in a row of its own, in chunks of rows that bound the memory.

    >>> [off.int().tolist() for off in _sweep(3, MOST_POSITIONS // 2)]
    [[[1, 0, 0], [0, 1, 0]], [[0, 0, 1]]]
    """
    yield from torch.eye(n_heads, dtype=torch.bool).split(max(1, MOST_POSITIONS // max(1, n_positions)))


def _changes(
    seen: Seen, edit: Off | OffByRow, n_rows: int, before: Float[Tensor, "1 tokens"]
) -> Float[Tensor, "rows tokens"]:
    """How the log-probabilities change with an edit more, in so many rows of the same inputs."""
    inputs = {name: tensor.expand(n_rows, *tensor.shape[1:]) for name, tensor in seen.inputs.items()}
    edits = (*seen.edits, edit)
    with torch.inference_mode(), recording(seen.model, keep=(), edits=edits) as record:
        with _known_before(record.model, seen, edit.path, n_rows):
            hidden = record.model.hidden(**inputs)
        # the logits of one row at a time: those of all would be the largest tensor by far
        rows = [_told(seen, record.model.output(row[None])) for row in hidden]
    return torch.cat(rows) - before


class _Known(nn.Module):
    """Stands on a view in place of a module whose output is recorded already."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, *given: object) -> Tensor:
        """What was recorded, whatever is given."""
        return self.output


@contextmanager
def _known_before(view: nn.Module, seen: Seen, path: str, n_rows: int) -> Iterator[None]:
    """Within it, nothing before the block of a path is computed: a change there changes only what follows."""
    stack, _, number = path.split(".")[:3]
    known = {f"{stack}.blocks.{n}": f"{stack}.blocks.{int(number) - 1}" for n in range(int(number))}
    if stack == "decoder" and isinstance(view, EncoderDecoder):
        known["encoder"] = "encoder"
    own = {place: view.get_submodule(place) for place in known}
    try:
        for place, last in known.items():
            view.set_submodule(place, _Known(seen.record[last].output.expand(n_rows, -1, -1)))
        yield
    finally:
        for place, module in own.items():
            view.set_submodule(place, module)


def _told(seen: Seen, logits: Float[Tensor, "1 *positions n"]) -> Float[Tensor, "1 tokens"]:
    """The log-probabilities of what the model answered, in float64; without an answer, those of the prompt."""
    if isinstance(seen.user, Classifier):
        scaled = logits.double() / seen.user.temperature
        return scaled.log_softmax(-1)[:, [int(seen.logits.argmax())]]
    there = [at for at, token in enumerate(seen.wanted) if token is not None]
    there = [at for at in there if at >= seen.prompt_tokens - 1] or there
    wanted = torch.tensor([[seen.wanted[at] for at in there]], device=logits.device)
    return log_probs_of(logits[:, there], wanted).double()
