"""The validation of request bodies with strict pydantic models, and their OpenAPI documentation."""

from __future__ import annotations

import asyncio
import difflib
import io
import json
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from python_multipart import parse_form
from starlette.responses import Response

from attendo.files import json_of
from attendo.serving.errors import ApiError, Fault, OpenAIFault, as_clause, documented_errors

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data"
NO_JSON = "the body is not valid JSON in UTF-8"
MOST_FIELDS = 1000
"""The maximum number of fields of a form."""
SHORT_FORM = 10_000
"""The maximum bytes of a form that is decoded in the thread of the event loop."""
MOST_MISTAKES = 1000
"""The maximum number of errors for which the first error is reported: pydantic lists 100,000 errors in 0.8 s."""
LONGEST_SECONDS = 1_000_000
"""The maximum of the header X-Request-Timeout. The server's own limit is usually much smaller."""

BodyT = TypeVar("BodyT", bound="Body")


class Body(BaseModel):
    """The base class of request bodies, which rejects unknown fields, numbers in strings, infinity and NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Name = Annotated[str, Field(max_length=200)]
"""The name of a model."""
WHOLE = BeforeValidator(_whole)
"""A validator that accepts numbers such as 3.0 as integers, as JSON does."""

TokenId = Annotated[int, Field(ge=0, lt=2**31), WHOLE]
Ids = Annotated[list[TokenId], Field(min_length=1, max_length=100_000)]
Texts = Annotated[list[str], Field(min_length=1, max_length=10_000)]
Rows = Annotated[list[Ids], Field(min_length=1, max_length=10_000)]

TIMEOUT_HEADER = {
    "name": "X-Request-Timeout",
    "in": "header",
    "description": "Timeout of the request in seconds, up to the limit of the server.",
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST_SECONDS},
}


def reads(
    body: type[BaseModel],
    answer: Any = None,
    *media_types: str,
    timeout: bool = True,
    shape: type[Fault | OpenAIFault] = Fault,
    **success: Any,
) -> dict[str, Any]:
    """Return the arguments that document a route in OpenAPI, for a route that parses its own body.

    Args:
        body: The pydantic model of the request body.
        answer: The pydantic model of the response with status 200, or None.
        media_types: The media types of the request body (default: only JSON).
        timeout: Whether the route uses the header X-Request-Timeout.
        shape: The pydantic model of error responses.
        success: Further OpenAPI fields of the response with status 200.
    """
    schema = body.model_json_schema()
    schema = _inlined(schema, schema.pop("$defs", {}))
    content = {media: {"schema": schema} for media in media_types or (JSON,)}
    extra: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    if timeout:
        extra["parameters"] = [TIMEOUT_HEADER]
    responses = documented_errors(shape, 415)
    if answer is not None:
        responses[200] = {"model": answer, **success}
    return {"openapi_extra": extra, "responses": responses}


def _inlined(value: Any, definitions: dict[str, Any]) -> Any:
    """Return a JSON schema with each reference replaced by its definition."""
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(inner, definitions) for key, inner in value.items()}
    if isinstance(value, list):
        return [_inlined(inner, definitions) for inner in value]
    return value


def parse_json(data: bytes, kind: type[BodyT], status: int = 422) -> BodyT:
    """Parse a JSON body as a model. Raise ApiError with `status`, whose message names the first invalid field."""
    try:
        body = kind.model_validate_json(data)
        json.dumps(body.model_extra, allow_nan=False)  # pydantic checks only the fields that have a type
    except ValidationError as error:
        message, field = describe_error(error, kind)
        raise ApiError(status, message, param=field) from None
    except ValueError:
        raise ApiError(status, f"{NO_JSON}: NaN and infinity are not allowed") from None
    return body


def describe_error(error: ValidationError, kind: type[Body]) -> tuple[str, str | None]:
    """Return the message for the first error of a body, without the invalid value, and the name of the field."""
    known = list(kind.model_fields)
    if error.error_count() > MOST_MISTAKES:
        return f"the body has {error.error_count():,} errors; the fields are {', '.join(known)}", None
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    if first["type"] == "json_invalid":
        return f"{NO_JSON}: {first['msg'].removeprefix('Invalid JSON: ')}", None
    place = [str(part) for part in first["loc"]]
    if not place:
        return f"the body: {as_clause(first['msg'])}", None
    name = place[0]
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name[:60], known, 1) if len(place) == 1 else []
        remedy = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(known)}"
        return f"unknown field {'.'.join(place)[:60]}; {remedy}", None
    if first["type"] == "missing":
        return f"the field {'.'.join(place)} is missing", name
    # a field with several types has an error for each type: prefer the errors of the type that was given
    own = [each for each in errors if each["loc"][:1] == first["loc"][:1]]
    own = [each for each in own if not each["type"].endswith("_type")] or own
    deepest = max((each["loc"] for each in own), key=len)
    numbers = "".join(f"[{part}]" for part in deepest[1:] if isinstance(part, int))
    messages = dict.fromkeys(as_clause(each["msg"]) for each in own)
    return f"{name}{numbers}: {', or '.join(messages)}", name


def media_type(content_type: str) -> str:
    """Return the media type of a Content-Type header, without parameters."""
    return content_type.partition(";")[0].strip().lower()


async def form_fields(content_type: str, data: bytes) -> dict[str, str]:
    """Return the last value of each form field. Raise ValueError for an invalid form.

    Long forms are decoded in another thread.
    """
    if media_type(content_type) == PARTS:
        parse = partial(_parts, content_type, data)
    else:
        parse = partial(parse_qsl, data.decode(), True, errors="strict", max_num_fields=MOST_FIELDS)
    return dict(parse() if len(data) < SHORT_FORM else await asyncio.to_thread(parse))


def _parts(content_type: str, data: bytes) -> list[tuple[str, str]]:
    """Return the fields of a multipart/form-data body. The content of a file is read as text."""
    found: list[tuple[bytes | None, bytes | None]] = []

    def add_file(file: Any) -> None:
        file.file_object.seek(0)
        found.append((file.field_name, file.file_object.read()))

    head = {"Content-Type": content_type.encode("latin-1")}
    parse_form(head, io.BytesIO(data), lambda field: found.append((field.field_name, field.value)), add_file)
    if len(found) > MOST_FIELDS:
        raise ValueError
    return [((name or b"").decode(), (value or b"").decode()) for name, value in found]


def json_response(value: Any) -> Response:
    """Return a JSON response with status 200. Raise AttendoError if a number is non-finite (the model has diverged)."""
    return Response(json_of(value, in_ascii=False).encode("utf-8", "replace"), media_type=JSON)
