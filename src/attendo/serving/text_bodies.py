"""What /classify, /tokenize, /detokenize and /score take and give."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from attendo.serving.bodies import WHOLE, Body, Name
from attendo.serving.completion_bodies import Texts, TokenId

Span = Annotated[list[int], Field(min_length=2, max_length=2)]


def _one_of(*forms: tuple[str, ...]) -> dict[str, Any]:
    """For the OpenAPI: all fields of one of these forms are given, and no field of another."""
    names = [name for form in forms for name in form]
    return {
        "oneOf": [
            {"required": [*form], "properties": {name: False for name in names if name not in form}}
            for form in forms
        ]
    }


class ClassifyBody(Body):
    """A text, or several as texts."""

    model_config = ConfigDict(json_schema_extra=_one_of(("text",), ("texts",)))

    model: Name | None = None
    text: str = ""
    texts: Texts = Field(default_factory=list)

    @model_validator(mode="after")
    def _either(self) -> ClassifyBody:
        if len({"text", "texts"} & self.model_fields_set) != 1:
            raise ValueError("give text, or texts, which is a list")
        return self

    @property
    def every(self) -> list[str]:
        """All of them."""
        return self.texts or [self.text]


class Label(BaseModel):
    """A label and all probabilities, the most probable first. cut: the model read only a part of its n_tokens.

    A text without content has no label: null, and no probabilities.
    """

    label: str | None
    probability: float | None
    probabilities: dict[str, float]
    n_tokens: int
    cut: bool


class ClassifyAnswer(BaseModel):
    """One result for each text."""

    model: str
    results: list[Label]


class TokenizeBody(Body):
    """A text."""

    text: str
    model: Name | None = None


class TokenizeAnswer(BaseModel):
    """Token ids without begin and end; pieces: as they read; spans: where each stands, in characters (start, end).

    spans is null where the tokenizer does not keep the text (uncased).
    """

    model: str
    ids: list[int]
    pieces: list[str]
    spans: list[Span] | None


class DetokenizeBody(Body):
    """Token ids."""

    ids: Annotated[list[TokenId], Field(max_length=100_000)]
    model: Name | None = None


class DetokenizeAnswer(BaseModel):
    """What they spell."""

    model: str
    text: str


class Pair(Body):
    """A source and its translation."""

    source: str
    target: str


class ScoreBody(Body):
    """For a translator source and target, or pairs of them; for a language model text, or texts.

    length_penalty: of a translator's score; else the run's own. top: so many of the likeliest tokens of each place.
    """

    model_config = ConfigDict(
        json_schema_extra=_one_of(("source", "target"), ("pairs",), ("text",), ("texts",))
    )

    model: Name | None = None
    source: str = ""
    target: str = ""
    pairs: Annotated[list[Pair], Field(min_length=1, max_length=10_000)] = Field(default_factory=list)
    text: str = ""
    texts: Texts = Field(default_factory=list)
    length_penalty: Annotated[float, Field(ge=-100, le=100)] = 0.0
    top: Annotated[int, Field(ge=0, le=20), WHOLE] = 0

    @model_validator(mode="after")
    def _either(self) -> ScoreBody:
        given = self.model_fields_set & {"source", "target", "pairs", "text", "texts"}
        if given != {"source", "target"} and (len(given) != 1 or given & {"source", "target"}):
            raise ValueError("give source and target, or pairs; or text, or texts")
        return self

    @property
    def of_pairs(self) -> bool:
        """Whether it is a translator's."""
        return bool(self.pairs) or "source" in self.model_fields_set

    @property
    def every_pair(self) -> list[tuple[str, str]]:
        """All of them."""
        return [(pair.source, pair.target) for pair in self.pairs] or [(self.source, self.target)]

    @property
    def every_text(self) -> list[str]:
        """All of them."""
        return self.texts or [self.text]


class ScoredToken(BaseModel):
    """A token, its log-probability in nats, and the likeliest tokens of its place; the end of a text is "</s>"."""

    id: int
    text: str
    log_prob: float
    top: list[dict[str, Any]] | None = None


class Scored(BaseModel):
    """Log-probabilities in nats, the end included. score: a translator's, normalized by length.

    perplexity: a language model's, exp(-log_prob / n_tokens); null where it is too large for a number.
    """

    log_prob: float
    n_tokens: int
    tokens: list[ScoredToken]
    score: float | None = None
    perplexity: float | None = None
    nats_per_character: float | None = None
    bits_per_byte: float | None = None


class ScoreAnswer(BaseModel):
    """One result for each pair or text."""

    model: str
    results: list[Scored]
