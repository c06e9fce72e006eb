"""The types of the microscope page's answers and main request, from which a JSON schema is generated."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import Field
from typing_extensions import TypedDict

Search = Literal["greedy", "beam", "forced"]
Side = Literal["source", "target"]
Influence = Literal["rollout", "gradients", "patching"]
Verdict = Literal["same", "model", "search", "forced"]
From0 = Annotated[int, Field(ge=0)]
From1 = Annotated[int, Field(ge=1)]
MOST_CHARACTERS, MOST_BEAMS, MOST_TOKENS, MOST_EDITS = 100_000, 16, 1024, 1000


@dataclass(frozen=True, kw_only=True)
class EditRequest:
    """A request to change one part of a model.

    Attributes:
        path: The path of an attention layer or feed-forward network, or a shell pattern of paths.
        head: The number of the head, from 0, or None for all heads.
        kind: The kind of change. "off" switches a part off. "beta" sets the inverse temperature of attention.
        how: The replacement of a part that is off: "zero" adds 0, and "mean" adds the mean over the positions of the
            text.
        beta: The inverse temperature. "inf" means hard attention.
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
        """The inverse temperature as a number. `math.inf` means hard attention."""
        return math.inf if self.beta == "inf" else float(self.beta)


@dataclass(frozen=True, kw_only=True)
class LookRequest:
    """A request to run a model on a text, with search settings and edits of the model.

    Attributes:
        text: The input text.
        search: The search method: "greedy", "beam", or "forced" with the output `target`.
        beam: The beam size (default: as in the run).
        target: The output text for the search method "forced".
        prefix_ids: The token ids with which the output must begin.
        max_tokens: The maximum number of tokens that a language model generates.
        edits: The changes to the model.
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
        """The key that identifies the result in further requests."""
        return hashlib.sha256(canonical(dataclasses.asdict(self)).encode()).hexdigest()[:16]

    @property
    def body(self) -> dict[str, Any]:
        """The request as a JSON object, including the fields with default values."""
        edits = [dataclasses.asdict(edit) for edit in self.edits]
        return dataclasses.asdict(self) | {"prefix_ids": list(self.prefix_ids), "edits": edits}

    def without_edits(self) -> LookRequest:
        """Return the request for the same text and the unchanged model."""
        return dataclasses.replace(self, edits=())


class Token(TypedDict):
    """A token with its id, piece and text. `unknown` is true for unknown words. `out` is the position's prediction."""

    id: int
    piece: str
    text: str
    unknown: NotRequired[bool]
    out: NotRequired[LikelyToken | None]


class LikelyToken(Token):
    """A token with its log-probability in nats. `rank` is the rank among all tokens, from 1."""

    log_prob: float
    rank: NotRequired[int]


class WhyToken(Token):
    """A token of the user's text, with its log-probability and rank. `best` is the most probable token."""

    log_prob: float
    rank: int
    best: LikelyToken


class ScoredToken(Token, total=False):
    """A token with its probability or cosine in `p`. The other numbers depend on the type of answer."""

    p: Required[float]
    rank: int
    cumulative: float
    p_of_final: float
    rank_of_final: int


class Thumbnail(TypedDict):
    """Small images of all heads of a layer, as bytes in base64 (see `thumbnail`)."""

    rows: int
    columns: int
    darkest: list[float]
    data: str


class Sink(TypedDict):
    """The key that receives the largest mean weight of a head over the queries, and this mean weight."""

    key: int
    share: float


class Layer(TypedDict):
    """The data of an attention layer in a result (see `layer_of`). `sinks` has one entry per head."""

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
    sinks: list[Sink]
    thumb: Thumbnail


class LayerStack(TypedDict):
    """The data of all attention layers of a stack."""

    name: str
    layers: list[Layer]


class Label(TypedDict):
    """A label of a classifier with its probability."""

    label: str
    probability: float


class Ngram(TypedDict):
    """An n-gram of a text, and its contribution to the score of a label in nats."""

    ngram: str
    delta: float


class Outcome(TypedDict, total=False):
    """The output of a model: a text with its log-probability, or labels (see `outcome`)."""

    text: str
    log_prob: float
    finished: bool
    score: float
    filled: int
    labels: list[Label]
    ngrams_share: float
    ngrams: list[Ngram]


