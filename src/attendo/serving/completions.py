"""The routes /v1/models and /v1/completions of the OpenAI API, for language models and translators."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from attendo.data.chat import Message
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.logit_filters import SamplingConfig
from attendo.decoding.sampling import SampledToken
from attendo.errors import AttendoError
from attendo.inference import Candidate, Generator, Translation, Translator
from attendo.inference.continuous_translation import TranslationJob
from attendo.inference.generation import Generation, WrittenText
from attendo.inference.incremental_decode import Spelling
from attendo.serving.dependencies import ApiRequest, ApiRoute, check_most, choose_model, in_thread
from attendo.serving.engine import DeadlineExceeded, Done, GenerationJob, JobEvent, Piece, event_or_gone
from attendo.serving.errors import TOO_LATE, ApiError, OpenAIFault, documented_errors, error_body
from attendo.serving.registry import ServedModel
from attendo.serving.schemas import WHOLE, Body, Ids, Name, Rows, Texts, json_response, reads
from attendo.serving.scoring import TokenScore, run_text_scores, scoring_chunks, token_text
from attendo.serving.translations import TranslateOptions, TranslationRequest, prepared, translations

PING_SECONDS = 10.0
"""The seconds between the comments in a stream. Without comments, a proxy may close the connection."""

Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class StreamOptions(Body):
    """The options of a streamed completion. If include_usage is true, the last event contains the token counts."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingBody(Body):
    """The common fields of completion requests. The defaults, including max_tokens, are the settings of the run.

    The n texts of a prompt use the seeds seed, seed + 1, and so on. The fields top_k, min_p and repetition_penalty
    extend the OpenAI API. The fields presence_penalty, frequency_penalty and logit_bias are not supported. The field
    user is ignored.
    """

    model: Name | None = None
    max_tokens: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**62), WHOLE] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None


class CompletionBody(SamplingBody):
    """The body of a completion request. best_of must equal n, and suffix is not supported."""

    prompt: str | Ids | Texts | Rows | None = None
    logprobs: Annotated[int, Field(ge=0, le=5), WHOLE] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = None
    suffix: str | None = None


class LogProbs(BaseModel):
    """The tokens of a text and their log-probabilities in nats. The first token that the model reads has the
    log-probability null, because no token precedes it.

    top_logprobs contains the most likely tokens at each position. top_logprobs is null in a stream and if logprobs is
    0.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class Choice(BaseModel):
    """A generated text with its number (from 0) and the reason why the generation ended."""

    text: str
    index: int
    logprobs: LogProbs | None
    finish_reason: Literal["stop", "length"] | None


class Usage(BaseModel):
    """The token counts of a request. Each prompt counts once, and end tokens count as generated tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionAnswer(BaseModel):
    """The response to a completion request. The choices are ordered by prompt, with n texts per prompt."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class ModelFacts(BaseModel):
    """The facts about one model of the server. Five fields extend the OpenAI API: family (the task), source and target
    (the languages of a translator), examples (texts to try, if the server may show them), and chat (whether the model
    answers messages).
    """

    model_config = ConfigDict(protected_namespaces=())

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    family: str
    source: str | None
    target: str | None
    examples: list[str]
    chat: bool


class ModelList(BaseModel):
    """The list of all models of the server."""

    object: Literal["list"]
    data: list[ModelFacts]


def usage_of(n_read: int, n_written: int) -> dict[str, int]:
    """Return the token counts of a response as a JSON object."""
    return {"prompt_tokens": n_read, "completion_tokens": n_written, "total_tokens": n_read + n_written}


def choice(index: int, text: str, reason: str | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a generated text, or a piece of a streamed text, as a JSON object."""
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}


