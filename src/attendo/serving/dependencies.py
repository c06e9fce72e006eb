"""What routes share: choosing a model, the server's limits, and running a job until its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from starlette.requests import Request

from attendo.bundle import TaskName
from attendo.errors import AttendoError
from attendo.serving.engine import EngineStopped, ForwardJob, Work, call, results
from attendo.serving.errors import ApiError
from attendo.serving.monitoring import context_of
from attendo.serving.registry import ServedModel
from attendo.serving.schemas import requested_timeout
from attendo.serving.state import ServingConfig, State

INLINE = 2000
"""Characters that are tokenized in the event loop's own thread; more go to another thread."""
CHARACTERS_PER_TOKEN = 4
"""An estimate for the cost of a pass over a text before it is tokenized."""
KINDS: dict[TaskName, str] = {
    "translation": "translator",
    "classification": "classifier",
    "language-model": "language model",
    "masked-language-model": "masked language model",
}
T = TypeVar("T")


def state_of(request: Request) -> State:
    """Return the state of the server."""
    return request.app.state.attendo


def limits_of(request: Request) -> ServingConfig:
    """Return the limits of the server."""
    return state_of(request).config


def choose_model(state: State, name: str | None, families: Sequence[TaskName] = ()) -> ServedModel:
    """Return the model of this name, or the only model of these families; no families: of any.

    Raises:
        ApiError: 404 where there is none; 400 where it is for another task, or where a name must say which of several.
    """
    fit = [served for served in state.models if not families or served.family in families]
    kinds = " or ".join(KINDS[family] for family in families) or "model"
    if name is None:
        if len(fit) == 1:
            return fit[0]
        names = ", ".join(served.name for served in fit)
        if not fit:
            raise ApiError(404, f"no {kinds} is served here; GET /v1/models lists what is", param="model")
        raise ApiError(400, f"several models could answer; name one as model: {names}", param="model")
    try:
        served = state.models.named(name)
    except KeyError:
        message = "there is no model of this name; GET /v1/models lists the names"
        raise ApiError(404, message, param="model", code="model_not_found") from None
    if served not in fit:
        message = f"{name} is a {KINDS[served.family]}, and this wants a {kinds}"
        raise ApiError(400, f"{message}; GET /v1/models lists the models", param="model")
    return served


async def with_model(
    request: Request,
    name: str | None,
    families: Sequence[TaskName],
    work: Callable[[ServedModel], Awaitable[T]],
) -> T:
    """Return the result of `work` on the model that `choose_model` finds."""
    return await with_choice(request, lambda: choose_model(state_of(request), name, families), work)


async def with_choice(
    request: Request, choose: Callable[[], ServedModel], work: Callable[[ServedModel], Awaitable[T]]
) -> T:
    """Return the result of `work` on the chosen model; if it was swapped meanwhile, once more on the new one."""
    while True:
        served = choose()
        context_of(request).model = served.name
        try:
            return await work(served)
        except EngineStopped:
            if choose() is served:
                raise


def check_texts(config: ServingConfig, texts: Sequence[str], field: str) -> None:
    """Raises ApiError, 413, for more or longer texts than the server takes."""
    if len(texts) > config.max_texts:
        message = (
            f"{len(texts):,} texts are more than the {config.max_texts:,} of a request; send them in parts"
        )
        raise ApiError(413, message, param=field)
    longest = max(map(len, texts), default=0)
    if longest > config.max_characters:
        message = f"a text has {longest:,} characters, the server takes {config.max_characters:,}"
        raise ApiError(413, f"{message}; send it in parts", param=field)


def check_most(value: int | None, most: int, field: str) -> None:
    """Raises ApiError, 400, for a number larger than the server gives."""
    if value is not None and value > most:
        raise ApiError(400, f"{field} is {value:,}; this server gives at most {most:,}", param=field)


def deadline_of(request: Request) -> float:
    """Return the seconds of a request: its header X-Request-Timeout, at most the server's. Raises ApiError, 422."""
    most = limits_of(request).timeout
    return min(requested_timeout(request) or most, most)


async def disconnected(request: Request) -> None:
    """Return when the client has left; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def in_thread(n_characters: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, computed in another thread for long texts; AttendoError becomes ApiError, 400."""
    try:
        return work() if n_characters <= INLINE else await asyncio.to_thread(work)
    except AttendoError as error:
        raise ApiError(400, str(error)) from None


async def run_job(request: Request, served: ServedModel, work: Work, cost: int) -> Sequence[Any]:
    """Return the results of a job. Raises as `engine.results`; an AttendoError becomes ApiError, 400."""
    context = context_of(request)
    entered = state_of(request).admission.entered(max(1, cost), again=context.queued is not None)
    try:
        done = await results(
            served.engine, entered, work, deadline_of(request), lambda: disconnected(request)
        )
    except AttendoError as error:
        raise ApiError(400, str(error)) from None
    context.queued = (context.queued or 0.0) + done.queued
    return done.results


def job_events(
    request: Request, served: ServedModel, work: Work, cost: int
) -> AbstractAsyncContextManager[Any]:
    """Return the events of a job as they come; see `engine.call`."""
    entered = state_of(request).admission.entered(max(1, cost))
    return call(served.engine, entered, work, deadline_of(request))


async def run_forward(
    request: Request,
    served: ServedModel,
    kind: Hashable,
    items: Sequence[Any],
    run: Callable[[Sequence[Any]], Sequence[Any]],
    cost: int,
    size: Callable[[Any], int] = len,
) -> Sequence[Any]:
    """Return the results of `run` for the items, computed in the engine's thread.

    An item that fails spoils no other request, though items go through together: alone it raises its AttendoError, as
    ApiError, 400.

    Args:
        request: The request.
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
    found = await run_job(request, served, ForwardJob(kind, items, each_alone, size), cost)
    for one in found:
        if isinstance(one, AttendoError):
            raise ApiError(400, str(one))
    return found


def cost_of_pass(texts: Sequence[str]) -> int:
    """Return the cost of texts that go through a model once."""
    return sum(1 + len(text) // CHARACTERS_PER_TOKEN for text in texts)
