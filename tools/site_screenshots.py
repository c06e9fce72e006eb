"""Look at every page of the built site, wide and narrow: `make site; python tools/site_screenshots.py OUT [PAGE]...`.

Writes OUT/<page>-<width>.png and prints what a reader would stumble over: a page wider than the window, an error in the
console, anything not found or asked of another host. Exits 1 if there is any.
"""

import argparse
import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

SITE = Path(__file__).resolve().parent.parent / "build" / "site"
WIDTHS = (1280, 390)
Scheme = Literal["light", "dark"]
TALLEST = 16_000
"""Of a picture; a page of the reference is ten times as tall."""
TOO_WIDE = """() => {
  const width = document.documentElement.clientWidth;
  const ways = ["auto", "scroll", "hidden"];
  const scrolls = (e) => e && (ways.includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  return [...document.querySelectorAll("article *")]
    .filter((e) => e.getBoundingClientRect().right > width + 1 && !scrolls(e.parentElement))
    .map((e) => e.outerHTML.slice(0, 90));
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder's address, on a free port of this machine."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=folder)
    ) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def stumbles(page: Page, address: str, name: str, picture: Path | None) -> Iterator[str]:
    """Opens a page, takes its picture, and gives what is wrong with it."""
    found: list[str] = []
    page.on("console", lambda said: found.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: None if asked.url.startswith(address) else found.append(asked.url))
    page.on("response", lambda got: found.append(f"{got.status} {got.url}") if got.status > 399 else None)
    page.goto(address + name)
    page.wait_for_timeout(800)  # until what fades in is there
    if picture:
        picture.parent.mkdir(parents=True, exist_ok=True)
        height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
        clip: FloatRect = {"x": 0, "y": 0, "width": page.evaluate("innerWidth"), "height": height}
        page.screenshot(path=picture, full_page=True, clip=clip, timeout=120_000)
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    yield from found
    yield from (f"{over} dots too wide: {what}" for what in page.evaluate(TOO_WIDE) or ["?"] * (over > 0))


def look(
    browser: Browser, site: Path, names: Sequence[str], out: Path | None, scheme: Scheme
) -> Iterator[str]:
    """All that is wrong with these pages, at each width; their pictures go to `out`."""
    with served(site) as address:
        for width, name in product(WIDTHS, names):
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            picture = out / f"{name.removesuffix('.html')}-{width}.png" if out else None
            yield from (
                f"{name} at {width}: {what}" for what in stumbles(context.new_page(), address, name, picture)
            )
            context.close()


def main(arguments: list[str]) -> int:
    """Takes the pictures and prints the stumbles."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("pages", nargs="*", help="as en/look.html; else all")
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_intermixed_args(arguments)
    names = given.pages or [path.relative_to(SITE).as_posix() for path in sorted(SITE.rglob("*.html"))]
    n_found = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for what in look(browser, SITE, names, given.out, "dark" if given.dark else "light"):
            print(what, flush=True)
            n_found += 1
    print(f"{len(names)} pages at {len(WIDTHS)} widths; found: {n_found}")
    return int(n_found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
