"""OpenAI's /v1/embeddings: a vector of each text, by any model."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from attendo.serving.asking import check_texts, cost_of_pass, limits_of, off_loop, passed, with_model
from attendo.serving.bodies import (
    UNREAD,
    WHOLE,
    Body,
    Ids,
    Name,
    Rows,
    Texts,
    answered_with,
    body_of,
    documented,
)
from attendo.serving.faults import Refused
from attendo.serving.logs import noted
from attendo.serving.served import Served

router = APIRouter(tags=["OpenAI"])


class EmbeddingsBody(Body):
    """Texts, or the ids of texts. dimensions: the model's own, or left out; user is ignored."""

    input: str | Ids | Texts | Rows
    model: Name | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=2**31), WHOLE] | None = None
    user: str | None = None


class Embedding(BaseModel):
    """A vector, as numbers or as the base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """The vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@router.post(
    "/v1/embeddings",
    responses={200: {"model": EmbeddingsAnswer}} | UNREAD,
    openapi_extra=documented(EmbeddingsBody),
)
async def embeddings(request: Request) -> Response:
    """The mean of the hidden states over each text, the special tokens included (`attendo embed`)."""
    body = await body_of(request, EmbeddingsBody)
    given: Any = body.input
    rows = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    limits = limits_of(request)
    check_texts(limits, rows, "input")

    async def work(served: Served) -> Response:
        embedder = served.embedder
        tokenizer, d_model = embedder.tokenizer, embedder.model.config.d_model
        if body.dimensions not in (None, d_model):
            said = f"dimensions is {body.dimensions}, the model has {d_model}; leave it out"
            raise Refused(400, said, param="dimensions")

        def made() -> tuple[list[str], int]:
            texts = [row if isinstance(row, str) else tokenizer.decode(row) for row in rows]
            return texts, sum(map(len, tokenizer.encode_batch(texts)))

        texts, n_tokens = await off_loop(sum(map(len, rows)), made)
        noted(request).tokens_in += n_tokens

        def run(some: Sequence[str]) -> list[np.ndarray]:
            return list(embedder.embed(some))

        vectors = await passed(request, served, "embed", texts, run, cost_of_pass(texts))
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return answered_with({"object": "list", "data": data, "model": served.name, "usage": usage})

    return await with_model(request, body.model, (), work)


def _encoded(vector: np.ndarray, form: str | None) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
