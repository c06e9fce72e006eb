"""The page about the GPT on one page: its code prints what the page shows, and the pictures have its numbers."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {
    language: BLOCK.findall((DOCS / language / "one-page.md").read_text(encoding="utf-8")) for language in ("en", "ja")
}


@pytest.fixture(scope="module")
def page():
    """What each block prints, and the names that the blocks define."""
    names, printed = {}, []
    for code, _ in BLOCKS["en"]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "one-page.md", "exec"), names)
        printed.append(out.getvalue())
    return printed, names


def test_the_code_prints_what_the_page_shows(page):
    assert page[0] == [shown for _, shown in BLOCKS["en"]]
    assert len(page[0]) == 13


@pytest.mark.parametrize("name", ["figure-gpt.svg", "figure-gpt-ja.svg"])
def test_the_picture_shows_this_model(page, name):
    texts = re.findall(r">([^<>]+)</text>", (DOCS / "images" / name).read_text(encoding="utf-8"))
    steps = page[1]["steps"]
    for row in (steps.x[0], steps.layers[0].fed[4], steps.layers[1].output[4], steps.logits[4]):
        numbers = [f"{number:.2f}".replace("-", "−") for number in row.tolist()]
        assert numbers in [texts[i : i + len(numbers)] for i in range(len(texts))]
