"""The microscope of a served model: its page at /look/{model}/, and what the page asks, beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import RedirectResponse, Response

from attendo.display.i18n import Language
from attendo.files import json_of
from attendo.serving.asking import chosen, passed, state_of, with_model
from attendo.serving.bodies import JSON, UNREAD, media_type
from attendo.serving.engine import PASS_CHARACTERS
from attendo.serving.faults import Refused
from attendo.serving.served import Served

if TYPE_CHECKING:
    from attendo.microscope.session import Answer

router = APIRouter(tags=["microscope"])
COST = 1000
"""Of a question, in tokens: the texts are short, and what is computed of them is much."""
POLICY = {"content-security-policy": "frame-ancestors 'none'"}
"""What else the page may do, it says itself."""
ModelName = Annotated[str, Path(max_length=200)]


class Question(BaseModel):
    """A question of the page, as `attendo.microscope.session` has them."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class _Asked:
    name: str
    body: dict[str, Any]


@cache
def _page(language: Language) -> bytes:
    from attendo.microscope.look_page import live_page

    return live_page(language).encode()


def is_page(path: str) -> bool:
    """Whether a path is that of a page, or leads to one: they tell nothing of the models.

    >>> [is_page(path) for path in ("/look/enja", "/look/enja/", "/look/", "/look/enja/api/model")]
    [True, True, False, False]
    """
    return re.fullmatch(r"/look/[^/]+/?", path) is not None


@router.get("/look/{model}", include_in_schema=False)
async def without_slash(model: ModelName) -> Response:
    """To the page: what it asks is found beside it."""
    return RedirectResponse(f"{quote(model, safe='')}/", 307)


@router.get(
    "/look/{model}/",
    response_class=Response,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
async def page(request: Request, model: ModelName) -> Response:
    """The page, in Japanese where the browser asks for that; where keys are set it tells nothing of the models."""
    if not state_of(request).keys:
        chosen(state_of(request), model)
    wanted = request.headers.get("accept-language", "")
    language: Language = "ja" if wanted.strip().lower().startswith("ja") else "en"
    return Response(_page(language), headers=POLICY, media_type="text/html")


BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.post(
    "/look/{model}/api/{name}",
    responses={200: {"model": dict[str, Any], "content": BINARY}} | UNREAD,
    openapi_extra={
        "requestBody": {"required": True, "content": {JSON: {"schema": Question.model_json_schema()}}}
    },
)
async def answer(request: Request, model: ModelName, name: ModelName) -> Response:
    """The answer to one question of the page."""
    if media_type(request) != JSON:
        raise Refused(415, f"a question is JSON; send it with Content-Type: {JSON}")
    asked = _Asked(name, _object(await request.body()))

    async def work(served: Served) -> Response:
        session = served.session

        def run(some: Sequence[_Asked]) -> list[Answer]:
            return [session.answer(one.name, one.body) for one in some]

        # each counts as a whole pass, so that no two questions go together
        (found,) = await passed(request, served, "look", [asked], run, COST, lambda _: PASS_CHARACTERS)
        if isinstance(found, bytes):
            return Response(found, media_type="application/octet-stream")
        return Response(json_of(found), media_type=JSON)

    return await with_model(request, model, (), work)


def _object(data: bytes) -> dict[str, Any]:
    """The body. Raises Refused, 422; a lone surrogate is none of UTF-8."""
    try:
        body = json.loads(data)
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise Refused(422, "the question is not valid JSON in UTF-8") from None
    if not isinstance(body, dict):
        raise Refused(422, "the question is not a JSON object")
    return body
