"""The requests of the page and their answers: the types of both, which are also a JSON schema."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from attendo.config import build
from attendo.errors import AttendoError

Search = Literal["greedy", "beam", "forced"]
Side = Literal["source", "target"]
Verdict = Literal["same", "model", "search", "forced"]
From0 = Annotated[int, Field(ge=0)]
From1 = Annotated[int, Field(ge=1)]
MOST_CHARACTERS, MOST_BEAMS, MOST_TOKENS, MOST_EDITS = 100_000, 16, 1024, 1000


@dataclass(frozen=True, kw_only=True)
class EditRequest:
    """One change to a model.

    Attributes:
        path: An attention layer or feed-forward network, or a shell pattern of paths.
        head: The head, from 0; None means all heads.
        kind: "off" switches off. "beta" sets the inverse temperature of the attention.
        how: How to switch off: "zero" adds nothing, "mean" always adds the mean over the positions of the text.
        beta: The inverse temperature; "inf" is hard attention.
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
        """The inverse temperature as a number; `math.inf` is hard attention."""
        return math.inf if self.beta == "inf" else float(self.beta)


@dataclass(frozen=True, kw_only=True)
class LookRequest:
    """A text, how the model generates its output, and the edits of the model.

    Attributes:
        search: "greedy", "beam", or "forced" with the output `target`.
        beam: The beam size (default: from the run).
        prefix_ids: The first tokens of the output.
        max_tokens: The maximum number of tokens of a language model's output.
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
            raise ValueError('search="forced" requires a target, the text to look at')
        if self.beam is not None and not 1 <= self.beam <= MOST_BEAMS:
            raise ValueError(f"beam={self.beam} must be 1 to {MOST_BEAMS}")
        if not 0 <= self.max_tokens <= MOST_TOKENS:
            raise ValueError(f"max_tokens={self.max_tokens} must be 0 to {MOST_TOKENS}")
        if max(len(self.text), len(self.target or "")) > MOST_CHARACTERS:
            raise ValueError(f"a text has more than {MOST_CHARACTERS:,} characters. Use a part of it")
        if len(self.edits) > MOST_EDITS:
            raise ValueError(f"{len(self.edits)} edits are more than {MOST_EDITS}")

    @property
    def key(self) -> str:
        """The key of the result."""
        return hashlib.sha256(canonical(dataclasses.asdict(self)).encode()).hexdigest()[:16]

    @property
    def body(self) -> dict[str, Any]:
        """The request as a JSON body with every field."""
        edits = [dataclasses.asdict(edit) for edit in self.edits]
        return dataclasses.asdict(self) | {"prefix_ids": list(self.prefix_ids), "edits": edits}

    def without_edits(self) -> LookRequest:
        """Return the same request for the unchanged model."""
        return dataclasses.replace(self, edits=())


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A request for the facts about the model."""


@dataclass(frozen=True, kw_only=True)
class KeyRequest:
    """A question about a look, whose answer named the key."""

    key: str


@dataclass(frozen=True, kw_only=True)
class PathRequest(KeyRequest):
    """A request about an attention layer; `effects` also accepts a feed-forward network."""

    path: str


@dataclass(frozen=True, kw_only=True)
class TensorRequest(PathRequest):
    """About all heads of a layer, or one alone."""

    head: From0 | None = None


@dataclass(frozen=True, kw_only=True)
class FilmRequest(PathRequest):
    """About one head over the checkpoints."""

    head: From0


@dataclass(frozen=True, kw_only=True)
class StackRequest(KeyRequest):
    """About a stack: encoder, decoder, or cross."""

    stack: str


@dataclass(frozen=True, kw_only=True)
class NextRequest(KeyRequest):
    """About the n most probable tokens at a position."""

    position: From0
    n: From1


@dataclass(frozen=True, kw_only=True)
class PositionsRequest(KeyRequest):
    """About the positional encoding of a side."""

    side: Side


@dataclass(frozen=True, kw_only=True)
class TreeRequest(KeyRequest):
    """About a search of this width."""

    beam: From1


@dataclass(frozen=True, kw_only=True)
class WhyRequest(KeyRequest):
    """About a text that a search of this width did not find."""

    target: str
    beam: From1


