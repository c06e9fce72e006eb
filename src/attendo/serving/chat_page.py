"""The page /chat: a conversation with an assistant as HTML, which arrives while the reply is generated.

The page contains the whole conversation. Each form sends the conversation before a message, so the server stores none.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from attendo.data.chat import Message, marked_text, parse_messages
from attendo.data.row_report import RowError
from attendo.decoding.sampling import SamplingConfig
from attendo.display.i18n import accepted_language
from attendo.display.web import FORM_POLICY, page_of
from attendo.errors import AttendoError
from attendo.inference.generation import WrittenText
from attendo.serving.dependencies import ApiRequest, ApiRoute, choose_model, in_thread
from attendo.serving.engine import DeadlineExceeded, Done, GenerationJob, Piece
from attendo.serving.errors import TOO_LATE, ApiError
from attendo.serving.registry import ServedModel

router = APIRouter(route_class=ApiRoute, include_in_schema=False)


class HtmlStream(StreamingResponse):
    """A page that is sent while a reply is generated. If the client disconnects, the job is canceled."""

    def __init__(self, stack: AsyncExitStack, parts: AsyncIterator[str]) -> None:
        super().__init__(parts, media_type="text/html", headers={"content-security-policy": FORM_POLICY})
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the page to the client."""
        async with self._stack:
            await super().__call__(scope, receive, send)


def _page(request: ApiRequest, served: ServedModel) -> Any:
    """Return the parts of a page for one model, in the language of the browser, as functions."""
    return page_of(
        "chat.html",
        accepted_language(request.headers),
        name=served.name,
        quoted=quote(served.name, safe=""),
        look=request.server.look,
        as_json=lambda talk: json.dumps([message._asdict() for message in talk], ensure_ascii=False),
    )


@router.get("/chat", response_class=Response)
async def chat_page(request: ApiRequest) -> Response:
    """Return the page of an empty conversation."""
    page = _page(request, _assistant(request))
    return _html(page.start([]) + page.form([]))


def _assistant(request: ApiRequest) -> ServedModel:
    return choose_model(request.server, request.query_params.get("model"), ("language-model",))


def _html(text: str, status: int = 200) -> Response:
    return Response(text, status, {"content-security-policy": FORM_POLICY}, "text/html")


@router.post("/chat", response_class=Response)
async def answered_page(request: ApiRequest) -> Response:
    """Return the page of a conversation with a new message, and generate the reply while the page is sent."""
    # browsers send line breaks as \r\n
    fields = {name: text.replace("\r\n", "\n") for name, text in (await request.read_form()).items()}
    served = _assistant(request)
    page = _page(request, served)
    talk: list[Message] = []
    content = fields.get("message", "")
    try:
        talk = _talk(fields)
        asked = (*talk, Message("user", content))
        if "stop" in fields:
            reply = fields.get("reply", "")
            kept = (*asked, Message("assistant", reply)) if reply.strip() else talk
            return _html(page.start(kept) + page.form(kept, "" if reply.strip() else content))
        request.check_texts(["".join(message.content for message in asked)], "message")
        text = await in_thread(
            sum(len(message.content) for message in asked), lambda: _reply(request, served, asked)
        )
        cost = len(text.prompt_ids) + text.config.max_tokens
        async with AsyncExitStack() as stack:
            events = await stack.enter_async_context(request.job_events(served, GenerationJob([text]), cost))
            return HtmlStream(stack.pop_all(), _parts(page, served, asked, text, events))
    except ApiError as error:
        return _html(page.start(talk) + page.alert(error) + page.form(talk, content), error.status)


def _talk(fields: Mapping[str, str]) -> list[Message]:
    """Return the messages before the new message. Raise ApiError with status 400 if they are invalid."""
    try:
        known = json.loads(fields.get("talk") or "[]")
    except ValueError:
        known = None
    talk = [] if known == [] else parse_messages(known)
    if isinstance(talk, RowError):
        raise ApiError(400, f"talk: {talk}")
    system = fields.get("system", "").strip()
    return [Message("system", system)] if system and not talk else talk


def _reply(request: ApiRequest, served: ServedModel, asked: Sequence[Message]) -> WrittenText:
    decoding: SamplingConfig = served.user.decoding
    most = min(decoding.max_tokens, request.limits.max_tokens)
    return served.user.reply(asked, served.user.config({"max_tokens": most}))


async def _parts(
    page: Any,
    served: ServedModel,
    asked: Sequence[Message],
    text: WrittenText,
    events: AsyncIterator[Piece | Done],
) -> AsyncIterator[str]:
    """Yield the page. The button Stop ends the reply, because the browser then leaves the page.

    A script sends the beginning of the reply with the button.
    """
    before = asked[:-1]
    content = asked[-1].content
    yield page.start(asked)
    if text.dropped:
        yield page.dropped(text.dropped)
    yield page.stop(before, content)
    yield "<article class=assistant><bdi>"
    reply = alert = ""
    try:
        async for event in events:
            if isinstance(event, Piece) and event.piece:
                reply += event.piece
                title = "" if event.token is None else f"{math.exp(event.token.log_prob):.0%}"
                yield page.piece(event.piece, title)
    except (AttendoError, DeadlineExceeded) as error:
        alert = page.alert(str(error) or TOO_LATE)
    yield "</bdi></article>"
    if reply.strip():
        talk = [*asked, Message("assistant", reply)]
        yield page.copy() + alert + page.end(talk, marked_text(served.user.tokenizer, text.prompt_ids))
    else:
        yield alert + page.form(before, content)
