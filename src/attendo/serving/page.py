"""The page for people at `/`: one document that asks this server, and nothing else, by its public routes."""

from __future__ import annotations

import hashlib
import json
from functools import cache

from fastapi import APIRouter, Request
from starlette.responses import Response

from attendo.display.web import asset, hash_of, one_script
from attendo.serving.state import State

router = APIRouter(include_in_schema=False)

ASSETS, SHARED_ASSETS = "serving/assets/page", "microscope/assets/look"

SHARED = ("words", "dom", "chips")
"""Modules that the microscope's page is made of, too."""

MODULES = (
    *("sentences", "address", "asking", "lines", "reading", "writing", "choices", "others", "around"),
    *("translating", "completing", "classifying", "keys", "begin"),
)
"""In the order in which they are joined, behind the shared ones; each uses while it is loaded only those before it."""


@router.get("/", response_class=Response)
async def page(request: Request) -> Response:
    """Translate, classify and complete as one types. Static: without a key it tells nothing of the models."""
    state: State = request.app.state.attendo
    document, policy, tag = document_of(state.look, state.config.max_characters)
    # checked each time: a new version must not ask by the old one's ways
    headers = {"content-security-policy": policy, "cache-control": "no-cache", "etag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    return Response(document, 200, headers, "text/html; charset=utf-8")


@cache
def document_of(look: bool, characters: int) -> tuple[bytes, str, str]:
    """The document, its content security policy (own style and script, requests to its server) and its tag."""
    style, script = joined()
    facts = {"look": look, "characters": characters}
    document = asset(f"{ASSETS}/page.html")
    for mark, text in (("FACTS", json.dumps(facts)), ("STYLE", style), ("SCRIPT", script)):
        document = document.replace(f"@@{mark}@@", text, 1)
    policy = (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; img-src data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    data = document.encode()
    return data, policy, f'"{hashlib.sha256(data).hexdigest()[:32]}"'


@cache
def joined() -> tuple[str, str]:
    """The styles as one, and the modules as one."""
    modules = [asset(f"{SHARED_ASSETS}/{name}.js") for name in SHARED]
    modules += [asset(f"{ASSETS}/{name}.js") for name in MODULES]
    return "\n".join((asset(f"{SHARED_ASSETS}/look.css"), asset(f"{ASSETS}/page.css"))), one_script(modules)