@dataclass(frozen=True)
class AnswerForm:
    """The JSON form of generated texts.

    Attributes:
        prefix: The beginning of the id.
        kinds: The field object of a whole response, and of a stream event.
        choice: Function that returns a generated text, from the arguments of `choice`.
        piece: Function that returns a piece of a streamed text, from the arguments of `choice`.
        first: Function that returns the choice before the first piece of text number i, or None.
    """

    prefix: str
    kinds: tuple[str, str]
    choice: Callable[..., dict[str, Any]]
    piece: Callable[..., dict[str, Any]]
    first: Callable[[GenerationRequest, int], dict[str, Any] | None]

    def head(self, model: str, stream: bool | None) -> dict[str, Any]:
        """Return the fields id, object, created and model of a response or of a stream event."""
        name = f"{self.prefix}-{secrets.token_hex(12)}"
        return {"id": name, "object": self.kinds[bool(stream)], "created": int(time.time()), "model": model}


def _echoed(ready: GenerationRequest, index: int) -> dict[str, Any] | None:
    return choice(index, ready.texts[index].prompt, None) if ready.echo else None


FORM = AnswerForm("cmpl", ("text_completion", "text_completion"), choice, choice, _echoed)


@dataclass(frozen=True)
class GenerationRequest:
    """A prepared completion request with all texts to generate, `n` per prompt.

    `ids` are the token ids of each prompt. The model reads `read`, which are `ids` with special tokens if the prompt is
    a text. `n_likeliest` is the number of most probable tokens to return for each position (None: no log-
    probabilities). `echo` means that the response contains the prompts.
    """

    generator: Generator
    body: SamplingBody
    ids: list[list[int]]
    read: list[list[int]]
    texts: list[WrittenText]
    n: int
    n_likeliest: int | None = None
    echo: bool = False

    @property
    def cost(self) -> int:
        """The maximum number of tokens that the request reads and generates, which is its cost."""
        return sum(len(text.prompt_ids) + text.config.max_tokens for text in self.texts)

    def prompt_ids(self, index: int) -> list[int]:
        """Return the token ids of the prompt of text number `index`."""
        return self.ids[index // self.n]

    def usage(self, found: Sequence[Generation]) -> dict[str, int]:
        """Return the numbers of prompt tokens and generated tokens."""
        return usage_of(sum(map(len, self.ids)), sum(len(one.log_probs) for one in found))


Prompt = str | list[int] | tuple[Message, ...]
"""A text, token ids or a conversation."""


async def prompted(
    request: ApiRequest,
    generator: Generator,
    prompts: Sequence[Prompt],
    body: SamplingBody,
    n_likeliest: int | None,
    echo: bool = False,
) -> GenerationRequest:
    """Prepare the texts of a completion request. Raise ApiError if a setting or a prompt is invalid."""
    n = body.n or 1
    tokenizer = generator.tokenizer
    n_characters = n * sum(map(_n_characters, prompts))

    def made() -> GenerationRequest:
        config = _config(generator, body, request.limits.max_tokens)
        ready = GenerationRequest(generator, body, [], [], [], n, n_likeliest, echo)
        for prompt in prompts:
            seeds = [None if config.seed is None else config.seed + number for number in range(n)]
            configs = [dataclasses.replace(config, seed=seed) for seed in seeds]
            if isinstance(prompt, tuple):
                texts = [generator.reply(prompt, each) for each in configs]
                ids = read = texts[0].prompt_ids
            else:
                texts = [generator.text(prompt, each) for each in configs]
                is_text = isinstance(prompt, str)
                ids = tokenizer.encode(prompt) if is_text else prompt
                read = tokenizer.specials.prompt(ids) if is_text else ids  # token ids are not changed
            ready.ids.append(ids)
            ready.read.append(read)
            ready.texts.extend(texts)
        return ready

    found = await in_thread(n_characters, made)
    request.context.tokens_in += sum(map(len, found.ids))
    return found


def _n_characters(prompt: Prompt) -> int:
    return sum(len(one.content) for one in prompt) if isinstance(prompt, tuple) else len(prompt)


def _config(generator: Generator, body: SamplingBody, most: int) -> SamplingConfig:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    options = {name: getattr(body, name) for name in names}
    if body.stop is not None:
        options["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    given = body.max_tokens
    options["max_tokens"] = min(most, generator.decoding.max_tokens) if given is None else given
    return generator.config(options)


async def generated(
    request: ApiRequest, served: ServedModel, ready: GenerationRequest, form: AnswerForm, more: dict[str, Any]
) -> Response:
    """Generate the texts of a request, and return them as a response or as a stream. `more` are further fields."""
    head = form.head(served.name, ready.body.stream) | more
    if ready.body.stream:
        chunks = _chunks(head, ready.body, _choices(ready, form), ready.usage)
        return await _streamed(request, served, GenerationJob(ready.texts), ready.cost, chunks)
    found: Sequence[Generation] = await request.run_job(served, GenerationJob(ready.texts), ready.cost)
    request.context.tokens_out += sum(len(one.log_probs) for one in found)
    scores: list[list[TokenScore | None]] = [[] for _ in found]
    if ready.n_likeliest or (ready.echo and ready.n_likeliest is not None):
        scores = await _scores(request, served, ready)
    choices = []
    for index, (one, scored) in enumerate(zip(found, scores, strict=True)):
        log_probs = None if ready.n_likeliest is None else _log_probs(ready, index, one, scored)
        text = one.prompt + one.text if ready.echo else one.text
        choices.append(form.choice(index, text, reason_of(one), log_probs))
    return json_response(head | {"choices": choices, "usage": ready.usage(found)})


def reason_of(found: Generation) -> str:
    """Return the finish_reason of a text: "length" or "stop"."""
    return "length" if found.finished_by == "length" else "stop"


async def _scores(request: ApiRequest, served: ServedModel, ready: GenerationRequest) -> list[list[TokenScore | None]]:
    """Return the scores of the tokens of each prompt and its text, from another pass. The first token has None."""
    generator = ready.generator
    context = generator.model.config.max_len
    specials = generator.tokenizer.specials
    n = ready.n_likeliest or 0
    windows = []
    for index, text in enumerate(ready.texts):
        first, *rest = ready.read[index // ready.n]
        opened = dataclasses.replace(specials, before_prompt=(first,))
        windows.append(scoring_chunks([*rest, *text.drawn_ids], context, opened, ended=False))
    scored = await run_text_scores(request, served, windows, n)
    n_before = [len(read) - len(own) for read, own in zip(ready.read, ready.ids, strict=True)]
    return [[None, *scores][n_before[index // ready.n] :] for index, scores in enumerate(scored)]


def _log_probs(
    ready: GenerationRequest, index: int, found: Generation, scores: Sequence[TokenScore | None]
) -> dict[str, Any]:
    """Return OpenAI's table. With echo the prompt's tokens come first; tokens that a stop took back are left out."""
    tokenizer = ready.generator.tokenizer
    prompt = ready.prompt_ids(index)
    ids = ready.texts[index].drawn_ids
    offsets = _offsets(tokenizer, ids, going_on=bool(prompt))
    if found.finished_by == "stop":
        offsets = [offset for offset in offsets if offset < len(found.text)]
        ids = ids[: len(offsets)]
    values: list[float | None] = [*found.log_probs[: len(ids)]]
    scores = scores[: len(prompt) + len(ids)]
    if ready.echo:
        values = [*(score and score.log_prob for score in scores[: len(prompt)]), *values]
        before = _offsets(tokenizer, prompt, going_on=False)
        offsets = [*before, *(len(found.prompt) + offset for offset in offsets)]
        ids = [*prompt, *ids]
    else:
        scores = scores[len(prompt) :]
    top = [_likeliest(tokenizer, score) for score in scores] if ready.n_likeliest else None
    return _table(tokenizer, ids, values, top, offsets)


def _likeliest(tokenizer: Tokenizer, score: TokenScore | None) -> dict[str, float] | None:
    """Return the log-probabilities of the most probable tokens of a position, and of the token itself."""
    if score is None:
        return None
    pairs = (*score.likeliest, (score.token_id, score.log_prob))
    return {token_text(tokenizer, token): value for token, value in pairs}


def _table(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    values: Sequence[float | None],
    top: Sequence[dict[str, float] | None] | None,
    offsets: Sequence[int],
) -> dict[str, Any]:
    texts = [token_text(tokenizer, token) for token in ids]
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}


def _offsets(tokenizer: Tokenizer, ids: Sequence[int], *, going_on: bool) -> list[int]:
    """Return the start of each token in the decoded text, in characters."""
    spelling = Spelling(tokenizer, going_on=going_on)
    ends = accumulate((len(spelling.add(token)) for token in ids), initial=0)
    return list(ends)[: len(ids)]


Chunks = Callable[[JobEvent], list[dict[str, Any]]]
"""A function from an event of a job, which is a piece of text or the end of the job, to chunks of a stream."""


def _chunks(
    head: dict[str, Any],
    body: SamplingBody,
    choices: Callable[[JobEvent], list[dict[str, Any]]],
    usage: Callable[[Sequence[Any]], dict[str, int]],
) -> Chunks:
    """Return the function that makes one chunk of each choice of an event, and of the token counts at the end."""
    wanted = bool(body.stream_options and body.stream_options.include_usage)
    more = {"usage": None} if wanted else {}

    def chunks(event: JobEvent) -> list[dict[str, Any]]:
        found = [head | {"choices": [one]} | more for one in choices(event)]
        if wanted and isinstance(event, Done):
            found.append(head | {"choices": [], "usage": usage(event.results)})
        return found

    return chunks


def _choices(ready: GenerationRequest, form: AnswerForm) -> Callable[[JobEvent], list[dict[str, Any]]]:
    """Return the function that returns the choices of an event of a generation job."""
    tokenizer = ready.generator.tokenizer
    new: list[list[SampledToken]] = [[] for _ in ready.texts]  # tokens that are not in a choice yet
    ids: list[list[int]] = [[] for _ in ready.texts]
    numbers = range(len(ready.texts))
    first = [one for one in (form.first(ready, i) for i in numbers) if one is not None]

    def log_probs(index: int) -> dict[str, Any] | None:
        tokens, new[index] = new[index], []
        if ready.n_likeliest is None:
            return None
        own = [token.token_id for token in tokens]
        ids[index] += own
        offsets = _offsets(tokenizer, ids[index], going_on=bool(ready.prompt_ids(index)))
        values = [token.log_prob for token in tokens]
        return _table(tokenizer, own, values, None, offsets[-len(own) or None :])

    def choices(event: JobEvent) -> list[dict[str, Any]]:
        found = list(first)
        first.clear()
        if isinstance(event, Piece):
            if event.token is not None:
                new[event.text].append(event.token)
            if event.piece:
                found.append(form.piece(event.text, event.piece, None, log_probs(event.text)))
            return found
        assert isinstance(event, Done)
        for i, one in enumerate(event.results):
            end = log_probs(i) if one.finished_by == "end" and new[i] else None
            found.append(form.piece(i, "", reason_of(one), end))
        return found

    return choices


router = APIRouter(route_class=ApiRoute, tags=["OpenAI"], responses=documented_errors(OpenAIFault))
FAMILIES = ("language-model", "translation")
ONE = {"model": {"operationId": "model", "parameters": {"model": "$response.body#/data/0/id"}}}
EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}


@router.get("/v1/models", responses={200: {"model": ModelList, "links": ONE}})
async def models(request: ApiRequest) -> Response:
    """List all models of the server."""
    data = [_facts(served) for served in request.server.models]
    return json_response({"object": "list", "data": data})


@router.get("/v1/models/{model}", responses={200: {"model": ModelFacts}}, operation_id="model")
async def model(request: ApiRequest, model: str) -> Response:
    """Return the facts about one model."""
    return json_response(_facts(choose_model(request.server, model)))


def _facts(served: ServedModel) -> dict[str, Any]:
    own = {"family": served.family, "source": served.source, "target": served.target}
    own |= {"examples": served.examples, "chat": served.user.tokenizer.chat is not None}
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "attendo"} | own


@router.post("/v1/completions", **reads(CompletionBody, CompletionAnswer, shape=OpenAIFault, content=EVENTS))
async def completions(request: ApiRequest) -> Response:
    """Complete a prompt with a language model, or translate the prompt with a translator.

    A translator uses the decoding settings of the run. If stream is true, the text is sent as server-sent events while
    it is generated. A translator then sends one greedy translation.
    """
    body = await request.read_json(CompletionBody)
    echoes_scores = body.stream and body.echo and body.logprobs is not None
    check_options(
        request,
        body,
        best_of=(body.best_of in (None, body.n or 1), "set n only; all n texts are returned"),
        suffix=(not body.suffix, "remove it; text is generated from left to right"),
        logprobs=(not echoes_scores, "it cannot be combined with echo in a stream; remove one of them"),
    )
    limits = request.limits
    prompts = _prompts(body)
    if len(prompts) * (body.n or 1) > limits.max_texts:
        raise ApiError(413, f"prompts times n must be at most {limits.max_texts:,} texts; send them in parts")
    request.check_texts([prompt for prompt in prompts if isinstance(prompt, str)], "prompt")
    longest = max((len(prompt) for prompt in prompts if isinstance(prompt, list)), default=0)
    check_most(longest, limits.max_characters, "the number of token ids of a prompt")

    async def work(served: ServedModel) -> Response:
        if served.family == "translation":
            return await _translated(request, served, body, prompts)
        ready = await prompted(request, served.user, prompts, body, body.logprobs, bool(body.echo))
        return await generated(request, served, ready, FORM, {})

    return await request.with_model(body.model, FAMILIES, work)


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    """Return the prompts as a list. A missing prompt means the beginning of a document."""
    match body.prompt:
        case None:
            return [""]
        case [int(), *_]:
            return [body.prompt]  # pyright: ignore[reportReturnType]
        case list():
            return list(body.prompt)  # pyright: ignore[reportReturnType]
        case text:
            return [text]


def check_options(request: ApiRequest, body: SamplingBody, **more: tuple[bool, str]) -> None:
    """Raise ApiError with status 400 for unsupported options of the OpenAI API, and for values above the limits.

    `more` contains, for further fields, whether the value is supported, and otherwise what to do.
    """
    remedies = {
        "presence_penalty": (not body.presence_penalty, "remove it, or use repetition_penalty"),
        "frequency_penalty": (not body.frequency_penalty, "remove it, or use repetition_penalty"),
        "logit_bias": (not body.logit_bias, "remove it"),
        "stream_options": (body.stream_options is None or bool(body.stream), "it requires stream: true"),
        **more,
    }
    for name, (fine, remedy) in remedies.items():
        if not fine:
            raise ApiError(400, f"this value of {name} is not supported: {remedy}", param=name)
    check_most(body.n, request.limits.max_n, "n")
    check_most(body.max_tokens, request.limits.max_tokens, "max_tokens")


class EventStream(EventSourceResponse):
    """The server-sent events of a job, followed by `[DONE]`. If the client disconnects, the job is canceled."""

    def __init__(self, stack: AsyncExitStack, messages: AsyncIterator[ServerSentEvent]) -> None:
        ping = ServerSentEvent(comment="ping", sep="\n")
        super().__init__(messages, ping=PING_SECONDS, sep="\n", ping_message_factory=lambda: ping)
        del self.headers["connection"]  # a server that shuts down closes the connection
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events of the job to the client."""
        AppStatus.disable_automatic_graceful_drain()  # an admitted job is always finished
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _streamed(
    request: ApiRequest, served: ServedModel, work: TranslationJob | GenerationJob, cost: int, chunks: Chunks
) -> Response:
    """Return the events of a job as a stream. If the job fails before its first event, raise its error."""
    async with AsyncExitStack() as stack:
        events = await stack.enter_async_context(request.job_events(served, work, cost))
        first = asyncio.ensure_future(anext(events))
        stack.callback(first.cancel)
        await event_or_gone(first, lambda: request.disconnected(), PING_SECONDS)
        if first.done():
            first.result()
        return EventStream(stack.pop_all(), _messages(request, first, events, chunks))


async def _messages(
    request: ApiRequest, first: asyncio.Future[JobEvent], events: AsyncIterator[JobEvent], chunks: Chunks
) -> AsyncIterator[ServerSentEvent]:
    try:
        event = await first
        while True:
            if isinstance(event, Done):
                request.context.tokens_out += sum(map(_n_written, event.results))
            for chunk in chunks(event):
                yield _message(chunk)
            if isinstance(event, Done):
                break
            await asyncio.sleep(0)  # lets other requests run if events are already in the queue
            event = await anext(events)
    except (AttendoError, DeadlineExceeded) as error:
        late = isinstance(error, DeadlineExceeded)
        yield _message(error_body("/v1", 504, TOO_LATE) if late else error_body("/v1", 400, str(error)))
    yield ServerSentEvent("[DONE]", sep="\n")


def _message(value: Any) -> ServerSentEvent:
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return ServerSentEvent(data.encode("utf-8", "replace").decode(), sep="\n")


async def _translated(
    request: ApiRequest, served: ServedModel, body: CompletionBody, prompts: Sequence[str | list[int]]
) -> Response:
    """Return the translations of each prompt, or the stream of a greedy translation."""
    _check_search(body, prompts)
    translator: Translator = served.user
    sources = await in_thread(
        sum(map(len, prompts)),
        lambda: [p if isinstance(p, str) else translator.tokenizer.decode(p) for p in prompts],
    )
    head = FORM.head(served.name, body.stream)
    if body.stream:
        one_beam = TranslateOptions(beam=1, max_tokens=body.max_tokens)
        greedy = await prepared(request, served, sources, one_beam)
        config = dataclasses.replace(greedy.config, beam=1, beam_groups=1, coverage_penalty=0.0)
        wanted = TranslationJob(greedy.sources, config, guard=False, stream=True)
        chunks = _chunks(head, body, _translated_choices, partial(_usage_of_translations, greedy))
        return await _streamed(request, served, wanted, greedy.cost, chunks)
    how = TranslateOptions(n=body.n or 1, max_tokens=body.max_tokens)
    ready, found = await translations(request, served, sources, how)
    choices = [
        choice(how.n * place + number, candidate.text, _reason_of_candidate(candidate))
        for place, one in enumerate(found)
        for number, candidate in enumerate(one.candidates)
    ]
    return json_response(head | {"choices": choices, "usage": _usage_of_translations(ready, found)})


def _n_written(found: Generation | Translation) -> int:
    return len(found.log_probs if isinstance(found, Generation) else found.candidates[0].token_log_probs)


def _check_search(body: CompletionBody, prompts: Sequence[Any]) -> None:
    """Raise ApiError with status 400 for a setting that does not apply to beam search."""
    neutral = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    neutral |= {"logprobs": None, "echo": False, "stop": []}
    for name, value in neutral.items():
        if getattr(body, name) not in (None, value):
            said = f"{name} has no effect for a translator, which uses beam search; remove it"
            raise ApiError(400, said, param=name)
    if body.max_tokens == 0:
        raise ApiError(400, "max_tokens must be at least 1 for a translation", param="max_tokens")
    if body.stream and (len(prompts) > 1 or (body.n or 1) > 1):
        raise ApiError(400, "a stream translates one prompt greedily; send one, with n=1", param="n")


def _reason_of_candidate(candidate: Candidate) -> str:
    return "stop" if candidate.finished else "length"


def _usage_of_translations(ready: TranslationRequest, found: Sequence[Translation]) -> dict[str, int]:
    n_written = sum(len(candidate.token_log_probs) for one in found for candidate in one.candidates)
    return usage_of(sum(map(len, ready.sources.rows)), n_written)


def _translated_choices(event: JobEvent) -> list[dict[str, Any]]:
    """Return the choices of an event of a translation job with one text."""
    if isinstance(event, Piece):
        return [choice(0, event.piece, None)]
    assert isinstance(event, Done)
    return [choice(0, "", _reason_of_candidate(event.results[0].candidates[0]))]
