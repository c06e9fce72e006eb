"""The site: it builds without a warning, links lead somewhere, both languages are whole, no other host is asked."""

import dataclasses
import doctest
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import command_docs
import count_lines
import pytest
import settings_docs
import site_docstrings
import site_hook
import site_reference
from markdown_it import MarkdownIt
from playwright.sync_api import sync_playwright
from site_screenshots import look, served

from attendo.model_config import ModelConfig
from attendo.runs import settings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCKS = ("h1", "h2", "h3", "h4", "li", "pre", "table", "tr", "td", "img")
FETCHING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "form": "action", "source": "src"}


@dataclass
class Built(HTMLParser):
    """A page as a browser gets it: its anchors, links, what it fetches, the navigation, and its blocks."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    fetched: set[str] = field(default_factory=set)
    menu: set[str] = field(default_factory=set)
    alternates: dict[str, str] = field(default_factory=dict)
    language: str = ""
    blocks: Counter[str] = field(default_factory=Counter)
    within: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "html":
            self.language = given["lang"]
        if tag in ("article", "nav"):
            self.within.append(tag if tag == "article" else given.get("class", tag))
        if "hreflang" in given:
            self.alternates[given["hreflang"]] = given["href"]
        if given.get("rel") not in ("prev", "next") and tag in FETCHING and FETCHING[tag] in given:
            self.fetched.add(given[FETCHING[tag]])
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
            if any("md-nav--primary" in place for place in self.within):
                self.menu.add(given["href"])
            if self.within[-1:] != ["article"]:
                self.fetched.add(given["href"])  # the theme itself links to no other place either
        if "article" in self.within and tag in BLOCKS:
            self.blocks[tag] += 1
        if tag == "div" and "math" in given.get("class", "").split():
            self.blocks["pre"] += 1

    def handle_endtag(self, tag):
        if tag in ("article", "nav"):
            self.within.pop()

    def place(self, link):
        """The file that a link of this page leads to."""
        target = unquote(urlsplit(link).path)
        return (self.path.parent / target).resolve() if target else self.path


@pytest.fixture(scope="module", params=[pytest.param("site", marks=pytest.mark.full)])
def site(tmp_path_factory):
    """Every built page by its address."""
    out = tmp_path_factory.mktemp("site")
    environment = {"ATTENDO_REFERENCE": "true", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {path.relative_to(out).as_posix(): Built(path) for path in sorted(out.rglob("*.html"))}


def sources():
    """The pages of docs/ and of the book, by their addresses on the site."""
    return sorted([*(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")), *site_hook.book_pages()])


def test_every_page_is_built(site):
    built = {address.removesuffix(".html") for address in site}
    assert {source.removesuffix(".md") for source in sources()} <= built
    assert {"changelog", "contributing", "reference/nn"} <= built


def test_every_link_and_anchor_leads_somewhere(site):
    broken = []
    for address, page in site.items():
        if address == "404.html":
            continue  # shown at any depth, so its links start at the root
        for link in page.links | page.fetched:
            if urlsplit(link).scheme or urlsplit(link).netloc:
                continue
            place, anchor = page.place(link), unquote(urlsplit(link).fragment)
            name = place.relative_to(site["index.html"].path.parent).as_posix()
            if not place.is_file() or (anchor and name in site and anchor not in site[name].anchors):
                broken.append(f"{address}: {link}")
    assert broken == []


def test_a_backslash_breaks_the_line(site):
    shown = site["theory/en/nyu.html"].path.read_text(encoding="utf-8")
    assert "qᵀk has variance d.<br" in shown


def test_nothing_is_fetched_from_another_host(site):
    elsewhere = {(address, link) for address, page in site.items() for link in page.fetched if urlsplit(link).netloc}
    assert elsewhere == set()
    styles = next(iter(site.values())).path.parent.rglob("*.css")
    assert [
        style.name for style in styles if re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text())
    ] == []


def test_each_page_speaks_its_language_and_leads_to_the_other(site):
    for address, page in site.items():
        if address in ("404.html", "index.html"):
            continue
        language = "ja" if "ja" in address.split("/")[:2] else "en"
        assert page.language == language, address
        twin = {"en": "ja", "ja": "en"}[language]
        there = page.place(page.alternates[twin])
        back = site[there.relative_to(site["index.html"].path.parent).as_posix()]
        if language == "ja" or f"/{language}/" in f"/{address}":
            assert back.place(back.alternates[language]) == page.path, address


def test_every_page_can_be_reached_from_the_navigation_of_its_language(site):
    for language in ("en", "ja"):
        front = site[f"{language}/index.html"]
        reached = {front.place(link) for link in front.menu} | {front.path}
        pages = {page.path for address, page in site.items() if "/" in address and page.language == language}
        assert {path.as_posix() for path in pages - reached} == set()


def test_a_page_is_the_same_on_github(site):
    """Lists, tables and code that the two readers of Markdown take differently would be lost on one of them."""
    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    differing = {}
    for source in sources():
        page = site[source.removesuffix(".md") + ".html"]
        tags = re.findall(
            r"<(\w+)[ >]", reader.render((ROOT / site_hook.source_of(source)).read_text(encoding="utf-8"))
        )
        want = {tag: count for tag, count in Counter(tags).items() if tag in BLOCKS}
        if want != dict(page.blocks):
            differing[source] = (want, dict(page.blocks))
    assert differing == {}


def test_the_glossary_is_the_same_in_both_languages():
    rows = {}
    for language in ("en", "ja"):
        table = re.findall(r"^\| (.*?) \| (.*?) \|", (DOCS / language / "glossary.md").read_text("utf-8"), re.MULTILINE)
        rows[language] = [row[:: 1 if language == "en" else -1] for row in table]
    assert rows["en"] == rows["ja"]
    assert len({english for english, _ in rows["en"]} - {"English"}) > 70


@pytest.fixture
def browser():
    """The system's Chromium; gone with the test, since others count threads and fork."""
    if not shutil.which("chromium"):
        pytest.skip("no Chromium on this machine: apt install chromium")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])


