"""The dependencies of a route: the state and limits of the server, the body, a model and its jobs."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from attendo.bundle import TaskName
from attendo.errors import AttendoError
from attendo.serving.engine import EngineStopped, ForwardJob, Work, call, results
from attendo.serving.errors import ApiError
from attendo.serving.monitoring import CONTEXT, RequestContext
from attendo.serving.registry import ServedModel
from attendo.serving.schemas import (
    FORM,
    JSON,
    LONGEST_SECONDS,
    PARTS,
    BodyT,
    form_fields,
    media_type,
    parse_json,
)
from attendo.serving.state import ServingConfig, State

INLINE = 2000
"""Characters that are tokenized in the event loop's own thread; more go to another thread."""
CHARACTERS_PER_TOKEN = 4
"""An estimate for the cost of a pass over a text before it is tokenized."""
T = TypeVar("T")


class ApiRequest(Request):
    """A request with what its route needs of the server."""

    @property
    def server(self) -> State:
        """The state of the server."""
        return self.app.state.attendo

    @property
    def limits(self) -> ServingConfig:
        """The limits of the server."""
        return self.server.config

    @property
    def context(self) -> RequestContext:
        """The values that the route records for the log and the metrics."""
        return self.scope[CONTEXT]

    @property
    def media_type(self) -> str:
        """The media type of the body, without its parameters."""
        return media_type(self.headers.get("content-type", ""))

    def requested_timeout(self) -> float | None:
        """Return the header X-Request-Timeout. Raises ApiError, 422, for what is no number of seconds."""
        given = self.headers.get("x-request-timeout")
        if given is None:
            return None
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds <= LONGEST_SECONDS:
            raise ApiError(
                422,
                f"X-Request-Timeout must be a number of seconds above 0 and at most {LONGEST_SECONDS:,}, for "
                "example 2.5",
            )
        return seconds

    async def read_json(self, kind: type[BodyT]) -> BodyT:
        """Return the body, which is JSON. Raises ApiError: 415 for another kind, 422 naming the first wrong field."""
        self.requested_timeout()
        if self.media_type != JSON:
            raise ApiError(415, f"the body must be JSON; send it with Content-Type: {JSON}")
        return parse_json(await self.body(), kind)

    async def read_form(self) -> dict[str, str]:
        """Return the fields of a form. Raises ApiError: 415 for another kind, 400 for a broken one."""
        if self.media_type not in (FORM, PARTS):
            raise ApiError(
                415, f"the body must be JSON or a form; send it with Content-Type: {JSON}, or {FORM}"
            )
        try:
            return await form_fields(self.headers["content-type"], await self.body())
        except ValueError:  # not UTF-8, among others
            raise ApiError(400, "invalid form; send it in UTF-8, with fewer than 1,000 fields") from None

    def check_texts(self, texts: Sequence[str], field: str) -> None:
        """Raise ApiError, 413, for more or longer texts than the server takes."""
        limits = self.limits
        if len(texts) > limits.max_texts:
            message = f"{len(texts):,} texts (at most {limits.max_texts:,} per request); send them in parts"
            raise ApiError(413, message, param=field)
        longest = max(map(len, texts), default=0)
        if longest > limits.max_characters:
            message = f"a text has {longest:,} characters (at most {limits.max_characters:,})"
            raise ApiError(413, f"{message}; send it in parts", param=field)

    async def with_model(
        self,
        name: str | None,
        families: Sequence[TaskName],
        work: Callable[[ServedModel], Awaitable[T]],
    ) -> T:
        """Return the result of `work` on the model that `choose_model` finds."""
        return await self.with_choice(lambda: choose_model(self.server, name, families), work)

    async def with_choice(
        self, choose: Callable[[], ServedModel], work: Callable[[ServedModel], Awaitable[T]]
    ) -> T:
        """Return the result of `work` on the chosen model; if it was swapped meanwhile, once more on the new one."""
        while True:
            served = choose()
            self.context.model = served.name
            try:
                return await work(served)
            except EngineStopped:
                if choose() is served:
                    raise

    @property
    def seconds(self) -> float:
        """The time of the request: its header X-Request-Timeout, at most the server's. Raises ApiError, 422."""
        most = self.limits.timeout
        return min(self.requested_timeout() or most, most)

    async def disconnected(self) -> None:
        """Return when the client has left; the body must have been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def job_events(self, served: ServedModel, work: Work, cost: int) -> AbstractAsyncContextManager[Any]:
        """Return the events of a job as they come; see `engine.call`."""
        return call(served.engine, self.server.admission.entered(max(1, cost)), work, self.seconds)

    async def run_job(self, served: ServedModel, work: Work, cost: int) -> Sequence[Any]:
        """Return the results of a job. Raises as `engine.results`; an AttendoError becomes ApiError, 400."""
        context = self.context
        entered = self.server.admission.entered(max(1, cost), again=context.queued is not None)
        try:
            done = await results(served.engine, entered, work, self.seconds, self.disconnected)
        except AttendoError as error:
            raise ApiError(400, str(error)) from None
        context.queued = (context.queued or 0.0) + done.queued
        return done.results

    async def run_forward(
        self,
        served: ServedModel,
        kind: Hashable,
        items: Sequence[Any],
        run: Callable[[Sequence[Any]], Sequence[Any]],
        cost: int,
        size: Callable[[Any], int] = len,
    ) -> Sequence[Any]:
        """Return the results of `run` for the items, computed in the engine's thread.

        An item that fails spoils no other request, though items go through together: alone it raises its AttendoError,
        as ApiError, 400.

        Args:
            served: The model.
            kind: Items of the same kind go through together.
            items: The items.
            run: From items to one result each.
            cost: The cost of all items.
            size: The size of an item in characters.
        """

        def each_alone(some: Sequence[Any]) -> list[Any]:
            try:
                return list(run(some))
            except AttendoError as error:
                return [error] if len(some) == 1 else [found for one in some for found in each_alone([one])]

        if not items:
            return []
        found = await self.run_job(served, ForwardJob(kind, items, each_alone, size), cost)
        for one in found:
            if isinstance(one, AttendoError):
                raise ApiError(400, str(one))
        return found


class ApiRoute(APIRoute):
    """A route whose function gets an ApiRequest."""

    @property
    def takes_request_alone(self) -> bool:
        """Whether nothing of the request has to be found before its function is called."""
        return "{" not in self.path and [*inspect.signature(self.endpoint).parameters] == ["request"]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(ApiRequest(request.scope, request.receive))

        return handle


def choose_model(state: State, name: str | None, families: Sequence[TaskName] = ()) -> ServedModel:
    """Return the model of this name, or the only model of these families (none: any).

    Raises:
        ApiError: 404 if there is none; 400 if it has another task, or if several models require a name.
    """
    fit = [served for served in state.models if not families or served.family in families]
    if name is None:
        if len(fit) == 1:
            return fit[0]
        names = ", ".join(served.name for served in fit)
        if not fit:
            raise ApiError(
                404,
                f"no {_model_names(families)} is served; GET /v1/models lists the models",
                param="model",
            )
        raise ApiError(400, f"several models fit this request; set model to one of: {names}", param="model")
    try:
        served = state.models.named(name)
    except KeyError:
        message = "no model has this name; GET /v1/models lists the names"
        raise ApiError(404, message, param="model", code="model_not_found") from None
    if served not in fit:
        message = f"{name} is a {_model_names([served.family])}, not a {_model_names(families)}"
        raise ApiError(400, f"{message}; GET /v1/models lists the models", param="model")
    return served


def _model_names(families: Sequence[TaskName]) -> str:
    """The name of a model of these families in messages; none: of any."""
    from attendo.runs.task_specs import family_of  # takes a moment, and only errors need it

    return " or ".join(family_of(family).model_name for family in families) or "model"


def check_most(value: int | None, most: int, field: str) -> None:
    """Raise ApiError, 400, for a number above the server's limit."""
    if value is not None and value > most:
        raise ApiError(400, f"{field}={value:,} must be at most {most:,} on this server", param=field)


async def in_thread(n_characters: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, computed in another thread for long texts; AttendoError becomes ApiError, 400."""
    try:
        return work() if n_characters <= INLINE else await asyncio.to_thread(work)
    except AttendoError as error:
        raise ApiError(400, str(error)) from None


def cost_of_pass(texts: Sequence[str]) -> int:
    """Return the cost of texts that go through a model once."""
    return sum(1 + len(text) // CHARACTERS_PER_TOKEN for text in texts)
