"""The middleware: who is let in, and how much may come."""

import asyncio
import contextlib
import json
import threading
from unittest.mock import AsyncMock

import pytest
from asgi_client import KEY, ask, asked
from hypothesis import example, given, settings
from hypothesis import strategies as st
from served_app import bearer, lines, served

from attendo.errors import AttendoError
from attendo.serving import middleware
from attendo.serving.errors import ApiError
from attendo.serving.schemas import parse_json
from attendo.serving.state import read_keys
from attendo.serving.texts import TokenizeBody

# ---- keys


@pytest.mark.parametrize(
    "path",
    ["/test/echo", "/v1/test/echo", "/nothing", "/", "/livez/", "//livez", "/metrics", "/look/a/api/look"],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "BREW"])
def test_without_the_key_nothing_is_answered(path, method):
    app, _ = served(keys=[KEY], look=True)
    for headers in ({}, bearer("wrong"), bearer(KEY.upper()), bearer(""), {"Authorization": KEY}):
        answer = ask(app, method, path, headers, b"x")
        assert (answer.status, answer["www-authenticate"]) == (401, "Bearer")
        sent = headers.get("Authorization", "").removeprefix("Bearer ") not in ("", KEY)
        assert ("unknown to this server" if sent else "the header Authorization") in answer.error


def test_what_is_public_is_only_to_be_read():
    app, _ = served(keys=[KEY])
    statuses = [ask(app, method, "/livez").status for method in ("GET", "HEAD", "POST", "DELETE")]
    assert statuses == [200, 200, 401, 401]


@pytest.mark.parametrize("headers", [bearer(), {"Authorization": f"bearer  {KEY}"}, {"X-Api-Key": KEY}])
def test_the_key_lets_in(headers):
    app, _ = served(keys=["another", KEY])
    assert ask(app, "POST", "/test/echo", headers, b"x").body == b"x"


PARTS = {"Content-Type": "multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, {"q": "x", "api_key": KEY}, 405),  # past the middleware, and no route takes PUT
        ({}, {"q": "x", "api_key": "wrong"}, 401),
        ({}, {"q": "x", "api_key": [KEY]}, 401),
        ({}, [KEY], 401),
        ({"Content-Type": "application/x-www-form-urlencoded"}, f"q=x&api_key={KEY}".encode(), 405),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"q=x&api_key=wrong", 401),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"\xff" * 9, 401),
        (PARTS, f'--x\r\nContent-Disposition: form-data; name="api_key"\r\n\r\n{KEY}\r\n--x--'.encode(), 405),
        (PARTS, b'--x\r\nContent-Disposition: form-data; name="api_key"\r\n\r\nwrong\r\n--x--', 401),
        (PARTS, b"--x\r\nContent-Disposition: form-data; api_key\r\n--x--", 401),
        ({"Content-Type": "multipart/form-data"}, b"--x--", 401),
        ({"Content-Type": "application/json"}, b"[" * 999, 401),
        ({}, b"", 401),
    ],
)
def test_clients_of_libretranslate_send_the_key_in_the_body(headers, body, status):
    app, _ = served(keys=[KEY])
    for path in ("/translate", "/detect", "/languages", "/frontend/settings"):
        assert ask(app, "PUT", path, headers, body).status == status
        if "wrong" in str(body):
            assert "unknown to this server" in ask(app, "POST", path, headers, body).error
    assert ask(app, "POST", "/test/echo", headers, body).status == 401


def test_a_file_of_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# of the team\n\n  {KEY}  \nsecond\n", encoding="utf-8")
    keys = read_keys(file)
    admitted = [keys.admit(key.encode()) for key in (KEY, "second", "# of the team", "")]
    assert admitted == [True, True, False, False]
    assert KEY not in repr(vars(keys))
    bad = {b"# none\n": "no key", b"two words\n": "line 1", b"\xff": "UTF-8", b"k\xc3\xa9y": "line 1"}
    for text, said in bad.items():
        file.write_bytes(text)
        with pytest.raises(AttendoError, match=said) as raised:
            read_keys(file)
        assert "two words" not in str(raised.value)
    with pytest.raises(AttendoError, match="cannot read the keys"):
        read_keys(tmp_path / "none")


# ---- what may come


