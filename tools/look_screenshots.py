"""Take the screenshots of docs/en/look.md from trained runs: `python tools/look_screenshots.py runs/demo runs/imdb`.

The task of a run determines its screenshots: the demo has the page and its views, a classifier has `look-classes.png`,
and a run with more than three kept checkpoints also has `look-film.png`. Each screenshot is also taken in Japanese
(`look-…-ja.png`), which requires a Japanese font. The page is the live page in the system's Chromium. The same run,
fonts and browser produce identical files. To take `look-film.png`:

    attendo demo --out runs/film --cpu-minutes 2 --set checkpoint.keep_last=20 --set checkpoint.every_steps=50
    python tools/look_screenshots.py runs/film --only look-film
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
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from attendo.cli.demo import SENTENCE
from attendo.inference import load
from attendo.microscope.server import LookServer
from attendo.microscope.session import Session

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
REVIEW = "The acting is wonderful, but the story is dull and far too long."
CROSS, OWN = "decoder.blocks.1.cross_attention", "decoder.blocks.0.self_attention"
LARGEST, LARGEST_TOGETHER = 200_000, 2_200_000
"""Largest number of bytes of one screenshot, and of all screenshots in the folder."""
FEWEST_FRAMES = 4
"""Smallest number of frames of a useful film, including the trained model."""


@dataclass(frozen=True)
class Shot:
    """A screenshot: how the page is opened, the actions on the page, and the parts to show.

    `parts` are CSS selectors; the screenshot is the smallest box around all of them. `scale` is pixels per CSS pixel.
    """

    name: str
    parts: tuple[str, ...]
    state: dict[str, Any] = field(default_factory=dict)
    act: Callable[[Page], None] = lambda page: None
    scale: float = 1.5
    width: int = 1180
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


def slide(page: Page) -> None:
    """Set all attention to β = 0.5, and show the curve of eight values."""
    page.select_option("#beta-scope", "all")
    page.click("#view-slider .ticks button[aria-label='β = 0.5']")
    until(page, "app.look.ask.edits.length === 1")
    page.click("#beta-sweep")
    until(page, "!document.getElementById('beta-sweep').disabled")
    page.mouse.move(0, 0)


def rank_heads(page: Page) -> None:
    """Disable the open head, and rank all heads."""
    page.dblclick("button.head[aria-pressed='true']")
    until(page, "app.look.ask.edits.length === 1")
    page.locator("#view-switches button.main").first.click()
    until(page, "document.querySelectorAll('#view-switches table.ranking tbody tr').length > 3")
    settled(page)


def find_heads(page: Page) -> None:
    """Find the heads on which a label depends."""
    page.locator("#view-classes button.main").first.click()
    settled(page)


def force(page: Page) -> None:
    """Force the second choice of a token."""
    settled(page)
    page.locator("#view-next tbody tr:has(button)").nth(1).locator("button").last.click()
    until(page, "app.look.ask.prefix_ids.length > 0")


def grow(page: Page) -> None:
    """Show the tree of a search with three beams from its beginning."""
    page.select_option("#tree-beam", "3")
    page.click("#tree-go")
    until(page, "window.attendo.drawn.tree")
    page.locator("canvas[data-name='tree']").focus()
    page.keyboard.press("Home")


def ask_why(page: Page) -> None:
    """Ask why the model did not choose another translation."""
    page.fill("#why-text", "明日の札幌は、朝に雪が降れば、午後は晴れるでしょう。")
    page.click("#why-go")
    until(page, "document.querySelectorAll('#view-why table tbody tr').length > 3")


def play(page: Page) -> None:
    """Show the first frame of the film."""
    page.click("#film-go")
    until(page, "window.attendo.drawn.film")
    page.focus("#film-frame")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")


def view(name: str, act: Callable[[Page], None] = lambda page: None, **more: Any) -> Shot:
    """Return the screenshot of a tab. `more` are additional values of the page state."""
    state = {"view": name, "layer": CROSS, "head": 3, "query": 10} | more
    return Shot(f"look-{name}", (f"#view-{name}",), state, act)


PAGE = {"layer": CROSS, "head": 3, "query": 14, "search": "beam"}
TRANSLATOR = (
    Shot("look-page", ("header", "#detail", "#heads"), PAGE),
    Shot("look-heads", ("#detail", "#heads"), PAGE),
    view("steps"),
    view("slider", slide),
    view("switches", rank_heads, layer=OWN, head=2),
    view("lens"),
    view("next", force),
    Shot("look-tree", ("#view-tree h2", "#view-tree .tree-read"), {"view": "tree"}, grow),
    Shot("look-why", ("#view-why",), {"view": "tree"}, ask_why),
    view("positions"),
)
CLASSIFIER = (view("classes", find_heads),)
FILM = (view("film", play),)
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
        viewport={"width": shot.width, "height": 1200}, device_scale_factor=shot.scale
    )
    page = context.new_page()
    page.goto(address)
    until(page, "window.attendo?.ready")
    settled(page)
    shot.act(page)
    settled(page)
    # times differ between runs, and a caret blinks
    page.evaluate("document.getElementById('status').textContent = ''; document.activeElement.blur()")
    parts = [page.locator(part) for part in shot.parts]
    picture = page.screenshot(full_page=True, clip=around(parts), animations="disabled")
    context.close()
    return picture


def around(parts: list[Locator]) -> Any:
    """Return the box around all parts on the whole page, with a small margin."""
    page = parts[0].page
    page.evaluate("window.scrollTo(0, 0)")
    boxes = [box for part in parts if (box := part.first.bounding_box())]
    left, top = min(box["x"] for box in boxes), min(box["y"] for box in boxes)
    right = max(box["x"] + box["width"] for box in boxes)
    bottom = max(box["y"] + box["height"] for box in boxes)
    edge = 8 if len(parts) > 1 else 0
    x, y = max(0, left - edge), max(0, top - edge)
    return {"x": x, "y": y, "width": right + edge - x, "height": bottom + edge - y}


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
    parser.add_argument("--only", nargs="+", default=[], help="names of pictures, as look-tree")
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
