"""The application: routes, guard and answers to errors, put together; plain ASGI, for any server."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from attendo import __version__
from attendo.errors import AttendoError
from attendo.serving import completions, embeddings, faults, health, libretranslate, look_routes, page, texts
from attendo.serving.bodies import describe
from attendo.serving.direct import Direct
from attendo.serving.guard import Guard
from attendo.serving.reloading import Reloading
from attendo.serving.state import State

__all__ = ["State", "create_app"]

OPENAPI = "/openapi.json"


def create_app(state: State) -> FastAPI:
    """The application of a server; a route finds the state as `request.app.state.attendo`.

    Until the models are loaded it answers 503. `serving.run` loads them; another ASGI server has them loaded by the
    application's lifespan.
    """
    app = FastAPI(
        title="attendo",
        version=__version__,
        summary="Translate, classify and complete with a Transformer of your own.",
        openapi_url=OPENAPI,
        docs_url=None,  # they would fetch their scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.attendo = state
    routers = [health.router, libretranslate.router, completions.router]
    routers += [embeddings.router, texts.router]
    routers += [look_routes.router] if state.look else []
    routers += [page.router] if state.page else []
    for router in routers:
        app.include_router(router)
    state.paths = frozenset().union(*map(_paths_of, routers))
    faults.install(app)
    describe(app, bool(state.keys))
    # the pages are the same for everybody; what they ask is not
    still = _paths_of(page.router) if state.page else frozenset[str]()

    def is_public(path: str) -> bool:
        return path in still or path in health.PUBLIC or (state.look and look_routes.is_page(path))

    app.add_middleware(Direct, routers=routers)
    app.add_middleware(Guard, state=state, is_public=is_public, early=still | health.PATHS | {OPENAPI})
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Under another server than ours: loads in a thread while it answers, and ends the engines at its end."""
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


def _paths_of(router: APIRouter) -> frozenset[str]:
    """The paths of its routes without a field."""
    paths = [getattr(route, "path", "") for route in router.routes]
    return frozenset(path for path in paths if "{" not in path)