def test_a_body_that_says_that_it_is_too_large_is_not_read():
    app, _ = served()
    receive = AsyncMock(return_value={"type": "http.disconnect"})
    for length in ("1001", "9" * 30, "-1", "x"):
        answer = ask(app, "POST", "/test/echo", {"Content-Length": length}, receive=receive)
        assert (answer.status, answer["connection"]) == (413, "close")
        assert "1,000" in answer.error
    assert receive.await_count == 4  # after the answer, to throw away what still comes


@given(st.lists(st.binary(max_size=600), min_size=1, max_size=6))
@example([b"x" * 600, b"x" * 400])  # the largest
@example([b"x" * 600, b"x" * 401])
@settings(max_examples=40)
def test_a_body_is_counted_as_it_comes(parts):
    app, _ = served()
    body = b"".join(parts)
    for options in ({"parts": parts}, {"body": body}):
        answer = ask(app, "POST", "/test/echo", **options)
        assert (answer.status, answer.body) == (200, body) if len(body) <= 1000 else answer.status == 413


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.02)
    monkeypatch.setattr(middleware, "THROWN_SECONDS", 0.02)
    app, log = served()
    answer = ask(app, "POST", "/test/echo", {"Content-Length": "5"}, parts=[])
    assert answer.status == 408
    assert "send it again" in answer.error
    assert lines(log)[-1]["status"] == 408


def test_too_many_bodies_at_a_time(monkeypatch):
    monkeypatch.setattr(middleware, "BODIES", 500)  # four of the largest are always held
    app, _ = served()

    async def run():
        rest = asyncio.Event()

        async def sent(size):
            parts = [b"x" * size, b"x"]

            async def receive():
                if len(parts) == 1:
                    await rest.wait()
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

            return await asked(app, "POST", "/test/echo", {"Content-Length": "901"}, receive=receive)

        coming = [asyncio.ensure_future(sent(900)) for _ in range(4)]
        await asyncio.sleep(0)
        one_more = asyncio.ensure_future(sent(900))
        await asyncio.sleep(0.01)
        rest.set()
        return [answer.status for answer in await asyncio.gather(*coming)], await one_more, await sent(900)

    first, one_more, later = asyncio.run(run())
    assert first == [200] * 4
    assert (one_more.status, one_more["retry-after"]) == (503, "5")
    assert later.status == 200  # what went is not counted


def test_a_client_that_goes_while_it_sends_gets_nothing():
    app, log = served()
    receive = AsyncMock(return_value={"type": "http.disconnect"})
    assert ask(app, "POST", "/test/echo", {"Content-Length": "5"}, receive=receive).status == 0
    assert lines(log)[-1]["status"] == 499


@given(
    path=st.text(st.characters(codec="utf-8"), max_size=20).map(lambda text: "/" + text),
    query=st.binary(max_size=20),
    headers=st.dictionaries(
        st.sampled_from(["Host", "Origin", "X-Request-Id", "Content-Type", "Authorization", "Accept", "Cookie"]),
        st.text(st.characters(max_codepoint=255), max_size=20),
    ),
    method=st.sampled_from(["GET", "POST", "HEAD", "OPTIONS"]),
)
@settings(max_examples=150)
def test_odd_bytes_are_never_a_fault(path, query, headers, method):
    for app in ODD:
        answer = ask(app, method, path, headers, b'{"n": 1}' if method == "POST" else b"", query=query)
        assert 200 <= answer.status < 500


ODD = [served()[0], served(keys=[KEY])[0], served(hosts=frozenset({"localhost"}), cors=("https://a.org",))[0]]


def test_paths_lead_nowhere_else():
    app, _ = served()
    for path in ("/../etc/passwd", "/test/../livez", "/..%2flivez", "/livez\0", "/livez/../metrics"):
        assert ask(app, "GET", path).status == 404


# ---- who may ask


OWN = ("localhost:8000", "LOCALHOST", "127.0.0.1", "[::1]:9", "localhost:")
OTHER = ("evil.org", "127.0.0.1.evil.org:8000", "localhost@evil.org", "[::1].evil", "localhost:80:80")


@pytest.mark.parametrize("host", [*OWN, *OTHER, "localhost:x", "", None])
def test_on_loopback_only_its_names_are_answered(host):
    app, _ = served(hosts=frozenset({"127.0.0.1", "localhost", "[::1]"}))
    headers = {} if host is None else {"Host": host}
    for method, path in (("GET", "/livez"), ("POST", "/test/echo")):
        answer = ask(app, method, path, headers)
        assert answer.status == (200 if host in OWN else 403)
        assert host in OWN or "localhost" in answer.error


