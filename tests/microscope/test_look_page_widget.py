"""The live page in a notebook: what Python answers, and the bridge between page and kernel in a real browser."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue

import pytest

import attendo
from attendo.display.web import asset
from attendo.errors import AttendoError
from attendo.microscope.look_page import reply_to
from attendo.microscope.session import Session

TEXT = "Tomorrow it will rain ."
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def user(users):
    return users["classification"]


def asked(name: str, **body):
    return {"attendo": 1, "view": "v", "id": 7, "name": name, "body": body}


def test_answers_are_the_sessions(user):
    session = Session(user)
    back = {"attendo": 1, "view": "v", "id": 7}
    reply = reply_to(session, asked("look", text=TEXT))
    assert reply is not None
    told, buffers = reply
    key = told["answer"]["key"]
    assert told.keys() == {*back, "answer"}
    assert buffers == []
    path = "encoder.blocks.0.self_attention"
    assert reply_to(session, asked("tensor", key=key, path=path)) == (
        back,
        [session.answer("tensor", {"key": key, "path": path})],
    )
    for wrong, said in (
        (asked("tensor", key=key, path="nowhere"), "is not one of"),
        (asked("dance", key=key), "unknown question 'dance'"),
        (asked("look", text=""), "the text is empty"),
        (back | {"name": 3, "body": {}}, "a question is"),
        (back | {"name": "look", "body": [1]}, "a question is"),
    ):
        reply = reply_to(session, wrong)
        assert reply is not None
        assert reply[0].items() >= back.items()
        assert said in reply[0]["error"]


@pytest.mark.parametrize("told", [None, "look", 3, [], {}, {"attendo": 2, "name": "model", "body": {}}])
def test_messages_of_others_are_left_alone(user, told):
    assert reply_to(Session(user), told) is None


def test_a_fault_is_told_and_not_raised(user, monkeypatch):
    session = Session(user)
    monkeypatch.setattr(session, "answer", lambda name, body: 1 / 0)
    reply = reply_to(session, asked("model"))
    assert reply is not None
    assert reply[0]["error"] == "a bug in attendo: ZeroDivisionError: division by zero"


def test_what_is_no_number_is_told_in_a_sentence(user, monkeypatch):
    session = Session(user)
    monkeypatch.setattr(session, "answer", lambda name, body: {"log_prob": float("nan")})
    reply = reply_to(session, asked("look", text=TEXT))
    assert reply is not None
    assert "training diverged" in reply[0]["error"]


def test_the_widget_answers_what_it_is_sent(user, monkeypatch):
    pytest.importorskip("anywidget", reason='pip install "attendo[notebook]"')
    widget = attendo.look(user, TEXT).widget(height=500)
    assert widget.height == 500
    assert widget.page.startswith("<!doctype html>")
    assert "connect-src 'none'" in widget.page
    sent = []
    monkeypatch.setattr(type(widget), "send", lambda self, told, buffers=None: sent.append((told, buffers)))
    widget._handle_custom_msg(asked("model"), [])
    widget._handle_custom_msg({"another": "message"}, [])
    assert [told["answer"]["family"] for told, _ in sent] == ["classification"]


def test_without_anywidget_one_line_says_what_to_do(user, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(AttendoError, match=r'pip install ".*\[notebook\]"'):
        attendo.look(user, TEXT).widget()


PAGE = """<script>
const told = [];
addEventListener("message", ({ source, data }) => {
  if (source !== parent) return;
  told.push(data.buffer ? [data.id, [...new Uint8Array(data.buffer)]] : data);
  if (told.length === 2) parent.postMessage({ attendo: 1, id: "end", name: "end", body: told }, "*");
});
parent.postMessage("not for us", "*");
for (const id of [1, 2]) parent.postMessage({ attendo: 1, id, name: `n${id}`, body: { text: "<\\/script>" } }, "*");
</script>"""
NOTEBOOK = """<!doctype html><meta charset="utf-8"><div id="cell"></div><script type="module">
const bridge = (await import(URL.createObjectURL(new Blob([%s], { type: "text/javascript" })))).default;
const handlers = new Set();
const asked = [];
const tell = (told, buffers) => handlers.forEach((fn) => fn(told, buffers));
const model = {
  get: (name) => ({ page: %s, height: 300 })[name],
  on: (name, fn) => handlers.add(fn),
  off: (name, fn) => handlers.delete(fn),
  send: (question) => {
    asked.push(question);
    const { attendo, view, id } = question;
    if (id === 1) {
      tell({ attendo, view: "another", id, answer: "of another view" }, []);
      tell({ attendo, view, id, answer: { n: 1 } }, []);
    }
    if (id === 2) tell({ attendo, view, id }, [new DataView(new Uint8Array([9, 1, 2, 3, 9]).buffer, 1, 3)]);
    if (id !== "end") return;
    leave();
    fetch("/", { method: "POST", body: JSON.stringify({ asked, left: handlers.size }) });
  },
};
const leave = bridge.render({ model, el: document.getElementById("cell") });
</script>"""


class Notebook(BaseHTTPRequestHandler):
    """Gives the notebook's page, and puts what it posts into the server's queue."""

    server: "NotebookServer"

    def do_GET(self):
        self._send(self.server.page.encode() if self.path == "/" else b"")

    def do_POST(self):
        self.server.told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._send(b"")

    def _send(self, body: bytes):
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        """Nothing."""


class NotebookServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, page: str):
        super().__init__(("127.0.0.1", 0), Notebook)
        self.page, self.told = page, Queue()


@pytest.mark.skipif(
    BROWSER is None, reason="no Chromium here: install chromium to open the bridge in a browser"
)
def test_the_bridge_in_a_browser(tmp_path):
    assert BROWSER is not None
    page, bridge = (json.dumps(text).replace("</", "<\\/") for text in (PAGE, asset("bridge.js")))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    with NotebookServer(NOTEBOOK % (bridge, page)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        browser = subprocess.Popen(
            [BROWSER, *options, f"--user-data-dir={tmp_path}", "--remote-debugging-port=0", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            log = server.told.get(timeout=60)
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
            server.shutdown()
    assert log["left"] == 0
    first, second, end = log["asked"]
    assert {question["view"] for question in log["asked"]} == {first["view"]}
    assert first == {
        "attendo": 1,
        "view": first["view"],
        "id": 1,
        "name": "n1",
        "body": {"text": "</script>"},
    }
    assert second["id"] == 2
    assert end["body"] == [{"attendo": 1, "id": 1, "answer": {"n": 1}}, [2, [1, 2, 3]]]
