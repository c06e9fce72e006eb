"""The request class of all routes, with the server's state and limits, the body, and the jobs of a model."""

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
"""The maximum number of characters that are tokenized in the thread of the event loop."""
CHARACTERS_PER_TOKEN = 4
"""The assumed characters per token, for the cost of a text that is not tokenized yet."""
T = TypeVar("T")


class ApiRequest(Request):
    """A request with access to the server's state, the parsed body, and the models."""

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
        """The media type of the request body, without parameters."""
        return media_type(self.headers.get("content-type", ""))

    def timeout(self) -> float:
        """Return the timeout in seconds: the header X-Request-Timeout, but at most the server's timeout.

        Raise ApiError with status 422 if the header is not a valid number of seconds.
        """
        most = self.limits.timeout
        given = self.headers.get("x-request-timeout")
        if given is None:
            return most
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
        return min(seconds, most)

    async def read_json(self, kind: type[BodyT]) -> BodyT:
        """Parse the JSON body as the model class `kind`. Raise ApiError for another body (415) or an invalid field
        (422).
        """
        self.timeout()  # raises for an invalid header
        if self.media_type != JSON:
            raise ApiError(415, f"the body must be JSON; send it with Content-Type: {JSON}")
        return parse_json(await self.body(), kind)

    async def read_form(self) -> dict[str, str]:
        """Return the fields of a form body. Raise ApiError for another body (status 415) or an invalid form (400)."""
        if self.media_type not in (FORM, PARTS):
            raise ApiError(415, f"the body must be JSON or a form; send it with Content-Type: {JSON}, or {FORM}")
        try:
            return await form_fields(self.headers["content-type"], await self.body())
        except ValueError:  # not UTF-8, among others
            raise ApiError(400, "invalid form; send it in UTF-8, with fewer than 1,000 fields") from None

    def check_texts(self, texts: Sequence[str], field: str) -> None:
        """Raise ApiError with status 413 if the texts exceed the server's limits on number or length."""
        limits = self.limits
        if len(texts) > limits.max_texts:
            message = f"{len(texts):,} texts (at most {limits.max_texts:,} per request); send them in parts"
            raise ApiError(413, message, param=field)
        longest = max(map(len, texts), default=0)
        if longest > limits.max_characters:
            message = f"a text has {longest:,} characters (at most {limits.max_characters:,})"
            raise ApiError(413, f"{message}; send it in parts", param=field)

    async def with_model(
        self, name: str | None, families: Sequence[TaskName], work: Callable[[ServedModel], Awaitable[T]]
    ) -> T:
        """Return the result of `work` on the model that `choose_model` returns."""
        return await self.with_choice(lambda: choose_model(self.server, name, families), work)

    async def with_choice(self, choose: Callable[[], ServedModel], work: Callable[[ServedModel], Awaitable[T]]) -> T:
        """Return the result of `work` on the chosen model. If the model was reloaded meanwhile, run `work` again."""
        while True:
            served = choose()
            self.context.model = served.name
            try:
                return await work(served)
            except EngineStopped:
                if choose() is served:
                    raise

    async def disconnected(self) -> None:
        """Wait until the client disconnects. Read the body before the call."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def job_events(self, served: ServedModel, work: Work, cost: int) -> AbstractAsyncContextManager[Any]:
        """Return a context with the events of a job (see `engine.call`)."""
        return call(served.engine, self.server.admission.entered(max(1, cost)), work, self.timeout())

    async def run_job(self, served: ServedModel, work: Work, cost: int) -> Sequence[Any]:
        """Run a job and return its results. Raise ApiError with status 400 for an AttendoError of the job."""
        context = self.context
        entered = self.server.admission.entered(max(1, cost), again=context.queued is not None)
        try:
            done = await results(served.engine, entered, work, self.timeout(), self.disconnected)
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

        Items of several requests can share a batch. If a batch fails, its items are computed separately, and only the
        requests of the failing items raise ApiError with status 400.

        Args:
            served: The model, whose engine runs the computation.
            kind: The key of the batch. Only items with equal keys share a batch.
            items: The items, for example texts.
            run: The function that maps a list of items to a list with one result per item.
            cost: The cost of all items together, in tokens.
            size: The function that returns the size of an item in characters.
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
    """A route whose function receives an ApiRequest."""

    @property
    def takes_request_alone(self) -> bool:
        """Whether the request is the only parameter of the route's function."""
        return "{" not in self.path and [*inspect.signature(self.endpoint).parameters] == ["request"]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the request handler, which passes an ApiRequest to the function of the route."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(ApiRequest(request.scope, request.receive))

        return handle


def choose_model(state: State, name: str | None, families: Sequence[TaskName] = ()) -> ServedModel:
    """Return the model with a given name, or the only model of the given tasks (default: of all tasks).

    Raise ApiError if no model fits (status 404), the named model has another task (400), or several models fit (400).
    """
    fit = [served for served in state.models if not families or served.family in families]
    if name is None:
        if len(fit) == 1:
            return fit[0]
        names = ", ".join(served.name for served in fit)
        if not fit:
            raise ApiError(
                404, f"no {_model_names(families)} is served; GET /v1/models lists the models", param="model"
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
    """Return the name of a model of the given tasks in messages. Without tasks, return "model"."""
    from attendo.runs.task_specs import family_of  # the import is slow, and only errors need it

    return " or ".join(family_of(family).model_name for family in families) or "model"


def check_most(value: int | None, most: int, field: str) -> None:
    """Raise ApiError with status 400 if the value of a field is above the server's limit."""
    if value is not None and value > most:
        raise ApiError(400, f"{field}={value:,} must be at most {most:,} on this server", param=field)


async def in_thread(n_characters: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs in another thread if the texts are long.

    Raise ApiError with status 400 for an AttendoError.
    """
    try:
        return work() if n_characters <= INLINE else await asyncio.to_thread(work)
    except AttendoError as error:
        raise ApiError(400, str(error)) from None


def cost_of_pass(texts: Sequence[str]) -> int:
    """Return the cost of texts that are processed in one forward pass, in tokens."""
    return sum(1 + len(text) // CHARACTERS_PER_TOKEN for text in texts)
