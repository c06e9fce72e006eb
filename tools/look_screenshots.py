"""Take the screenshots of docs/en/look.md from trained runs: `python tools/look_screenshots.py runs/demo runs/sst2`.

The task of a run determines its screenshots: the demo has the page and its views, a classifier has `look-label.png`,
and a demo with more than three kept checkpoints also has `look-training.png`. Each screenshot is also taken in Japanese
(`look-…-ja.png`), which requires a Japanese font. The page is the live page in the system's Chromium. The same run,
fonts and browser produce identical files. To take `look-training.png`:

    attendo demo --out runs/film --cpu-minutes 2 --set checkpoint.keep_last=20 --set checkpoint.every_steps=50
    python tools/look_screenshots.py runs/film --only look-training
"""

import argparse
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from attendo.inference import load
from attendo.microscope.server import LookServer
from attendo.microscope.session import Session

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
SENTENCE = "On Monday it will snow in Oslo."
EXPECTED = "月曜日のオスロは、雨が降るでしょう。"
REVIEW = "a gorgeous , witty , seductive movie ."
CROSS, OWN = "decoder.blocks.1.cross_attention", "decoder.blocks.0.self_attention"
OFF = [{"kind": "off", "path": OWN, "head": head} for head in (1, 2)]
LARGEST, LARGEST_TOGETHER = 200_000, 1_600_000
"""Largest number of bytes of one screenshot, and of all screenshots in the folder."""
FEWEST_FRAMES = 4
"""Smallest number of frames of a useful film, including the trained model."""
GUIDED = "localStorage.setItem('attendo-guided', 'yes')"
"""Hides the invitation to the guide."""
BOXES = """(parts) => parts.flatMap((part) => [...document.querySelectorAll(part)])
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.matches(".unseen"))
  .map((one) => [one.getBoundingClientRect(), one.closest(".view") ?? document.body])
  .filter(([box]) => box.width && box.height)
  .map(([box, around]) => [box.left, box.top, Math.min(box.right, around.getBoundingClientRect().right), box.bottom])"""
"""The edges of all visible elements of some CSS selectors."""


@dataclass(frozen=True)
class Shot:
    """A screenshot: how the page is opened, the actions on the page, and the parts to show.

    `parts` are CSS selectors; the screenshot is the smallest box around all their elements. `scale` is pixels per CSS
    pixel, and `size` is the size of the window.
    """

    name: str
    parts: tuple[str, ...]
    state: dict[str, Any] = field(default_factory=dict)
    act: Callable[[Page], None] = lambda page: None
    scale: float = 1.0
    size: tuple[int, int] = (1280, 860)
    colors: int = 256


def until(page: Page, expression: str) -> None:
    """Wait until an expression is true. The expression is evaluated outside the page, whose policy forbids `eval`."""
    for _ in range(3000):
        if page.evaluate(f"(() => {{ const app = window.attendo?.app; return !!({expression}); }})()"):
            return
        page.wait_for_timeout(20)
    raise TimeoutError(f"never came true: {expression}")


def settled(page: Page) -> None:
    """Wait until the page has no open requests and has been drawn."""
    page.wait_for_timeout(400)
    until(page, "document.getElementById('page').getAttribute('aria-busy') !== 'true'")
    page.wait_for_timeout(300)


def ask_why(page: Page) -> None:
    """Ask why the model did not choose another translation."""
    page.fill("#why-text", EXPECTED)
    page.click("#why-go")
    until(page, "document.querySelectorAll('#view-why table tbody tr').length > 3")


def play(page: Page) -> None:
    """Show an early checkpoint."""
    page.click("#film-go")
    until(page, "window.attendo.drawn.film")
    page.focus("#film-frame")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")


def view(name: str, view: str, part: str = "", act: Callable[[Page], None] = lambda page: None) -> Shot:
    """Return the screenshot of a view in the middle column, or of one part of the view."""
    state = {"view": view, "layer": CROSS, "head": 0, "query": 5}
    parts = (f"#view-{view} *",)
    if part in ("predictions", "positions"):
        state["part"] = part
    elif part:
        parts = (f"#view-{view} h2:has(+ #view-{part})", f"#view-{part} *")
    return Shot(name, parts, state, act, 1.5, (1480, 1700))


