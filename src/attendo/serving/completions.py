"""OpenAI's interface: /v1/models and /v1/completions, of language models and of translators."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from attendo.data.tokenizers import Tokenizer
from attendo.decoding.logit_filters import SamplingConfig
from attendo.errors import AttendoError
from attendo.inference import Generator, Translation, Translator
from attendo.inference.continuous_translation import TranslationJob
from attendo.inference.generation import Generation, WrittenText
from attendo.inference.incremental_decode import Spelling
from attendo.serving.dependencies import (
    check_most,
    check_texts,
    choose_model,
    disconnected,
    in_thread,
    job_events,
    limits_of,
    run_forward,
    run_job,
    state_of,
    with_model,
)
from attendo.serving.engine import DeadlineExceeded, Done, GenerationJob, JobEvent, Piece, event_or_gone
from attendo.serving.errors import TOO_LATE, ApiError, OpenAIFault, documented_errors
from attendo.serving.monitoring import context_of
from attendo.serving.registry import ServedModel
from attendo.serving.schemas import WHOLE, Body, Ids, Name, Rows, Texts, json_response, read_json, reads
from attendo.serving.scoring import ScoringChunk, TokenScore, scoring_chunks, text_scores, token_text
from attendo.serving.translations import TranslateOptions, prepared, translations

PING_SECONDS = 10.0
"""Seconds after which a comment is sent, so that no proxy takes the connection for a dead one."""

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


@dataclass(frozen=True)
class GenerationRequest:
    """The texts that are to be written, n of each prompt.

    ids: of each prompt, without what the tokenizer puts before a text. read: as the model reads them.
    """

    generator: Generator
    body: CompletionBody
    ids: list[list[int]]
    read: list[list[int]]
    texts: list[WrittenText]
    n: int

    @property
    def cost(self) -> int:
        """Tokens that are read and written at most."""
        return sum(len(text.prompt_ids) + text.config.max_tokens for text in self.texts)

    def prompt_ids(self, index: int) -> list[int]:
        """Of the text with this number."""
        return self.ids[index // self.n]

    def usage(self, found: Sequence[Generation]) -> dict[str, int]:
        """Tokens read and drawn."""
        return usage_of(sum(map(len, self.ids)), sum(len(one.log_probs) for one in found))


async def prompted(
    request: Request, generator: Generator, prompts: Sequence[str | list[int]], body: CompletionBody
) -> GenerationRequest:
    """The texts of a request. Raises ApiError for a setting out of range, and for ids that are none of the model's."""
    n, limits, tokenizer = body.n or 1, limits_of(request), generator.tokenizer
    n_characters = n * sum(len(prompt) for prompt in prompts)

    def made() -> GenerationRequest:
        config = _config(generator, body, limits.max_tokens)
        texts = [tokenizer.decode(prompt) if isinstance(prompt, list) else prompt for prompt in prompts]
        ids = [prompt if isinstance(prompt, list) else tokenizer.encode(prompt) for prompt in prompts]
        whole = tokenizer.specials.prompt  # ids are read as they are given
        read = [
            own if isinstance(prompt, list) else whole(own) for prompt, own in zip(prompts, ids, strict=True)
        ]
        most, written = generator.model.config.max_len, []
        for prompt, text, own in zip(prompts, texts, ids, strict=True):
            for number in range(n):
                seed = None if config.seed is None else config.seed + number
                one = generator.text(text, dataclasses.replace(config, seed=seed))
                if isinstance(prompt, list):  # those very ids, though the text may be spelled in others
                    one.prompt_ids = own[-most:]
                    one.cut = max(0, len(own) - most)
                written.append(one)
        return GenerationRequest(generator, body, ids, read, written, n)

    found = await in_thread(n_characters, made)
    context_of(request).tokens_in += sum(map(len, found.ids))
    return found


