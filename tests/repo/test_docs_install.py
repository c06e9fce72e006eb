"""The page on installation: both languages have the same commands, and each agrees with the project's files."""

import re
import tomllib

from command_line import attendo
from documented import ROOT

PAGES = {language: (ROOT / "docs" / language / "install.md").read_text(encoding="utf-8") for language in ("en", "ja")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_page_names_what_the_project_has():
    text = PAGES["en"]
    extras = re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE)
    assert extras == list(PROJECT["optional-dependencies"])
    assert PROJECT["requires-python"] == ">=3.11,<3.14" and "Python 3.11, 3.12 or 3.13" in text
    assert "torch>=2.11,<3" in PROJECT["dependencies"] and "PyTorch 2.11 or a later version" in text
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    index = re.search(r"^TORCH_CPU_INDEX \?= (.+)$", makefile, re.MULTILINE)[1]
    assert set(re.findall(r"https://download[^\s>`]+", text)) == {index}


def test_the_command_that_checks_the_installation_prints_what_the_page_shows():
    assert f"$ attendo --version\n{attendo('--version').out}```" in PAGES["en"]
