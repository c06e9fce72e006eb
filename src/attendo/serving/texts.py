"""Routes for given texts: /classify, /tokenize, /detokenize, /score, and OpenAI's /v1/embeddings."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from attendo.inference import Candidate, Classifier, Generator, Translator
from attendo.inference.alignment import token_spans
from attendo.metrics import perplexity
from attendo.serving.dependencies import ApiRequest, ApiRoute, cost_of_pass, in_thread
from attendo.serving.errors import ApiError, Fault, OpenAIFault, documented_errors
from attendo.serving.registry import ServedModel
from attendo.serving.schemas import WHOLE, Body, Ids, Name, Rows, Texts, TokenId, json_response, reads
from attendo.serving.scoring import (
    ScoringChunk,
    TokenScore,
    run_pair_scores,
    run_text_scores,
    scoring_chunks,
    token_text,
)

Span = Annotated[list[int], Field(min_length=2, max_length=2)]


def _one_of(*forms: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON schema of a body that has all fields of one of these forms, and no field of another."""
    names = [name for form in forms for name in form]
    return {
        "oneOf": [
            {"required": [*form], "properties": {name: False for name in names if name not in form}}
            for form in forms
        ]
    }


class ClassifyBody(Body):
    """One text, or a list in texts."""

    model_config = ConfigDict(json_schema_extra=_one_of(("text",), ("texts",)))

    model: Name | None = None
    text: str = ""
    texts: Texts = Field(default_factory=list)

    @model_validator(mode="after")
    def _either(self) -> ClassifyBody:
        if len({"text", "texts"} & self.model_fields_set) != 1:
            raise ValueError("give text, or texts (a list)")
        self.texts = self.texts or [self.text]
        return self


class Label(BaseModel):
    """The predicted label and the probabilities of all labels, most probable first. cut: the text was truncated.

    An empty text has the label null and no probabilities.
    """

    label: str | None
    probability: float | None
    probabilities: dict[str, float]
    n_tokens: int
    cut: bool


class ClassifyAnswer(BaseModel):
    """One result per text, in the same order."""

    model: str
    results: list[Label]


class TokenizeBody(Body):
    """A text to tokenize."""

    text: str
    model: Name | None = None


class TokenizeAnswer(BaseModel):
    """Token ids without begin and end tokens, their pieces, and their spans in the text as (start, end) characters.

    spans is null for an uncased tokenizer, which changes the text.
    """

    model: str
    ids: list[int]
    pieces: list[str]
    spans: list[Span] | None


class DetokenizeBody(Body):
    """Token ids to decode."""

    ids: Annotated[list[TokenId], Field(max_length=100_000)]
    model: Name | None = None


