"""Additions to mkdocs.yml: two languages in one build, formulas as MathML, and links into the code.

mkdocs calls these functions. The pages are written for GitHub, and the functions adapt them to the site.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterator
from html import unescape
from pathlib import Path, PurePosixPath
from typing import Any

from math_core import LatexToMathML
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation, Section
from mkdocs.structure.pages import Page
from site_reference import address, package_page, packages

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = {"en": "English", "ja": "日本語"}
BESIDE = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
"""Pages of the site whose files are outside docs/."""
BOOK = "src/attendo_course/book/"
"""Folder of the theory pages, which are in theory/ on the site."""
FIRST_PAGES = {"README.md": "en/index.md", "README.ja.md": "ja/index.md"}
"""Targets of links to the project's first page."""
CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
IN_LINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
KANA_OR_KANJI, STOPS = "\u3040-\u30ff\u3400-\u9fff", "\u3000-\u303f\uff00-\uff65"
JAPANESE_LINES = re.compile(
    rf"(?<=[{KANA_OR_KANJI}{STOPS}])\n(?=[{KANA_OR_KANJI}{STOPS}])|(?<=[{STOPS}])\n|\n(?=[{STOPS}])"
)
"""End of a line without a space: between two Japanese characters, or after a Japanese comma, period or bracket."""
TO_MATHML = LatexToMathML(fancy_error=False)
NAVIGATION: dict[str, Navigation] = {}
NAMES_IN_JAPANESE: dict[str, str] = {}
"""Values that on_config and on_nav store for the pages."""
LINK = re.compile(
    r"(?P<code>^(?P<mark>`{3,}).*?^(?P=mark)`*$|`[^`\n]+`)"
    r"|(?<!!)\[(?P<label>(?:[^\]\[]|\[[^\]\[]*\])*)\]\((?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)
"""A Markdown link, or code, which contains no link."""


def slug(text: str, separator: str) -> str:
    """Return the anchor of a heading in GitHub's format.

    >>> slug("Which heads a model needs, over a file", "-"), slug("softmax の軸", "-")
    ('which-heads-a-model-needs-over-a-file', 'softmax-の軸')
    """
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def formula(source: str, *_: Any, **__: Any) -> str:
    r"""Return a ```math block (TeX) as MathML, which browsers draw themselves.

    >>> formula(r"x^2")
    '<div class="math"><math display="block"><msup><mi>x</mi><mn>2</mn></msup></math></div>'
    """
    return f'<div class="math">{TO_MATHML.convert_with_local_state(source.strip(), displaystyle=True)}</div>'


def language_of(path: str) -> str:
    """Return the language of a page. Pages without a Japanese version are English.

    >>> language_of("ja/look.md"), language_of("theory/ja/nyu.md"), language_of("log.md")
    ('ja', 'ja', 'en')
    """
    return "ja" if "ja" in path.split("/")[:2] else "en"


def counterpart(path: str, language: str, pages: Collection[str]) -> str:
    """Return the address of the same page in a language, or of the first page in that language.

    >>> counterpart("theory/en/nyu.md", "ja", {"theory/ja/nyu.md"}), counterpart("log.md", "ja", {"log.md"})
    ('theory/ja/nyu.html', 'ja/index.html')
    >>> counterpart("design.md", "ja", {"ja/design.md"}), counterpart("ja/design.md", "en", {"design.md"})
    ('ja/design.html', 'design.html')
    """
    parts = path.split("/")
    candidates = [
        "/".join(language if part in LANGUAGES else part for part in parts),
        f"{language}/{path}",
        parts[-1],
    ]
    candidates = [candidate for candidate in candidates if candidate in pages and language_of(candidate) == language]
    return str(PurePosixPath([*candidates, f"{language}/index.md"][0]).with_suffix(".html"))


def on_config(config: MkDocsConfig) -> None:
    """Configure anchors as on GitHub, formulas as MathML, and the navigation of the existing pages."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [
        {"name": "math", "class": "math", "format": formula}
    ]
    config.nav = entries = present(config.nav or [], Path(config.docs_dir))
    japanese = [entry[LANGUAGES["ja"]] for entry in entries if LANGUAGES["ja"] in entry]
    NAMES_IN_JAPANESE.update(names(japanese[0]))


def present(entries: list[Any], docs: Path) -> list[Any]:
    """Return the navigation entries whose page exists. `folder/*` means all pages of a folder in order."""
    kept: list[Any] = []
    for entry in entries:
        title, value = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(value, list):
            if children := present(value, docs):
                kept.append({title: children})
        elif value == "reference/*":
            kept += [{modules[0].name: f"reference/{package}.md"} for package, modules in packages().items()]
        elif value.endswith("/*"):
            kept += [page.relative_to(docs).as_posix() for page in sorted((docs / value[:-2]).glob("*.md"))]
        elif value in BESIDE or value in book_pages() or (docs / value).is_file():
            kept.append(entry)
    return kept


def names(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield each page with its name in the navigation, if it has one."""
    for entry in entries:
        if isinstance(entry, dict):
            for title, value in entry.items():
                yield from names(value) if isinstance(value, list) else [(value, title)]


def book_pages() -> list[str]:
    """Return the addresses of the book's pages on the site.

    >>> "theory/en/nyu.md" in book_pages()
    True
    """
    return [f"theory/{page.relative_to(ROOT / BOOK).as_posix()}" for page in sorted((ROOT / BOOK).rglob("*.md"))]


def source_of(path: str) -> str:
    """Return the project file that contains the text of a page.

    >>> source_of("theory/en/nyu.md"), source_of("changelog.md"), source_of("design.md")
    ('src/attendo_course/book/en/nyu.md', 'CHANGELOG.md', 'docs/design.md')
    """
    if path.startswith("theory/"):
        return BOOK + path.removeprefix("theory/")
    return BESIDE.get(path, f"docs/{path}")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the reference, the pages of the book, and the pages outside docs/."""
    whole = config.plugins["mkdocstrings"].config.enabled
    for package in packages():
        files.append(File.generated(config, f"reference/{package}.md", content=package_page(package, whole)))
    for place in (*book_pages(), *BESIDE):
        text = (ROOT / source_of(place)).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to project files to the reference. If the reference has no such page, the link becomes text."""
    path = page.file.src_uri
    here = posixpath.dirname(source_of(path))

    def turned(link: re.Match[str]) -> str:
        target, hashed, anchor = (link["target"] or "").partition("#")
        place = posixpath.normpath(posixpath.join(here, target))
        if not target or ":" in target or (place.startswith("docs/") and here.startswith("docs")):
            return link[0]
        if found := site_address(place, link["label"].strip("`")):
            found += "" if "#" in found or place in FIRST_PAGES else hashed + anchor
        elif (ROOT / place).exists():
            return link["label"]
        else:
            return link[0]  # mkdocs reports the broken link
        return f"[{link['label']}]({posixpath.relpath(found, posixpath.dirname(path) or '.')})"

    return LINK.sub(turned, markdown)


def site_address(place: str, label: str) -> str | None:
    """Return the address at which the site shows a project file, or None."""
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    if place in FIRST_PAGES:
        return FIRST_PAGES[place]
    if place.startswith(BOOK):
        return f"theory/{place.removeprefix(BOOK)}"
    by_name = {name: page for page, name in BESIDE.items()}
    return by_name.get(place) or address(place, label)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert inline formulas to MathML, join Japanese lines, and remove the backslash before | in table cells."""
    pieces = re.split(r"(<pre\b.*?</pre>)", html, flags=re.DOTALL)
    pieces[::2] = [CELL.sub(lambda cell: cell[0].replace(r"\|", "|"), piece) for piece in pieces[::2]]
    pieces[::2] = [IN_LINE.sub(within_line, JAPANESE_LINES.sub("", piece)) for piece in pieces[::2]]
    return "".join(pieces)


def within_line(found: re.Match[str]) -> str:
    """Return an inline formula as MathML, from arithmatex's span."""
    return TO_MATHML.convert_with_local_state(unescape(found[1]), displaystyle=False)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Build a navigation for each language from the section of mkdocs.yml with its name.

    Each page is in one navigation. The Japanese navigation has links to pages that are only in English.
    """
    nav.pages[0].next_page = None  # the page on which a reader chooses the language
    for language, title in LANGUAGES.items():
        section = next((item for item in nav.items if isinstance(item, Section) and item.title == title), None)
        if section:
            section.children = owned(section.children, language, None)
            own = list(flat(section.children))
            for before, page, after in zip([None, *own], own, [*own[1:], None], strict=False):
                page.previous_page, page.next_page = before, after
            NAVIGATION[language] = Navigation(section.children, own)
    return nav


def owned(items: list[Any], language: str, parent: Section | None) -> list[Any]:
    """Return the items of a language's navigation under their own section. Pages of the other language are links."""
    kept: list[Any] = []
    for item in items:
        if isinstance(item, Section):
            item.children = owned(item.children, language, item)
        elif isinstance(item, Page) and language_of(item.file.src_uri) != language:
            path = item.file.src_uri
            item = Link(NAMES_IN_JAPANESE[path], item.file.url)
        item.parent = parent
        kept.append(item)
    return kept


def flat(items: list[Any]) -> Iterator[Page]:
    """Yield the pages of a navigation in order."""
    for item in items:
        if isinstance(item, Section):
            yield from flat(item.children)
        elif isinstance(item, Page):
            yield item


def on_page_context(context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Navigation) -> dict[str, Any]:
    """Set the theme's words, the navigation and the language selector of this page."""
    path, pages = page.file.src_uri, {file.src_uri for file in context["pages"]}
    language = language_of(path)
    config.theme["language"] = language
    config.extra["homepage"] = f"{language}/index.html"
    config.extra["alternate"] = [
        {"name": name, "lang": lang, "link": counterpart(path, lang, pages)} for lang, name in LANGUAGES.items()
    ]
    return context | {"nav": NAVIGATION.get(language, nav)}


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Remove links to other languages from the page head. Japanese pages use the search index below ja/."""
    output = re.sub(r'\s*<link rel="alternate"[^>]*>', "", output)
    if language_of(page.file.src_uri) != "ja":
        return output
    return re.sub(r'(<script id="__config"[^>]*>\{.*?"base": )"([^"]*)"', r'\1"\2/ja/"', output, count=1)


def on_post_build(config: MkDocsConfig) -> None:
    """Write a search index for each language. The Japanese index also contains the pages that are only in English."""
    whole = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(whole.read_text(encoding="utf-8"))
    places = {file.relative_to(config.site_dir).as_posix() for file in Path(config.site_dir).rglob("*.html")}
    pages = {str(PurePosixPath(place).with_suffix(".md")) for place in places}
    entries: dict[str, list[Any]] = {"en": [], "ja": []}
    for entry in index["docs"]:
        page, hashed, anchor = entry["location"].partition("#")
        path = str(PurePosixPath(page or "index.html").with_suffix(".md"))
        if path.startswith(("log.", "changelog.", "decisions/", "reference/")) and path != "reference/commands.md":
            entry["boost"] = 0.2  # guides and theory rank first
        if language_of(path) == "en":
            entries["en"].append(entry)
        if language_of(path) == "ja" or counterpart(path, "ja", pages) == "ja/index.html":
            entries["ja"].append(entry | {"location": posixpath.relpath(page or "index.html", "ja") + hashed + anchor})
    for folder, language in ((whole.parent, "en"), (Path(config.site_dir, "ja", "search"), "ja")):
        folder.mkdir(exist_ok=True)
        text = json.dumps(index | {"docs": entries[language]}, ensure_ascii=False, separators=(",", ":"))
        (folder / whole.name).write_text(text, encoding="utf-8")
