"""OpenAI's chat interface, asked by its own package unchanged: replies, streams, log-probabilities, errors."""

import asyncio

import openai
import pytest
from asgi_client import asked
from looked_models import looked_model
from served_models import TOKENIZER, live, serving

from attendo.serving.chat import ChatAnswer

ASSISTANT = looked_model("language-model", TOKENIZER.with_chat(), max_len=80).prepare()
WRITER = looked_model("language-model", TOKENIZER, max_len=60)
STATE, APP = serving(("assistant", ASSISTANT, None, None), ("writer", WRITER, None, None))
TALK = [
    {"role": "system", "content": "Snow."},
    {"role": "user", "content": "Will it rain?"},
    {"role": "assistant", "content": "It will rain."},
    {"role": "user", "content": "And snow?"},
]


@pytest.fixture(scope="module")
def client():
    with live(APP) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made:
        yield made


def replied(client, **options):
    chosen = {"model": "assistant", "messages": TALK, "max_tokens": 12} | options
    return client.chat.completions.create(**chosen)


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"seed": 3, "temperature": 0.5, "top_p": 0.9, "stop": ["th", "雨"]},
        {"temperature": 0, "stop": "t"},
        {"seed": 1, "messages": TALK[1:2], "max_tokens": 70},
        {"seed": 1, "messages": [*TALK, {"role": "assistant", "content": "Rain. " * 9}, TALK[1]]},
    ],
)
def test_a_reply_is_that_of_chat_with_the_seed(client, options):
    answer = replied(client, **options)
    own = {"max_tokens": 12} | options
    stop = own.get("stop", [])
    own["stop"] = [stop] if isinstance(stop, str) else stop
    stream = ASSISTANT.stream_chat(own.pop("messages", TALK), **own)
    found = stream.whole()
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", found.text)
    assert choice.finish_reason == ("length" if found.finished_by == "length" else "stop")
    assert answer.usage.completion_tokens == len(found.log_probs)
    assert answer.model_extra["dropped_messages"] == stream.dropped
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")


def test_n_replies_have_n_seeds_and_max_completion_tokens_is_max_tokens(client):
    answer = replied(client, n=3, seed=5, max_tokens=None, max_completion_tokens=7)
    wanted = [ASSISTANT.chat(TALK, max_tokens=7, seed=5 + i).text for i in range(3)]
    assert [choice.message.content for choice in answer.choices] == wanted


@pytest.mark.parametrize("logprobs", [None, True])
def test_a_stream_is_the_same_reply_in_pieces(client, logprobs):
    whole = replied(client, seed=5, n=2, logprobs=logprobs)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = list(replied(client, seed=5, n=2, logprobs=logprobs, **options))
    assert last.usage == whole.usage and not last.choices
    for index, choice in enumerate(whole.choices):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert mine[0].delta.role == "assistant" and not any(one.delta.role for one in mine[1:])
        assert "".join(one.delta.content or "" for one in mine) == choice.message.content
        assert [one.finish_reason for one in mine if one.finish_reason] == [choice.finish_reason]
        tokens = [token for one in mine for token in (one.logprobs.content if one.logprobs else [])]
        assert tokens == (choice.logprobs.content if logprobs else [])
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    text = whole.choices[0].message.content
    stop = {"model": "assistant", "messages": TALK, "max_tokens": 12, "seed": 5, "stop": text[3:5]}
    with client.chat.completions.stream(**stop) as stream:  # the package's own reader
        assert stream.get_final_completion().choices[0].message.content == text[: text.find(text[3:5])]


def test_log_probabilities_are_those_of_the_draw_and_of_the_likeliest(client):
    found = ASSISTANT.chat(TALK, max_tokens=12, seed=3)
    tokens = replied(client, seed=3, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert [token.logprob for token in tokens] == list(found.log_probs)
    for token in tokens:
        tops = {top.token: top.logprob for top in token.top_logprobs}
        assert len(tops) >= 3 and tops[token.token] == pytest.approx(token.logprob, abs=1e-4)
    assert not replied(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"messages": [{"role": "bot", "content": "a"}]}, "unknown role (message 1: 'bot')"),
        ({"messages": [{"role": "user", "content": ""}]}, "empty content (message 1)"),
        ({"messages": TALK[2:]}, "wrong order of turns"),
        ({"messages": [{"role": "user", "content": "rain " * 99}]}, "the last message has"),
        ({"model": "writer"}, "this model has no chat template, so it cannot answer messages"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}]}, "unknown field tools"),
        ({"top_logprobs": 2}, "top_logprobs is not supported: it requires logprobs: true"),
        ({"max_completion_tokens": 10**6}, "max_completion_tokens=1,000,000 must be at most"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "messages"),
    ],
)
def test_what_cannot_be_answered_is_one_clear_line(client, options, said):
    with pytest.raises(openai.APIStatusError) as caught:
        replied(client, **options)
    assert said in caught.value.body["message"] and "\n" not in caught.value.body["message"]
    assert caught.value.status_code in (400, 422)


def test_an_answer_has_the_documented_fields_and_a_model_says_whether_it_chats():
    body = {"messages": TALK, "model": "assistant", "max_tokens": 2, "logprobs": True, "top_logprobs": 1}
    answer = asyncio.run(asked(APP, "POST", "/v1/chat/completions", body=body)).json
    assert ChatAnswer(**answer).model_dump() == answer
    listed = asyncio.run(asked(APP, "GET", "/v1/models")).json["data"]
    assert {one["id"]: one["chat"] for one in listed} == {"assistant": True, "writer": False}