WINDOW = ("header", "main")
TRANSLATOR = (
    Shot("look-page", WINDOW, {"layer": CROSS, "head": 0, "query": 5}),
    Shot("look-off", WINDOW, {"view": "off", "layer": OWN, "head": 2, "edits": OFF}),
    view("look-arithmetic", "arithmetic"),
    view("look-layers", "layers", "predictions"),
    view("look-positions", "layers", "positions"),
    view("look-why", "search", "why", ask_why),
    view("look-tree", "search", "tree"),
)
CLASSIFIER = (Shot("look-label", WINDOW, {"view": "label"}),)
FILM = (view("look-training", "training", act=play),)
FIRST_HEAD = ("layer", "head", "query")


def shots_of(session: Session) -> tuple[Shot, ...]:
    """Return the screenshots that can be taken of a run."""
    told = session.model_answer()
    if told["family"] != "translation":
        return CLASSIFIER if told["family"] == "classification" else ()
    return TRANSLATOR + (FILM if len(told["checkpoints"]) >= FEWEST_FRAMES else ())


@contextmanager
def served(session: Session) -> Iterator[str]:
    """Serve the live page on a free port of this machine during the `with` block, and yield its address."""
    server = LookServer(session)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server.address
    server.stop()
    thread.join()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the system's Chromium during the `with` block."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        sys.exit("error: no Chromium on this machine; apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-lcd-text"]
        )
        yield browser
        browser.close()


def opened(browser: Browser, address: str, shot: Shot, state: dict[str, Any]) -> Page:
    """Open the page with a state in a window of its own, in light colors and without the invitation to the guide."""
    pairs = {k: v if isinstance(v, str) else json.dumps(v) for k, v in {"theme": "light", **state}.items()}
    width, height = shot.size
    page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=shot.scale)
    page.add_init_script(GUIDED)
    page.goto(f"{address}#{urlencode(pairs)}")
    until(page, "window.attendo?.ready")
    settled(page)
    return page


def taken(browser: Browser, address: str, shot: Shot, text: str, translates: bool, language: str) -> bytes:
    """Return one screenshot as PNG, before its colors are reduced."""
    state = {name: value for name, value in shot.state.items() if translates or name not in FIRST_HEAD}
    page = opened(browser, address, shot, {"language": language, "text": text, **state})
    shot.act(page)
    settled(page)
    # times differ between runs, and a caret blinks
    page.evaluate("document.getElementById('status').textContent = ''; document.activeElement.blur()")
    picture = page.screenshot(full_page=True, clip=around(page, shot.parts), animations="disabled")
    page.close()
    return picture


def around(page: Page, parts: tuple[str, ...]) -> Any:
    """Return the box around all visible elements of the parts, with a small margin unless they fill the page."""
    found = page.evaluate(BOXES, list(parts))
    left, top = (min(box[n] for box in found) for n in (0, 1))
    right, bottom = (max(box[n] for box in found) for n in (2, 3))
    edge = 0 if left <= 0 else 10
    return {
        "x": left - edge,
        "y": top - edge,
        "width": right - left + 2 * edge,
        "height": bottom - top + 2 * edge,
    }


def write_small(path: Path, picture: bytes, colors: int) -> int:
    """Write a PNG with `colors` colors and return its bytes. Raise ValueError if it is too large."""
    found = BytesIO()
    few = Image.open(BytesIO(picture)).convert("RGB").quantize(colors, kmeans=1, dither=Image.Dither.NONE)
    few.save(found, "PNG", optimize=True)
    if len(found.getvalue()) >= LARGEST:
        raise ValueError(f"{path.name} has {len(found.getvalue()):,} bytes; give its shot a smaller scale")
    path.write_bytes(found.getvalue())
    return len(found.getvalue())


def main() -> int:
    """Take the screenshots of the given runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of trained runs")
    parser.add_argument("--out", type=Path, default=IMAGES, help="the folder of the pictures")
    parser.add_argument("--only", nargs="+", default=[], help="names of pictures, as look-search")
    given = parser.parse_args()
    torch.set_num_threads(1)  # a fixed order of sums, for equal digits every time
    with chromium() as browser:
        for run in given.runs:
            session = Session(load(run), run)
            translates = session.model_answer()["family"] == "translation"
            for shot in shots_of(session):
                if given.only and shot.name not in given.only:
                    continue
                for language, end in (("en", ""), ("ja", "-ja")):
                    with served(session) as address:
                        text = SENTENCE if translates else REVIEW
                        picture = taken(browser, address, shot, text, translates, language)
                    size = write_small(given.out / f"{shot.name}{end}.png", picture, shot.colors)
                    print(f"{shot.name}{end}.png  {size:,} bytes")
    together = sum(path.stat().st_size for path in given.out.glob("look-*.png"))
    print(f"together {together:,} bytes")
    return int(together >= LARGEST_TOGETHER)


if __name__ == "__main__":
    sys.exit(main())
