"""Routes for given texts: /classify, /tokenize, /detokenize, /score, and OpenAI's /v1/embeddings."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from attendo.inference import Candidate, Classifier, Generator, Translator
from attendo.inference.alignment import token_spans
from attendo.metrics import perplexity
from attendo.serving.dependencies import (
    check_texts,
    cost_of_pass,
    in_thread,
    limits_of,
    run_forward,
    with_model,
)
from attendo.serving.errors import ApiError, Fault, OpenAIFault, documented_errors
from attendo.serving.monitoring import context_of
from attendo.serving.registry import ServedModel
from attendo.serving.schemas import (
    WHOLE,
    Body,
    Ids,
    Name,
    Rows,
    Texts,
    TokenId,
    json_response,
    read_json,
    reads,
)
from attendo.serving.scoring import (
    ScoringChunk,
    TokenScore,
    pair_scores,
    scoring_chunks,
    text_scores,
    token_text,
)

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

    def characters(self) -> int:
        """Return the length of both sides."""
        return len(self.source) + len(self.target)


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
    def every_pair(self) -> list[Pair]:
        """All pairs."""
        return self.pairs or [Pair(source=self.source, target=self.target)]

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


router = APIRouter(tags=["texts"], responses=documented_errors(Fault))
openai_router = APIRouter(tags=["OpenAI"], responses=documented_errors(OpenAIFault))
BACK = {
    "detokenize": {
        "operationId": "detokenize",
        "requestBody": {"ids": "$response.body#/ids", "model": "$response.body#/model"},
    }
}
"""What can be asked with the answer of /tokenize."""


@router.post("/classify", **reads(ClassifyBody, ClassifyAnswer))
async def classify(request: Request) -> Response:
    """The label of each text with calibrated probabilities (`attendo classify`)."""
    body = await read_json(request, ClassifyBody)
    texts = body.every
    check_texts(limits_of(request), texts, "texts")

    async def work(served: ServedModel) -> Response:
        classifier: Classifier = served.user
        cost = cost_of_pass(texts)
        found = await run_forward(request, served, "classify", texts, classifier.classify, cost)
        context_of(request).tokens_in += sum(one.n_tokens for one in found)
        results = [dataclasses.asdict(one) for one in found]
        for one in results:
            del one["text"]
        return json_response({"model": served.name, "results": results})

    return await with_model(request, body.model, ("classification",), work)


@router.post("/tokenize", **reads(TokenizeBody, TokenizeAnswer, timeout=False, links=BACK))
async def tokenize(request: Request) -> Response:
    """The tokens of a text, as a model reads them."""
    body = await read_json(request, TokenizeBody)
    check_texts(limits_of(request), [body.text], "text")

    async def work(served: ServedModel) -> Response:
        tokenizer = served.user.tokenizer

        def made() -> dict[str, Any]:
            ids = tokenizer.encode(body.text)
            spans = None if tokenizer.kind == "uncased" else token_spans(tokenizer, ids, body.text)
            return {"model": served.name, "ids": ids, "pieces": tokenizer.pieces(ids), "spans": spans}

        return json_response(await in_thread(len(body.text), made))

    return await with_model(request, body.model, (), work)


@router.post(
    "/detokenize",
    **reads(DetokenizeBody, DetokenizeAnswer, timeout=False),
    operation_id="detokenize",
)
async def detokenize(request: Request) -> Response:
    """The text that token ids spell; begin, end and padding spell nothing."""
    body = await read_json(request, DetokenizeBody)

    async def work(served: ServedModel) -> Response:
        tokenizer = served.user.tokenizer
        text = await in_thread(len(body.ids), lambda: tokenizer.decode(body.ids))
        return json_response({"model": served.name, "text": text})

    return await with_model(request, body.model, (), work)


@router.post("/score", **reads(ScoreBody, ScoreAnswer))
async def score(request: Request) -> Response:
    """How probable given texts are: translations (`attendo score`), or texts of a language model."""
    body = await read_json(request, ScoreBody)
    limits = limits_of(request)
    if body.of_pairs:
        for side in ("source", "target"):
            check_texts(limits, [getattr(pair, side) for pair in body.every_pair], "pairs")
    else:
        check_texts(limits, body.every_text, "texts")

    async def work(served: ServedModel) -> Response:
        of = _score_pairs if body.of_pairs else _score_texts
        return json_response({"model": served.name, "results": await of(request, served, body)})

    family = "translation" if body.of_pairs else "language-model"
    return await with_model(request, body.model, (family,), work)


async def _score_pairs(request: Request, served: ServedModel, body: ScoreBody) -> list[dict[str, Any]]:
    """Each pair's candidate as `Translator.score` gives it."""
    translator: Translator = served.user
    pairs = body.every_pair
    await in_thread(sum(map(Pair.characters, pairs)), lambda: _check_lengths(translator, pairs))
    penalty = body.length_penalty if "length_penalty" in body.model_fields_set else None

    def run(some: Sequence[Pair]) -> list[Candidate]:
        return translator.score([(pair.source, pair.target) for pair in some], penalty)

    cost = cost_of_pass([pair.source + pair.target for pair in pairs])
    found: Sequence[Candidate] = await run_forward(
        request, served, ("score", penalty), pairs, run, cost, Pair.characters
    )
    context_of(request).tokens_in += sum(len(one.token_log_probs) for one in found)
    places: Sequence[list[TokenScore]] = [[] for _ in found]
    if body.top:
        framed = translator.tokenizer.specials.source
        both = [
            ScoringChunk(framed(translator.tokenizer.encode(pair.source)), one.token_ids)
            for pair, one in zip(pairs, found, strict=True)
        ]
        places = await run_forward(
            request,
            served,
            ("top", body.top),
            both,
            lambda some: pair_scores(translator, some, body.top),
            cost,
            ScoringChunk.characters,
        )
    results = []
    for one, place in zip(found, places, strict=True):
        ids = [*one.token_ids, translator.tokenizer.eos_id]
        tokens = _tokens(translator, ids, one.token_log_probs, place)
        own = {"log_prob": one.log_prob, "n_tokens": len(ids), "tokens": tokens}
        results.append(own | {"score": one.score})
    return results


