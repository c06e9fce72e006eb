"""The page of a conversation in a browser: it copies a reply, keeps a reply that is stopped, and asks for a key."""

import json
import time

import pytest
from looked_models import hostile_tokenizer, looked_model
from served_page import Site

from attendo.inference.generation import Writing
from attendo.serving.state import Keys

ASSISTANT = looked_model("language-model", hostile_tokenizer().with_chat(), max_len=4000).prepare()
MODEL = ("assistant", ASSISTANT, None, None)
LOADED = "performance.getEntriesByType('resource').some((one) => one.name.endsWith('dom.js') && one.responseEnd)"


@pytest.fixture
def talk(visit, stack):
    """Opens the page of an assistant that writes replies of some tokens, and sends a message."""

    def sent(n_tokens, keys=None, **options):
        ASSISTANT.decoding = ASSISTANT.config({"max_tokens": n_tokens, "temperature": 0.0})
        site = Site(stack, MODEL, keys=keys)
        visited = visit(f"{site.address}chat", **options)
        visited.page.fill("textarea[name=message]", "will it rain")
        visited.page.click("button.main", no_wait_after=True)
        return visited

    return sent


def test_a_reply_is_copied_as_it_is_shown(talk):
    visited = talk(12, permissions=["clipboard-read", "clipboard-write"])
    reply = visited.page.text_content("article.assistant")
    visited.until(LOADED)
    visited.page.click("button.copy")
    visited.until(f"navigator.clipboard.readText().then((text) => text === {json.dumps(reply)})")


@pytest.mark.full
def test_a_reply_that_is_stopped_stays_in_the_conversation(talk, monkeypatch):
    advance = Writing.advance
    monkeypatch.setattr(Writing, "advance", lambda self: time.sleep(0.05) or advance(self))
    visited = talk(500)
    page = visited.page
    page.wait_for_selector("article.assistant span")
    visited.until(LOADED)
    page.wait_for_timeout(200)
    page.click("button[name=stop]")
    page.wait_for_selector("button[name=stop]", state="detached")
    monkeypatch.undo()
    kept = page.text_content("article.assistant")
    whole = ASSISTANT.chat([{"role": "user", "content": "will it rain"}]).text
    assert kept.strip() and whole.startswith(kept) and len(kept) < len(whole)
    assert page.input_value("textarea[name=message] >> nth=-1") == ""


@pytest.mark.full
def test_the_browser_sends_the_api_key_as_a_password(talk):
    visited = talk(12, Keys(["käse"]), http_credentials={"username": "me", "password": "käse"})
    assert visited.page.text_content("article.assistant").strip()
