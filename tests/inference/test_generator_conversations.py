"""Replies in conversations: the template's prompt, the end of a reply, long conversations and invalid messages."""

import pytest
from tiny_generators import assistant_of, biased, generator_of, tokenizer_of

from attendo.data.chat import Message, is_talk, marked_ids, marked_text
from attendo.errors import AttendoError

TALK = [
    {"role": "system", "content": "the sun"},
    {"role": "user", "content": "is it out"},
    {"role": "assistant", "content": "it is"},
    {"role": "user", "content": "and the rain"},
]


@pytest.mark.parametrize("kind", ["character", "bpe", "word"])
def test_a_reply_is_what_the_model_draws_after_the_template(kind):
    assistant = assistant_of(kind)
    template = assistant.tokenizer.chat
    assert template is not None
    ids, _ = template.encode(assistant.tokenizer, [Message(**one) for one in TALK], reply=True)
    found = assistant.chat(TALK, max_tokens=8, seed=2)
    assert found == assistant.chat([Message(**one) for one in TALK], max_tokens=8, seed=2)
    assert found.window[: len(ids)] == tuple(ids)
    assert found.text == assistant.tokenizer.decode(list(found.token_ids))  # no space before the first word
    stream = assistant.stream_chat(TALK, max_tokens=8, seed=2)
    assert "".join(stream) == found.text and stream.dropped == 0
    text = assistant.text(ids, assistant.config({"max_tokens": 8, "seed": 2}))
    (same,) = [step.generation for step in write(assistant, text) if step.generation]
    n = len(found.token_ids)
    assert same.token_ids[:n] == found.token_ids
    assert same.log_probs[:n] == pytest.approx(found.log_probs[:n], abs=1e-9)


def write(assistant, text):
    writing = assistant.writing()
    writing.add([text])
    while writing.going_on:
        yield from writing.advance()


def test_the_end_token_of_the_template_ends_a_reply():
    assistant = assistant_of()
    template = assistant.tokenizer.chat
    assert template is not None
    ending = biased(assistant, {template.end_id: 9.0}).prepare()
    found = ending.chat(TALK, max_tokens=20, seed=1)
    assert found.finished_by == "end" and len(found.log_probs) == len(found.token_ids) + 1
    assert template.end_id not in found.token_ids


def test_the_oldest_turns_are_dropped_and_the_system_message_is_kept():
    assistant = assistant_of(max_tokens=8)
    talk = [*TALK, {"role": "assistant", "content": "no"}, {"role": "user", "content": "b a b a b a"}]
    stream = assistant.stream_chat(talk, seed=1)
    found = stream.whole()
    assert stream.dropped == 2 and stream.cut == found.cut > 0 and found.slides == 0
    kept = assistant.chat([talk[0], *talk[3:]], seed=1)
    assert (kept.cut, kept.text) == (0, found.text)
    # a reply ends at the end of the context
    assert assistant.chat(talk, seed=1, max_tokens=500).finished_by in ("length", "end")
    assert len(assistant.chat(talk, max_tokens=500, seed=1).window) <= 64


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        ([{"role": "user", "content": "a " * 40}], "the last message has"),
        ([TALK[0], {"role": "user", "content": "a " * 40}], "with the system message (expected at most 48"),
        ([{"role": "bot", "content": "a"}], "messages: unknown role (message 1: 'bot')"),
        ([{"role": "user", "content": " "}], "messages: empty content (message 1)"),
        ([{"role": "assistant", "content": "a"}], "messages: wrong order of turns"),
        (TALK[:3], "messages: wrong order of turns"),
        ([], "messages: "),
        ([{"content": "a"}], "messages: invalid messages (message 1 has no role)"),
    ],
)
def test_bad_conversations_are_one_clear_line(talk, said):
    with pytest.raises(AttendoError) as caught:
        assistant_of().chat(talk)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_without_a_template_cannot_answer():
    with pytest.raises(AttendoError, match="this model has no chat template, so it cannot answer messages"):
        generator_of().chat(TALK)


@pytest.mark.parametrize("kind", ["character", "bpe"])
def test_the_marked_text_of_a_conversation_has_its_ids(kind):
    tokenizer = tokenizer_of(kind).with_chat()
    assert tokenizer.chat is not None
    ids, _ = tokenizer.chat.encode(tokenizer, [Message(**one) for one in TALK], reply=True)
    text = marked_text(tokenizer, ids)
    assert text.endswith("<|user|>and the rain<|end|><|assistant|>")
    assert marked_ids(tokenizer, text) == ids and is_talk(tokenizer, ids)
    plain = marked_ids(tokenizer, "the sun")
    assert plain == tokenizer.specials.prompt(tokenizer.encode("the sun")) and not is_talk(tokenizer, plain)
    assert not is_talk(tokenizer_of(kind), marked_ids(tokenizer_of(kind), text))
