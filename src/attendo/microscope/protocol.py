"""What a person asks of the microscope, as a plain value that can stand in an address or a request."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from attendo.config import build
from attendo.errors import AttendoError

Search = Literal["greedy", "beam", "forced"]
MOST_CHARACTERS, MOST_BEAMS, MOST_TOKENS, MOST_EDITS = 100_000, 16, 1024, 1000


@dataclass(frozen=True, kw_only=True)
class EditRequest:
    """One change to a model. path: of an attention layer or feed-forward net, or a shell pattern; head: from 0, or all.

    kind "off": switched off, how: "zero" (it adds nothing) or "mean" (it always adds its mean over the positions of
    the text that is looked at). kind "beta": attention at this inverse temperature; "inf" is hard.
    """

    kind: Literal["off", "beta"]
    path: str
    head: int | None = None
    how: Literal["zero", "mean"] = "zero"
    beta: float | Literal["inf"] = 1.0

    def __post_init__(self) -> None:
        if self.beta != "inf" and not 0 <= self.beta < math.inf:
            raise ValueError(f'beta={self.beta} must be 0 or more, or "inf"')
        if self.head is not None and self.head < 0:
            raise ValueError(f"head={self.head} must be 0 or more")

    @property
    def inverse_temperature(self) -> float:
        """As a number; `math.inf` is hard attention."""
        return math.inf if self.beta == "inf" else float(self.beta)


@dataclass(frozen=True, kw_only=True)
class LookRequest:
    """A text, how the model is to answer it, and what is changed in the model.

    search: "greedy", "beam", or "forced", where `target` is the answer: a translation, or what follows the prompt.
    beam: of the search, the run's own if None. prefix_ids: the first tokens of the answer, the rest is searched.
    max_tokens: of a language model's answer.
    """

    text: str
    search: Search = "greedy"
    beam: int | None = None
    target: str | None = None
    prefix_ids: tuple[int, ...] = ()
    max_tokens: int = 20
    edits: tuple[EditRequest, ...] = ()

    def __post_init__(self) -> None:
        if self.search == "forced" and self.target is None:
            raise ValueError('search="forced" wants a target: the text to be looked at')
        if self.beam is not None and not 1 <= self.beam <= MOST_BEAMS:
            raise ValueError(f"beam={self.beam} must be 1 to {MOST_BEAMS}")
        if not 0 <= self.max_tokens <= MOST_TOKENS:
            raise ValueError(f"max_tokens={self.max_tokens} must be 0 to {MOST_TOKENS}")
        if max(len(self.text), len(self.target or "")) > MOST_CHARACTERS:
            raise ValueError(f"a text has more than {MOST_CHARACTERS:,} characters; look at a part of it")
        if len(self.edits) > MOST_EDITS:
            raise ValueError(f"{len(self.edits)} edits are more than {MOST_EDITS}")

    @property
    def key(self) -> str:
        """Names the answer."""
        return hashlib.sha256(canonical(dataclasses.asdict(self)).encode()).hexdigest()[:16]

    def without_edits(self) -> LookRequest:
        """The same of the model as it is."""
        return dataclasses.replace(self, edits=())


def look_request(body: Mapping[str, Any]) -> LookRequest:
    """A LookRequest from a request's body, strictly. Raises AttendoError naming the field and what is right.

    >>> request = look_request({"text": "rain", "edits": [{"kind": "beta", "path": "*", "beta": "inf"}]})
    >>> request.edits[0].inverse_temperature
    inf
    """
    edits = body.get("edits", [])
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
        raise AttendoError("edits is not a list of tables; give [] for none")
    for edit in edits:
        build(EditRequest, edit, "edit")  # names an unknown key
    return build(LookRequest, body, "look")


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: the same value gives the same text.

    >>> canonical({"b": 1, "a": "雨"})
    '{"a":"雨","b":1}'
    """
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
