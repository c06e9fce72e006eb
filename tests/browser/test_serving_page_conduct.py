"""How a server's page behaves: strange texts, small screens, other tongues, keys, and servers that can't answer."""

import json
import re
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from browser_looking import found_by_axe
from page_scripts import code_of, declared
from served_page import (
    SOME,
    TASKS,
    TYPING,
    WRITTEN,
    Site,
    settled,
    shown,
    translator,
    until_ready,
)

from attendo.serving.errors import LOADING, STOPPING
from attendo.serving.pages import MODULES, SHARED, joined
from attendo.serving.state import Keys

full = pytest.mark.full
KEY = "correct-horse"
SCRIPT = '</script><img src=x onerror="window.harmed=1">'


# ---- strange texts, small screens, other tongues


@pytest.mark.parametrize("model", ["enja", "writer", pytest.param("rain", marks=full)])
def test_a_script_is_a_text(at, site, model):
    visited = at(state={"model": model, "text": SCRIPT, "seed": "1", "max_tokens": "5"})
    page = visited.until(SOME)
    page = settled(visited)
    if model == "writer":
        visited.until(WRITTEN)
    assert page.evaluate("window.harmed") is None
    assert page.evaluate("document.images.length") == 0
    if model == "writer":
        assert SCRIPT in page.text_content("#target")
    visited.check()


@pytest.mark.parametrize(
    ("model", "language"),
    [
        ("enja", "ja"),
        ("writer", "en"),
        *(pytest.param(model, language, marks=full) for model in TASKS for language in ("en", "ja")),
    ],
)
def test_it_is_usable_at_360_pixels_in_both_languages(at, site, model, language):
    text = "rain tomorrow שלום " + "x" * 300
    phone = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}
    visited = at(state={"model": model, "text": text}, locale=f"{language}-{language}", **phone)
    visited.until(SOME)
    page = settled(visited)
    if model == "enja":
        page.tap(".word >> nth=0")
        page.wait_for_selector(".choices .whole b")
        sheet = page.locator(".sheet").bounding_box()
        assert sheet["x"] >= 0 and sheet["x"] + sheet["width"] <= 360 and sheet["y"] + sheet["height"] <= 641
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("document.documentElement.lang") == language
    assert page.text_content("#language") == {"en": "日本語", "ja": "English"}[language]
    small = page.evaluate(
        "[...document.querySelectorAll('button, select')].filter((one) => one.getClientRects().length"
        " && one.getBoundingClientRect().height < 40).map((one) => one.outerHTML)"
    )
    assert small == []
    visited.check()


@pytest.mark.parametrize(
    ("model", "theme"),
    [
        ("enja", "light"),
        ("rain", "dark"),
        *(pytest.param(model, theme, marks=full) for model in TASKS for theme in ("light", "dark")),
    ],
)
def test_axe_finds_nothing_serious(at, site, model, theme):
    visited = at(state={"model": model, "text": "rain tomorrow\nsnow", "theme": theme}, bypass_csp=True)
    visited.until(SOME)
    page = settled(visited)
    page.click("summary") if model != "rain" else None
    if model == "enja":
        page.click(".word >> nth=0")
        page.wait_for_selector(".choices .whole b")
    assert found_by_axe(page) == []
    assert page.evaluate("document.documentElement.dataset.theme") == theme


def test_language_and_model_are_changed_and_stand_in_the_address(at, site):
    visited = at(state={"text": "rain"})
    page = settled(visited)
    page.click("#language")
    assert page.evaluate("document.documentElement.lang") == "ja"
    assert page.input_value("#source") == "rain"
    page.select_option("#model", "rain")
    page.wait_for_selector(".best")
    visited.until("location.hash.includes('model=rain')")
    assert parse_qs(urlsplit(page.url).fragment) == {"model": ["rain"], "text": ["rain"], "language": ["ja"]}
    page.fill("#source", "x" * 501)
    visited.until("!location.hash.includes('text=')")
    visited.check()


# ---- keys, and servers that can't answer now


