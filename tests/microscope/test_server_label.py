"""The page that asks for labels: its forms, and what is refused."""

import http.client
import re
import threading
from urllib.parse import urlencode

import pytest
from tiny_classifiers import classifier

from attendo.inference.labeling import LabelFile, Labeling, to_label
from attendo.microscope.server import LabelServer

HOSTILE = '</p><script>alert(1)</script>&amp;"'


@pytest.fixture
def server(tmp_path):
    file = LabelFile(tmp_path / "labels.csv")
    queue = to_label(classifier(), [HOSTILE, "rain", "snow"], file)
    labels = ["cold", "dry", '<b>"']
    started = LabelServer(Labeling(queue, file), labels, "<run>")
    thread = threading.Thread(target=started.run, daemon=True)
    thread.start()
    yield started
    started.stop()
    thread.join()
    file.close()


def ask(server, method="GET", path="/", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
    answer = connection.getresponse()
    data = answer.read().decode()
    connection.close()
    return answer, data


def send(server, action, path="/", **changes):
    page = ask(server)[1]
    fields = dict(re.findall(r'name="(secret|place)" value="([^"]*)"', page)) | {"action": action} | changes
    return ask(server, "POST", path, urlencode(fields), Origin="null")


def test_forms_label_skip_and_undo(server):
    labeling = server.labeling
    texts = [found.text for found in labeling.queue]
    answer, _ = send(server, "label-1", "/?language=ja")
    assert (answer.status, answer.headers["Location"]) == (303, "/?language=ja")
    assert send(server, "label-0", place="0")[0].status == 303  # sent twice
    assert labeling.file.labels == {texts[0]: "dry"}
    send(server, "skip")
    send(server, "label-2")
    assert labeling.file.labels == {texts[0]: "dry", texts[2]: '<b>"'}
    _, page = ask(server, path="/?language=ja")
    assert "残りのテキストはありません" in page and 'lang="ja"' in page
    send(server, "label-0")
    send(server, "skip")
    assert labeling.place == 3
    for _ in range(3):
        send(server, "undo")
    assert (labeling.place, labeling.file.labels) == (0, {})
    for action in ("label-3", "label--1", "label-x", "\0"):
        assert send(server, action)[0].status == 303
    assert labeling.place == 0


def test_texts_and_labels_are_never_html(server):
    for _ in range(3):
        answer, page = ask(server)
        assert "alert(1)<" not in page and "<run>" not in page and '<b>"' not in page
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert re.findall(r"<script[^>]*>", page) == re.findall(r'<script type="module" src="[^"]*">', page)
        send(server, "skip")


def test_other_pages_cannot_send_labels(server):
    for body in (
        "",
        "secret=a",
        "secret=&place=0&action=label-0",
        "place=0&action=skip",
        "%ff=%ff",
        "a=1&" * 20,
    ):
        answer, said = ask(server, "POST", "/", body)
        assert answer.status == 400 and "Reload the page" in said
    assert send(server, "label-0", secret="x")[0].status == 400
    for method in ("GET", "POST"):
        assert ask(server, method, Host="example.com")[0].status == 403
    assert ask(server, path="/labels.csv")[0].status == 404
    assert server.labeling.place == 0
