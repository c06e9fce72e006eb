"""Take the screenshots of docs/en/look.md from trained runs: `python tools/look_screenshots.py runs/demo runs/sst2`.

The task of a run determines its screenshots: the demo has the page and its views, a classifier has `look-label.png`,
and a run with more than three kept checkpoints also has `look-training.png`. Each screenshot is also taken in Japanese
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
  .map((one) => one.getBoundingClientRect()).filter((box) => box.width && box.height)
  .map((box) => [box.left, box.top, box.right, box.bottom])"""
"""The edges of all visible elements of some CSS selectors."""


@dataclass(frozen=True)
class Shot:
    """A screenshot: how the page is opened, the actions on the page, and the parts to show.

    `parts` are CSS selectors; the screenshot is the smallest box around all their elements. `scale` is pixels per CSS
    pixel, and `height` is the height of the window.
    """

    name: str
    parts: tuple[str, ...]
    state: dict[str, Any] = field(default_factory=dict)
    act: Callable[[Page], None] = lambda page: None
    scale: float = 1.0
    height: int = 800
    colors: int = 128


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
    until(page, "window.attendo.drawn.tree")


def play(page: Page) -> None:
    """Show an early checkpoint."""
    page.click("#film-go")
    until(page, "window.attendo.drawn.film")
    page.focus("#film-frame")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")


def view(name: str, act: Callable[[Page], None] = lambda page: None, **more: Any) -> Shot:
    """Return the screenshot of the middle column with a view. `more` are additional values of the page state."""
    state = {"view": name, "layer": CROSS, "head": 0, "query": 5} | more
    return Shot(f"look-{more.get('part', name)}", (f"#view-{name} *",), state, act, 1.5, 1700)


WINDOW = ("header", "main")
TRANSLATOR = (
    Shot("look-page", WINDOW, {"layer": CROSS, "head": 0, "query": 5}),
    Shot("look-off", WINDOW, {"view": "off", "layer": OWN, "head": 2, "edits": OFF}),
    view("arithmetic"),
    view("layers"),
    view("search", ask_why),
    view("layers", part="positions"),
)
CLASSIFIER = (Shot("look-label", WINDOW, {"view": "label"}),)
FILM = (view("training", play),)
FIRST_HEAD = ("layer", "head", "query")


def shots_of(session: Session) -> tuple[Shot, ...]:
    """Return the screenshots that can be taken of a run."""
    told = session.model_answer()
    film = FILM if len(told["checkpoints"]) >= FEWEST_FRAMES else ()
    return {"translation": TRANSLATOR, "classification": CLASSIFIER}.get(told["family"], ()) + film


@contextmanager
def served(session: Session) -> Iterator[str]:
    """Serve the live page on a free port of this machine during the `with` block, and yield its address."""
    server = LookServer(session)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server.address
    server.stop()
    thread.join()


def taken(browser: Browser, address: str, shot: Shot, text: str, translates: bool, language: str) -> bytes:
    """Return one screenshot as PNG, before its colors are reduced."""
    state = {name: value for name, value in shot.state.items() if translates or name not in FIRST_HEAD}
    state = {"language": language, "theme": "light", "text": text, **state}
    address += "#" + urlencode({k: v if isinstance(v, str) else json.dumps(v) for k, v in state.items()})
    context = browser.new_context(
        viewport={"width": 1200, "height": shot.height}, device_scale_factor=shot.scale
    )
    context.add_init_script(GUIDED)
    page = context.new_page()
    page.goto(address)
    until(page, "window.attendo?.ready")
    settled(page)
    shot.act(page)
    settled(page)
    # times differ between runs, and a caret blinks
    page.evaluate("document.getElementById('status').textContent = ''; document.activeElement.blur()")
    picture = page.screenshot(full_page=True, clip=around(page, shot.parts), animations="disabled")
    context.close()
    return picture


def around(page: Page, parts: tuple[str, ...]) -> Any:
    """Return the box around all visible elements of the parts, with a small margin unless they fill the page."""
    found = page.evaluate(BOXES, list(parts))
    left, top = (min(box[n] for box in found) for n in (0, 1))
    right, bottom = (max(box[n] for box in found) for n in (2, 3))
    edge = 0 if left <= 0 else 10
    return {"x": left - edge, "y": top - edge, "width": right - left + 2 * edge, "height": bottom - top + 2 * edge}


def write_small(path: Path, picture: bytes, colors: int) -> int:
    """Write a PNG with `colors` colors and return its bytes. Raise ValueError if it is too large."""
    found = BytesIO()
    few = Image.open(BytesIO(picture)).convert("RGB").quantize(colors, dither=Image.Dither.NONE)
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
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("error: no Chromium on this machine; apt install chromium", file=sys.stderr)
        return 2
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-lcd-text"]
        )
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
        browser.close()
    together = sum(path.stat().st_size for path in given.out.glob("look-*.png"))
    print(f"together {together:,} bytes")
    return int(together >= LARGEST_TOGETHER)


if __name__ == "__main__":
    sys.exit(main())
