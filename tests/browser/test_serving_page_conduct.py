"""How a server's page behaves: strange texts, small screens, other tongues, keys, and servers that can't answer."""

import json
import os
import re
import shutil
import subprocess
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from served_page import (
    SMALL,
    SOME,
    TASKS,
    TYPING,
    WRITTEN,
    Site,
    answers_with,
    curl_of,
    scripted,
    settled,
    shown,
    translator,
    until_ready,
    violations,
)

from attendo.display.web import modules_of
from attendo.serving.errors import LOADING, STOPPING
from attendo.serving.state import Keys

full = pytest.mark.full
KEY = "correct-horse"
SCRIPT = '</script><img src=x onerror="window.harmed=1">'


# ---- strange texts, small screens, other tongues


@pytest.mark.parametrize("model", ["writer", *(pytest.param(model, marks=full) for model in ("enja", "rain"))])
def test_a_script_is_a_text(at, site, model):
    visited = at(state={"model": model, "text": SCRIPT, "seed": "1", "max_tokens": "5"})
    page = visited.until(SOME)
    page = settled(visited)
    if model == "writer":
        visited.until(WRITTEN)
    curl_of(page)
    assert page.evaluate("window.harmed") is None
    assert page.evaluate("document.images.length") == 0
    if model == "writer":
        assert SCRIPT in page.text_content("#target")
    visited.check()


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("model", "language", "width"),
    [
        ("enja", "ja", 360),
        ("writer", "en", 320),
        *(
            pytest.param(model, language, width, marks=full)
            for model in TASKS
            for language in ("en", "ja")
            for width in (320, 360)
        ),
    ],
)
def test_it_is_usable_on_a_phone_in_both_languages(at, site, model, language, width):
    text = "rain tomorrow שלום " + "x" * 300
    phone = {"viewport": {"width": width, "height": 640}, "has_touch": True, "is_mobile": True}
    text = f"{text}\nsnow" if model == "rain" else text
    visited = at(state={"model": model, "text": text}, locale=f"{language}-{language}", **phone)
    visited.until(SOME)
    page = settled(visited)
    page.tap(".request summary")
    if model == "enja":
        page.wait_for_selector(".cards .whole b")
    if model == "rain":
        page.tap(".row >> nth=0")
        page.wait_for_selector(".inside .tinted")
    else:
        page.tap(".options summary")
        page.tap(".word >> nth=0")
        page.wait_for_selector(".choices .whole:not(:empty)")
        sheet = page.locator(".sheet").bounding_box()
        assert sheet["x"] >= 0 and sheet["x"] + sheet["width"] <= width and sheet["y"] + sheet["height"] <= 641
        word = page.locator(".word.open").bounding_box()
        assert word["y"] >= 0 and word["y"] + 20 < sheet["y"]  # above the sheet, so one sees what is replaced
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.documentElement.lang") == language
    assert page.text_content("#language") == {"en": "日本語", "ja": "English"}[language]
    assert page.evaluate(SMALL) == []
    visited.check()


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("model", "theme"),
    [
        ("enja", "light"),
        ("rain", "dark"),
        ("writer", "dark"),
        *(pytest.param(model, theme, marks=full) for model in TASKS for theme in ("light", "dark")),
    ],
)
def test_axe_finds_nothing(at, site, model, theme):
    visited = at(state={"model": model, "text": "rain tomorrow\nsnow", "theme": theme}, bypass_csp=True)
    page = visited.until(SOME)
    curl_of(page)
    if model == "rain":
        page.click(".row >> nth=0")
        page.wait_for_selector(".inside .tinted")
    else:
        page.click(".options summary")
    if model == "writer":
        page.click("#several")
        visited.until(WRITTEN)
    assert violations(page) == []
    if model == "enja":
        page.click(".word >> nth=0")
        page.wait_for_selector(".choices .whole b")
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.unroute_all()
        answers_with(page, "translate", scripted("雪", ((0, 1), -0.1, (0, 4)), omission="short"))
        page.fill("#source", "snow. It will rain tomorrow")
        page.wait_for_selector(".loss")
        assert violations(page) == []
    assert page.evaluate("document.documentElement.dataset.theme") == theme