def test_no_page_is_wider_than_a_telephone_or_asks_another_host(site, browser):
    folder = site["index.html"].path.parent
    assert list(look(browser, folder, sorted(site), None, "light")) == []


@pytest.mark.parametrize(
    ("start", "asked", "wanted"),
    [
        ("ja/index.html", "用語集", "ja/glossary.html"),
        ("theory/ja/nyu.html", "訓練を再開", "ja/training.html"),
        ("ja/look.html", "keys_values", "reference/nn.html"),
        ("en/index.html", "coach", "en/training.html"),
        ("theory/en/nyu.html", "checkpoint.keep_last", "en/training.html"),
    ],
)
def test_search_finds(site, browser, start, asked, wanted):
    with served(site["index.html"].path.parent) as address:
        page = browser.new_page()
        page.goto(address + start)
        page.click(".md-search__input")
        page.keyboard.insert_text(asked)
        page.wait_for_selector(".md-search-result__link", state="attached", timeout=60_000)
        found = page.locator(".md-search-result__link").evaluate_all("links => links.map((link) => link.href)")
        assert any(link.split("?")[0].split("#")[0] == address + wanted for link in found), found


@pytest.mark.parametrize(
    "tool",
    [
        command_docs,
        count_lines,
        settings_docs,
        site_docstrings,
        site_hook,
        pytest.param(site_reference, marks=pytest.mark.full),
    ],
)
def test_examples_of_the_tools_run(tool):
    assert doctest.testmod(tool).failed == 0


def test_the_page_of_commands_is_what_the_commands_say(capsys):
    assert command_docs.main(["--check"]) == 0, capsys.readouterr().out


def test_the_pages_of_settings_are_what_the_code_says(capsys):
    assert settings_docs.main(["--check"]) == 0, capsys.readouterr().out


def test_every_setting_has_a_meaning_in_both_languages():
    for table in settings_docs.tables():
        names = [field.name for field in dataclasses.fields(table.kind)]
        assert list(settings_docs.meanings(table.kind)) == names, table
        assert list(settings_docs.japanese_meanings(table)) == names, table


def test_the_settings_shown_as_chosen_are_those_that_are_chosen():
    code = inspect.getsource(settings.choose_training)
    found = set(re.findall(r'(?:model|training)(?:\.setdefault\(|\[)"(\w+)"(?:,|\] =)', code)) - {"epochs"}
    sizes = {name for name in ModelConfig.__dataclass_fields__ if len(settings_docs.of_sizes(name)) > 1}
    shown = {*settings_docs.CHOSEN["model"], *settings_docs.CHOSEN["training"]}
    assert shown == found | sizes


def test_a_bar_within_a_cell_has_no_backslash():
    html = "<td><code>a\\|b</code></td><p>a\\|b</p><pre><td>a\\|b</td></pre>"
    found = site_hook.on_page_content(html, None, None, None)
    assert found == "<td><code>a|b</code></td><p>a\\|b</p><pre><td>a\\|b</td></pre>"