def _check_lengths(translator: Translator, pairs: Sequence[Pair]) -> None:
    """A text that is scored can't be split: it must be one that the model reads at once."""
    for pair in pairs:
        own = translator.tokenizer
        for tokenizer, text in ((own, pair.source), (own.target, pair.target)):
            n_tokens = len(tokenizer.encode(text))
            if n_tokens > translator.longest:
                raise ApiError(
                    400, f"a text has {n_tokens:,} tokens, the model reads {translator.longest:,}; split it"
                )


async def _score_texts(request: Request, served: ServedModel, body: ScoreBody) -> list[dict[str, Any]]:
    """Each text as `attendo evaluate` reads a document: its context is the model's own, its end is a token."""
    generator: Generator = served.user
    tokenizer, context = generator.tokenizer, generator.model.config.max_len
    texts = body.every_text

    def made() -> list[list[ScoringChunk]]:
        return [
            scoring_chunks(ids, context, tokenizer.specials, ended=True)
            for ids in tokenizer.encode_batch(texts)
        ]

    windows = await in_thread(sum(map(len, texts)), made)
    every = [part for parts in windows for part in parts]

    def run(some: Sequence[ScoringChunk]) -> list[list[TokenScore]]:
        return text_scores(generator, some, body.top)

    cost = sum(len(part.source) for part in every)
    kind = "texts", body.top
    scored = iter(await run_forward(request, served, kind, every, run, cost, ScoringChunk.characters))
    context_of(request).tokens_in += cost
    results = []
    for text, parts in zip(texts, windows, strict=True):
        places = [place for _ in parts for place in next(scored)]
        values = [place.log_prob for place in places]
        log_prob, n_bytes = math.fsum(values), len(text.encode())
        surprise = perplexity(log_prob, len(values))
        own = {"log_prob": log_prob, "n_tokens": len(values)}
        own |= {"perplexity": surprise if math.isfinite(surprise) else None}
        own |= {
            "nats_per_character": -log_prob / len(text) if text else None,
            "bits_per_byte": -log_prob / math.log(2) / n_bytes if text else None,
        }
        ids = [place.token_id for place in places]
        results.append(own | {"tokens": _tokens(generator, ids, values, places)})
    return results


def _tokens(
    user: Translator | Generator,
    ids: Sequence[int],
    values: Sequence[float],
    places: Sequence[TokenScore],
) -> list[dict[str, Any]]:
    def told(token: int, value: float) -> dict[str, Any]:
        return {"id": token, "text": token_text(user.tokenizer, token), "log_prob": value}

    found = [told(token, value) for token, value in zip(ids, values, strict=True)]
    for one, place in zip(found, places, strict=False):  # none where nobody asked for them
        if place.likeliest:
            one["top"] = [told(token, value) for token, value in place.likeliest]
    return found


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


@openai_router.post("/v1/embeddings", **reads(EmbeddingsBody, EmbeddingsAnswer, shape=OpenAIFault))
async def embeddings(request: Request) -> Response:
    """The mean of the hidden states over each text, the special tokens included (`attendo embed`)."""
    body = await read_json(request, EmbeddingsBody)
    given: Any = body.input
    rows = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    limits = limits_of(request)
    check_texts(limits, rows, "input")

    async def work(served: ServedModel) -> Response:
        embedder = served.embedder
        tokenizer, d_model = embedder.tokenizer, embedder.model.config.d_model
        if body.dimensions not in (None, d_model):
            said = f"dimensions is {body.dimensions}, the model has {d_model}; leave it out"
            raise ApiError(400, said, param="dimensions")

        def made() -> tuple[list[str], int]:
            texts = [row if isinstance(row, str) else tokenizer.decode(row) for row in rows]
            return texts, sum(map(len, tokenizer.encode_batch(texts)))

        texts, n_tokens = await in_thread(sum(map(len, rows)), made)
        context_of(request).tokens_in += n_tokens

        def run(some: Sequence[str]) -> list[np.ndarray]:
            return list(embedder.embed(some))

        vectors = await run_forward(request, served, "embed", texts, run, cost_of_pass(texts))
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return json_response({"object": "list", "data": data, "model": served.name, "usage": usage})

    return await with_model(request, body.model, (), work)


def _encoded(vector: np.ndarray, form: str | None) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
