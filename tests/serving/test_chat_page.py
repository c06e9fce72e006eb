"""The page of a conversation: it says what its forms say, and nothing in a text becomes markup."""

import asyncio
import base64
import io
import json
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest
from asgi_client import asked
from looked_models import HOSTILE, hostile_tokenizer, looked_model
from served_models import InMemory

from attendo.serving.app import create_app
from attendo.serving.monitoring import Log
from attendo.serving.state import Keys, State

TOKENIZER = hostile_tokenizer()
ASSISTANT = looked_model("language-model", TOKENIZER.with_chat(), max_len=300).prepare()
ASSISTANT.decoding = ASSISTANT.config({"max_tokens": 12, "temperature": 0.0})
MODELS = (
    ("assistant", ASSISTANT, None, None),
    ("writer", looked_model("language-model", TOKENIZER), None, None),
)
APP = create_app(State(InMemory(*MODELS), look=True, log=Log(stream=io.StringIO())))
TAGS = {
    "html", "meta", "title", "link", "header", "h1", "a", "main", "article", "bdi", "span", "p", "div",
    "form", "input", "textarea", "button", "details", "summary", "script",
}  # fmt: skip


class Page(HTMLParser):
    """The texts of the articles, the probabilities of words, and the fields of the forms in order."""

    def __init__(self, answer):
        super().__init__()
        self.status, self.policy = answer.status, answer["content-security-policy"]
        self.articles, self.forms, self.titles, self.alert, self._into = [], [], [], "", None
        self.feed(answer.body.decode())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        assert tag in TAGS and not any(name.startswith("on") for name in found)
        if tag == "article":
            self.articles.append([found["class"], ""])
        elif tag == "form":
            self.forms.append({})
        elif tag in ("input", "textarea", "button") and "name" in found:
            self.forms[-1][found["name"]] = found.get("value", "")
        self.titles += [found["title"]] if tag == "span" else []
        place = {"bdi": "article", "textarea": found.get("name")}.get(tag)
        self._into = place or ("alert" if found.get("class") == "alert" else self._into)

    def handle_endtag(self, tag):
        self._into = None if tag in ("article", "textarea", "p") else self._into

    def handle_data(self, data):
        if self._into == "article":
            self.articles[-1][1] += data
        elif self._into == "message":
            self.forms[-1]["message"] += data.removeprefix("\n")
        elif self._into == "alert":
            self.alert += data


def page(model="assistant", **fields):
    form = {"body": urlencode(fields).encode()} if fields else {}
    headers = {"content-type": "application/x-www-form-urlencoded"} if fields else {}
    method = "POST" if fields else "GET"
    return Page(asyncio.run(asked(APP, method, "/chat", headers, query=f"model={model}".encode(), **form)))


def talk_of(*contents):
    roles = ("user", "assistant") * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def test_a_conversation_over_several_pages():
    empty = page()
    assert empty.forms == [{"talk": "[]", "system": "", "message": ""}]
    assert "default-src 'none'" in empty.policy and "script-src 'self'" in empty.policy
    first = page(**empty.forms[0] | {"system": "snow", "message": "will it rain"})
    talk = [{"role": "system", "content": "snow"}, *talk_of("will it rain")]
    reply = ASSISTANT.chat(talk).text
    assert first.articles == [["system", "snow"], ["user", "will it rain"], ["assistant", reply]]
    assert first.titles and all(title.endswith("%") for title in first.titles)
    edit, stop, again, more = first.forms
    assert edit["message"] == again["message"] == stop["message"] == "will it rain"
    assert json.loads(more["talk"]) == [*talk, {"role": "assistant", "content": reply}]
    assert page(**again).articles == first.articles
    second = page(**more | {"message": "and snow"})
    assert second.articles[:3] == first.articles and second.articles[3] == ["user", "and snow"]
    edited = page(**second.forms[0] | {"message": "in the east"})
    assert edited.articles[1] == ["user", "in the east"] and len(edited.articles) == 3
    stopped = page(**second.forms[2])
    assert "stop" in second.forms[2] and stopped.articles == first.articles
    assert stopped.forms[-1]["message"] == "and snow"
    kept = page(**second.forms[2] | {"reply": "It\r\nwill"})
    assert kept.articles[-2:] == [["user", "and snow"], ["assistant", "It\nwill"]]
    assert kept.forms[-1]["message"] == ""


def test_the_browser_asks_for_the_api_key():
    state = State(InMemory(*MODELS), keys=Keys(["käse"]), log=Log(stream=io.StringIO()))

    def answer(password):
        credentials = base64.b64encode(f"me:{password}".encode()).decode()
        headers = {} if password is None else {"authorization": f"Basic {credentials}"}
        return asyncio.run(asked(create_app(state), "GET", "/chat", headers, query=b"model=assistant"))

    assert answer(None)["www-authenticate"].startswith("Basic ")
    assert [answer(word).status for word in (None, "wrong", "käse")] == [401, 401, 200]


@pytest.mark.parametrize(("site", "status"), [("same-origin", 200), ("cross-site", 401)])
def test_a_password_is_not_accepted_from_a_form_of_another_site(site, status):
    state = State(InMemory(*MODELS), keys=Keys(["key"]), cors=("*",), log=Log(stream=io.StringIO()))
    headers = {
        "authorization": f"Basic {base64.b64encode(b'me:key').decode()}",
        "content-type": "application/x-www-form-urlencoded",
        "origin": "https://a.org",
        "sec-fetch-site": site,
    }
    body = urlencode({"message": "will it rain"}).encode()
    answer = asyncio.run(asked(create_app(state), "POST", "/chat", headers, body=body, query=b"model=assistant"))
    assert answer.status == status


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_markup(text):
    found = page(talk=json.dumps(talk_of(text, text)), message=text)
    assert [content for _, content in found.articles[:3]] == [text] * 3
    assert found.forms[0]["message"] == text and json.loads(found.forms[-1]["talk"])[:2] == talk_of(text, text)


def test_errors_keep_what_was_typed():
    found = page("writer", talk="[]", message="will it rain")
    assert found.status == 400 and "this model has no chat template" in found.alert
    assert found.forms[-1]["message"] == "will it rain"
    for talk in ("[1", "{}", json.dumps(talk_of("a")), '[{"role": "bot", "content": "a"}]'):
        found = page(talk=talk, message="a")
        assert found.status == 400 and found.alert
    assert page(talk="[]", message="rain " * 400).status == 400
