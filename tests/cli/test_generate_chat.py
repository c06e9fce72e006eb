"""A conversation in the terminal: history, replies again, a stopped reply, and what is refused."""

import pytest
from command_line import attendo, refused
from tiny_generators import assistant_of, generator_of
from tiny_translator import save_run

import attendo as library
from attendo.inference.generator import Stream


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    assistant = assistant_of(max_tokens=8)
    assistant.model.float()
    return save_run(tmp_path_factory.mktemp("runs") / "assistant", assistant, "chat")


def replies(run, lines, *options):
    outcome = attendo("chat", run, *options, stdin="\n".join(lines).encode())
    assert outcome.code == 0, outcome.err
    return outcome


def turn(role, content):
    return {"role": role, "content": content}


def test_each_line_is_answered_with_all_turns_before(run):
    assistant = library.load(run)
    system, first = turn("system", "the sun"), turn("user", "is it out")
    one = assistant.chat([system, first], seed=3).text
    again = assistant.chat([system, first], seed=4).text
    two = assistant.chat([system, first, turn("assistant", again), turn("user", "a b")], seed=5).text
    new = assistant.chat([system, turn("user", "a b")], seed=6).text
    lines = ["is it out", "/again", "", "a b", "/new", "a b"]
    found = replies(run, lines, "--system", "the sun", "--seed", "3")
    assert found.out == "".join(f"{text}\n" for text in (one, again, two, new)) and one != again


def test_a_stopped_reply_stays_in_the_conversation(run, monkeypatch):
    seen = []

    def pieces(stream, come=Stream.__next__):
        if len(seen) == 2:
            seen.append("stopped")
            raise KeyboardInterrupt
        seen.append(come(stream))
        return seen[-1]

    monkeypatch.setattr(Stream, "__next__", pieces)
    found = replies(run, ["is it out", "a"], "--seed", "3")
    assert "(stopped)" in found.err
    stopped, second = found.out.splitlines()
    assert stopped == "".join(seen[:2])
    talk = [turn("user", "is it out"), turn("assistant", stopped), turn("user", "a")]
    assert second == library.load(run).chat(talk, seed=4).text


def test_long_conversations_and_commands_without_a_reply_are_said(run):
    found = replies(run, ["/again", "the rain is here", "the rain is here", "the rain is here"], "--seed", "1")
    assert "there is no reply to generate again" in found.err
    assert "the conversation is too long: its oldest 2 messages were dropped" in found.err


def test_what_cannot_be_answered_is_refused_in_one_line(run, tmp_path):
    writer = generator_of()
    writer.model.float()
    folder = save_run(tmp_path / "writer", writer, "language-model")
    assert "has no chat template, so it cannot answer messages. Train it" in refused("chat", folder)
    assert "the last message has" in refused("chat", run, stdin=b"the rain is here " * 9)
    assert "temperature=-1" in refused("chat", run, "--temperature", "-1")