def test_a_key_is_asked_for_and_kept_for_the_tab(at, stack):
    site = Site(stack, ("enja", translator(), "en", "ja"), keys=Keys([KEY]), look=True)
    visited = at({"text": "rain"}, site)
    page = visited.page
    assert page.get_attribute("#key", "type") == "password"
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.wait_for_selector("dialog .alert")
    page.fill("#key", KEY)
    page.click("dialog .main")
    shown(visited, site.translated("rain"))
    assert page.evaluate("sessionStorage.length + localStorage.length") == 1
    assert KEY not in page.content() and KEY not in page.url and KEY not in site.log.getvalue()
    page.reload()
    shown(visited, site.translated("rain"))
    with page.context.expect_page() as opening:
        page.click("a.look")
    until_ready(opening.value)  # the microscope has the key, too
    assert set(site.statuses("/look/{model}/api/{name}")) == {200}
    page.click("#forget")
    page.wait_for_selector("dialog")
    assert not page.query_selector("dialog .alert")
    page.keyboard.press("Escape")
    page.wait_for_selector("#status:text('The server requires a key')")
    page.click("text=Enter a key")
    page.wait_for_selector("dialog")
    assert all("401" in one for one in visited.complaints)  # a browser writes them down by itself


@pytest.mark.parametrize(
    ("status", "message", "said"),
    [
        (429, "the server is full", "The server is busy. Retrying in 1 s."),
        pytest.param(503, STOPPING, "The server is shutting down. Retrying in 1 s.", marks=full),
        pytest.param(503, LOADING, "The server is loading its models. Retrying in 1 s.", marks=full),
    ],
)
def test_it_says_why_it_waits_and_tries_again(at, site, status, message, said):
    visited = at(state={})
    page = visited.until(TYPING)
    body, headers = json.dumps({"error": message}), {"retry-after": "1"}
    page.route(
        "**/translate", lambda route: route.fulfill(status=status, body=body, headers=headers), times=1
    )
    page.keyboard.type("rain")
    visited.until(f"document.getElementById('status').textContent === {json.dumps(said)}")
    shown(visited, site.translated("rain"))
    assert page.text_content("#status") == ""
    assert len(visited.complaints) == 1 and str(status) in visited.complaints[0]


def test_what_the_server_refuses_is_told_in_its_own_words(at, site):
    visited = at(state={"model": "rain"})
    page = visited.until(TYPING)
    said = json.dumps({"error": "this is <b>too</b> large; send it in parts"})
    page.route("**/classify", lambda route: route.fulfill(status=413, body=said))
    page.keyboard.type("rain")
    visited.until("document.getElementById('status').className === 'failed'")
    assert page.text_content("#status") == "this is <b>too</b> large; send it in parts"


# ---- the document


def test_it_is_one_document_that_runs_nothing_else(site, at):
    given = httpx.get(site.address)
    policy = given.headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert not re.search(
        r"\son\w+\s*=\s*[\"']|https?:", re.sub(r"(?s)<style>.*?</style>|<script.*?</script>", "", given.text)
    )
    again = httpx.get(site.address, headers={"if-none-match": given.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    page = at().page
    assert page.evaluate("performance.getEntriesByType('resource').length") <= 1  # the models
    assert httpx.get(site.address + "page/main.js").status_code == 404


def test_every_sentence_is_there_in_both_languages_and_no_name_stands_twice():
    folder = files("attendo.serving") / "assets" / "page"
    texts = {name: (folder / f"{name}.js").read_text(encoding="utf-8") for name in MODULES}
    assert sorted(texts) == sorted(
        entry.name.removesuffix(".js") for entry in folder.iterdir() if entry.name.endswith(".js")
    )
    shared = files("attendo.microscope") / "assets" / "look"
    every = [*((shared / f"{name}.js").read_text(encoding="utf-8") for name in SHARED), *texts.values()]
    names = [name for text in every for name in declared(text)]
    assert len(names) == len(set(names)), {name for name in names if names.count(name) > 1}
    told = set(re.findall(r'^    (?:"([\w-]+)"|(\w+)): \[', texts["sentences"], re.M))
    known = {quoted or bare for quoted, bare in told}
    code = "\n".join(code_of(text) for text in texts.values())
    used = set(re.findall(r'\b(?:say|noted|waited|title|heading)\("([\w-]+)"', code))
    assert used <= known, used - known
    assert [
        key
        for key in known
        if f'"{key}"' not in code.replace(f'"{key}": [', "")
        and not re.search(rf"\b{key}: \[\"(numeric|decimal)|`task-", code)
    ] == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|\beval\b|document\.write", joined()[1])
