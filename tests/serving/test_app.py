"""The application: hardened answers, errors in two shapes, a log and counts without a text, draining, its document."""

import asyncio
import io
import json
import re
import sys
import time
from types import SimpleNamespace

import pytest
from asgi_client import KEY, NoModels, ask, asked
from jsonschema_rs import Draft202012Validator
from schemathesis.specs.openapi.definitions import OPENAPI_31
from served_app import SECRET, bearer, lines, served

from attendo.display import web
from attendo.errors import AttendoError
from attendo.serving.app import State, create_app
from attendo.serving.engine import Counts
from attendo.serving.monitoring import Log
from attendo.serving.state import Keys

# ---- what goes out


def test_the_page_is_made_once(monkeypatch):
    """It is given without a key."""
    state = State(NoModels(), keys=Keys([KEY]), log=Log(stream=io.StringIO()))
    app = create_app(state)
    first = ask(app, "GET", "/")
    monkeypatch.setattr(web, "_document", lambda *_: pytest.fail("the page is made again"))
    second = ask(app, "GET", "/", {"If-None-Match": first["etag"]})
    assert (first.status, second.status) == (200, 304)
    script = re.findall(r'type="module" src="([^"]+)"', first.body.decode())[0]
    assert ask(app, "GET", f"/{script}", {"Accept-Encoding": "gzip"})["content-encoding"] == "gzip"


def test_docs_lists_all_routes():
    """It is for people, and loads nothing."""
    app = create_app(State(NoModels(), log=Log(stream=io.StringIO())))
    answer = ask(app, "GET", "/docs")
    assert set(re.findall("<code>(.*?)</code>", answer.body.decode())) == set(
        ask(app, "GET", "/openapi.json").json["paths"]
    )
    assert answer["content-security-policy"].startswith("default-src 'none'")


