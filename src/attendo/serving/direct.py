"""A shorter way to the routes of fixed paths: FastAPI describes them, but need not look for them with each request."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from attendo.serving.faults import KNOWN, answer_to


class Direct:
    """Calls the endpoint of a path without fields at once, if it takes the request alone; all else goes to the app.

    HEAD is answered where GET is; the server leaves the body out.
    """

    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter]) -> None:
        self.app = app
        self.routes = {
            (method, route.path): route
            for router in routers
            for route in router.routes
            if isinstance(route, APIRoute) and "{" not in route.path and _takes_request(route.endpoint)
            for method in route.methods or ()
        }
        self.routes |= {
            ("HEAD", path): route for (method, path), route in self.routes.items() if method == "GET"
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = route
        try:
            response = await route.endpoint(Request(scope, receive, send))
        except KNOWN as error:
            response = answer_to(scope, error)
        await response(scope, receive, send)


def _takes_request(endpoint: Callable[..., Awaitable[Response]]) -> bool:
    return [*inspect.signature(endpoint).parameters] == ["request"]
