"""An application with routes of a test beside its own, and the log that it writes."""

import io
import json

from asgi_client import KEY, NoModels
from starlette.responses import Response, StreamingResponse

from attendo.errors import AttendoError
from attendo.serving.app import State, create_app
from attendo.serving.dependencies import ApiRequest, ApiRoute
from attendo.serving.engine import ClientGone, DeadlineExceeded
from attendo.serving.errors import ApiError
from attendo.serving.monitoring import Log
from attendo.serving.schemas import Body
from attendo.serving.state import Keys, ServingConfig

SECRET = "zyzzyva"
RAISED = {
    "full": ApiError(429, "the server is full", retry_after=7),
    "large": ApiError(413, "send it in parts"),
    "late": DeadlineExceeded(),
    "gone": ClientGone(),
    "ours": AttendoError("a beam has at least 1; give one"),
    "refused": ApiError(404, "there is no such model; see /v1/models", param="model", code="model_not_found"),
    "fault": KeyError(SECRET),
}


class Asked(Body):
    n: int
    q: str


def served(*, keys=(), form="json", models=None, **options):
    """An application with routes of a test beside its own, and its log."""
    log = io.StringIO()
    config = ServingConfig(max_body=1000)
    state = State(models or NoModels(), config, Keys(keys), log=Log(form, log), page=False, **options)
    app = create_app(state)
    app.router.route_class = ApiRoute

    for prefix in ("/test", "/v1/test"):

        @app.post(prefix + "/echo")
        async def echo(request: ApiRequest):
            notes = request.context
            notes.model = "tiny"
            notes.tokens_in = 3
            notes.tokens_out = 4
            notes.queued = 0.001
            return Response(await request.body())

        @app.get(prefix + "/raise/{name}")
        async def fail(name: str):
            raise RAISED[name]

        @app.post(prefix + "/asked")
        async def field(request: ApiRequest):
            return Response(str((await request.read_json(Asked)).n))

    @app.get("/test/stream")
    async def stream():
        async def pieces():
            yield b"one "
            yield b"two"

        return StreamingResponse(pieces())

    @app.get("/test/breaks")
    async def breaks():
        async def pieces():
            yield b"one "
            raise ValueError(SECRET)

        return StreamingResponse(pieces())

    return app, log


def lines(log):
    return [json.loads(line) for line in log.getvalue().splitlines()]


def bearer(key=KEY):
    return {"Authorization": f"Bearer {key}"}