REQUESTS: dict[str, type] = {
    "model": ModelRequest,
    "look": LookRequest,
    "tensor": TensorRequest,
    "matrices": PathRequest,
    "effects": PathRequest,
    "film": FilmRequest,
    "lens": StackRequest,
    "rollout": StackRequest,
    "next": NextRequest,
    "tree": TreeRequest,
    "why": WhyRequest,
    "positions": PositionsRequest,
    "tokens": KeyRequest,
}
"""The body of each question by the question's name."""


def request_of(name: str, body: Mapping[str, Any]) -> Any:
    """A request from its body, strictly. Raises AttendoError naming the question or field and what is right.

    >>> request_of("look", {"text": "rain", "edits": [{"kind": "beta", "path": "*", "beta": "inf"}]}).edits[0].beta
    'inf'
    """
    if name not in REQUESTS:
        raise AttendoError(
            f"unknown question {name!r}: page and program have different versions. Reload the page"
        )
    if name == "look":
        edits = body.get("edits", [])
        if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
            raise AttendoError("edits must be a list of tables; [] is none")
        for edit in edits:
            build(EditRequest, edit, "edit")  # names an unknown key
    return build(REQUESTS[name], body, name, others=name != "look")


class Token(TypedDict):
    """A token: its id, piece and text; `unknown` marks unknown words; `out` is the prediction at its position."""

    id: int
    piece: str
    text: str
    unknown: NotRequired[bool]
    out: NotRequired[LikelyToken | None]


class LikelyToken(Token):
    """A token with its log-probability; rank: among all tokens, from 1."""

    log_prob: float
    rank: NotRequired[int]


class WhyToken(Token):
    """A token of the user's text; best: the model's first choice there."""

    log_prob: float
    rank: int
    best: LikelyToken


class ScoredToken(Token, total=False):
    """A token with its probability or cosine; other numbers depend on the answer."""

    p: Required[float]
    rank: int
    cumulative: float
    p_of_final: float
    rank_of_final: int


class Thumbnail(TypedDict):
    """Small pictures of the heads of a layer, as bytes in base64; see `thumbnail`."""

    rows: int
    columns: int
    darkest: list[float]
    data: str


class Layer(TypedDict):
    """An attention layer of a look; see `layer_of`."""

    path: str
    heads: int
    kv_heads: int
    queries: Side
    keys: Side
    q_len: int
    k_len: int
    causal: bool
    scale: float
    slopes: list[float] | None
    biases: list[list[float | None]] | None
    head_dim: int
    value_dim: int
    beta: list[float | Literal["inf"]]
    off: list[int]
    measures: dict[str, list[float]]
    thumb: Thumbnail


class LayerStack(TypedDict):
    """The layers of a stack."""

    name: str
    layers: list[Layer]


class Label(TypedDict):
    """A label of a classifier."""

    label: str
    probability: float


class Outcome(TypedDict, total=False):
    """The answer of a model: a text with its log-probability, or labels; see `outcome`."""

    text: str
    log_prob: float
    finished: bool
    score: float
    filled: int
    labels: list[Label]


class Baseline(TypedDict):
    """The answer of the model as it is, as an `Outcome`, and what the edits change in it; see `compared`."""

    text: NotRequired[str]
    log_prob: NotRequired[float]
    finished: NotRequired[bool]
    score: NotRequired[float]
    filled: NotRequired[int]
    labels: NotRequired[list[Label]]
    deltas: list[float] | dict[str, float]
    total: float
    tokens: NotRequired[list[Token | None]]


class LookAnswer(TypedDict):
    """The page's data of a result; `key` identifies it in further requests."""

    ask: dict[str, Any]
    key: str
    family: str
    source: list[Token]
    target: list[Token]
    prompt_tokens: int
    stacks: list[LayerStack]
    outcome: Outcome
    baseline: Baseline | None
    note: str
    seconds: float


class ModelStack(TypedDict):
    """The attention layers of a stack, before any look."""

    name: str
    paths: list[str]
    heads: int


