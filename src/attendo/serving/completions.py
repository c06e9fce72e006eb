"""OpenAI's interface: /v1/models and /v1/completions, of language models and of translators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from attendo.inference import Translation, Translator
from attendo.inference.continuous_translation import Wanted
from attendo.inference.generation import Generation
from attendo.serving import embeddings
from attendo.serving.asking import (
    check_most,
    check_texts,
    chosen,
    coming,
    limits_of,
    off_loop,
    state_of,
    with_model,
)
from attendo.serving.bodies import UNREAD, answered_with, body_of, documented
from attendo.serving.completion_bodies import (
    CompletionAnswer,
    CompletionBody,
    ModelFacts,
    ModelList,
    choice,
    head_of,
    usage_of,
)
from attendo.serving.completion_texts import Told, prompted, texts_answer
from attendo.serving.engine import Done, News, Piece, Writes
from attendo.serving.events import Events
from attendo.serving.faults import Refused
from attendo.serving.logs import noted
from attendo.serving.served import Served
from attendo.serving.translations import How, prepared, translations

router = APIRouter(tags=["OpenAI"])
router.include_router(embeddings.router)
FAMILIES = ("language-model", "translation")
ONE = {"model": {"operationId": "model", "parameters": {"model": "$response.body#/data/0/id"}}}
EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}


@router.get("/v1/models", responses={200: {"model": ModelList, "links": ONE}})
async def models(request: Request) -> Response:
    """The models that are served."""
    data = [_facts(served) for served in state_of(request).models]
    return answered_with({"object": "list", "data": data})


@router.get("/v1/models/{model}", responses={200: {"model": ModelFacts}}, operation_id="model")
async def model(request: Request, model: str) -> Response:
    """One of them."""
    return answered_with(_facts(chosen(state_of(request), model)))


def _facts(served: Served) -> dict[str, Any]:
    own = {"family": served.family, "source": served.source, "target": served.target}
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "attendo"} | own


@router.post(
    "/v1/completions",
    responses={200: {"model": CompletionAnswer, "content": EVENTS}} | UNREAD,
    openapi_extra=documented(CompletionBody),
)
async def completions(request: Request) -> Response:
    """Go on with a prompt, by a language model; or translate it, by a translator, with the run's own search.

    With stream the text comes as it is found, in server-sent events; of a translator it is the greedy one of one text.
    """
    body = await body_of(request, CompletionBody)
    _check(body)
    limits = limits_of(request)
    check_most(body.n, limits.max_n, "n")
    check_most(body.max_tokens, limits.max_tokens, "max_tokens")
    prompts = _prompts(body)
    if len(prompts) * (body.n or 1) > limits.max_texts:
        raise Refused(413, f"prompts times n are more than {limits.max_texts:,} texts; send them in parts")
    check_texts(limits, [prompt for prompt in prompts if isinstance(prompt, str)], "prompt")
    longest = max((len(prompt) for prompt in prompts if isinstance(prompt, list)), default=0)
    check_most(longest, limits.max_characters, "the number of ids of a prompt")

    async def work(served: Served) -> Response:
        if served.family == "translation":
            return await _translated(request, served, body, prompts)
        ready = await prompted(request, served.user, prompts, body)
        head = head_of(served.name)
        if body.stream:
            told = Told(ready, head)
            return await _streamed(request, served, Writes(ready.texts), ready.cost, told)
        choices, usage = await texts_answer(request, served, ready)
        return answered_with(head | {"choices": choices, "usage": usage})

    return await with_model(request, body.model, FAMILIES, work)


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    """As a list; none is the beginning of a document."""
    match body.prompt:
        case None:
            return [""]
        case [int(), *_]:
            return [body.prompt]  # pyright: ignore[reportReturnType]
        case list():
            return list(body.prompt)  # pyright: ignore[reportReturnType]
        case text:
            return [text]


def _check(body: CompletionBody) -> None:
    """Raises Refused, 400, for what OpenAI has and we have not."""
    remedies = {
        "best_of": (body.best_of in (None, body.n or 1), "give n alone; all n texts are given back"),
        "presence_penalty": (not body.presence_penalty, "leave it out; repetition_penalty may do"),
        "frequency_penalty": (not body.frequency_penalty, "leave it out; repetition_penalty may do"),
        "logit_bias": (not body.logit_bias, "leave it out"),
        "suffix": (not body.suffix, "leave it out; a text is written from left to right"),
        "stream_options": (body.stream_options is None or bool(body.stream), "it is for stream true"),
        "logprobs": (
            not (body.stream and body.echo and body.logprobs is not None),
            "with echo in a stream it isn't told; leave one out",
        ),
    }
    for name, (fine, remedy) in remedies.items():
        if not fine:
            raise Refused(400, f"{name} is not served so: {remedy}", param=name)


async def _streamed(
    request: Request,
    served: Served,
    work: Wanted | Writes,
    cost: int,
    told: Callable[[News], list[Any]],
) -> Response:
    """What comes of the work, as events."""

    def counted(news: News) -> list[Any]:
        if isinstance(news, Done):
            noted(request).tokens_out += sum(map(_n_written, news.results))
        return told(news)

    async with AsyncExitStack() as stack:
        news = await stack.enter_async_context(coming(request, served, work, cost))
        return Events(stack.pop_all(), news, counted)


async def _translated(
    request: Request, served: Served, body: CompletionBody, prompts: Sequence[str | list[int]]
) -> Response:
    """The candidates of each prompt, or the events of a greedy translation."""
    _check_search(body, prompts)
    translator: Translator = served.user
    sources = await off_loop(
        sum(map(len, prompts)),
        lambda: [p if isinstance(p, str) else translator.tokenizer.decode(p) for p in prompts],
    )
    head = head_of(served.name)
    if body.stream:
        greedy = await prepared(request, served, sources, How(beam=1, max_tokens=body.max_tokens))
        config = dataclasses.replace(greedy.config, beam=1, beam_groups=1, coverage_penalty=0.0)
        n_read = sum(map(len, greedy.sources.rows))
        usage = bool(body.stream_options and body.stream_options.include_usage)
        wanted = Wanted(greedy.sources, config, guard=False, stream=True)
        told = _pieces(head, n_read, usage)
        return await _streamed(request, served, wanted, greedy.cost, told)
    how = How(n=body.n or 1, max_tokens=body.max_tokens)
    ready, found = await translations(request, served, sources, how)
    choices = [
        choice(how.n * place + number, candidate.text, "stop" if candidate.finished else "length")
        for place, one in enumerate(found)
        for number, candidate in enumerate(one.candidates)
    ]
    n_written = sum(len(candidate.token_log_probs) for one in found for candidate in one.candidates)
    usage = usage_of(sum(map(len, ready.sources.rows)), n_written)
    return answered_with(head | {"choices": choices, "usage": usage})


def _n_written(found: Generation | Translation) -> int:
    return len(found.log_probs if isinstance(found, Generation) else found.candidates[0].token_log_probs)


def _check_search(body: CompletionBody, prompts: Sequence[Any]) -> None:
    """Raises Refused, 400, for a setting that means nothing to a search."""
    neutral = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    neutral |= {"logprobs": None, "echo": False, "stop": []}
    for name, value in neutral.items():
        if getattr(body, name) not in (None, value):
            said = f"a translator searches for its text, and {name} means nothing to it; leave it out"
            raise Refused(400, said, param=name)
    if body.max_tokens == 0:
        raise Refused(400, "max_tokens is 0; a translation has at least 1", param="max_tokens")
    if body.stream and (len(prompts) > 1 or (body.n or 1) > 1):
        raise Refused(400, "a stream is the greedy translation of one prompt; give one, with n 1", param="n")


def _pieces(head: dict[str, Any], n_read: int, usage: bool) -> Callable[[News], list[Any]]:
    """The events of the stream of a translation."""
    more = {"usage": None} if usage else {}

    def told(news: News) -> list[Any]:
        if isinstance(news, Piece):
            return [head | {"choices": [choice(0, news.piece, None)]} | more]
        assert isinstance(news, Done)
        (found,) = news.results
        assert isinstance(found, Translation)
        best = found.candidates[0]
        last = choice(0, "", "stop" if best.finished else "length")
        counts = {"choices": [], "usage": usage_of(n_read, len(best.token_log_probs))}
        return [head | {"choices": [last]} | more, *([head | counts] if usage else [])]

    return told