class DetokenizeAnswer(BaseModel):
    """The decoded text."""

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
    """For a translator: source and target, or pairs. For a language model: text, or texts.

    length_penalty: for translation scores (default: that of the run). top: number of alternatives per position.
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
        if "source" in given:
            self.pairs = [Pair(source=self.source, target=self.target)]
        elif "text" in given:
            self.texts = [self.text]
        return self


class ScoredToken(BaseModel):
    """A token, its log-probability in nats, and the most likely tokens at its position. "</s>" ends a text."""

    id: int
    text: str
    log_prob: float
    top: list[dict[str, Any]] | None = None


class Scored(BaseModel):
    """The log-probability of a text in nats, end token included. score: normalized by length, for translators.

    perplexity: exp(-log_prob / n_tokens), for language models; null if it is too large for a float.
    """

    log_prob: float
    n_tokens: int
    tokens: list[ScoredToken]
    score: float | None = None
    perplexity: float | None = None
    nats_per_character: float | None = None
    bits_per_byte: float | None = None


class ScoreAnswer(BaseModel):
    """One result per pair or text, in the same order."""

    model: str
    results: list[Scored]


router = APIRouter(route_class=ApiRoute, tags=["texts"], responses=documented_errors(Fault))
openai_router = APIRouter(route_class=ApiRoute, tags=["OpenAI"], responses=documented_errors(OpenAIFault))
BACK = {
    "detokenize": {
        "operationId": "detokenize",
        "requestBody": {"ids": "$response.body#/ids", "model": "$response.body#/model"},
    }
}
"""What can be asked with the answer of /tokenize."""


@router.post("/classify", **reads(ClassifyBody, ClassifyAnswer))
async def classify(request: ApiRequest) -> Response:
    """Classify texts with calibrated probabilities, as `attendo classify` does."""
    body = await request.read_json(ClassifyBody)
    texts = body.texts
    request.check_texts(texts, "texts")

    async def work(served: ServedModel) -> Response:
        classifier: Classifier = served.user
        cost = cost_of_pass(texts)
        found = await request.run_forward(served, "classify", texts, classifier.classify, cost)
        request.context.tokens_in += sum(one.n_tokens for one in found)
        results = [dataclasses.asdict(one) for one in found]
        for one in results:
            del one["text"]
        return json_response({"model": served.name, "results": results})

    return await request.with_model(body.model, ("classification",), work)


@router.post("/tokenize", **reads(TokenizeBody, TokenizeAnswer, timeout=False, links=BACK))
async def tokenize(request: ApiRequest) -> Response:
    """Split a text into the tokens of a model."""
    body = await request.read_json(TokenizeBody)
    request.check_texts([body.text], "text")

    async def work(served: ServedModel) -> Response:
        tokenizer = served.user.tokenizer

        def made() -> dict[str, Any]:
            ids = tokenizer.encode(body.text)
            spans = None if tokenizer.kind == "uncased" else token_spans(tokenizer, ids, body.text)
            return {"model": served.name, "ids": ids, "pieces": tokenizer.pieces(ids), "spans": spans}

        return json_response(await in_thread(len(body.text), made))

    return await request.with_model(body.model, (), work)


@router.post(
    "/detokenize",
    **reads(DetokenizeBody, DetokenizeAnswer, timeout=False),
    operation_id="detokenize",
)
async def detokenize(request: ApiRequest) -> Response:
    """Decode token ids into text; begin, end and padding tokens are skipped."""
    body = await request.read_json(DetokenizeBody)

    async def work(served: ServedModel) -> Response:
        tokenizer = served.user.tokenizer
        text = await in_thread(len(body.ids), lambda: tokenizer.decode(body.ids))
        return json_response({"model": served.name, "text": text})

    return await request.with_model(body.model, (), work)


@router.post("/score", **reads(ScoreBody, ScoreAnswer))
async def score(request: ApiRequest) -> Response:
    """Return the log-probability of given translations (as `attendo score` does) or of given texts."""
    body = await request.read_json(ScoreBody)
    if body.pairs:
        for side in ("source", "target"):
            request.check_texts([getattr(pair, side) for pair in body.pairs], "pairs")
    else:
        request.check_texts(body.texts, "texts")

    async def work(served: ServedModel) -> Response:
        of = _score_pairs if body.pairs else _score_texts
        return json_response({"model": served.name, "results": await of(request, served, body)})

    family = "translation" if body.pairs else "language-model"
    return await request.with_model(body.model, (family,), work)


async def _score_pairs(request: ApiRequest, served: ServedModel, body: ScoreBody) -> list[dict[str, Any]]:
    """Return each pair's score, as `Translator.score` computes it."""
    translator: Translator = served.user
    pairs = body.pairs
    await in_thread(sum(map(Pair.characters, pairs)), lambda: _check_lengths(translator, pairs))
    penalty = body.length_penalty if "length_penalty" in body.model_fields_set else None

    def run(some: Sequence[Pair]) -> list[Candidate]:
        return translator.score([(pair.source, pair.target) for pair in some], penalty)

    cost = cost_of_pass([pair.source + pair.target for pair in pairs])
    found: Sequence[Candidate] = await request.run_forward(
        served, ("score", penalty), pairs, run, cost, Pair.characters
    )
    request.context.tokens_in += sum(len(one.token_log_probs) for one in found)
    places: Sequence[list[TokenScore]] = [[] for _ in found]
    tokenizer = translator.tokenizer
    if body.top:
        rows = [tokenizer.specials.source(tokenizer.encode(pair.source)) for pair in pairs]
        chunks = [ScoringChunk(row, one.token_ids) for row, one in zip(rows, found, strict=True)]
        places = await run_pair_scores(request, served, chunks, body.top)
    results = []
    for one, place in zip(found, places, strict=True):
        ids = [*one.token_ids, tokenizer.eos_id]
        tokens = _tokens(translator, ids, one.token_log_probs, place)
        results.append({"log_prob": one.log_prob, "n_tokens": len(ids), "tokens": tokens, "score": one.score})
    return results


