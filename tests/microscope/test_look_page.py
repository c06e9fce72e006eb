"""The page in a file: it asks nothing of anyone, and pieces are text in it, whatever they hold."""

import base64
import json
import re
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
from looked_models import FAMILIES, HOSTILE

from attendo.microscope.answers import MANY
from attendo.microscope.look_page import live_page, saved_page
from attendo.microscope.protocol import LookRequest, canonical
from attendo.microscope.session import Session
from attendo.microscope.view import ask_for

NAMESPACES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml")
"""Names that look like addresses and are never fetched."""


class Page(HTMLParser):
    """The elements of a page and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self._open = -1
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open = len(self.elements) - 1

    def handle_endtag(self, tag):
        self._open = -1

    def handle_data(self, data):
        self.texts[self._open] = self.texts.get(self._open, "") + data

    def found(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(at[1], self.texts.get(i, "")) for i, at in enumerate(self.elements) if at[0] == tag]


@pytest.fixture(scope="module")
def pages(users, tmp_path_factory):
    """(session, ask, page text) of a family, of a hostile text and answer."""
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def made(family):
        session = Session(users[family])
        forced = family in ("translation", "language-model")
        ask = LookRequest(
            text=" ".join(HOSTILE),
            search="forced" if forced else "greedy",
            target=" ".join(HOSTILE[::-1]) if forced else None,
        )
        (folder / f"{family}.html").write_text(saved_page(session, ask), encoding="utf-8")
        return session, ask, (folder / f"{family}.html").read_text(encoding="utf-8")

    return made


@pytest.mark.some(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_data_come_through_and_nothing_else_does(pages, family):
    session, ask, text = pages(family)
    page = Page(text)
    words, *numbers, (kind, data), (attributes, _) = page.found("script")
    assert words[0] == {"type": "application/json", "id": "words"}
    assert kind == {"type": "application/json", "id": "answers"}
    assert attributes == {"type": "module"}
    assert all(at == {"type": "text/plain", "data-answer": at["data-answer"]} for at, _ in numbers)
    live = Page(live_page().data.decode())
    assert _but_for_assets(page) == _but_for_assets(live)  # pieces make no elements
    assert "<" not in data
    answers = json.loads(data)
    (name,) = [name for name in answers if name.startswith("look ")]
    body = json.loads(name.removeprefix("look "))
    assert name == f"look {canonical(body)}"
    assert body["text"] == ask.text
    shown = answers[name]
    side = shown["target"] if family == "language-model" else shown["source"]
    assert set(HOSTILE) <= {token["piece"] for token in side} | {token["text"] for token in side}
    path = shown["stacks"][-1]["layers"][-1]["path"]
    question = {"key": shown["key"], "path": path}
    told = {at["data-answer"]: base64.b64decode(text) for at, text in numbers}
    assert told[f"tensor {canonical(question)}"] == session.answer("tensor", question)


def _but_for_assets(page: Page) -> list[tuple[str, dict[str, str | None]]]:
    """The elements of a page without its policy, styles and scripts, which differ between live and saved pages."""
    return [
        at
        for at in page.elements
        if at[0] not in ("script", "style") and at[1].get("rel", "icon") == "icon" and "http-equiv" not in at[1]
    ]


@pytest.mark.some(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_asked_of_anyone(pages, family):
    text = pages(family)[2]
    page = Page(text)
    script, style = page.found("script")[-1][1], page.found("style")[0][1]
    for name in NAMESPACES:
        script = script.replace(name, "")
    assert not re.search(r"(?i)\b(?:https?|wss?|ftp):|XMLHttpRequest|sendBeacon|WebSocket", script + style)
    code = re.sub(r"/\*\*.*?\*/", "", script)  # types are imported in comments
    assert not re.search(r"\bimport\b *[({\"']", code)
    assert not re.search(r"(?i)@import|url\(", style)
    for tag, attributes in page.elements:
        assert tag not in ("img", "iframe", "object", "embed", "base", "form")
        assert attributes.get("href", "data:,") == "data:,", tag
        assert not {"src", "srcset", "action", "style"} & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on")], tag


@pytest.mark.some(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_page_is_told_how_the_command_searches_and_what_can_be_edited(pages, family):
    session, _, _ = pages(family)
    told = session.model_answer()
    assert told["search"] == ask_for(session.user, "snow").search
    shown = session.answer("look", {"text": "snow rain"})
    layers = {(stack["name"], layer["path"], layer["heads"]) for stack in shown["stacks"] for layer in stack["layers"]}
    assert layers == {(stack["name"], path, stack["heads"]) for stack in told["stacks"] for path in stack["paths"]}


@pytest.mark.parametrize("family", ["language-model", "classification"])
def test_thumbnails_of_a_long_text_are_shaded_by_a_scale_of_their_own(pages, family):
    session, _, _ = pages(family)
    text = " ".join(["snow", "rain", "wind"] * 30)
    shown = session.answer("look", {"text": text, "max_tokens": 0})
    seen = session._results[shown["key"]]
    for layer in shown["stacks"][0]["layers"]:
        weights = seen.record[layer["path"]].weights[0].numpy()
        counted = weights[:, MANY:] if layer["causal"] else weights
        tops = np.maximum(counted.max((1, 2)), 4 / layer["k_len"])
        np.testing.assert_allclose(layer["thumb"]["darkest"], tops, rtol=1e-6)
        small = np.frombuffer(base64.b64decode(layer["thumb"]["data"]), np.uint8).reshape(len(tops), -1)
        assert small.max() == 255 or tops.max() == 4 / layer["k_len"]
        assert (small.max(1) >= 255 * np.minimum(1, weights.max((1, 2)) / tops) - 1).all()
