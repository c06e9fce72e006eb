"""Whether it lives, whether it takes work, and what it counts."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from attendo.serving.faults import LOADING, STOPPING, answer
from attendo.serving.metrics import TYPE

router = APIRouter(tags=["health"])
PATHS = frozenset({"/livez", "/readyz", "/health", "/metrics"})
"""Answered while models load and while the server drains, too."""

PUBLIC = frozenset({"/livez", "/readyz"})
"""Answered without a key."""


@router.get("/livez", response_class=Response)
async def livez(request: Request) -> Response:
    """200 as long as the process answers."""
    return _said("alive")


@router.get("/readyz", response_class=Response)
async def readyz(request: Request) -> Response:
    """200 when all models are loaded; 503 while they load, and from the moment that the server is told to stop."""
    state = request.app.state.attendo
    if state.ready:
        return _said("ready")
    return answer(request.scope, 503, STOPPING if state.draining else LOADING)


@router.get("/health", response_class=Response)
async def health(request: Request) -> Response:
    """The same as /readyz."""
    return await readyz(request)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """All counts, as Prometheus reads them."""
    return Response(request.app.state.attendo.metrics.text(), media_type=TYPE)


def _said(status: str) -> Response:
    return Response(b'{"status": "%s"}' % status.encode(), media_type="application/json")
