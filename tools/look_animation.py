"""Make the animation of the README from the demo: `python tools/look_animation.py runs/demo`.

The animation types a text, points at words of the translation, and switches two heads off. The result is
`docs/images/look-animation.webp`, and in Japanese `look-animation-ja.webp`, which requires a Japanese font.
"""

import sys
from io import BytesIO
from pathlib import Path

import torch
from look_screenshots import IMAGES, OWN, SENTENCE, Shot, chromium, opened, served, settled
from PIL import Image, ImageDraw
from playwright.sync_api import Locator, Page

from attendo.inference import load
from attendo.microscope.session import Session

WINDOW = Shot("look-animation", (), size=(1280, 800))
ARROW = ((0, 0), (0, 17), (4, 13), (7, 20), (10, 19), (7, 12), (13, 12))


class Film:
    """Frames of a page with a drawn pointer, which Chromium leaves out of screenshots."""

    def __init__(self, page: Page):
        self.page, self.at, self.frames, self.times = page, (420.0, 320.0), list[Image.Image](), list[int]()

    def show(self, time: int, *places: tuple[float, float]) -> None:
        """Show the page for `time` milliseconds, with the pointer at each place (default: where it is)."""
        self.page.evaluate("document.getElementById('status').textContent = ''")  # times differ between runs
        picture = Image.open(BytesIO(self.page.screenshot(animations="disabled"))).convert("RGB")
        for place in places or (self.at,):
            self.at = place
            self.frames.append(picture.copy())
            self.times.append(time)
            arrow = [(x + place[0], y + place[1]) for x, y in ARROW]
            ImageDraw.Draw(self.frames[-1]).polygon(arrow, fill="black", outline="white")

    def point(self, place: Locator, time: int, click: bool = False) -> None:
        """Move the pointer to a place, click there if asked, and show the result."""
        box = place.bounding_box() or {"x": 0, "y": 0, "width": 0, "height": 0}
        (left, top), x, y = self.at, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.show(60, *((left + part * (x - left), top + part * (y - top)) for part in (0.25, 0.5, 0.75, 1)))
        (self.page.mouse.click if click else self.page.mouse.move)(x, y)
        settled(self.page)
        self.show(time)


def film_of(page: Page) -> Film:
    """Act on the page, and return the film."""
    film = Film(page)
    film.show(600)
    page.locator("#text").select_text()
    for word in SENTENCE.split():
        page.keyboard.insert_text(word if word.endswith(".") else f"{word} ")
        film.show(160)
    page.keyboard.press("Enter")
    settled(page)
    film.show(1500)
    for n in (2, 5):
        film.point(page.locator("#ribbons .tokens").last.locator("button").nth(n), 1500)
    for head in (2, 1):
        film.point(page.locator(f'.head[data-path="{OWN}"][data-head="{head}"]'), 1200, click=True)
        film.point(page.locator("#head-on"), 2000, click=True)
    film.point(page.locator("#output"), 3000)
    return film


if __name__ == "__main__":
    torch.set_num_threads(1)  # a fixed order of sums, for equal digits every time
    run = Path(sys.argv[1])
    for language, path in (("en", IMAGES / "look-animation.webp"), ("ja", IMAGES / "look-animation-ja.webp")):
        with chromium() as browser, served(Session(load(run), run)) as address:
            film = film_of(opened(browser, address, WINDOW, {"language": language, "text": "It will rain tomorrow."}))
        more = {"save_all": True, "append_images": film.frames[1:], "duration": film.times, "loop": 0}
        film.frames[0].save(path, lossless=True, quality=100, method=4, **more)
        assert path.stat().st_size < 700_000, path.name
