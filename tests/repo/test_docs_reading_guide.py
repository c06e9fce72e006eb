"""The reading guide names files and functions that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "attendo"


@pytest.mark.parametrize("language", ["en", "ja"])
def test_every_file_and_name_of_the_guide_is_there(language):
    page = (ROOT / "docs" / language / "reading-guide.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    n_names = 0
    for cells in rows:
        named = [re.findall(r"`([^`]+)`", cell) for cell in cells]
        files = [SOURCE / name for names in named for name in names if name.endswith(".py")]
        texts = [file.read_text(encoding="utf-8") for file in files]
        for name in (name for names in named for name in names if not name.endswith(".py")):
            n_names += 1
            last = name.rpartition(".")[2]
            assert any(re.search(rf"(def|class) {last}\b", text) for text in texts), name
    assert len(rows) > 20 and n_names > 30
