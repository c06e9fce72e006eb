"""The ASGI application of the server: routes, middleware, health checks and OpenAPI document."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.responses import Response

from attendo import __version__
from attendo.errors import AttendoError
from attendo.serving import chat, completions, errors, pages, texts, translations
from attendo.serving.dependencies import ApiRequest, ApiRoute
from attendo.serving.errors import ApiError, Fault, documented_errors
from attendo.serving.middleware import CrossOrigin, Guard, ResponseLog
from attendo.serving.monitoring import MEDIA_TYPE
from attendo.serving.registry import Reloading
from attendo.serving.state import State

__all__ = ["State", "create_app"]

OPENAPI = "/openapi.json"
EARLY = frozenset({"/livez", "/readyz", "/health", "/metrics", OPENAPI})
"""The paths that are also served while the models load and while the server shuts down."""
PUBLIC = frozenset({"/livez", "/readyz"})
"""The paths that require no API key."""
KEYS = {
    "Bearer": {"type": "http", "scheme": "bearer"},
    "Basic": {"type": "http", "scheme": "basic"},
    "Key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}

health = APIRouter(route_class=ApiRoute, tags=["health"], default_response_class=Response)


@health.get("/livez", responses=documented_errors(Fault, 403))
async def livez(request: ApiRequest) -> Response:
    """Return status 200 while the server process is running."""
    return _status("alive")


@health.get("/readyz", responses=documented_errors(Fault, 403, 503))
async def readyz(request: ApiRequest) -> Response:
    """Return status 200 when all models are loaded, or 503 while models are loading or the server is shutting down."""
    state = request.server
    if state.ready:
        return _status("ready")
    raise ApiError(503, errors.STOPPING if state.draining else errors.LOADING)


@health.get("/health", operation_id="health_health_get", responses=documented_errors(Fault, 401, 403, 503))
async def health_check(request: ApiRequest) -> Response:
    """Return the response of /readyz."""
    return await readyz(request)


@health.get("/metrics", responses=documented_errors(Fault, 401, 403))
async def metrics(request: ApiRequest) -> Response:
    """Return all metrics of the server in the text format of Prometheus."""
    return Response(request.server.metrics.text(), media_type=MEDIA_TYPE)


def _status(status: str) -> Response:
    return Response(json.dumps({"status": status}), media_type="application/json")


def create_app(state: State) -> FastAPI:
    """Return the ASGI application of a server.

    The application responds with status 503 until the models are loaded. `serving.run` loads the models. Under another
    ASGI server, the lifespan of the application loads the models.

    Args:
        state: The state of the server, available to routes as `request.server`.
    """
    app = FastAPI(
        title="attendo",
        version=__version__,
        summary="Translate, classify and complete texts with your own Transformer.",
        openapi_url=OPENAPI,
        docs_url=None,  # these pages would load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.attendo = state
    routers = [health, translations.router, completions.router, chat.router]
    routers += [texts.openai_router, texts.router]
    routers += [pages.look_router] if state.look else []
    routers += [pages.router] if state.page else []
    routers += [pages.assets_router] if state.look or state.page else []
    for router in routers:
        app.include_router(router)
    paths = [getattr(route, "path", "{") for router in routers for route in router.routes]
    state.paths = frozenset(path for path in paths if "{" not in path)
    # these pages are public, but their requests are not
    still = frozenset({"/", "/docs"}) if state.page else frozenset()
    errors.install(app)
    if state.keys:
        app.openapi = partial(_openapi_with_keys, app)

    def is_page(path: str) -> bool:
        return path in still or path.startswith("/assets/")

    def is_public(path: str) -> bool:
        return is_page(path) or path in PUBLIC or (state.look and pages.is_look_page(path))

    direct = {
        (method, route.path): route
        for router in routers
        for route in router.routes
        if isinstance(route, ApiRoute) and route.takes_request_alone
        for method in route.methods or ()
    }

    def is_early(path: str) -> bool:
        return path in EARLY or is_page(path)

    app.add_middleware(Guard, state=state, is_public=is_public, is_early=is_early, direct=direct)
    if state.cors:
        app.add_middleware(
            CrossOrigin,
            allow_origins=state.cors,
            allow_methods=("GET", "POST"),
            allow_headers=("authorization", "content-type", "x-api-key", "x-request-id", "x-request-timeout"),
            expose_headers=("x-request-id", "retry-after"),
        )
    app.add_middleware(ResponseLog, state=state)
    return app


def _openapi_with_keys(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of a server that requires a key."""
    document = FastAPI.openapi(app)
    document["components"]["securitySchemes"] = KEYS
    document["security"] = [{name: []} for name in KEYS]
    for path in PUBLIC:
        document["paths"][path]["get"]["security"] = []
    return document


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the models in a thread, unless `serving.run` loads them, and stop the engines at the end."""
    state: State = app.state.attendo
    if not state.models.ready:
        threading.Thread(target=_load, args=(state,), name="loading", daemon=True).start()
    yield
    state.draining = True
    state.models.stop()


def _load(state: State) -> None:
    try:
        Reloading(state).load()
    except AttendoError as error:
        state.log.event("failed", {"why": str(error)})
