"""What /v1/completions takes and gives, as OpenAI has it, with fields of ours."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from attendo.serving.bodies import WHOLE, Body, Name

TokenId = Annotated[int, Field(ge=0, lt=2**31), WHOLE]
Ids = Annotated[list[TokenId], Field(min_length=1, max_length=100_000)]
Texts = Annotated[list[str], Field(min_length=1, max_length=10_000)]
Rows = Annotated[list[Ids], Field(min_length=1, max_length=10_000)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class StreamOptions(Body):
    """include_usage: the counts come in a last event."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CompletionBody(Body):
    """What is to be completed. What is left out is the run's own, max_tokens too; n texts have seed, seed + 1, …

    top_k, min_p and repetition_penalty are ours. A penalty on presence or frequency, logit_bias, suffix and a best_of
    that is not n are refused; user is ignored.
    """

    model: Name | None = None
    prompt: str | Ids | Texts | Rows | None = None
    max_tokens: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=5), WHOLE] | None = None
    echo: bool | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**62), WHOLE] | None = None
    best_of: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, float] | None = None
    suffix: str | None = None
    user: str | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None


class LogProbs(BaseModel):
    """Of each token, in nats; null for the first that the model reads. top_logprobs: the likeliest of its place.

    top_logprobs as a whole is null in a stream, or where 0 are asked for.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class Choice(BaseModel):
    """One text."""

    text: str
    index: int
    logprobs: LogProbs | None
    finish_reason: Literal["stop", "length"] | None


class Usage(BaseModel):
    """Tokens: those of each prompt once, and all that were drawn or found, ends included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionAnswer(BaseModel):
    """The texts: n of the first prompt, then n of the next."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class ModelFacts(BaseModel):
    """A model. family, source, target are ours: what it is, and a translator's languages."""

    model_config = ConfigDict(protected_namespaces=())

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    family: str
    source: str | None
    target: str | None


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"]
    data: list[ModelFacts]


def usage_of(n_read: int, n_written: int) -> dict[str, int]:
    """As JSON."""
    return {"prompt_tokens": n_read, "completion_tokens": n_written, "total_tokens": n_read + n_written}


def head_of(model: str) -> dict[str, Any]:
    """What an answer, or each event of a stream, begins with."""
    name = f"cmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": "text_completion", "created": int(time.time()), "model": model}


def choice(
    index: int, text: str, reason: str | None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One text, or a piece of one, as JSON."""
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}
