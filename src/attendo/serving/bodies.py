"""Bodies of requests: read strictly, by pydantic models, and written down in the OpenAPI with the answers."""

from __future__ import annotations

import asyncio
import difflib
import math
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.responses import Response

from attendo.files import json_of
from attendo.serving import health
from attendo.serving.faults import Refused, is_openai, plain

NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
SCHEMAS: dict[str, Any] = {
    "Fault": {
        "title": "Fault",
        "description": "What went wrong and what to do about it, in one line.",
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    },
    "OpenAIFault": {
        "title": "OpenAIFault",
        "description": "The same in the shape of OpenAI's interface.",
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": NULLABLE,
                    "code": NULLABLE,
                },
            }
        },
    },
}
FAULTS = {
    "400": "A field is missing or wrong, or the body can't be read.",
    "401": "The key is missing or wrong.",
    "403": "Another name than this machine's, or a page elsewhere that may not ask.",
    "404": "There is no such model.",
    "408": "The body did not come in time.",
    "413": "The request is larger than the server ever takes.",
    "422": "A field is wrong.",
    "429": "The server is full; Retry-After says when to try again.",
    "500": "A fault in attendo.",
    "503": "Models are being loaded, or the server is about to stop; Retry-After says when to try again.",
    "504": "The time for the request is up.",
}
OF_HEALTH = {"/livez": ("403",), "/readyz": ("403", "503"), "/metrics": ("401", "403")}
"""What the routes of health may answer beside 200; /health as /readyz, with a key."""