def _config(generator: Generator, body: CompletionBody, most: int) -> SamplingConfig:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    options = {name: getattr(body, name) for name in names}
    if body.stop is not None:
        options["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    given = body.max_tokens
    options["max_tokens"] = min(most, generator.decoding.max_tokens) if given is None else given
    return generator.config(options)


async def texts_answer(
    request: Request, served: ServedModel, ready: GenerationRequest
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The choices and the usage of an answer as a whole."""
    body = ready.body
    found: Sequence[Generation] = await run_job(request, served, GenerationJob(ready.texts), ready.cost)
    context_of(request).tokens_out += sum(len(one.log_probs) for one in found)
    scores: list[list[TokenScore | None]] = [[] for _ in found]
    if body.logprobs is not None and (body.echo or body.logprobs):
        scores = await _scores(request, served, ready, found)
    choices = []
    for index, (one, scored) in enumerate(zip(found, scores, strict=True)):
        told = None if body.logprobs is None else _log_probs(ready, index, one, scored)
        text = one.prompt + one.text if body.echo else one.text
        choices.append(choice(index, text, reason_of(one), told))
    return choices, ready.usage(found)


def reason_of(found: Generation) -> str:
    """Why a text ended, in OpenAI's words."""
    return "length" if found.finished_by == "length" else "stop"


async def _scores(
    request: Request, served: ServedModel, ready: GenerationRequest, found: Sequence[Generation]
) -> list[list[TokenScore | None]]:
    """Every token of each prompt and its text, by one pass more; a context at a time where they are longer.

    Of a token that nothing stands before there is no score.
    """
    generator, n = ready.generator, ready.body.logprobs or 0
    context, specials = generator.model.config.max_len, generator.tokenizer.specials
    windows = []
    for index, one in enumerate(found):
        first, *rest = ready.read[index // ready.n]
        opened = dataclasses.replace(specials, before_prompt=(first,))
        windows.append(scoring_chunks([*rest, *_drawn(ready, one)], context, opened, ended=False))

    def run(some: Sequence[ScoringChunk]) -> list[list[TokenScore]]:
        return text_scores(generator, some, n)

    every = [part for parts in windows for part in parts]
    cost = sum(len(part.source) for part in every)
    scored = iter(await run_forward(request, served, ("texts", n), every, run, cost, ScoringChunk.characters))
    every_one = [[None, *(score for _ in parts for score in next(scored))] for parts in windows]
    n_before = [len(read) - len(own) for read, own in zip(ready.read, ready.ids, strict=True)]
    return [scores[n_before[index // ready.n] :] for index, scores in enumerate(every_one)]


def _drawn(ready: GenerationRequest, found: Generation) -> list[int]:
    """All that was drawn, the end token included."""
    return [*found.token_ids, ready.generator.tokenizer.eos_id][: len(found.log_probs)]


def _log_probs(
    ready: GenerationRequest, index: int, found: Generation, scores: Sequence[TokenScore | None]
) -> dict[str, Any]:
    """OpenAI's table. With echo the prompt's tokens come first; tokens that a stop took back are left out."""
    tokenizer, body = ready.generator.tokenizer, ready.body
    ids, values = _drawn(ready, found), list[float | None](found.log_probs)
    prompt = ready.prompt_ids(index)
    offsets = _offsets(tokenizer, ids, going_on=bool(prompt))
    if found.finished_by == "stop":
        n_kept = sum(offset < len(found.text) for offset in offsets)
        ids, offsets = ids[:n_kept], offsets[:n_kept]
    values, own = values[: len(ids)], list(scores[len(prompt) : len(prompt) + len(ids)])
    if body.echo:
        before = scores[: len(prompt)]
        offsets = [
            *_offsets(tokenizer, prompt, going_on=False),
            *(len(found.prompt) + offset for offset in offsets),
        ]
        ids, values, own = [*prompt, *ids], [*(s and s.log_prob for s in before), *values], [*before, *own]
    top = None
    if body.logprobs:
        told = [
            score and (*score.likeliest, (score.token_id, score.log_prob)) for score in own
        ]  # its own, too
        top = [each and {token_text(tokenizer, token): value for token, value in each} for each in told]
    texts = [token_text(tokenizer, token) for token in ids]
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}


def _offsets(tokenizer: Tokenizer, ids: Sequence[int], *, going_on: bool) -> list[int]:
    """Where each token begins in what they spell, in characters."""
    spelling, at, found = Spelling(tokenizer, going_on=going_on), 0, []
    for token in ids:
        found.append(at)
        at += len(spelling.add(token))
    return found


class TextEvents:
    """The events of a stream of texts."""

    def __init__(self, ready: GenerationRequest, head: dict[str, Any]) -> None:
        self._ready, self._head = ready, head
        self._usage = bool(ready.body.stream_options and ready.body.stream_options.include_usage)
        self._kept: list[list[tuple[int, float]]] = [[] for _ in ready.texts]  # tokens not told of yet
        self._ids: list[list[int]] = [[] for _ in ready.texts]
        self._begun = False

    def __call__(self, news: JobEvent) -> list[dict[str, Any]]:
        """The events of a piece, or of the end."""
        told: list[dict[str, Any]] = []
        if not self._begun and self._ready.body.echo:
            told += [self._chunk(choice(i, text.prompt, None)) for i, text in enumerate(self._ready.texts)]
        self._begun = True
        if isinstance(news, Piece):
            return told + self._piece(news)
        assert isinstance(news, Done)
        for i, one in enumerate(news.results):
            end = self._log_probs(i) if one.finished_by == "end" and self._kept[i] else None
            told.append(self._chunk(choice(i, "", reason_of(one), end)))
        if self._usage:
            told.append(self._head | {"choices": [], "usage": self._ready.usage(news.results)})
        return told

    def _piece(self, news: Piece) -> list[dict[str, Any]]:
        index, token = news.text, news.token
        if token is not None:
            self._kept[index].append((token.token_id, token.log_prob))
        if not news.piece:
            return []
        return [self._chunk(choice(index, news.piece, None, self._log_probs(index)))]

    def _log_probs(self, index: int) -> dict[str, Any] | None:
        kept, self._kept[index] = self._kept[index], []
        if self._ready.body.logprobs is None:
            return None
        tokenizer, before = self._ready.generator.tokenizer, self._ids[index]
        ids = [token for token, _ in kept]
        before += ids
        going_on = bool(self._ready.prompt_ids(index))
        offsets = _offsets(tokenizer, before, going_on=going_on)[len(before) - len(ids) :]
        texts, values = [token_text(tokenizer, token) for token in ids], [value for _, value in kept]
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}

    def _chunk(self, own: dict[str, Any]) -> dict[str, Any]:
        return self._head | {"choices": [own]} | ({"usage": None} if self._usage else {})


router = APIRouter(tags=["OpenAI"], responses=documented_errors(OpenAIFault))
FAMILIES = ("language-model", "translation")
ONE = {"model": {"operationId": "model", "parameters": {"model": "$response.body#/data/0/id"}}}
EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}


@router.get("/v1/models", responses={200: {"model": ModelList, "links": ONE}})
async def models(request: Request) -> Response:
    """The models that are served."""
    data = [_facts(served) for served in state_of(request).models]
    return json_response({"object": "list", "data": data})


@router.get("/v1/models/{model}", responses={200: {"model": ModelFacts}}, operation_id="model")
async def model(request: Request, model: str) -> Response:
    """One of them."""
    return json_response(_facts(choose_model(state_of(request), model)))


def _facts(served: ServedModel) -> dict[str, Any]:
    own = {"family": served.family, "source": served.source, "target": served.target}
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "attendo"} | own


@router.post("/v1/completions", **reads(CompletionBody, CompletionAnswer, shape=OpenAIFault, content=EVENTS))
async def completions(request: Request) -> Response:
    """Go on with a prompt, by a language model; or translate it, by a translator, with the run's own search.

    With stream the text comes as it is found, in server-sent events; of a translator it is the greedy one of one text.
    """
    body = await read_json(request, CompletionBody)
    _check(body)
    limits = limits_of(request)
    check_most(body.n, limits.max_n, "n")
    check_most(body.max_tokens, limits.max_tokens, "max_tokens")
    prompts = _prompts(body)
    if len(prompts) * (body.n or 1) > limits.max_texts:
        raise ApiError(413, f"prompts times n are more than {limits.max_texts:,} texts; send them in parts")
    check_texts(limits, [prompt for prompt in prompts if isinstance(prompt, str)], "prompt")
    longest = max((len(prompt) for prompt in prompts if isinstance(prompt, list)), default=0)
    check_most(longest, limits.max_characters, "the number of ids of a prompt")

    async def work(served: ServedModel) -> Response:
        if served.family == "translation":
            return await _translated(request, served, body, prompts)
        ready = await prompted(request, served.user, prompts, body)
        head = head_of(served.name)
        if body.stream:
            told = TextEvents(ready, head)
            return await _streamed(request, served, GenerationJob(ready.texts), ready.cost, told)
        choices, usage = await texts_answer(request, served, ready)
        return json_response(head | {"choices": choices, "usage": usage})

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
    """Raises ApiError, 400, for what OpenAI has and we have not."""
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
            raise ApiError(400, f"{name} is not served so: {remedy}", param=name)


class EventStream(EventSourceResponse):
    """Server-sent events of a job, then `[DONE]`; on the way out the job is cancelled if it is not done."""

    def __init__(self, stack: AsyncExitStack, messages: AsyncIterator[ServerSentEvent]) -> None:
        ping = ServerSentEvent(comment="ping", sep="\n")
        super().__init__(messages, ping=PING_SECONDS, sep="\n", ping_message_factory=lambda: ping)
        del self.headers["connection"]  # a server that drains closes it
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        AppStatus.disable_automatic_graceful_drain()  # a job that was admitted comes to its end
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _streamed(
    request: Request,
    served: ServedModel,
    work: TranslationJob | GenerationJob,
    cost: int,
    chunks: Callable[[JobEvent], list[Any]],
) -> Response:
    """Return the events of a job as a stream. A job that fails before its first event is answered as any error is."""
    async with AsyncExitStack() as stack:
        events = await stack.enter_async_context(job_events(request, served, work, cost))
        first = asyncio.ensure_future(anext(events))
        stack.callback(first.cancel)
        await event_or_gone(first, lambda: disconnected(request), PING_SECONDS)
        if first.done():
            first.result()
        return EventStream(stack.pop_all(), _messages(request, first, events, chunks))


async def _messages(
    request: Request,
    first: asyncio.Future[JobEvent],
    events: AsyncIterator[JobEvent],
    chunks: Callable[[JobEvent], list[Any]],
) -> AsyncIterator[ServerSentEvent]:
    try:
        event = await first
        while True:
            if isinstance(event, Done):
                context_of(request).tokens_out += sum(map(_n_written, event.results))
            for chunk in chunks(event):
                yield _message(chunk)
            if isinstance(event, Done):
                break
            event = await anext(events)
    except (AttendoError, DeadlineExceeded) as error:
        late = isinstance(error, DeadlineExceeded)
        kind, code = ("server_error", "timeout") if late else ("invalid_request_error", None)
        message = TOO_LATE if late else str(error)
        yield _message({"error": {"message": message, "type": kind, "param": None, "code": code}})
    yield ServerSentEvent("[DONE]", sep="\n")


def _message(value: Any) -> ServerSentEvent:
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return ServerSentEvent(data.encode("utf-8", "replace").decode(), sep="\n")


async def _translated(
    request: Request, served: ServedModel, body: CompletionBody, prompts: Sequence[str | list[int]]
) -> Response:
    """The candidates of each prompt, or the events of a greedy translation."""
    _check_search(body, prompts)
    translator: Translator = served.user
    sources = await in_thread(
        sum(map(len, prompts)),
        lambda: [p if isinstance(p, str) else translator.tokenizer.decode(p) for p in prompts],
    )
    head = head_of(served.name)
    if body.stream:
        greedy = await prepared(
            request, served, sources, TranslateOptions(beam=1, max_tokens=body.max_tokens)
        )
        config = dataclasses.replace(greedy.config, beam=1, beam_groups=1, coverage_penalty=0.0)
        n_read = sum(map(len, greedy.sources.rows))
        usage = bool(body.stream_options and body.stream_options.include_usage)
        wanted = TranslationJob(greedy.sources, config, guard=False, stream=True)
        told = _pieces(head, n_read, usage)
        return await _streamed(request, served, wanted, greedy.cost, told)
    how = TranslateOptions(n=body.n or 1, max_tokens=body.max_tokens)
    ready, found = await translations(request, served, sources, how)
    choices = [
        choice(how.n * place + number, candidate.text, "stop" if candidate.finished else "length")
        for place, one in enumerate(found)
        for number, candidate in enumerate(one.candidates)
    ]
    n_written = sum(len(candidate.token_log_probs) for one in found for candidate in one.candidates)
    usage = usage_of(sum(map(len, ready.sources.rows)), n_written)
    return json_response(head | {"choices": choices, "usage": usage})


def _n_written(found: Generation | Translation) -> int:
    return len(found.log_probs if isinstance(found, Generation) else found.candidates[0].token_log_probs)


def _check_search(body: CompletionBody, prompts: Sequence[Any]) -> None:
    """Raises ApiError, 400, for a setting that means nothing to a search."""
    neutral = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    neutral |= {"logprobs": None, "echo": False, "stop": []}
    for name, value in neutral.items():
        if getattr(body, name) not in (None, value):
            said = f"a translator searches for its text, and {name} means nothing to it; leave it out"
            raise ApiError(400, said, param=name)
    if body.max_tokens == 0:
        raise ApiError(400, "max_tokens is 0; a translation has at least 1", param="max_tokens")
    if body.stream and (len(prompts) > 1 or (body.n or 1) > 1):
        raise ApiError(400, "a stream is the greedy translation of one prompt; give one, with n 1", param="n")


def _pieces(head: dict[str, Any], n_read: int, usage: bool) -> Callable[[JobEvent], list[Any]]:
    """The events of the stream of a translation."""
    more = {"usage": None} if usage else {}

    def told(news: JobEvent) -> list[Any]:
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