def _check_lengths(translator: Translator, pairs: Sequence[Pair]) -> None:
    """Raise ApiError, 400, for a text longer than the model reads at once: a scored text can't be split."""
    for pair in pairs:
        own = translator.tokenizer
        for tokenizer, text in ((own, pair.source), (own.target, pair.target)):
            n_tokens = len(tokenizer.encode(text))
            if n_tokens > translator.longest:
                raise ApiError(
                    400, f"a text has {n_tokens:,} tokens (at most {translator.longest:,}); split it"
                )


async def _score_texts(request: ApiRequest, served: ServedModel, body: ScoreBody) -> list[dict[str, Any]]:
    """Return each text's score, with the model's context and the end as a token, as `attendo evaluate`."""
    generator: Generator = served.user
    tokenizer = generator.tokenizer
    context = generator.model.config.max_len
    texts = body.texts

    rows = await in_thread(sum(map(len, texts)), lambda: tokenizer.encode_batch(texts))
    windows = [scoring_chunks(row, context, tokenizer.specials, ended=True) for row in rows]
    scored = await run_text_scores(request, served, windows, body.top)
    request.context.tokens_in += sum(len(part.source) for parts in windows for part in parts)
    results = []
    for text, places in zip(texts, scored, strict=True):
        values = [place.log_prob for place in places]
        log_prob = math.fsum(values)
        surprise = perplexity(log_prob, len(values))
        results.append(
            {
                "log_prob": log_prob,
                "n_tokens": len(values),
                "perplexity": surprise if math.isfinite(surprise) else None,
                "nats_per_character": -log_prob / len(text) if text else None,
                "bits_per_byte": -log_prob / math.log(2) / len(text.encode()) if text else None,
                "tokens": _tokens(generator, [place.token_id for place in places], values, places),
            }
        )
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
    """Texts or token ids to embed. dimensions must be the size of the model, if given; user is ignored."""

    input: str | Ids | Texts | Rows
    model: Name | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=2**31), WHOLE] | None = None
    user: str | None = None


class Embedding(BaseModel):
    """A vector: a list of numbers, or base64 of little-endian float32 values."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """The number of tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """One vector per text, in the same order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@openai_router.post("/v1/embeddings", **reads(EmbeddingsBody, EmbeddingsAnswer, shape=OpenAIFault))
async def embeddings(request: ApiRequest) -> Response:
    """Embed texts: the mean of the hidden states, special tokens included, as `attendo embed` does."""
    body = await request.read_json(EmbeddingsBody)
    given: Any = body.input
    rows = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    request.check_texts(rows, "input")

    async def work(served: ServedModel) -> Response:
        embedder = served.embedder
        tokenizer = embedder.tokenizer
        d_model = embedder.model.config.d_model
        if body.dimensions not in (None, d_model):
            said = f"dimensions={body.dimensions} must be {d_model}, the size of the model; or remove it"
            raise ApiError(400, said, param="dimensions")

        def made() -> tuple[list[str], int]:
            texts = [row if isinstance(row, str) else tokenizer.decode(row) for row in rows]
            return texts, sum(map(len, tokenizer.encode_batch(texts)))

        texts, n_tokens = await in_thread(sum(map(len, rows)), made)
        request.context.tokens_in += n_tokens

        def run(some: Sequence[str]) -> list[np.ndarray]:
            return list(embedder.embed(some))

        vectors = await request.run_forward(served, "embed", texts, run, cost_of_pass(texts))
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return json_response({"object": "list", "data": data, "model": served.name, "usage": usage})

    return await request.with_model(body.model, (), work)


def _encoded(vector: np.ndarray, form: str | None) -> list[float] | str:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
