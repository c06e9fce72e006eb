"""Check every page of the built site, wide and narrow: `make site; python tools/site_screenshots.py OUT [PAGE]...`.

The script writes OUT/<page>-<width>.png and prints problems: a page wider than the window, a console error, a missing
file, or a request to another host. It exits with status 1 if there is a problem.
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
"""Largest height of a screenshot. A page of the reference is ten times as tall."""
TOO_WIDE = """() => {
  const width = document.documentElement.clientWidth;
  const ways = ["auto", "scroll", "hidden"];
  const scrolls = (e) => e && (ways.includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  return [...document.querySelectorAll("article *")]
    .filter((e) => e.getBoundingClientRect().right > width + 1 && !scrolls(e.parentElement))
    .map((e) => e.outerHTML.slice(0, 90));
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """File server without log output."""

    def log_message(self, format: str, *args: object) -> None:
        """Discard the message."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the folder on a free port of this machine during the `with` block, and yield its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def stumbles(page: Page, address: str, name: str, picture: Path | None) -> Iterator[str]:
    """Open a page, take its screenshot, and yield its problems."""
    found: list[str] = []
    page.on("console", lambda said: found.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: None if asked.url.startswith(address) else found.append(asked.url))
    page.on("response", lambda got: found.append(f"{got.status} {got.url}") if got.status > 399 else None)
    page.goto(address + name)
    page.wait_for_timeout(800)  # until fade-ins have finished
    if picture:
        picture.parent.mkdir(parents=True, exist_ok=True)
        height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
        clip: FloatRect = {"x": 0, "y": 0, "width": page.evaluate("innerWidth"), "height": height}
        page.screenshot(path=picture, full_page=True, clip=clip, timeout=120_000)
    over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    yield from found
    yield from (f"{over} dots too wide: {what}" for what in page.evaluate(TOO_WIDE) or ["?"] * (over > 0))


def look(browser: Browser, site: Path, names: Sequence[str], out: Path | None, scheme: Scheme) -> Iterator[str]:
    """Yield all problems of the pages at each width. The screenshots are written to `out`."""
    with served(site) as address:
        for width, name in product(WIDTHS, names):
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            picture = out / f"{name.removesuffix('.html')}-{width}.png" if out else None
            yield from (f"{name} at {width}: {what}" for what in stumbles(context.new_page(), address, name, picture))
            context.close()


def main(arguments: list[str]) -> int:
    """Take the screenshots, and print the problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
