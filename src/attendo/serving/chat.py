"""The route /v1/chat/completions of the OpenAI API, for language models with a chat template."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from attendo.data.chat import Message
from attendo.serving.completions import (
    EVENTS,
    AnswerForm,
    GenerationRequest,
    SamplingBody,
    Usage,
    check_options,
    generated,
    prompted,
)
from attendo.serving.dependencies import ApiRequest, ApiRoute, check_most
from attendo.serving.errors import OpenAIFault, documented_errors
from attendo.serving.registry import ServedModel
from attendo.serving.schemas import WHOLE, Body, reads


class ChatMessage(Body):
    """A message of a conversation. The role is system, user or assistant."""

    role: Annotated[str, Field(max_length=100)]
    content: str


class ChatBody(SamplingBody):
    """The body of a chat request: a conversation whose last message is from the user.

    max_completion_tokens replaces max_tokens. top_logprobs requires logprobs, and is ignored in a stream. Tools, images
    and response formats are not supported.
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None


class LikelyToken(BaseModel):
    """A token and its log-probability in nats. The field bytes is always null."""

    token: str
    logprob: float
    bytes: None


class ChatToken(BaseModel):
    """A token of a reply, with the most probable tokens at its position."""

    token: str
    logprob: float
    bytes: None
    top_logprobs: list[LikelyToken]


class ChatLogProbs(BaseModel):
    """The tokens of a reply with their log-probabilities."""

    content: list[ChatToken]
    refusal: None


class Reply(BaseModel):
    """The message of the assistant."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """A reply with its number (from 0) and the reason why it ended."""

    index: int
    message: Reply
    logprobs: ChatLogProbs | None
    finish_reason: Literal["stop", "length"] | None


class ChatAnswer(BaseModel):
    """The response to a chat request. dropped_messages extends the OpenAI API: it is the number of oldest messages that
    did not fit into the context of the model.
    """

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    dropped_messages: int


def _likely(token: str, log_prob: float) -> dict[str, Any]:
    return {"token": token, "logprob": log_prob, "bytes": None}


def _choice(index: int, own: dict[str, Any], reason: str | None, table: dict[str, Any] | None) -> dict[str, Any]:
    """Return a choice of a chat response. `table` is the `LogProbs` object of a completion, or None."""
    log_probs = None
    if table is not None:
        tops = table["top_logprobs"] or [None] * len(table["tokens"])
        rows = zip(table["tokens"], table["token_logprobs"], tops, strict=True)
        content = [
            _likely(token, value) | {"top_logprobs": [_likely(*pair) for pair in (top or {}).items()]}
            for token, value, top in rows
        ]
        log_probs = {"content": content, "refusal": None}
    return {"index": index, "logprobs": log_probs, "finish_reason": reason} | own


def _reply(index: int, text: str, reason: str | None, table: dict[str, Any] | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return _choice(index, {"message": message}, reason, table)


def _delta(index: int, text: str, reason: str | None, table: dict[str, Any] | None = None) -> dict[str, Any]:
    return _choice(index, {"delta": {"content": text} if text else {}}, reason, table)


def _first(ready: GenerationRequest, index: int) -> dict[str, Any]:
    return _choice(index, {"delta": {"role": "assistant", "content": ""}}, None, None)


FORM = AnswerForm("chatcmpl", ("chat.completion", "chat.completion.chunk"), _reply, _delta, _first)

router = APIRouter(route_class=ApiRoute, tags=["OpenAI"], responses=documented_errors(OpenAIFault))


@router.post("/v1/chat/completions", **reads(ChatBody, ChatAnswer, shape=OpenAIFault, content=EVENTS))
async def chat(request: ApiRequest) -> Response:
    """Answer the last message of a conversation with a language model that was trained on conversations.

    If stream is true, the reply is sent as server-sent events while it is generated. A conversation that is longer than
    the context of the model loses its oldest turns. The system message is kept.
    """
    body = await request.read_json(ChatBody)
    check_most(body.max_completion_tokens, request.limits.max_tokens, "max_completion_tokens")
    if body.max_completion_tokens is not None:
        body.max_tokens = body.max_completion_tokens
    asks = body.top_logprobs is None or bool(body.logprobs)
    check_options(request, body, top_logprobs=(asks, "it requires logprobs: true"))
    request.check_texts(["".join(message.content for message in body.messages)], "messages")
    talk = tuple(Message(message.role, message.content) for message in body.messages)

    async def work(served: ServedModel) -> Response:
        n_likeliest = body.top_logprobs or 0 if body.logprobs else None
        ready = await prompted(request, served.user, [talk], body, n_likeliest)
        return await generated(request, served, ready, FORM, {"dropped_messages": ready.texts[0].dropped})

    return await request.with_model(body.model, ("language-model",), work)
