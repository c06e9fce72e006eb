"""The routes /classify, /tokenize, /detokenize and /score, and /v1/embeddings of the OpenAI API."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from attendo.inference import Candidate, Generator, Translator
from attendo.inference.alignment import token_spans
from attendo.inference.label_model import LabelModel
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
    """Return the JSON schema of a body that has all fields of one of the forms, and no field of the other forms."""
    names = [name for form in forms for name in form]
    others = [{name: False for name in names if name not in form} for form in forms]
    pairs = zip(forms, others, strict=True)
    return {"oneOf": [{"required": [*form], "properties": refused} for form, refused in pairs]}


class ClassifyBody(Body):
    """The body of a request to classify or tag texts: one text in the field text, or a list in the field texts."""

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
    """The predicted label of a text and the probabilities of all labels, with the most probable label first.

    cut is true if the text was truncated. An empty text has the label null and no probabilities.
    """

    label: str | None
    probability: float | None
    probabilities: dict[str, float]
    n_tokens: int
    cut: bool


class TaggedSpan(BaseModel):
    """A span of a text with its label and its probability. start and end are numbers of characters from 0."""

    start: int
    end: int
    label: str
    text: str
    probability: float


class TaggedText(BaseModel):
    """The spans of a text in their order, and the number of its tokens."""

    spans: list[TaggedSpan]
    n_tokens: int


class LabelsOfText(BaseModel):
    """The labels of a text, most probable first, and the probabilities of all labels, which do not sum to 1."""

    labels: list[str]
    probabilities: dict[str, float]
    n_tokens: int
    cut: bool


class NumberOfText(BaseModel):
    """The number of a text, and the interval from low to high that contains it with probability 0.8."""

    number: float
    low: float
    high: float
    n_tokens: int
    cut: bool


class ClassifyAnswer(BaseModel):
    """The response to a classification request, with one result per text in the same order."""

    model: str
    results: list[Label] | list[TaggedText] | list[LabelsOfText] | list[NumberOfText]


class TokenizeBody(Body):
    """The body of a tokenization request, with the text to tokenize."""

    text: str
    model: Name | None = None


class TokenizeAnswer(BaseModel):
    """The token ids of a text without begin and end tokens, the text of each token, and the span of each token.

    A span consists of the start and the end in the text, in characters. For an uncased tokenizer, which changes the
    text, spans is null.
    """

    model: str
    ids: list[int]
    pieces: list[str]
    spans: list[Span] | None


class DetokenizeBody(Body):
    """The body of a decoding request, with the token ids to decode."""

    ids: Annotated[list[TokenId], Field(max_length=100_000)]
    model: Name | None = None


class DetokenizeAnswer(BaseModel):
    """The decoded text, and the name of the model."""

    model: str
    text: str


class Pair(Body):
    """A source text and its translation."""

    source: str
    target: str

    def characters(self) -> int:
        """Return the number of characters of the source and the target together."""
        return len(self.source) + len(self.target)


class ScoreBody(Body):
    """The body of a scoring request.

    For a translator, the body contains source and target, or pairs. For a language model, the body contains text or
    texts. The field length_penalty applies to translation scores (default: the setting of the run). The field top is
    the number of most likely tokens to return per position.
    """

    model_config = ConfigDict(json_schema_extra=_one_of(("source", "target"), ("pairs",), ("text",), ("texts",)))

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
    """A token, its log-probability in nats, and the most likely tokens at its position. The end token is "</s>"."""

    id: int
    text: str
    log_prob: float
    top: list[dict[str, Any]] | None = None


class Scored(BaseModel):
    """The log-probability of a text in nats, including the end token.

    For a translator, score is the log-probability with length normalization. For a language model, perplexity is
    exp(-log_prob / n_tokens), or null if the value is too large for a float.
    """

    log_prob: float
    n_tokens: int
    tokens: list[ScoredToken]
    score: float | None = None
    perplexity: float | None = None
    nats_per_character: float | None = None
    bits_per_byte: float | None = None


class ScoreAnswer(BaseModel):
    """The response to a scoring request, with one result per pair or text in the same order."""

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
"""The OpenAPI link from a response of /tokenize to a request to /detokenize."""


@router.post("/classify", **reads(ClassifyBody, ClassifyAnswer))
async def classify(request: ApiRequest) -> Response:
    """Classify texts or find their spans, with calibrated probabilities. The results equal those of `attendo classify`.

    The results are a label, several labels, a number or the spans of each text. For pairs of texts, write a tab between
    both texts.
    """
    body = await request.read_json(ClassifyBody)
    texts = body.texts
    request.check_texts(texts, "texts")

    async def work(served: ServedModel) -> Response:
        classifier: LabelModel = served.user
        cost = cost_of_pass(texts)
        found = await request.run_forward(served, "classify", texts, classifier.classify, cost)
        request.context.tokens_in += sum(one.n_tokens for one in found)
        results = [one.as_json() for one in found]
        return json_response({"model": served.name, "results": results})

    families = ("classification", "multi-label", "regression", "tagging")
    return await request.with_model(body.model, families, work)


@router.post("/tokenize", **reads(TokenizeBody, TokenizeAnswer, timeout=False, links=BACK))
async def tokenize(request: ApiRequest) -> Response:
    """Split a text into the tokens of a model's tokenizer."""
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


