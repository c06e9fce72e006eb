"""What holds of every route, whoever wrote it: no answer without the key, and every error in the OpenAPI document."""

import re

import pytest
from asgi_client import KEY, NoModels, ask
from jsonschema_rs import Draft202012Validator
from schemathesis.specs.openapi.definitions import OPENAPI_31

from attendo.serving.app import State, create_app
from attendo.serving.monitoring import Log
from attendo.serving.state import Keys

PUBLIC = {("GET", "/livez"), ("GET", "/readyz"), ("GET", "/")}
STILL = {("GET", "/look/x"), ("GET", "/look/x/")}
"""The microscope's page, of which nothing depends on the models; all that it asks wants a key."""
APP = create_app(
    State(NoModels(), keys=Keys([KEY]), look=True, cors=("https://a.org",), log=Log("json", None))
)
DOCUMENT = APP.openapi()


def routes(found):
    """(method, path) of every route, those of routers that were included, too."""
    for route in found:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes(inner.routes)
        for method in getattr(route, "methods", None) or ():
            yield method, route.path


ROUTES = sorted(set(routes(APP.routes)))
OPERATIONS = [(path, method) for path, operations in DOCUMENT["paths"].items() for method in operations]


def test_the_routes_are_found():
    paths = {path for _, path in ROUTES}
    assert paths >= {
        "/livez",
        "/readyz",
        "/health",
        "/metrics",
        "/openapi.json",
        "/",
        "/translate",
        "/languages",
    }
    assert paths >= {"/v1/models", "/v1/completions", "/v1/embeddings", "/classify", "/tokenize", "/score"}
    assert {(method.upper(), path) for path, method in OPERATIONS} <= set(ROUTES)
    assert any("look" in path for path in paths)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_refuses_without_the_key(method, path):
    path = re.sub(r"\{[^}]*\}", "x", path)
    if (method, path) in STILL:
        expected = 307 if path == "/look/x" else 200
        body = ask(APP, method, "/look/nobody/").body
        assert path == "/look/x" or ask(APP, method, path).body == body
    else:
        expected = 401 if (method, path) not in PUBLIC else 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": KEY[:-1]}):
        answer = ask(APP, method, path, headers, {"q": "x", "api_key": "wrong"} if method == "POST" else b"")
        assert answer.status == expected
        assert expected != 401 or KEY not in answer.body.decode()
    assert ask(APP, method, path, {"X-Api-Key": KEY}).status != 401


def test_the_document_is_valid():
    assert DOCUMENT["openapi"].startswith("3.1")
    errors = [error.message for error in Draft202012Validator(OPENAPI_31).iter_errors(DOCUMENT)]
    assert errors == []
    found = re.findall(r"'\$ref': '#/components/schemas/([^']*)'", str(DOCUMENT))
    assert set(found) <= set(DOCUMENT["components"]["schemas"])
    names = [operation["operationId"] for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_operation_names_its_errors(path, method):
    operation = DOCUMENT["paths"][path][method]
    needed = {"401", "413", "422", "429", "503", "504"}
    if (method.upper(), path) in PUBLIC:
        assert operation["security"] == []
        needed = {"503"} if path == "/readyz" else set()
    elif path in ("/health", "/metrics"):
        needed = {"401"}
    responses = operation["responses"]
    assert responses.keys() >= needed
    name = "OpenAIFault" if path.startswith("/v1/") else "Fault"
    for status in needed:
        schema = responses[status]["content"]["application/json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{name}"}
        assert ("Retry-After" in responses[status].get("headers", {})) is (status in ("429", "503"))
    assert all(response["description"] for response in responses.values())


def test_without_a_key_the_document_asks_for_none():
    document = create_app(State(NoModels())).openapi()
    assert "security" not in document
    assert "securitySchemes" not in document["components"]
