"""The page: one file that asks nothing of anyone, and in which pieces are text, whatever they hold."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from attendo.microscope.attention_map import AttentionMap
from attendo.microscope.page import page_text, write_html

HOSTILE = (
    "</script><img src=x onerror=document.title='broken'>",
    "<!--<script>",
    "]]>",
    "@@SCRIPT@@",
    '"\\u003c',
    "\u2028",
    "&lt;b&gt;",
    "مطر",
    "雨",
    "👩‍👩‍👧",
    "a" * 2000,
    "</s>",
)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def seen():
    """Two layers of three heads; in the sharper second one every head looks at the same single piece."""
    weights = np.random.default_rng(0).dirichlet(np.full(len(HOSTILE), 0.3), size=(2, 3, len(HOSTILE)))
    weights[1] = np.eye(len(HOSTILE))[::-1]
    weights = weights.astype(np.float32)
    return AttentionMap(" ".join(HOSTILE), HOSTILE[0], HOSTILE, HOSTILE[::-1], weights)


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


def test_data_come_through_and_nothing_else_does(seen):
    page = Page(page_text(seen))
    (kind, data), (attributes, _) = page.found("script")
    assert kind == {"type": "application/json", "id": "data"}
    assert attributes == {}
    read = json.loads(data)
    assert (read["source"], read["target"]) == (seen.source, seen.target)
    assert read["sourcePieces"] == list(HOSTILE)
    assert read["targetPieces"] == list(HOSTILE[::-1])
    assert read["sharpestLayer"] == 1
    weights = np.frombuffer(base64.b64decode(read["weights"]), "<f4").reshape(read["shape"])
    np.testing.assert_array_equal(weights, seen.weights)
    empty = AttentionMap("a", "b", ("c",), ("d",), np.ones((1, 1, 1, 1)))
    assert page.elements == Page(page_text(empty)).elements  # pieces make no elements
    assert "<" not in data


def test_nothing_is_asked_of_anyone(seen):
    text = page_text(seen)
    page = Page(text)
    assert not re.search(r"(?i)\b(?:https?|wss?|ftp):|@import|url\(|fetch\(|XMLHttpRequest|sendBeacon", text)
    for tag, attributes in page.elements:
        assert tag not in ("img", "iframe", "object", "embed", "base", "form")
        assert attributes.get("href", "data:,") == "data:,", tag
        assert not {"src", "srcset", "action", "style"} & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on")], tag


def test_policy_allows_just_this_script_and_style(seen):
    page = Page(page_text(seen))
    (policy,) = [at["content"] for at, _ in page.found("meta") if "http-equiv" in at]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("img-src") == "data:"
    for name, (_, text) in (("style-src", page.found("style")[0]), ("script-src", page.found("script")[1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(name) == f"'sha256-{digest}'"
    assert rules == {}


def test_script_reads_no_text_as_html(seen):
    script = Page(page_text(seen)).found("script")[1][1]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", script
    )


@pytest.mark.skipif(
    BROWSER is None, reason="no Chromium here: install chromium to open the page in a browser"
)
def test_page_in_a_browser(seen, tmp_path):
    from matplotlib.image import imread

    assert BROWSER is not None
    write_html(seen, tmp_path / "map.html")
    shown = subprocess.run(
        [
            *(
                BROWSER,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={tmp_path / 'profile'}",
            ),
            *("--no-first-run", "--disable-dev-shm-usage", "--enable-logging=stderr"),
            *("--window-size=1200,1400", f"--screenshot={tmp_path / 'page.png'}", "--dump-dom"),
            f"{(tmp_path / 'map.html').as_uri()}#layer=1&head=2&row=3&column=9",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in shown.stderr
    dom = Page(shown.stdout)
    assert "img" not in [tag for tag, _ in dom.elements]
    assert dom.found("title")[0][1].startswith(f"Attention map: {HOSTILE[0]}")
    assert dom.found("h2")[0][1] == "Cross-attention, layer 1 of 2, head 2 of 3"
    assert f" {seen.weights[0, 1, 2, 8]:.4f}" in dom.found("output")[0][1]
    labels = [text for attributes, text in dom.found("span") if "title" in attributes]
    assert labels == [*HOSTILE, *HOSTILE[::-1]]
    pressed = [at["aria-label"] for at, _ in dom.found("button") if at["aria-pressed"] == "true"]
    assert len(pressed) == 1
    assert pressed[0] is not None
    assert pressed[0].startswith("layer 1, head 2, entropy ")
    # the picture isn't blank: heads of layer 2 are small maps of white and the darkest shade
    dark = np.array([0x0A, 0x3A, 0x7A]) / 255
    assert (np.abs(imread(tmp_path / "page.png")[..., :3] - dark).max(-1) < 0.01).sum() > 1000
