"""Conversations: their checks, and their token ids with attendo's own template."""

import pytest

from attendo.bundle import load_tokenizer
from attendo.data.chat import Message, conversation, message_error, parse_messages
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.errors import AttendoError

TALK = [
    Message("system", "Be kind."),
    Message("user", "Hello <|end|></s>"),
    Message("assistant", "Hi there"),
    Message("user", "And you?"),
]


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_own_template_encodes_roles_as_special_tokens_and_contents_as_text(kind, tmp_path):
    size = 300 if kind == "bpe" else None
    plain = train_tokenizer(["hello there, be kind"] * 30, TokenizerConfig(kind=kind, vocab_size=size))
    tokenizer = plain.with_chat()
    tokenizer.save(tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.with_chat() is tokenizer and tokenizer.vocab_size == plain.vocab_size + 3
    user, assistant, end = range(plain.vocab_size, plain.vocab_size + 3)
    ids, mask = tokenizer.chat.encode(tokenizer, TALK, reply=True)
    system, hello, hi, again = (plain.encode(content) for _, content in TALK)
    framed = [2, user, *system, end, user, *hello, end, assistant]
    assert ids == [*framed, *hi, end, user, *again, end, assistant]
    counted = [token for token, counts in zip(ids, mask, strict=True) if counts]
    assert counted == [*hi, end] and mask.index(True) == len(framed)
    assert plain.decode(hello) == TALK[1].content and tokenizer.pieces([end]) == ["<|end|>"]
    assert {user, assistant} <= {*tokenizer.never} and end not in tokenizer.never


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        ("", "invalid messages (no message)"),
        ("ua?", "unknown role (message 3: '?')"),
        ("au", "wrong order of turns (message 1 must be from the user)"),
        ("s", "wrong order of turns (message 2 must be from the user)"),
        ("suau u", "empty content (message 5)"),
        ("suaa", "wrong order of turns (messages 3 and 4 are both from the assistant)"),
        ("uas", "wrong order of turns (message 3 is a system message, but not the first)"),
        ("sua", "wrong order of turns (message 3, the last, must be from the user)"),
    ],
)
def test_bad_conversation_is_named_by_its_message(roles, reason):
    names = {"s": "system", "u": "user", "a": "assistant", "?": "?", " ": "user"}
    messages = [Message(names[letter], " " if letter == " " else "text") for letter in roles]
    assert str(message_error(messages, reply=True)) == reason
    with pytest.raises(AttendoError, match=r"^messages: .*; [a-z]"):
        conversation(messages)


def test_messages_are_read_from_json():
    good = [{"role": "user", "content": "Hi", "name": "Ann"}]
    assert parse_messages(good) == [Message("user", "Hi")]
    for bad in (
        "Hi",
        [],
        [{"content": "Hi"}],
        [{"role": "user", "content": [1]}],
        [{**good[0], "tool_calls": [1]}],
    ):
        assert str(parse_messages(bad)).startswith("invalid messages (")
