"""The live page in a notebook: what Python answers, and the bridge between page and kernel in a real browser."""

import sys

import pytest

import attendo
from attendo.errors import AttendoError
from attendo.microscope.look_page import reply_to
from attendo.microscope.session import Session

TEXT = "Tomorrow it will rain ."


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