class ModelAnswer(TypedDict):
    """The facts about the model for the page."""

    name: str
    own_parts: bool
    family: str
    facts: list[list[str]]
    search: Search
    beam: int
    vocab_size: int
    stacks: list[ModelStack]
    checkpoints: list[int]
    effects: list[str]


class MatricesAnswer(TypedDict):
    """The matrices of each head of a layer; see `matrices_answer`."""

    path: str
    rank: list[int]
    norms: list[float]
    contribution: list[list[float]]


class WithoutHead(TypedDict):
    """The changes without a head; label_probability for a classifier."""

    head: int
    delta: float
    deltas: list[float]
    label_probability: NotRequired[float]


class EffectsAnswer(TypedDict):
    """The changes without each head of a layer, and without the layer; see `effects_answer`."""

    path: str
    layer: dict[Literal["delta"], float]
    heads: NotRequired[list[WithoutHead]]


class Frame(TypedDict):
    """The weights of a head in one checkpoint, as float32 in base64."""

    weights: str
    measures: dict[str, float]
    step: int
    final: bool


class FilmAnswer(TypedDict):
    """A head by checkpoint; see `film_answer`."""

    frames: list[Frame]
    q_len: int
    k_len: int
    note: str


class LensAnswer(TypedDict):
    """The first choices by layer; see `lens_answer`."""

    stack: str
    kind: Literal["vocabulary", "classes", "nearest embedding"]
    layers: list[str]
    positions: int
    tokens: list[list[ScoredToken]]
    pooled: NotRequired[list[dict[str, float]]]


class RolloutAnswer(TypedDict):
    """Attention rollout, as float32 in base64; see `rollout_answer`."""

    q_len: int
    k_len: int
    data: str
    label: str
    source: str


class NextAnswer(TypedDict):
    """The most probable tokens at a position; see `next_answer`."""

    tokens: list[ScoredToken]
    entropy: float
    actual: ScoredToken | None


class TreeNode(TypedDict):
    """A token that a search has weighed; see `tree_answer`."""

    id: str
    parent: str | None
    step: int
    token: Token
    log_prob: float
    sum: float
    score: float | None
    kept: bool
    finished: bool
    best: bool


class TreeAnswer(TypedDict):
    """A search as a tree."""

    nodes: list[TreeNode]
    best_text: str
    best_score: float
    beam: int


class WhyAnswer(TypedDict):
    """A user's text compared with the decoded one; see `why_answer`."""

    text: str
    tokens: list[WhyToken]
    score: float
    best_text: str
    best_score: float
    diverges_at: int | None
    lost_at: int | None
    verdict: Verdict
    sentence_en: str
    sentence_ja: str


class PositionsAnswer(TypedDict):
    """The positional encoding, as float32 in base64; see `positions_answer`."""

    kind: str
    name: str
    n: int
    d: int
    trained: int
    data: str
    dots: str
    note_en: str
    note_ja: str


class TokensAnswer(TypedDict):
    """Each token's part in a label; see `tokens_answer`."""

    label: str
    left_out: list[float] | None
    gradient_times_input: list[float]
    rollout: list[float]
    pooled: list[float]
    note_en: str
    note_ja: str


ANSWERS: dict[str, Any] = {
    "model": ModelAnswer,
    "look": LookAnswer,
    "tensor": bytes,
    "matrices": MatricesAnswer,
    "effects": EffectsAnswer,
    "film": FilmAnswer,
    "lens": LensAnswer,
    "rollout": RolloutAnswer,
    "next": NextAnswer,
    "tree": TreeAnswer,
    "why": WhyAnswer,
    "positions": PositionsAnswer,
    "tokens": TokensAnswer,
}
"""The answer to each question; bytes are float32 numbers in little-endian order (`tensor_answer`)."""


def json_schema() -> dict[str, Any]:
    """Request and answer of each question as JSON schemas."""
    return {
        name: {
            "request": TypeAdapter(REQUESTS[name]).json_schema(),
            "answer": TypeAdapter(answer).json_schema(),
        }
        for name, answer in ANSWERS.items()
    }


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text.

    >>> canonical({"b": 1, "a": "雨"})
    '{"a":"雨","b":1}'
    """
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
