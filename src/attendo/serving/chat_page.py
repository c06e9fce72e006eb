"""The page /chat: a conversation with an assistant as HTML, which arrives while the reply is generated.

The page contains the whole conversation. Each form sends the conversation before a message, so the server stores none.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from html import escape
from urllib.parse import quote, urlencode

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from attendo.data.chat import Message, parse_messages
from attendo.data.row_report import RowError
from attendo.decoding.sampling import SamplingConfig
from attendo.display.i18n import Language, Localized, accepted_language
from attendo.display.web import FORM_POLICY, STYLES, version
from attendo.errors import AttendoError
from attendo.inference.conversations import marked_text
from attendo.inference.generation import WrittenText
from attendo.serving.dependencies import ApiRequest, ApiRoute, choose_model, in_thread
from attendo.serving.engine import DeadlineExceeded, Done, GenerationJob, Piece
from attendo.serving.errors import TOO_LATE, ApiError
from attendo.serving.registry import ServedModel

router = APIRouter(route_class=ApiRoute, include_in_schema=False)
WORDS = {
    "message": Localized("Message", "メッセージ"),
    "system": Localized("System message", "システムメッセージ"),
    "send": Localized("Send", "送信"),
    "edit": Localized("Edit and send again", "編集して再送信"),
    "stop": Localized("Stop", "停止"),
    "copy": Localized("Copy", "コピー"),
    "again": Localized("Another reply", "別の返答"),
    "new": Localized("New conversation", "新しい会話"),
    "look": Localized("Look inside", "中を見る"),
    "dropped": Localized(
        "messages at the beginning did not fit into the context.",
        "件の古いメッセージは文脈長に収まりませんでした。",
    ),
}


class HtmlStream(StreamingResponse):
    """A page that is sent while a reply is generated. If the client disconnects, the job is canceled."""

    def __init__(self, stack: AsyncExitStack, parts: AsyncIterator[str]) -> None:
        super().__init__(parts, media_type="text/html", headers={"content-security-policy": FORM_POLICY})
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the page to the client."""
        async with self._stack:
            await super().__call__(scope, receive, send)


class _Page:
    """The parts of a page for one model, in the language of the browser."""

    def __init__(self, request: ApiRequest, served: ServedModel) -> None:
        self.language: Language = accepted_language(request.headers)
        self.name = served.name
        self.action = f"chat?model={quote(served.name, safe='')}"
        self.look = request.server.look
        self.tokenizer = served.user.tokenizer

    def word(self, key: str) -> str:
        return WORDS[key].text(self.language)

    def start(self, talk: Sequence[Message]) -> str:
        """Return the beginning of the page, with the messages so far."""
        styles = (*STYLES, "serve/serve.css", "chat/chat.css")
        links = "".join(f'<link rel=stylesheet href="assets/{version()}/{path}">' for path in styles)
        links += f'<script type=module async src="assets/{version()}/chat/copy.js"></script>'
        top = f'<header class=top><h1><a href=".">attendo</a></h1>{escape(self.name)}'
        new = f'<a class="button quiet end" href="{self.action}">{self.word("new")}</a></header>'
        head = '<meta charset=utf-8><meta name=viewport content="width=device-width">'
        title = f"<title>{escape(self.name)} · attendo</title>"
        shown = "".join(self._message(talk, number) for number in range(len(talk)))
        return f"<!doctype html><html lang={self.language}>{head}{title}{links}{top}{new}<main class=chat>{shown}"

    def _message(self, talk: Sequence[Message], number: int) -> str:
        role, content = talk[number]
        edit = self.copy() if role == "assistant" else ""
        if role == "user":
            form = self.form(talk[:number], content)
            edit = f"<details><summary>{self.word('edit')}</summary>{form}</details>"
        return f"<article class={role}><bdi>{escape(content)}</bdi></article>{edit}"

    def copy(self) -> str:
        """Return the button that copies the reply before it."""
        return f'<button type=button class="copy quiet">{self.word("copy")}</button>'

    def form(
        self, talk: Sequence[Message], content: str = "", button: str = "send", *, hidden: bool = False
    ) -> str:
        """Return a form that sends a message after the conversation `talk`."""
        known = escape(json.dumps([message._asdict() for message in talk], ensure_ascii=False))
        label = self.word("message")
        box = f'<textarea name=message rows=3 required aria-label="{label}">\n{escape(content)}</textarea>'
        if hidden:
            box = f'<input type=hidden name=message value="{escape(content)}">'
        elif not talk:
            name = self.word("system")
            system = f'<textarea name=system aria-label="{name}"></textarea>'
            box = f"<details><summary>{name}</summary>{system}</details>{box}"
        name = ""
        if button == "stop":
            name, box = " name=stop value=1", f"{box}<input type=hidden name=reply>"
        kind = "" if hidden else " class=main"
        send = f"<button{kind}{name}>{self.word(button)}</button>"
        talk_field = f'<input type=hidden name=talk value="{known}">'
        return f'<form method=post action="{self.action}">{talk_field}{box}{send}</form>'

    def end(self, talk: Sequence[Message], prompt: str) -> str:
        """Return what follows a finished reply, which is the last message. `prompt` is the text for the microscope."""
        again = self.form(talk[:-2], talk[-2].content, "again", hidden=True)
        values = urlencode(
            {"text": prompt, "search": "forced", "target": talk[-1].content, "language": self.language}
        )
        address = escape(f"look/{quote(self.name, safe='')}/#{values}")
        look = f'<a class="button quiet" href="{address}">{self.word("look")} →</a>' if self.look else ""
        return f"<div class=bar>{again}{look}</div>{self.form(talk)}"


@router.get("/chat", response_class=Response)
async def chat_page(request: ApiRequest) -> Response:
    """Return the page of an empty conversation."""
    page = _Page(request, _assistant(request))
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
    page = _Page(request, served)
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
            return HtmlStream(stack.pop_all(), _parts(page, asked, text, events))
    except ApiError as error:
        alert = f"<p class=alert role=alert>{escape(str(error))}</p>"
        return _html(page.start(talk) + alert + page.form(talk, content), error.status)


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
    page: _Page, asked: Sequence[Message], text: WrittenText, events: AsyncIterator[Piece | Done]
) -> AsyncIterator[str]:
    """Yield the page. The button Stop ends the reply, because the browser then leaves the page.

    A script sends the beginning of the reply with the button.
    """
    stop = page.form(asked[:-1], asked[-1].content, "stop", hidden=True).replace(
        "<form ", "<form class=stop "
    )
    yield page.start(asked)
    if text.dropped:
        yield f"<p class=note>{text.dropped} {page.word('dropped')}</p>"
    yield f"{stop}<article class=assistant><bdi>"
    reply = alert = ""
    try:
        async for event in events:
            if isinstance(event, Piece) and event.piece:
                reply += event.piece
                title = "" if event.token is None else f' title="{math.exp(event.token.log_prob):.0%}"'
                yield f"<span{title}>{escape(event.piece)}</span>"
    except (AttendoError, DeadlineExceeded) as error:
        alert = f"<p class=alert role=alert>{escape(str(error) or TOO_LATE)}</p>"
    yield "</bdi></article>"
    if reply.strip():
        yield (
            page.copy()
            + alert
            + page.end([*asked, Message("assistant", reply)], marked_text(page.tokenizer, text.prompt_ids))
        )
    else:
        yield alert + page.form(asked[:-1], asked[-1].content)