RETRY_AFTER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}
KEYS = {"Bearer": {"type": "http", "scheme": "bearer"}}
KEYS |= {"Key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}}


def describe(app: FastAPI, keys: bool) -> None:
    """Has the application give this document; keys: whether a key is asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            app.openapi_schema = completed(found, keys)
        return app.openapi_schema

    app.openapi = openapi


def completed(document: dict[str, Any], keys: bool) -> dict[str, Any]:
    """The document with the errors of every operation, in the shape of its path, and with the keys."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for old in ("HTTPValidationError", "ValidationError"):
        schemas.pop(old, None)
    schemas.update(SCHEMAS)
    if keys:
        components["securitySchemes"] = KEYS
        document["security"] = [{name: []} for name in KEYS]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            statuses = OF_HEALTH.get(path, ("401", "403", "503") if path in health.PATHS else FAULTS)
            responses = operation.setdefault("responses", {})
            responses.pop("422", None)
            responses |= {status: _fault(path, status) for status in statuses}
            if keys and path in health.PUBLIC:
                operation["security"] = []
    return document


def _fault(path: str, status: str) -> dict[str, Any]:
    name = "OpenAIFault" if is_openai(path) else "Fault"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    found: dict[str, Any] = {"description": FAULTS[status], "content": content}
    return found | ({"headers": RETRY_AFTER} if status in ("429", "503") else {})


JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MOST_FIELDS, SHORT_FORM = 1000, 10_000
"""Fields of a form, and bytes of a form that is decoded in the thread of the event loop."""
MOST_MISTAKES = 1000
"""In a body whose first mistake is named: pydantic lists all of them, 100,000 in 0.8 s."""
LONGEST_SECONDS = 1_000_000
"""That a request may allow itself; the server's own limit is far below."""

BodyT = TypeVar("BodyT", bound="Body")


class Body(BaseModel):
    """A body: unknown fields, numbers as texts, infinities and NaN are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Name = Annotated[str, Field(max_length=200)]
"""A model's name."""

WHOLE = BeforeValidator(_whole)
"""In JSON 3.0 is a whole number, too."""


UNREAD: dict[int | str, dict[str, Any]] = {415: {"description": "The body is of another media type."}}
"""An answer of routes that read a body; those of every route are written down by `serving.openapi`."""


def documented(kind: type[Body], *media_types: str, header: bool = True) -> dict[str, Any]:
    """What the OpenAPI of a route says of its body, which `body_of` reads, and of the header that limits its time.

    The definitions within the schema are put where they are used.
    """
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {media: {"schema": _inlined(schema, definitions)} for media in media_types or (JSON,)}
    found: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    if header:
        found["parameters"] = [
            {
                "name": "X-Request-Timeout",
                "in": "header",
                "description": "Seconds after which the request is given up; at most the server's own limit.",
                "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST_SECONDS},
            }
        ]
    return found


def _inlined(value: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(inner, definitions) for key, inner in value.items()}
    if isinstance(value, list):
        return [_inlined(inner, definitions) for inner in value]
    return value


async def body_of(request: Request, kind: type[BodyT]) -> BodyT:
    """The body, which is JSON. Raises Refused: 415 for another kind, 422 naming the first field that is wrong."""
    seconds_asked(request)
    if media_type(request) != JSON:
        raise Refused(415, f"the body must be JSON; send it with Content-Type: {JSON}")
    return parsed(await request.body(), kind)


def seconds_asked(request: Request) -> float | None:
    """Its header X-Request-Timeout. Raises Refused, 422, for what is no number of seconds."""
    given = request.headers.get("x-request-timeout")
    try:
        seconds = None if given is None else float(given)
    except ValueError:
        seconds = math.nan
    if seconds is not None and not 0 < seconds <= LONGEST_SECONDS:
        said = (
            f"X-Request-Timeout must be a number of seconds above 0, as 2.5, and at most {LONGEST_SECONDS:,}"
        )
        raise Refused(422, said)
    return seconds


def parsed(data: bytes, kind: type[BodyT], status: int = 422) -> BodyT:
    """JSON as a model. Raises Refused with `status`, naming the first field that is wrong."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        message, field = said(error, kind)
        raise Refused(status, message, param=field) from None


def said(error: ValidationError, kind: type[Body]) -> tuple[str, str | None]:
    """The first thing that is wrong, in a line without what was given, and the field."""
    known = list(kind.model_fields)
    if error.error_count() > MOST_MISTAKES:
        return f"the body has {error.error_count():,} mistakes; the fields are {', '.join(known)}", None
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"the body is not valid JSON in UTF-8: {first['msg'].removeprefix('Invalid JSON: ')}", None
    place = [str(part) for part in first["loc"]]
    if not place:
        return f"the body: {plain(first['msg'])}", None
    name = place[0]
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name[:60], known, 1) if len(place) == 1 else []
        remedy = f"is {near[0]} meant?" if near else f"the fields are {', '.join(known)}"
        return f"{'.'.join(place)[:60]} is no field here; {remedy}", None
    if first["type"] == "missing":
        return f"{'.'.join(place)} is missing; give it", name
    # a field that takes several kinds has an error for each: those of the kind that was given count, if one was
    own = [each for each in errors if each["loc"][:1] == first["loc"][:1]]
    own = [each for each in own if not each["type"].endswith("_type")] or own
    deepest = max((each["loc"] for each in own), key=len)
    numbers = "".join(f"[{part}]" for part in deepest[1:] if isinstance(part, int))
    told = dict.fromkeys(plain(each["msg"]) for each in own)
    return f"{name}{numbers}: {', or '.join(told)}", name


def media_type(request: Request) -> str:
    """Of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name. Raises Refused: 415 for what is none, 400 for a broken one."""
    kind, data = media_type(request), await request.body()
    try:
        if kind == FORM:
            return await fields_of(data)
        if kind == "multipart/form-data":
            return parts_of(request.headers["content-type"], data)
    except ValueError:  # not UTF-8, among others
        raise Refused(400, "the form can't be read; send it in UTF-8, with fewer than 1,000 fields") from None
    raise Refused(415, f"the body must be JSON or a form; send it with Content-Type: {JSON}, or {FORM}")


async def fields_of(form: bytes) -> dict[str, str]:
    """The fields of a form, the last of each name; a long form is decoded in another thread. Raises ValueError."""
    parse = partial(parse_qsl, form.decode(), True, errors="strict", max_num_fields=MOST_FIELDS)
    return dict(parse() if len(form) < SHORT_FORM else await asyncio.to_thread(parse))


def parts_of(content_type: str, data: bytes) -> dict[str, str]:
    r"""The text fields of multipart/form-data (RFC 7578); ValueError for one that is broken.

    >>> parts_of("multipart/form-data; boundary=x", b'--x\r\nA: form-data; name="q"\r\n\r\nrain\r\n--x--')
    {'q': 'rain'}
    """
    _, _, boundary = content_type.partition("boundary=")
    boundary = boundary.partition(";")[0].strip().strip('"')
    if not 0 < len(boundary) <= 70:
        raise ValueError
    fields = {}
    for part in (b"\r\n" + data).split(b"\r\n--" + boundary.encode())[1:-1][:MOST_FIELDS]:
        head, found, text = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        _, named, name = head.partition(b' name="')
        if not (found and named):
            raise ValueError
        fields[name.partition(b'"')[0].decode()] = text.decode()
    return fields


def answered_with(value: Any) -> Response:
    """The answer 200, as JSON. Raises AttendoError where it holds what is no number: a model has diverged."""
    return Response(json_of(value, in_ascii=False).encode("utf-8", "replace"), media_type=JSON)


TokenId = Annotated[int, Field(ge=0, lt=2**31), WHOLE]


Ids = Annotated[list[TokenId], Field(min_length=1, max_length=100_000)]


Texts = Annotated[list[str], Field(min_length=1, max_length=10_000)]


Rows = Annotated[list[Ids], Field(min_length=1, max_length=10_000)]
