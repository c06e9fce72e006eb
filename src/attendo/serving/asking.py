"""What the routes share: the model that is meant, the limits, and how its engine is asked until the client goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from starlette.requests import Request

from attendo.bundle import TaskName
from attendo.errors import AttendoError
from attendo.inference.continuous_translation import Wanted
from attendo.serving.bodies import seconds_asked
from attendo.serving.calls import Gone, call, results
from attendo.serving.engine import Pass, Stopped, Writes
from attendo.serving.faults import Refused
from attendo.serving.logs import noted
from attendo.serving.served import Served
from attendo.serving.state import ServingConfig, State

INLINE = 2000
"""Characters that are made tokens in the event loop's own thread; more go to another."""
CHARACTERS_A_TOKEN = 4
"""By which the cost of a pass over a text is reckoned before it is made tokens."""
KINDS: dict[TaskName, str] = {
    "translation": "translator",
    "classification": "classifier",
    "language-model": "language model",
    "masked-language-model": "masked language model",
}
T = TypeVar("T")


def state_of(request: Request) -> State:
    """The server's."""
    return request.app.state.attendo


def limits_of(request: Request) -> ServingConfig:
    """The server's."""
    return state_of(request).config


def chosen(state: State, name: str | None, families: Sequence[TaskName] = ()) -> Served:
    """The model of this name, or the only one of these families; no families: of any.

    Raises Refused: 404 where there is none, 400 where it is for another task, or where the name tells which of several.
    """
    fit = [served for served in state.models if not families or served.family in families]
    kinds = " or ".join(KINDS[family] for family in families) or "model"
    if name is None:
        if len(fit) == 1:
            return fit[0]
        names = ", ".join(served.name for served in fit)
        if not fit:
            raise Refused(404, f"no {kinds} is served here; GET /v1/models lists what is", param="model")
        raise Refused(400, f"several models could answer; name one as model: {names}", param="model")
    try:
        served = state.models.named(name)
    except KeyError:
        code = "model_not_found"
        said = "there is no model of this name; GET /v1/models lists the names"
        raise Refused(404, said, param="model", code=code) from None
    if served not in fit:
        said = f"{name} is a {KINDS[served.family]}, and this wants a {kinds}"
        raise Refused(400, f"{said}; GET /v1/models lists the models", param="model")
    return served


async def with_model(
    request: Request, name: str | None, families: Sequence[TaskName], work: Callable[[Served], Awaitable[T]]
) -> T:
    """What `work` makes of the model that `chosen` finds."""
    return await with_chosen(request, lambda: chosen(state_of(request), name, families), work)


async def with_chosen(
    request: Request, choose: Callable[[], Served], work: Callable[[Served], Awaitable[T]]
) -> T:
    """What `work` makes of the model; once more of the new one, if it was swapped meanwhile."""
    while True:
        served = choose()
        noted(request).model = served.name
        try:
            return await work(served)
        except Stopped:
            if choose() is served:
                raise


def check_texts(config: ServingConfig, texts: Sequence[str], field: str) -> None:
    """Raises Refused, 413, for more or longer texts than the server takes."""
    if len(texts) > config.max_texts:
        raise Refused(
            413,
            f"{len(texts):,} texts are more than the {config.max_texts:,} of a request; send them in parts",
            param=field,
        )
    longest = max(map(len, texts), default=0)
    if longest > config.max_characters:
        said = (
            f"a text has {longest:,} characters, the server takes {config.max_characters:,}; send it in parts"
        )
        raise Refused(413, said, param=field)


def check_most(value: int | None, most: int, field: str) -> None:
    """Raises Refused, 400, for a number larger than the server gives."""
    if value is not None and value > most:
        raise Refused(400, f"{field} is {value:,}; this server gives at most {most:,}", param=field)


def seconds_of(request: Request) -> float:
    """After which the request is given up: its header X-Request-Timeout, at most the server's. Raises Refused, 422."""
    most = limits_of(request).timeout
    return min(seconds_asked(request) or most, most)


def gone(request: Request) -> Gone:
    """Returns when the client has gone; the body must have been read."""

    async def waits() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return waits


async def off_loop(n_characters: int, work: Callable[[], T]) -> T:
    """What `work` gives, made in another thread where the texts are long; AttendoError becomes a Refused, 400."""
    try:
        return work() if n_characters <= INLINE else await asyncio.to_thread(work)
    except AttendoError as error:
        raise Refused(400, str(error)) from None


async def asked(request: Request, served: Served, work: Wanted | Writes | Pass, cost: int) -> Sequence[Any]:
    """All that the job asked for; errors as `calls.results`, an AttendoError as Refused, 400."""
    notes = noted(request)
    entered = state_of(request).admission.entered(max(1, cost), again=notes.queued is not None)
    try:
        done = await results(served.engine, entered, work, seconds_of(request), gone(request))
    except AttendoError as error:
        raise Refused(400, str(error)) from None
    notes.queued = (notes.queued or 0.0) + done.queued
    return done.results


def coming(
    request: Request, served: Served, work: Wanted | Writes, cost: int
) -> AbstractAsyncContextManager[Any]:
    """The news of a job as they come; see `calls.call`."""
    entered = state_of(request).admission.entered(max(1, cost))
    return call(served.engine, entered, work, seconds_of(request))


async def passed(
    request: Request,
    served: Served,
    kind: Hashable,
    items: Sequence[Any],
    run: Callable[[Sequence[Any]], Sequence[Any]],
    cost: int,
    size: Callable[[Any], int] = len,
) -> Sequence[Any]:
    """What `run` gives for the items in the engine's thread; size: of an item in characters.

    An item that cannot be done spoils no other request, though they go through together: alone it raises its
    AttendoError, as Refused, 400.
    """

    def each_alone(some: Sequence[Any]) -> list[Any]:
        try:
            return list(run(some))
        except AttendoError as error:
            return [error] if len(some) == 1 else [found for one in some for found in each_alone([one])]

    found = await asked(request, served, Pass(kind, items, each_alone, size), cost) if items else []
    for one in found:
        if isinstance(one, AttendoError):
            raise Refused(400, str(one))
    return found


def cost_of_pass(texts: Sequence[str]) -> int:
    """Of texts that go through a model once."""
    return sum(1 + len(text) // CHARACTERS_A_TOKEN for text in texts)