@pytest.mark.full
def test_nothing_is_there_yet_and_axe_finds_nothing(at):
    page = at(state={"model": "rain"}, bypass_csp=True).until(TYPING)
    assert violations(page) == []


@pytest.mark.full
def test_language_theme_and_model_are_changed_and_stand_in_the_address(at, site):
    visited = at(state={"text": "rain"})
    page = settled(visited)
    page.click("#language")
    assert page.evaluate("document.documentElement.lang") == "ja"
    assert page.input_value("#source") == "rain"
    page.click("#tab-classification")
    best = page.wait_for_selector(".best")
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert best.evaluate("(row) => row.isConnected")  # another theme builds nothing again
    visited.until("location.hash.includes('model=rain') && location.hash.includes('theme')")
    expected = {"model": ["rain"], "text": ["rain"], "language": ["ja"], "theme": ["dark"]}
    assert parse_qs(urlsplit(page.url).fragment) == expected
    page.fill("#source", "x" * 501)
    visited.until("!location.hash.includes('text=')")
    page.evaluate("location.hash = 'model=rain&text=snow&beam=9&theme=pink'")
    visited.until("document.getElementById('source')?.value === 'snow'")
    assert page.evaluate("document.documentElement.lang") == "ja"
    visited.check()


@pytest.mark.full
def test_colors_of_the_system_and_less_motion_leave_everything_readable(at, site):
    still = {"forced_colors": "active", "reduced_motion": "reduce"}
    visited = at(state={"model": "writer", "text": "rain"}, **still)
    page = visited.until(WRITTEN)
    for selector in (".written", "#prompt", "#write"):
        assert page.is_visible(selector)
    given = "getComputedStyle(document.querySelector('.given')).color"
    assert page.evaluate(given) == "rgba(0, 0, 0, 0)"  # otherwise the text would be there twice
    assert page.evaluate("getComputedStyle(document.getElementById('write')).transitionDuration") == "0s"
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
    command = curl_of(page)
    assert KEY not in command and '"Authorization: Bearer $ATTENDO_KEY"' in command
    if shutil.which("curl"):
        variables = {"ATTENDO_KEY": KEY, "PATH": os.environ["PATH"]}
        done = subprocess.run(["bash", "-c", f"{command} -s"], env=variables, capture_output=True, check=True)
        assert [json.loads(done.stdout)["translatedText"]] == site.translated("rain")
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


@pytest.mark.some(2)
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
    page.route("**/translate", lambda route: route.fulfill(status=status, body=body, headers=headers), times=1)
    page.fill("#source", "rain")  # at once, so only one request is sent
    visited.until(f"document.getElementById('status').textContent === {json.dumps(said)}")
    shown(visited, site.translated("rain"))
    assert page.text_content("#status") == ""
    assert len(visited.complaints) == 1 and str(status) in visited.complaints[0]


@pytest.mark.full
def test_what_the_server_refuses_is_told_in_its_own_words(at, site):
    visited = at(state={"model": "rain"})
    page = visited.until(TYPING)
    said = json.dumps({"error": "this is <b>too</b> large; send it in parts"})
    page.route("**/classify", lambda route: route.fulfill(status=413, body=said))
    page.keyboard.type("rain")
    visited.until("document.getElementById('status').className === 'failed'")
    assert page.text_content("#status") == "this is <b>too</b> large; send it in parts"


# ---- the document


def test_it_is_a_document_that_runs_only_its_own_modules(site, at):
    given = httpx.get(site.address)
    policy = given.headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert not re.search(r"\son\w+\s*=\s*[\"']|https?:|\sstyle=", re.sub(r"(?s)<script.*?</script>", "", given.text))
    again = httpx.get(site.address, headers={"if-none-match": given.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    visited = at()
    loaded = visited.until(TYPING).evaluate("performance.getEntriesByType('resource').map(({ name }) => name)")
    names = [url.split("/assets/")[1].partition("/")[2] for url in loaded if "/assets/" in url]
    assert len(names) == len(loaded) - 1  # and the models
    styles = ["shared/tokens.css", "shared/base.css", "serve/serve.css"]
    assert {*names} == {*styles, *modules_of("serve/main.js")}
    assert httpx.get(f"{site.address}assets/0/serve/nothing.js").status_code == 404
    visited.check()
