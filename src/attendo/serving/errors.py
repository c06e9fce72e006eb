"""The error responses: in OpenAI's format under /v1, and in LibreTranslate's format for all other paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from attendo.errors import AttendoError
from attendo.serving.engine import ClientGone, DeadlineExceeded
from attendo.serving.monitoring import CONTEXT

LOADING = "the models are still loading; try again in a few seconds"
STOPPING = "the server is shutting down; try again in a few seconds"
NO_KEY = "an API key is required: send the header Authorization: Bearer KEY, or X-Api-Key: KEY"
WRONG_KEY = "the API key is unknown to this server: use a key from its key file (--api-key-file)"
TOO_LATE = "the request timed out; send less text at once, or raise X-Request-Timeout and --timeout"
GONE = 499
"""The status in the log if the client disconnected before the response."""
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 499: "client_gone"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 413: "request_too_large", 504: "timeout"}
_MEANINGS = {
    400: "A field is missing or invalid, or the body cannot be read.",
    401: "The API key is missing or wrong.",
    403: "The host name or the origin of the page is not allowed.",
    404: "No model has this name.",
    408: "The body did not arrive in time.",
    413: "The request is larger than the server accepts.",
    415: "The media type of the body is not supported.",
    422: "A field is invalid.",
    429: "The server is full. Retry-After gives the seconds to wait.",
    500: "An internal error of the server.",
    503: "The models are still loading, or the server is shutting down. Retry-After gives the seconds to wait.",
    504: "The request timed out.",
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}


class Fault(BaseModel):
    """The body of an error response outside /v1: one line with the error and the remedy."""

    error: str


class OpenAIFaultDetail(BaseModel):
    """The error message, the type of the error, and, if known, the name of the wrong field and the error code."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIFault(BaseModel):
    """An error in the format of the OpenAI API."""

    error: OpenAIFaultDetail


class ApiError(Exception):
    """The error of a rejected request: the HTTP status, and one line with the error and the remedy.

    `param` is the name of the wrong field, and `code` is the error code, both for OpenAI's format. After `retry_after`
    seconds, the client can try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after


KNOWN = (ApiError, DeadlineExceeded, ClientGone, RequestValidationError, HTTPException, AttendoError)
"""The errors that have their own responses. All other errors are internal errors."""


def documented_errors(shape: type[Fault | OpenAIFault], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI documentation of error responses (default: those of a route that uses a model)."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses or [status for status in _MEANINGS if status != HTTPStatus.UNSUPPORTED_MEDIA_TYPE]:
        found[status] = {"model": shape, "description": _MEANINGS[status]}
        if status in (429, 503):
            found[status]["headers"] = _RETRY_AFTER
    return found


def error_body(
    path: str, status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return the JSON body of an error response for a path.

    >>> error_body("/translate", 404, "no such model")
    {'error': 'no such model'}
    >>> error_body("/v1/models/x", 404, "no such model", code="model_not_found")["error"]["type"]
    'not_found_error'
    """
    if path != "/v1" and not path.startswith("/v1/"):
        return {"error": message}
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code or _CODES.get(status)}}


def error_response(scope: Scope, error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response to a rejected request. A response with status 503 has the header Retry-After."""
    own = dict(headers or {})
    if error.retry_after is not None or error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        own = {"retry-after": str(error.retry_after or 5)} | own
    if error.status == HTTPStatus.UNAUTHORIZED:
        # for a page without scripts, the browser asks for the key
        scheme = 'Basic realm="attendo"' if scope["path"].endswith("/chat") else "Bearer"
        own = {"www-authenticate": scheme} | own
    body = json.dumps(error_body(scope["path"], error.status, error.message, error.param, error.code))
    return Response(body, error.status, own, media_type="application/json")


def response_to(scope: Scope, error: Exception) -> Response:
    """Return the response to an exception. An unexpected exception becomes status 500 without its message."""
    match error:
        case ApiError():
            return error_response(scope, error)
        case DeadlineExceeded():
            return error_response(scope, ApiError(504, TOO_LATE))
        case ClientGone():
            return Response(status_code=GONE)
        case RequestValidationError():  # a parameter in the path; `serving.schemas` validates bodies
            wrong = error.errors()[0]
            field = str(wrong["loc"][-1])
            return error_response(scope, ApiError(422, f"{field}: {as_clause(wrong['msg'])}", param=field))
        case HTTPException():
            return error_response(scope, ApiError(error.status_code, _detail(error)), error.headers)
        case AttendoError():
            return error_response(scope, ApiError(422, str(error)))
        case _:
            request_id = scope[CONTEXT].request_id
            message = f"internal error; the log of the server describes it under request id {request_id}"
            return error_response(scope, ApiError(500, message))


def install(app: FastAPI) -> None:
    """Register a handler for all exceptions in KNOWN. `Guard` handles unexpected exceptions."""

    async def handle(request: Request, error: Exception) -> Response:
        return response_to(request.scope, error)

    for kind in KNOWN:
        app.add_exception_handler(kind, handle)


def as_clause(message: str) -> str:
    """Return a message of pydantic as a clause that begins in lower case.

    >>> as_clause("Value error, Give text"), as_clause("Field required")
    ('give text', 'field required')
    """
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _detail(error: HTTPException) -> str:
    match error.status_code:
        case HTTPStatus.NOT_FOUND if error.detail == "Not Found":
            return "this path does not exist; /openapi.json lists all paths"
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow", "").split(",")
            taken = sorted(method.strip() for method in allowed if method.strip())
            way = f"use {' or '.join(taken)}" if taken else "the header Allow lists the methods"
            return f"this path does not support that method; {way}"
        case _:
            return str(error.detail)