def test_pages_elsewhere_may_not_ask_unless_they_are_let():
    foreign = {"Origin": "https://a.org", "Sec-Fetch-Site": "cross-site"}
    preflight = foreign | {"Access-Control-Request-Method": "POST"}
    app, _ = served(keys=[KEY])
    assert ask(app, "OPTIONS", "/test/echo", preflight).status == 403
    assert ask(app, "POST", "/test/echo", foreign | bearer()).status == 403
    assert ask(app, "GET", "/livez", foreign)["access-control-allow-origin"] is None
    app, _ = served(keys=[KEY], cors=("https://a.org",))
    answer = ask(app, "OPTIONS", "/test/echo", preflight)
    assert (answer.status, answer["access-control-allow-origin"]) == (200, "https://a.org")
    assert "Origin" in answer["vary"].split(", ")
    assert "Origin" in ask(app, "GET", "/livez")["vary"].split(", ")
    assert "authorization" in answer["access-control-allow-headers"]
    assert answer["access-control-allow-credentials"] is None
    refused = ask(app, "POST", "/test/echo", foreign)
    assert (refused.status, refused["access-control-allow-origin"]) == (401, "https://a.org")
    assert ask(app, "POST", "/test/echo", foreign | bearer()).status == 200
    refused = ask(app, "OPTIONS", "/test/echo", preflight | {"Origin": "https://b.org"})
    assert (refused.status, refused["access-control-allow-origin"]) == (403, None)
    assert refused.json == {"error": refused.error} and "pages of other origins" in refused.error
    assert ask(app, "OPTIONS", "/test/echo").status == 401
    app, _ = served(cors=("*",))
    assert ask(app, "POST", "/test/echo", foreign)["access-control-allow-origin"] == "*"


def test_a_full_server_refuses_before_it_looks_into_a_body():
    app, _ = served()
    admission = app.state.attendo.admission
    with contextlib.ExitStack() as admitted:
        for _ in range(admission.max_requests):
            admitted.enter_context(admission.entered(1))
        answer = ask(app, "POST", "/translate", {}, b"[" * 999)
        assert (answer.status, int(answer["retry-after"]) >= 1, admission.refused) == (429, True, 1)
        assert ask(app, "GET", "/livez").status == 200
    assert ask(app, "POST", "/translate", {"Content-Type": "application/json"}, b"[" * 999).status == 400


@pytest.mark.parametrize(
    ("headers", "let"),
    [
        ({}, 1),  # no browser
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://a.org"}, 1),  # a balancer may change Host
        ({"Sec-Fetch-Site": "none"}, 1),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:9"}, 0),  # another port of this machine
        ({"Sec-Fetch-Site": "cross-site"}, 0),
        ({"Sec-Fetch-Site": ""}, 0),
        ({"Origin": "http://localhost:8000"}, 1),  # a browser without Sec-Fetch-Site
        ({"Origin": "http://a.org:8000"}, 0),
        ({"Origin": "http://localhost.a.org"}, 0),
        ({"Origin": "null"}, 0),
    ],
)
def test_a_form_of_another_page_starts_no_work(headers, let):
    app, _ = served(hosts=frozenset({"localhost"}))
    answer = ask(app, "POST", "/test/echo", {"Host": "localhost:8000"} | headers, b"x")
    assert answer.status == (200 if let else 403)
    assert let or "--cors" in answer.error


def test_mistakes_beyond_a_thousand_are_counted_and_not_listed():
    body = json.dumps({"text": "a"} | dict.fromkeys(map(str, range(1001)), 1)).encode()
    with pytest.raises(ApiError) as refused:
        parse_json(body, TokenizeBody)
    assert refused.value.message == "the body has 1,001 errors; the fields are text, model"


def test_a_long_form_is_decoded_beside_the_event_loop(monkeypatch):
    app, threads = served(keys=[KEY])[0], []
    decode = lambda *form, **options: threads.append(threading.current_thread()) or [("api_key", KEY)]  # noqa: E731
    monkeypatch.setattr("attendo.serving.schemas.parse_qsl", decode)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for length in (10, 990):
        monkeypatch.setattr("attendo.serving.schemas.SHORT_FORM", 500)
        assert ask(app, "PUT", "/translate", form, b"%" * length).status == 405
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
