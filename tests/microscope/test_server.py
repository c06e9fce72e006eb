"""The microscope's server: for this machine and its own page alone."""

import contextlib
import http.client
import json
import re
import socket
import threading

import pytest
import torch
from looked_models import hostile_tokenizer, looked_model

from attendo.errors import AttendoError
from attendo.files import json_of
from attendo.microscope.server import LARGEST, LookServer
from attendo.microscope.session import Session


@pytest.fixture(scope="module")
def server(users):
    started = LookServer(Session(users["classification"]))
    thread = threading.Thread(target=started.run, daemon=True)
    thread.start()
    yield started
    started.stop()
    thread.join()


def ask(server, method="POST", path="/api/look", body: bytes | None = b'{"text": "rain"}', **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    kinds = {"Content-Type": "application/json"} if method == "POST" else {}
    connection.request(method, path, body, kinds | {name.replace("_", "-"): text for name, text in headers.items()})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer, data


def test_it_gives_the_page_and_answers(server):
    answer, page = ask(server, "GET", "/", None)
    assert answer.status == 200 and page.startswith(b"<!doctype html>")
    assert "connect-src 'self'" in answer.headers["Content-Security-Policy"]
    _, script = re.findall(rb'<script type="module" src="([^"]+)"', page)
    answer, text = ask(server, "GET", f"/{script.decode()}", None)
    assert answer.status == 200 and b"import {" in text and "immutable" in answer.headers["Cache-Control"]
    assert ask(server, "GET", "/assets/0/../server.py", None)[0].status == 404
    answer, data = ask(server)
    look = json.loads(data)
    assert answer.status == 200 and answer.headers["Cache-Control"] == "no-store" and look["outcome"]["labels"]
    question = json.dumps({"key": look["key"], "path": "encoder.blocks.0.self_attention"}).encode()
    answer, data = ask(server, path="/api/tensor", body=question)
    assert answer.headers["Content-Type"] == "application/octet-stream" and len(data) % 4 == 0


def test_it_listens_on_this_machine_alone(server):
    assert server._socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["example.com", "127.0.0.1:1", "localhost.example.com", ""])
def test_another_name_for_this_machine_is_refused(server, host):
    for method, path in (("GET", "/"), ("POST", "/api/look")):
        answer, _ = ask(server, method, path, Host=host)
        assert answer.status == 403
        assert b"attendo look" not in _


def test_what_a_form_of_another_page_could_send_is_refused(server):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer, data = ask(server, Content_Type=kind)
        assert answer.status == 400 and b"application/json" in data
    assert ask(server)[0].headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/api/look", b"{", "not valid JSON"),
        ("/api/look", b"[" * 99_999, "not valid JSON"),
        ("/api/look", b"[]", "not a JSON object"),
        ("/api/look", b"\xff\xfe", "not valid JSON"),
        ("/api/look", b'{"text": 3}', "look.text = 3"),
        ("/api/nothing", b"{}", "unknown question 'nothing'"),
        ("/look", b"{}", "/api/NAME"),
        ("/api/../look", b"{}", "unknown question"),
    ],
)
def test_a_wrong_question_gets_one_line(server, path, body, message):
    answer, data = ask(server, path=path, body=body)
    text = json.loads(data)["error"]
    assert answer.status == 400 and message in text and "\n" not in text


def test_a_question_without_end_is_not_read(server):
    answer, data = ask(server, body=None, Content_Length=str(LARGEST + 1))
    assert answer.status == 400 and b"Content-Length" in data
    answer, _ = ask(server, "GET", "/etc/passwd", None)
    assert answer.status == 404


@pytest.mark.parametrize("length", ["\xb2", "9" * 5000])
def test_a_length_that_is_no_number_is_refused(server, length):
    assert ask(server, body=None, Content_Length=length)[0].status == 400


def test_a_connection_has_one_request(server):
    """What is left of a body is not read as the next request."""
    head = f"HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    hidden = f"POST /api/model {head}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    for first in (f"GET / {head}", f"POST / {head}Transfer-Encoding: chunked\r\n"):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(f"{first}Content-Length: 0\r\n\r\n{hidden}".encode())
            got = b""
            with contextlib.suppress(ConnectionError):
                while data := connection.recv(1 << 16):
                    got += data
        assert got.count(b"HTTP/1.") <= 1


def test_a_client_that_leaves_prints_nothing(server, capfd):
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
            connection.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
    assert ask(server, "GET", "/", None)[0].status == 200
    assert capfd.readouterr().err == ""


def test_a_model_that_has_diverged_is_named_as_such():
    user = looked_model("classification", hostile_tokenizer())
    with torch.no_grad():
        user.model.output_proj.weight.fill_(torch.nan)
    with pytest.raises(AttendoError, match="training diverged"):
        json_of(Session(user).answer("look", {"text": "rain"}))


def test_many_may_ask_at_once(server):
    texts = [f"rain {'snow ' * n}".strip() for n in range(8)]
    found = {}

    def one(text):
        found[text] = json.loads(ask(server, body=json.dumps({"text": text}).encode())[1])

    threads = [threading.Thread(target=one, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {text: len(look["source"]) for text, look in found.items()} == {
        text: 1 + len(text.split()) for text in texts
    }


def test_a_port_in_use_is_named(server):
    with pytest.raises(AttendoError, match=f"port {server.port} .* another with `port`"):
        LookServer(server.session, server.port)
    with socket.create_connection(("127.0.0.1", server.port)) as open_line:
        open_line.sendall(b"nonsense\r\n\r\n")
        assert b"400" in open_line.recv(200)


def test_a_client_that_stalls_is_dropped(server, monkeypatch):
    monkeypatch.setattr("attendo.microscope.server.BODY_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        head = f"POST /api/look HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(f'{head}{{"text":'.encode())
        with connection.makefile("rb") as answer:
            assert b"within 0.1 seconds" in answer.read()  # to the end: the server has closed the connection


def test_the_end_does_not_wait_for_a_long_computation(users, monkeypatch):
    monkeypatch.setattr("attendo.microscope.server.CLOSING_SECONDS", 0.2)
    began, go_on = threading.Event(), threading.Event()
    session = Session(users["classification"])
    monkeypatch.setattr(session, "answer", lambda name, body: began.set() or (go_on.wait(20) and {}))
    ended = LookServer(session)
    thread = threading.Thread(target=ended.run, daemon=True)
    thread.start()
    asking = threading.Thread(target=lambda: ask(ended)[0].status, daemon=True)
    asking.start()
    assert began.wait(20)
    ended.stop()
    thread.join(10)
    assert not thread.is_alive() and ended.is_computing
    go_on.set()
    ended._worker.join(10)
    asking.join(10)
    assert not ended.is_computing and not asking.is_alive()


def test_at_its_end_no_thread_computes(users):
    ended = LookServer(Session(users["classification"]))
    thread = threading.Thread(target=ended.run, daemon=True)
    thread.start()
    assert ask(ended)[0].status == 200
    before = threading.active_count()
    ended.stop()
    thread.join()
    assert threading.active_count() <= before - 2  # torch aborts where a thread computes at the end of Python
    with pytest.raises(ConnectionRefusedError):
        ask(ended)
