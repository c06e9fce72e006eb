"""The OpenAPI document: what FastAPI finds in the routes, with every answer to an error that the server may give."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from attendo.serving import health
from attendo.serving.faults import is_openai

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
