"""Routes for given texts: /classify, /tokenize, /detokenize, /score."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from attendo.inference import Candidate, Classifier, Generator, Translator
from attendo.inference.alignment import token_spans
from attendo.metrics import perplexity
from attendo.serving.asking import (
    check_texts,
    cost_of_pass,
    limits_of,
    off_loop,
    passed,
    with_model,
)
from attendo.serving.bodies import (
    UNREAD,
    WHOLE,
    Body,
    Name,
    Texts,
    TokenId,
    answered_with,
    body_of,
    documented,
)
from attendo.serving.faults import Refused
from attendo.serving.logs import noted
from attendo.serving.scoring import Stretch, TokenScore, pair_scores, stretches, text_scores, token_text
from attendo.serving.served import Served

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


router = APIRouter(tags=["texts"])
BACK = {
    "detokenize": {
        "operationId": "detokenize",
        "requestBody": {"ids": "$response.body#/ids", "model": "$response.body#/model"},
    }
}
"""What can be asked with the answer of /tokenize."""


@router.post(
    "/classify",
    responses={200: {"model": ClassifyAnswer}} | UNREAD,
    openapi_extra=documented(ClassifyBody),
)
async def classify(request: Request) -> Response:
    """The label of each text with calibrated probabilities (`attendo classify`)."""
    body = await body_of(request, ClassifyBody)
    texts = body.every
    check_texts(limits_of(request), texts, "texts")

    async def work(served: Served) -> Response:
        classifier: Classifier = served.user
        cost = cost_of_pass(texts)
        found = await passed(request, served, "classify", texts, classifier.classify, cost)
        noted(request).tokens_in += sum(one.n_tokens for one in found)
        results = [dataclasses.asdict(one) for one in found]
        for one in results:
            del one["text"]
        return answered_with({"model": served.name, "results": results})

    return await with_model(request, body.model, ("classification",), work)


@router.post(
    "/tokenize",
    responses={200: {"model": TokenizeAnswer, "links": BACK}} | UNREAD,
    openapi_extra=documented(TokenizeBody, header=False),
)
async def tokenize(request: Request) -> Response:
    """The tokens of a text, as a model reads them."""
    body = await body_of(request, TokenizeBody)
    check_texts(limits_of(request), [body.text], "text")

    async def work(served: Served) -> Response:
        tokenizer = served.user.tokenizer

        def made() -> dict[str, Any]:
            ids = tokenizer.encode(body.text)
            spans = None if tokenizer.kind == "uncased" else token_spans(tokenizer, ids, body.text)
            return {"model": served.name, "ids": ids, "pieces": tokenizer.pieces(ids), "spans": spans}

        return answered_with(await off_loop(len(body.text), made))

    return await with_model(request, body.model, (), work)


@router.post(
    "/detokenize",
    responses={200: {"model": DetokenizeAnswer}} | UNREAD,
    openapi_extra=documented(DetokenizeBody, header=False),
    operation_id="detokenize",
)
async def detokenize(request: Request) -> Response:
    """The text that token ids spell; begin, end and padding spell nothing."""
    body = await body_of(request, DetokenizeBody)

    async def work(served: Served) -> Response:
        tokenizer = served.user.tokenizer
        text = await off_loop(len(body.ids), lambda: tokenizer.decode(body.ids))
        return answered_with({"model": served.name, "text": text})

    return await with_model(request, body.model, (), work)


@router.post("/score", responses={200: {"model": ScoreAnswer}} | UNREAD, openapi_extra=documented(ScoreBody))
async def score(request: Request) -> Response:
    """How probable given texts are: translations (`attendo score`), or texts of a language model."""
    body = await body_of(request, ScoreBody)
    limits = limits_of(request)
    if body.of_pairs:
        for side in zip(*body.every_pair, strict=True):
            check_texts(limits, side, "pairs")
    else:
        check_texts(limits, body.every_text, "texts")

    async def work(served: Served) -> Response:
        of = _score_pairs if body.of_pairs else _score_texts
        return answered_with({"model": served.name, "results": await of(request, served, body)})

    family = "translation" if body.of_pairs else "language-model"
    return await with_model(request, body.model, (family,), work)


@dataclass(frozen=True)
class _Pair:
    source: str
    target: str

    def characters(self) -> int:
        """Of both sides."""
        return len(self.source) + len(self.target)


async def _score_pairs(request: Request, served: Served, body: ScoreBody) -> list[dict[str, Any]]:
    """Each pair's candidate as `Translator.score` gives it."""
    translator: Translator = served.user
    pairs = [_Pair(*pair) for pair in body.every_pair]
    await off_loop(sum(map(_Pair.characters, pairs)), lambda: _check_lengths(translator, pairs))
    penalty = body.length_penalty if "length_penalty" in body.model_fields_set else None

    def run(some: Sequence[_Pair]) -> list[Candidate]:
        return translator.score([(pair.source, pair.target) for pair in some], penalty)

    cost = cost_of_pass([pair.source + pair.target for pair in pairs])
    found: Sequence[Candidate] = await passed(
        request, served, ("score", penalty), pairs, run, cost, _Pair.characters
    )
    noted(request).tokens_in += sum(len(one.token_log_probs) for one in found)
    places: Sequence[list[TokenScore]] = [[] for _ in found]
    if body.top:
        framed = translator.tokenizer.specials.source
        both = [
            Stretch(framed(translator.tokenizer.encode(pair.source)), one.token_ids)
            for pair, one in zip(pairs, found, strict=True)
        ]
        places = await passed(
            request,
            served,
            ("top", body.top),
            both,
            lambda some: pair_scores(translator, some, body.top),
            cost,
            Stretch.characters,
        )
    results = []
    for one, place in zip(found, places, strict=True):
        ids = [*one.token_ids, translator.tokenizer.eos_id]
        tokens = _tokens(translator, ids, one.token_log_probs, place)
        own = {"log_prob": one.log_prob, "n_tokens": len(ids), "tokens": tokens}
        results.append(own | {"score": one.score})
    return results


def _check_lengths(translator: Translator, pairs: Sequence[_Pair]) -> None:
    """A text that is scored can't be split: it must be one that the model reads at once."""
    for pair in pairs:
        own = translator.tokenizer
        for tokenizer, text in ((own, pair.source), (own.target, pair.target)):
            n_tokens = len(tokenizer.encode(text))
            if n_tokens > translator.longest:
                raise Refused(
                    400, f"a text has {n_tokens:,} tokens, the model reads {translator.longest:,}; split it"
                )


async def _score_texts(request: Request, served: Served, body: ScoreBody) -> list[dict[str, Any]]:
    """Each text as `attendo evaluate` reads a document: its context is the model's own, its end is a token."""
    generator: Generator = served.user
    tokenizer, context = generator.tokenizer, generator.model.config.max_len
    texts = body.every_text

    def made() -> list[list[Stretch]]:
        return [
            stretches(ids, context, tokenizer.specials, ended=True) for ids in tokenizer.encode_batch(texts)
        ]

    windows = await off_loop(sum(map(len, texts)), made)
    every = [part for parts in windows for part in parts]

    def run(some: Sequence[Stretch]) -> list[list[TokenScore]]:
        return text_scores(generator, some, body.top)

    cost = sum(len(part.source) for part in every)
    kind = "texts", body.top
    scored = iter(await passed(request, served, kind, every, run, cost, Stretch.characters))
    noted(request).tokens_in += cost
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