def test_every_answer_is_hardened():
    app, _ = served(keys=[KEY])
    answers = [ask(app, "GET", path, bearer()) for path in ("/livez", "/nothing", "/metrics", "/test/raise/fault")]
    answers += [ask(app, "GET", "/nothing"), ask(app, "POST", "/test/echo", bearer(), b"x" * 1001)]
    assert [answer.status for answer in answers] == [200, 404, 200, 500, 401, 413]
    for answer in answers:
        assert answer["x-content-type-options"] == "nosniff"
        assert answer["x-frame-options"] == "DENY"
        assert answer["referrer-policy"] == "no-referrer"
        assert answer["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer["cache-control"] == "no-store"
        assert answer["server"] is None
        assert re.fullmatch("[0-9a-f]{32}", answer["x-request-id"])


@pytest.mark.parametrize(
    ("given_id", "kept"),
    [("abc-DEF_9", True), ("x" * 64, True), *((text, False) for text in ("x" * 65, "a b", "a\tb", "é", ""))],
)
def test_a_request_keeps_its_id(given_id, kept):
    app, log = served()
    answer = ask(app, "GET", "/livez", {"X-Request-Id": given_id})
    assert (answer["x-request-id"] == given_id) is kept
    assert lines(log)[-1]["id"] == answer["x-request-id"]


STATUSES = {"full": 429, "large": 413, "late": 504, "gone": 499, "ours": 422, "refused": 404, "fault": 500}


@pytest.mark.parametrize("name", STATUSES)
def test_errors_have_their_answers(name):
    app, log = served()
    plain, openai = (ask(app, "GET", f"{prefix}/test/raise/{name}") for prefix in ("", "/v1"))
    for answer in (plain, openai):
        assert (answer.status, answer["retry-after"]) == (STATUSES[name], "7" if name == "full" else None)
    if name == "gone":
        assert plain.body == b""
        return
    assert list(plain.json) == list(openai.json) == ["error"]
    assert set(openai.json["error"]) == {"message", "type", "param", "code"}
    assert SECRET not in plain.error + openai.error + log.getvalue()
    assert name in ("large", "late", "full") or plain.error.replace(plain["x-request-id"], "") == openai.error.replace(
        openai["x-request-id"], ""
    )
    if name == "refused":
        assert (openai.json["error"]["param"], openai.json["error"]["code"]) == ("model", "model_not_found")
    if name == "fault":
        assert plain["x-request-id"] in plain.error
        fault = next(line for line in lines(log) if line["event"] == "fault")
        assert (fault["id"], fault["error"]) == (plain["x-request-id"], "KeyError")
        assert fault["trace"][-1].endswith(" fail")


@pytest.mark.parametrize(
    ("headers", "body", "said"),
    [
        ({}, {"q": SECRET}, "the field n is missing"),
        ({}, {"n": SECRET, "q": "x"}, "n: input should be a valid integer"),
        ({}, [SECRET], "the body: "),
        ({"Content-Type": "application/json"}, b'{"n": ', "not valid JSON"),
        ({"Content-Type": "application/json"}, b"\xff", "UTF-8"),
        ({"Content-Type": "application/json"}, b"[" * 990, ""),
    ],
)
def test_a_bad_field_is_named_and_not_repeated(headers, body, said):
    app, _ = served()
    plain, openai = (ask(app, "POST", f"{prefix}/test/asked", headers, body) for prefix in ("", "/v1"))
    assert {plain.status, openai.status} == {422}
    assert said in plain.error
    assert SECRET not in plain.error
    assert plain.error == openai.error


def test_a_stream_that_breaks_is_cut_off_and_logged():
    app, log = served()
    with pytest.raises(ValueError):  # for the server, which then closes the connection
        ask(app, "GET", "/test/breaks")
    assert [line["event"] for line in lines(log)] == ["fault", "request"]
    assert lines(log)[-1]["status"] == 500
    assert SECRET not in log.getvalue()


# ---- the log and the counts


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_line_a_request_and_no_text_in_it(form):
    app, log = served(keys=[KEY], form=form)
    ask(app, "POST", "/test/echo", bearer(), SECRET.encode(), query=b"q=" + SECRET.encode())
    ask(app, "GET", f"/{SECRET}", bearer(KEY + SECRET), query=b"api_key=" + KEY.encode())
    first, second = log.getvalue().splitlines()
    assert not any(word in log.getvalue() for word in (SECRET, KEY, "api_key", "127.0.0.1"))
    if form == "json":
        line = json.loads(first)
        assert (line["method"], line["route"], line["status"]) == ("POST", "/test/echo", 200)
        assert (line["model"], line["tokens_in"], line["tokens_out"], line["queue_ms"]) == ("tiny", 3, 4, 1.0)
        assert 0 < line["ms"] < 10_000
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert json.loads(second)["route"] == "other"
    else:
        assert "method=POST route=/test/echo status=200" in first
        assert "model=tiny tokens_in=3 tokens_out=4 queue_ms=1.0" in first


def test_what_is_counted_and_by_which_labels():
    app, _ = served(keys=[KEY])
    ask(app, "POST", "/test/echo", bearer(), b"x")
    ask(app, "GET", "/test/raise/full", bearer())
    ask(app, "BREW", f"/{SECRET}", bearer())
    ask(app, "GET", f"/{SECRET}")
    ask(app, "POST", "/tokenize")
    ask(app, "GET", "/test/stream", bearer())
    answer = ask(app, "GET", "/metrics", bearer())
    text = answer.body.decode()
    assert answer["content-type"].startswith("text/plain; version=0.0.4")
    for line in (
        'attendo_requests_total{method="POST",route="/test/echo",status="200"} 1.0',
        'attendo_requests_total{method="GET",route="/test/raise/{name}",status="429"} 1.0',
        'attendo_requests_total{method="other",route="other",status="404"} 1.0',
        'attendo_requests_total{method="GET",route="other",status="401"} 1.0',
        'attendo_requests_total{method="POST",route="/tokenize",status="401"} 1.0',
        'attendo_tokens_in_total{model="tiny"} 3.0',
        'attendo_tokens_out_total{model="tiny"} 4.0',
        'attendo_request_seconds_count{route="/test/echo"} 1.0',
        'attendo_first_piece_seconds_count{route="/test/stream"} 1.0',
        "attendo_ready 1.0",
        "attendo_working_requests 0.0",
        "attendo_refused_total 0.0",
    ):
        assert line in text.splitlines(), line
    assert 'first_piece_seconds_count{route="/test/echo"}' not in text
    assert not any(word in text for word in (SECRET, KEY, "127.0.0.1"))


def test_what_is_told_of_the_models():
    class Two(NoModels):
        def __iter__(self):
            counts = Counts(steps=4, rows=10, seconds=0.5)
            yield SimpleNamespace(name="tiny", engine=SimpleNamespace(counts=counts, going_on=3), created=100)

    app, _ = served(models=Two())
    app.state.attendo.loaded["tiny"] = 200.0
    with app.state.attendo.admission.entered(70):
        told = ask(app, "GET", "/metrics").body.decode().splitlines()
    values = {"engine_steps_total": 4, "engine_rows_total": 10, "engine_seconds_total": 0.5, "engine_jobs": 3}
    for name, value in (values | {"model_created_seconds": 100, "model_loaded_seconds": 200}).items():
        assert f'attendo_{name}{{model="tiny"}} {float(value)}' in told
    assert {"attendo_admitted_requests 1.0", "attendo_admitted_cost 70.0"} <= set(told)
    if sys.platform == "linux":
        assert any(line.startswith("process_resident_memory_bytes ") for line in told)


# ---- ready, loading, draining


def test_health_while_models_load_and_while_it_drains():
    models = NoModels(ready=False)
    app, _ = served(models=models)
    state = app.state.attendo

    def statuses():
        paths = ("/livez", "/readyz", "/health", "/metrics", "/test/stream")
        return [ask(app, "GET", path).status for path in paths]

    assert statuses() == [200, 503, 503, 200, 503]
    assert "loading" in ask(app, "POST", "/v1/test/echo").error
    models.load()
    assert statuses() == [200] * 5
    state.draining = True
    assert statuses() == [200, 503, 503, 200, 503]
    answer = ask(app, "GET", "/readyz")
    assert (answer["retry-after"], answer["connection"]) == ("5", "close")
    assert "shutting down" in answer.error


def test_a_body_that_comes_after_the_drain_began_is_refused():
    app, _ = served()

    async def late_body():
        app.state.attendo.draining = True
        return {"type": "http.request", "body": b"x", "more_body": False}

    assert ask(app, "POST", "/test/echo", {"Content-Length": "1"}, receive=late_body).status == 503


@pytest.mark.parametrize("damaged", [False, True])
def test_another_server_loads_by_the_lifespan_and_a_websocket_is_refused(damaged):
    class Loading(NoModels):
        def load(self):
            if damaged:
                raise AttendoError("tiny/model.safetensors is damaged; copy it again")
            super().load()

    models = Loading(ready=False)
    app, log = served(models=models)

    async def run():
        sent = []
        coming: asyncio.Queue = asyncio.Queue()

        async def send(message):
            sent.append(message["type"])

        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        lifespan = asyncio.ensure_future(app(scope, coming.get, send))
        await coming.put({"type": "lifespan.startup"})
        until = time.monotonic() + 10
        while not log.getvalue() and time.monotonic() < until:
            await asyncio.sleep(0.005)
        statuses = [(await asked(app, "GET", path)).status for path in ("/livez", "/readyz")]
        await app({"type": "websocket", "path": "/livez", "headers": []}, coming.get, send)
        await coming.put({"type": "lifespan.shutdown"})
        await lifespan
        return sent, statuses

    sent, statuses = asyncio.run(run())
    assert sent == ["lifespan.startup.complete", "websocket.close", "lifespan.shutdown.complete"]
    assert statuses == [200, 503 if damaged else 200]
    assert lines(log)[0]["event"] == ("failed" if damaged else "ready")
    assert not models.ready
    assert app.state.attendo.draining


def test_requests_at_a_time_do_not_mix():
    app, log = served()

    async def many():
        bodies = [str(number).encode() for number in range(50)]
        return bodies, await asyncio.gather(*(asked(app, "POST", "/test/echo", {}, body) for body in bodies))

    bodies, answers = asyncio.run(many())
    assert [answer.body for answer in answers] == bodies
    assert len({answer["x-request-id"] for answer in answers} | {line["id"] for line in lines(log)}) == 50


# ---- every route, whoever wrote it: no answer without the key, and every error in the OpenAPI document

PUBLIC = {("GET", "/livez"), ("GET", "/readyz"), ("GET", "/"), ("GET", "/docs")}
STILL = {("GET", "/look/x"), ("GET", "/look/x/")}
"""The microscope's page, of which nothing depends on the models; all that it asks wants a key."""
APP = create_app(State(NoModels(), keys=Keys([KEY]), look=True, cors=("https://a.org",), log=Log("json", None)))
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
    assert paths >= {"/", "/livez", "/readyz", "/health", "/metrics", "/openapi.json", "/translate"}
    assert paths >= {"/languages", "/v1/models", "/v1/completions", "/v1/embeddings", "/classify"}
    assert paths >= {"/tokenize", "/score"}
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
    if path == "/assets/x":
        expected = 404  # scripts and styles of the pages are public, and this is none
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
