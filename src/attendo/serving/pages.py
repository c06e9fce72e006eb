"""The web pages: the page at `/`, and the microscope of a model at `/look/{model}/` with its API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path
from pydantic import ConfigDict
from starlette.responses import RedirectResponse, Response

from attendo.display.i18n import accepted_language
from attendo.display.web import data_elements, live_document, served_asset
from attendo.files import json_of
from attendo.serving.dependencies import ApiRequest, ApiRoute, choose_model
from attendo.serving.engine import PASS_CHARACTERS
from attendo.serving.errors import ApiError, Fault, documented_errors
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
    return Response(
        *live_page(accepted_language(request.headers), root="../../", back=back).response(request.headers)
    )


BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@look_router.post(
    "/look/{model}/api/{name}", **reads(Question, dict[str, Any], timeout=False, content=BINARY)
)
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
