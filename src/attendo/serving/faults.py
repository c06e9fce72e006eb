"""Answers to what goes wrong: under /v1 in OpenAI's shape, elsewhere in LibreTranslate's; one plain line in each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from attendo.errors import AttendoError
from attendo.serving.admission import Full, TooLarge
from attendo.serving.calls import ClientGone
from attendo.serving.engine import TimeIsUp
from attendo.serving.logs import NOTED

LOADING = "the models are being loaded; try again in a few seconds"
STOPPING = "the server is about to stop; ask another one, or try again in a few seconds"
NO_KEY = "a key is needed: send it as the header Authorization: Bearer KEY, or X-Api-Key: KEY"
WRONG_KEY = "the key that was sent is none of this server's: compare it with the server's file of keys"
TOO_LATE = (
    "the time for this request is up; send less at once, or allow it more by X-Request-Timeout and --timeout"
)
GONE = 499
"""What the log says of a client that went before its answer."""

RETRY = {"retry-after": "5"}
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 499: "client_gone"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 413: "request_too_large", 504: "timeout"}


class Refused(Exception):
    """A route's own refusal. message: one line with the remedy. param, code: of OpenAI's shape, under /v1."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


KNOWN = (
    Refused,
    Full,
    TooLarge,
    TimeIsUp,
    ClientGone,
    RequestValidationError,
    HTTPException,
    AttendoError,
)
"""Errors that have an answer of their own; any other is a fault."""


def body_of(path: str, status: int, message: str, param: str | None = None, code: str | None = None) -> bytes:
    """The JSON of an answer to a request for this path.

    >>> body_of("/translate", 404, "no such model")
    b'{"error": "no such model"}'
    >>> print(body_of("/v1/models/x", 404, "no such model", code="model_not_found").decode())
    {"error": {"message": "no such model", "type": "not_found_error", "param": null, "code": "model_not_found"}}
    """
    if not is_openai(path):
        return json.dumps({"error": message}).encode()
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    error = {"message": message, "type": kind, "param": param, "code": code or _CODES.get(status)}
    return json.dumps({"error": error}).encode()


def is_openai(path: str) -> bool:
    """Whether a path is of the interface of OpenAI."""
    return path == "/v1" or path.startswith("/v1/")


def answer(
    scope: Scope,
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    param: str | None = None,
    code: str | None = None,
) -> Response:
    """The answer to a request that fails; 503 says when to try again."""
    own = dict(headers or {})
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        own = RETRY | own
    if status == HTTPStatus.UNAUTHORIZED:
        own = {"www-authenticate": "Bearer"} | own
    body = body_of(scope["path"], status, message, param, code)
    return Response(body, status, own, media_type="application/json")


def answer_to(scope: Scope, error: Exception) -> Response:
    """The answer to an error; one that nobody expected is told as 500, and nothing of its own words is."""
    match error:
        case Refused():
            return answer(scope, error.status, error.message, None, error.param, error.code)
        case Full():
            return answer(scope, 429, str(error), {"retry-after": str(error.retry_after)})
        case TooLarge():
            return answer(scope, 413, str(error))
        case TimeIsUp():
            return answer(scope, 504, TOO_LATE)
        case ClientGone():
            return Response(status_code=GONE)
        case RequestValidationError():  # of a field of the path: bodies are read by `serving.bodies`
            wrong = error.errors()[0]
            field = str(wrong["loc"][-1])
            return answer(scope, 422, f"{field}: {plain(wrong['msg'])}", param=field)
        case HTTPException():
            return answer(scope, error.status_code, _said(error), error.headers)
        case AttendoError():
            return answer(scope, 422, str(error))
        case _:
            request_id = scope[NOTED].request_id
            said = f"a fault in attendo; the server's log has it under request id {request_id}"
            return answer(scope, 500, said)


def install(app: FastAPI) -> None:
    """Has the application answer its errors so; the guard answers those that nobody expected."""

    async def handle(request: Request, error: Exception) -> Response:
        return answer_to(request.scope, error)

    for kind in KNOWN:
        app.add_exception_handler(kind, handle)


def plain(message: str) -> str:
    """A message of pydantic's as a clause.

    >>> plain("Value error, Give text"), plain("Field required")
    ('give text', 'field required')
    """
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _said(error: HTTPException) -> str:
    match error.status_code:
        case HTTPStatus.NOT_FOUND if error.detail == "Not Found":
            return "there is nothing at this path; /openapi.json lists what there is"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            taken = sorted(
                part.strip() for part in (error.headers or {}).get("Allow", "").split(",") if part.strip()
            )
            way = f"send it by {' or '.join(taken)}" if taken else "the header Allow says which it takes"
            return f"this path does not take that method; {way}"
        case _:
            return str(error.detail)
