"""The web pages: `/`, `/docs`, the conversation `/chat`, and the microscope `/look/{model}/` with its API.

The page /chat contains its whole conversation as HTML. Each form sends the conversation before a message, so the server
stores none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from html import escape
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path
from pydantic import ConfigDict
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from attendo.data.chat import Message, marked_text, parse_messages
from attendo.data.row_report import RowError
from attendo.decoding.sampling import SamplingConfig
from attendo.display.i18n import accepted_language
from attendo.display.web import FORM_POLICY, data_elements, live_document, page_of, served_asset
from attendo.errors import AttendoError
from attendo.files import json_of
from attendo.inference.generation import WrittenText
from attendo.serving.dependencies import ApiRequest, ApiRoute, choose_model, in_thread
from attendo.serving.engine import PASS_CHARACTERS, DeadlineExceeded, Done, GenerationJob, Piece
from attendo.serving.errors import TOO_LATE, ApiError, Fault, documented_errors
from attendo.serving.registry import ServedModel
from attendo.serving.schemas import JSON, Body, reads

if TYPE_CHECKING:
    from attendo.microscope.session import Answer

router = APIRouter(route_class=ApiRoute, include_in_schema=False)
assets_router = APIRouter(route_class=ApiRoute, include_in_schema=False)


@router.get("/", response_class=Response)
async def page(request: ApiRequest) -> Response:
    """Return the web page for translation, classification and completion, which contains no data of models."""
    state = request.server
    facts = {"look": state.look, "characters": state.config.max_characters, "chat": not state.keys}
    data = data_elements({"facts": json_of(facts)})
    served = live_document(("serve/main.js",), "serve/serve.css", data, "en")
    return Response(*served.response(request.headers))


@assets_router.get("/assets/{path:path}", response_class=Response)
async def asset_file(request: ApiRequest, path: str) -> Response:
    """Return a script or style sheet of the pages."""
    served = served_asset(path)
    if served is None:
        raise ApiError(404, f"{path} is not a file of the pages. Reload the page")
    return Response(*served.response(request.headers))


@router.get("/docs", response_class=Response)
async def routes_page(request: ApiRequest) -> Response:
    """Return a table of all routes. FastAPI's own page would load scripts from another server."""
    rows = [
        f"<tr><td>{method.upper()}<td><code>{escape(path)}</code><td>{escape(operation['description'])}"
        for path, operations in request.app.openapi()["paths"].items()
        for method, operation in operations.items()
    ]
    head = "<!doctype html><html lang=en><title>attendo: routes</title><p>For programs: "
    text = f"{head}<a href=/openapi.json>/openapi.json</a><table>{''.join(rows)}</table>"
    return Response(text, 200, {"content-security-policy": "default-src 'none'"}, "text/html; charset=utf-8")


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
        n_characters = sum(len(message.content) for message in asked)
        text = await in_thread(n_characters, lambda: _reply(request, served, asked))
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


look_router = APIRouter(route_class=ApiRoute, tags=["microscope"], responses=documented_errors(Fault))
COST = 1000
"""The cost of a microscope request in tokens. The texts are short, but the computation is large."""
ModelName = Annotated[str, Path(max_length=200)]


class Question(Body):
    """The body of a microscope request, which `attendo.microscope.session` validates."""

    model_config = ConfigDict(extra="allow")


def is_look_page(path: str) -> bool:
    """Return whether a path is a microscope page or redirects to one. Microscope pages contain no data of models.

    >>> [is_look_page(path) for path in ("/look/enja", "/look/enja/", "/look/", "/look/enja/api/model")]
    [True, True, False, False]
    """
    return re.fullmatch(r"/look/[^/]+/?", path) is not None


@look_router.get("/look/{model}", include_in_schema=False)
async def without_slash(model: ModelName) -> Response:
    """Redirect to the microscope page with a slash at the end, because its requests use relative paths."""
    return RedirectResponse(f"{quote(model, safe='')}/", 307)


@look_router.get(
    "/look/{model}/",
    response_class=Response,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
async def look_page(request: ApiRequest, model: ModelName) -> Response:
    """Return the microscope page of a model, in Japanese if the browser prefers Japanese."""
    if not request.server.keys:
        choose_model(request.server, model)
    from attendo.microscope.look_page import live_page  # most servers never load the microscope

    back = "../../" if request.server.page else None
    served = live_page(accepted_language(request.headers), root="../../", back=back)
    return Response(*served.response(request.headers))


BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@look_router.post("/look/{model}/api/{name}", **reads(Question, dict[str, Any], timeout=False, content=BINARY))
async def answer(request: ApiRequest, model: ModelName, name: ModelName) -> Response:
    """Compute the answer to one request of the microscope page."""
    question = name, (await request.read_json(Question)).model_extra or {}

    async def work(served: ServedModel) -> Response:
        session = served.session

        def run(some: Sequence[tuple[str, dict[str, Any]]]) -> list[Answer]:
            return [session.answer(*one) for one in some]

        # each request counts as a whole batch, so two requests never share a batch
        (found,) = await request.run_forward(served, "look", [question], run, COST, lambda _: PASS_CHARACTERS)
        if isinstance(found, bytes):
            return Response(found, media_type="application/octet-stream")
        return Response(json_of(found), media_type=JSON)

    return await request.with_model(model, (), work)