@router.post("/detokenize", **reads(DetokenizeBody, DetokenizeAnswer, timeout=False), operation_id="detokenize")
async def detokenize(request: ApiRequest) -> Response:
    """Decode token ids into text. Begin, end and padding tokens are skipped."""
    body = await request.read_json(DetokenizeBody)

    async def work(served: ServedModel) -> Response:
        tokenizer = served.user.tokenizer
        text = await in_thread(len(body.ids), lambda: tokenizer.decode(body.ids))
        return json_response({"model": served.name, "text": text})

    return await request.with_model(body.model, (), work)


@router.post("/score", **reads(ScoreBody, ScoreAnswer))
async def score(request: ApiRequest) -> Response:
    """Return the log-probabilities of given translations or texts, and of each token in them."""
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
    """Return the score of each pair, computed by `Translator.score`."""
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
    """Raise ApiError with status 400 if a text exceeds the context length. Scored texts are never split."""
    for pair in pairs:
        own = translator.tokenizer
        for tokenizer, text in ((own, pair.source), (own.target, pair.target)):
            n_tokens = len(tokenizer.encode(text))
            if n_tokens > translator.longest:
                raise ApiError(400, f"a text has {n_tokens:,} tokens (at most {translator.longest:,}); split it")


async def _score_texts(request: ApiRequest, served: ServedModel, body: ScoreBody) -> list[dict[str, Any]]:
    """Return the score of each text, including the end token, with the windows of `attendo evaluate`."""
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
        result = {
            "log_prob": log_prob,
            "n_tokens": len(values),
            "perplexity": surprise if math.isfinite(surprise) else None,
            "nats_per_character": -log_prob / len(text) if text else None,
            "bits_per_byte": -log_prob / math.log(2) / len(text.encode()) if text else None,
            "tokens": _tokens(generator, [place.token_id for place in places], values, places),
        }
        results.append(result)
    return results


def _tokens(
    user: Translator | Generator, ids: Sequence[int], values: Sequence[float], places: Sequence[TokenScore]
) -> list[dict[str, Any]]:
    def as_json(token: int, value: float) -> dict[str, Any]:
        return {"id": token, "text": token_text(user.tokenizer, token), "log_prob": value}

    found = [as_json(token, value) for token, value in zip(ids, values, strict=True)]
    for one, place in zip(found, places, strict=False):  # `places` may be empty
        if place.likeliest:
            one["top"] = [as_json(token, value) for token, value in place.likeliest]
    return found


class EmbeddingsBody(Body):
    """The body of an embedding request, with texts or token ids.

    If dimensions is given, it must be the size of the model's vectors. The field user is ignored.
    """

    input: str | Ids | Texts | Rows
    model: Name | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=2**31), WHOLE] | None = None
    user: str | None = None


class Embedding(BaseModel):
    """The vector of a text, as a list of numbers or as base64 of little-endian float32 values."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """The number of tokens in all texts of an embedding request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """The response to an embedding request, with one vector per text in the same order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@openai_router.post("/v1/embeddings", **reads(EmbeddingsBody, EmbeddingsAnswer, shape=OpenAIFault))
async def embeddings(request: ApiRequest) -> Response:
    """Compute the vector of each text: the mean of the hidden states, including special tokens."""
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