class Baseline(Outcome):
    """The output of the unchanged model, and its changes caused by the edits (see `compared`)."""

    deltas: list[float] | dict[str, float]
    total: float
    tokens: NotRequired[list[Token | None]]


class OpenedHead(TypedDict):
    """The head that a page opens first: the path of its layer, and its number."""

    layer: str
    head: int


class LookAnswer(TypedDict):
    """The data that the microscope page shows about a result. `key` identifies the result in further requests.

    If `quick` is true, a page may request the effects of all heads and layers without a click.
    """

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
    note_ja: str
    opens: OpenedHead
    quick: bool
    seconds: float


class ModelStack(TypedDict):
    """The paths of the attention layers of a stack, and the number of heads."""

    name: str
    paths: list[str]
    heads: int


class Probes(TypedDict):
    """The held-out accuracy of linear probes of the embedding and of each block of a stack (see `probes_of`)."""

    stack: Literal["encoder", "decoder"]
    accuracy: list[float]
    control: list[float]
    majority: float
    n_train: int
    n_test: int


class ModelAnswer(TypedDict):
    """The facts about a model that the page shows. `examples` are texts to try."""

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
    examples: list[str]
    probes: Probes | None


class MatricesAnswer(TypedDict):
    """The ranks and norms of the matrices of each head in a layer (see `matrices_answer`)."""

    path: str
    rank: list[int]
    norms: list[float]
    contribution: list[list[float]]


class WithoutHead(TypedDict):
    """The changes of the output without one head. Only a classifier has `label_probability`."""

    head: int
    delta: float
    deltas: list[float]
    label_probability: NotRequired[float]


class EffectsAnswer(TypedDict):
    """The changes of the output without each head of a layer, and without the layer (see `effects_answer`)."""

    path: str
    layer: dict[Literal["delta"], float]
    heads: NotRequired[list[WithoutHead]]


class Frame(TypedDict):
    """The attention weights of a head in one checkpoint, as float32 in base64, and their measures."""

    weights: str
    measures: dict[str, float]
    step: int
    final: bool


class FilmAnswer(TypedDict):
    """The attention of a head in each checkpoint (see `film_answer`)."""

    frames: list[Frame]
    q_len: int
    k_len: int
    note: str


class LensAnswer(TypedDict):
    """The most probable predictions after each layer (see `lens_answer`)."""

    stack: str
    kind: Literal["vocabulary", "classes", "nearest embedding"]
    layers: list[str]
    positions: int
    tokens: list[list[ScoredToken]]
    pooled: NotRequired[list[dict[str, float]]]


class InfluenceAnswer(TypedDict):
    """The influence of tokens or activations, as float32 in base64 (see `influence_answer`)."""

    q_len: int
    k_len: int
    data: str
    source: str


class LogitPart(TypedDict):
    """The direct contribution of an attention head, or of another part of the model, to a logit."""

    path: str
    head: int | None
    value: float


class AttributionAnswer(TypedDict):
    """The direct contributions to the logit of a token, and other probable tokens (see `attribution_answer`)."""

    token: Token
    others: list[Token]
    logit: float
    parts: list[LogitPart]


class NextAnswer(TypedDict):
    """The most probable tokens at a position (see `next_answer`)."""

    tokens: list[ScoredToken]
    entropy: float
    actual: ScoredToken | None


class TreeNode(TypedDict):
    """A candidate token in a search tree (see `tree_answer`)."""

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
    """The tree of all candidates of a beam search, and the best text."""

    nodes: list[TreeNode]
    best_text: str
    best_score: float
    beam: int


class WhyAnswer(TypedDict):
    """The comparison of a user's text with the text that a search found (see `why_answer`)."""

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
    """The positional encoding of the source or target, as float32 in base64 (see `positions_answer`)."""

    kind: str
    name: str
    n: int
    d: int
    trained: int
    data: str
    dots: str
    note: str


class TokensAnswer(TypedDict):
    """The contribution of each token to a label (see `tokens_answer`)."""

    label: str
    left_out: list[float] | None
    integrated_gradients: list[float] | None
    gradient_times_input: list[float]
    rollout: list[float]
    pooled: list[float]


def canonical(value: Any) -> str:
    """Return a value as JSON with sorted keys and without spaces. Equal values have equal JSON texts.

    >>> canonical({"b": 1, "a": "雨"})
    '{"a":"雨","b":1}'
    """
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
