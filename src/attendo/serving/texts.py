"""Routes for given texts: /classify, /tokenize, /detokenize, /score."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
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
from attendo.serving.bodies import UNREAD, answered_with, body_of, documented
from attendo.serving.faults import Refused
from attendo.serving.logs import noted
from attendo.serving.scoring import Stretch, TokenScore, pair_scores, stretches, text_scores, token_text
from attendo.serving.served import Served
from attendo.serving.text_bodies import (
    ClassifyAnswer,
    ClassifyBody,
    DetokenizeAnswer,
    DetokenizeBody,
    ScoreAnswer,
    ScoreBody,
    TokenizeAnswer,
    TokenizeBody,
)

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
