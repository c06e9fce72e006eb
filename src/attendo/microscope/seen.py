"""One look: what a model read, what it answered, and what was recorded on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.bundle import TaskName
from attendo.data.masking import MASK
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.candidates import log_probs_of
from attendo.inference import Classifier, Embedder, Generator, Translator
from attendo.inspecting.edits import Edit
from attendo.inspecting.recording import Recording, recording
from attendo.microscope.ask import Ask
from attendo.models import Model

User = Translator | Classifier | Generator | Embedder
Side = Literal["source", "target"]


@dataclass(frozen=True, eq=False)
class Seen:
    """What is known after one look.

    model: as it is, never changed; its views are in evaluation mode. edits: those of the ask, for `recording`. inputs:
    of the model's forward, one row without padding. source: ids that an encoder reads; target: ids that a decoder
    reads, the begin id first, of which the first `prompt_tokens` were given; wanted: what each of those positions
    predicts, None where nothing follows. score: of a search, normalized as it does; finished: whether the answer came
    to its end. record: of the edited model; kept are scores, weights, query, key and value of each attention layer,
    and every output. logits: of its last state. note: a sentence on what was left out, or "".
    """

    user: User
    model: Model
    tokenizer: Tokenizer
    family: TaskName
    ask: Ask
    edits: tuple[Edit, ...]
    inputs: dict[str, Tensor]
    source: tuple[int, ...]
    target: tuple[int, ...]
    wanted: tuple[int | None, ...]
    prompt_tokens: int
    score: float | None
    finished: bool
    record: Recording[Any]
    logits: Float[Tensor, "*positions n"]
    folder: Path | None = None
    note: str = ""

    def token(self, token_id: int) -> dict[str, Any]:
        """A token as the page shows it: its id, its piece, and what it spells alone."""
        piece = self.piece(token_id)
        shown: dict[str, Any] = {
            "id": token_id,
            "piece": piece,
            "text": self.tokenizer.decode([token_id]),
        }
        unknown = token_id == self.tokenizer.unk_id and piece != MASK
        return shown | ({"unknown": True} if unknown else {})

    def piece(self, token_id: int) -> str:
        """A token's piece; to a masked language model an unknown token and a hidden one are the same, MASK."""
        hidden = token_id == self.tokenizer.mask_id and self.family == "masked-language-model"
        return MASK if hidden else self.tokenizer.pieces([token_id])[0]

    def sides(self, path: str) -> tuple[Side, Side]:
        """Whose tokens are the queries of an attention layer, and whose its keys."""
        if not path.startswith("decoder"):
            return "source", "source"
        return "target", "source" if path.endswith("cross_attention") else "target"

    def ids(self, side: Side) -> tuple[int, ...]:
        """The tokens of a side."""
        return self.source if side == "source" else self.target

    @cached_property
    def n_bytes(self) -> int:
        """Of what was recorded."""
        calls = [self.record[path] for path in self.record]
        return sum(getattr(call, part).nbytes for call in calls for part in call.parts)

    def edited(self) -> AbstractContextManager[Any]:
        """A view of the model with the edits."""
        return edited(self.model, self.edits)

    def log_probs(self) -> Float[Tensor, " positions"]:
        """Of what each position predicts, in nats; 0 where nothing follows."""
        return log_probs_of_wanted(self.logits, self.wanted)


@contextmanager
def edited(model: Model, edits: Sequence[Edit]) -> Iterator[Any]:
    """A view of a model with edits, of which nothing is kept, in evaluation mode."""
    with recording(model, keep=(), edits=edits) as record:
        yield record.model.eval()


def log_probs_of_wanted(
    logits: Float[Tensor, "positions vocab"], wanted: Sequence[int | None]
) -> Float[Tensor, " positions"]:
    """The log-probability of each position's token, in nats; 0 where there is none.

    >>> log_probs_of_wanted(torch.zeros(2, 4), (3, None))
    tensor([-1.3863,  0.0000])
    """
    ids = torch.tensor([0 if token is None else token for token in wanted], device=logits.device)
    there = torch.tensor([token is not None for token in wanted], device=logits.device)
    return torch.where(there, log_probs_of(logits, ids), 0.0)
