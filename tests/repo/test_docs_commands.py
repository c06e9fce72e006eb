"""Every command of README and the guides is run as it stands there; each page is the same in both languages."""

import re

import pytest
import typer
from documented import KINDS, ROOT, Workshop, blocks, commands, kind_of

from attendo.cli import build_app

GUIDES = ("start", "language-model", "lessons", "comparison")
LONG_GUIDES = ("python", "translator", "classifier")
PAGES = {"README": ("README.md", "README.ja.md")}
PAGES |= {path.stem: (f"docs/en/{path.name}", f"docs/ja/{path.name}") for path in (ROOT / "docs/en").glob("*.md")}
BOTH = [path for paths in PAGES.values() for path in paths]
LOCALIZED = {"attention-maps", "change-a-block", "decoding", "look", "report", "teaching", "training"}
"""Pages whose blocks contain words in their language."""
SAME_CODES = ("README", "install", *GUIDES, *LONG_GUIDES)
OTHERS = {"--help", "--debug", "--extra-index-url", "--paired-bs", "--max-restarts", "--rdzv-endpoint"}
"""Options of every command and of other programs."""
DATA = {"bad", "good", "other", "snow", "bfloat", "float", "reviews", "tickets"}
DATA |= {"train", "csv", "shakespeare"}
DATA |= {"macro", "F"}  # told where labels are of unequal size
"""Words of what the pages were written with, and of what the tests train on."""

IN_TEXT = re.compile(r"`attendo ([a-z][^`]*)`")
BUDGET = re.compile(r"\b(?:cpu_minutes|epochs|(more_)steps)(\W+)\d+")
"""The end of a run in a page's Python, which the test replaces by 2 updates."""


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    made = Workshop(tmp_path_factory.mktemp("workshop"))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(made.folder)
        patched.setenv("ATTENDO_NATIVE", "0")  # no compiler is called
        yield made


@pytest.mark.parametrize(
    "page", ["README", *GUIDES, *(pytest.param(page, marks=pytest.mark.full) for page in LONG_GUIDES)]
)
def test_every_command_runs_and_prints_what_the_page_shows(page, workshop):
    printed, names = [], {}
    for language, block in blocks(text_of(PAGES[page][0])):
        if language == "sh":
            outcomes = [workshop.run(line) for line in commands(f"```sh\n{block}```")]
            printed = [line for outcome in outcomes if outcome for line in lines_of(outcome, workshop.folder)]
        elif language == "text" and printed and not block.startswith(("coach", "step")):
            found = {words(line) for line in printed}
            for line in block.splitlines():
                assert len(words(line)) < 3 or "--drop" in line or words(line) in found, (line, printed)
        elif language == "python":
            code = BUDGET.sub(r"\1steps\g<2>2", block).replace("range(3000)", "range(300)")  # rows of data
            exec(compile(code, page, "exec"), names)  # one after the other, as in a notebook


def lines_of(outcome, folder):
    return (outcome.out + outcome.err).replace(f"{folder}/", "").splitlines()


def words(line):
    """What a line says up to a semicolon, but for its numbers and for words that depend on the data."""
    return tuple(word for word in re.findall("[A-Za-z]+", line.split(";")[0]) if word not in DATA)


def test_the_kinds_of_commands():
    pages = ("README", *GUIDES, *LONG_GUIDES)
    found = {page: [kind_of(line) for line in commands(text_of(PAGES[page][0]))] for page in pages}
    counts = {kind: sum(kinds.count(kind) for kinds in found.values()) for kind in KINDS}
    assert all(counts.values()), counts
    assert sum(counts.values()) == sum(map(len, found.values()))
    assert all(kind_of(line) in KINDS for line in commands(text_of("README.md")))


def test_a_path_of_readme_has_fewer_than_ten_commands():
    for block in (text for language, text in blocks(text_of("README.md")) if language == "sh"):
        assert len(block.splitlines()) < 10, block


def test_both_languages_have_the_same_blocks_headings_and_tables():
    japanese_pages = {path.stem for path in (ROOT / "docs/ja").glob("*.md")}
    assert japanese_pages - {"design", "benchmarks"} == {*PAGES} - {"README"}  # in docs/ in English
    for page, paths in PAGES.items():
        english, japanese = map(text_of, paths)
        assert blocks(english) == blocks(japanese) or page in LOCALIZED, page
        assert headings(english) == headings(japanese), page
        assert tables(english) == tables(japanese), page
        assert codes(english) == codes(japanese) or page not in SAME_CODES, page


def headings(text):
    """The levels of the headings."""
    return re.findall(r"^(#+) ", unfenced(text), re.MULTILINE)


def tables(text):
    """The number of columns of each row of a table."""
    return [len(re.findall(r"(?<!\\)\|", row)) for row in re.findall(r"^\|.*$", unfenced(text), re.MULTILINE)]


def codes(text):
    """What stands between backticks; a page in Japanese may add how to have its words in Japanese."""
    return set(re.findall(r"`([^`\n]+)`", unfenced(text))) - {"--language ja"}


def unfenced(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def text_pages():
    """Every page of the documentation and beside it, without its blocks."""
    paths = (*BOTH, "docs/design.md", "docs/benchmarks.md", "CONTRIBUTING.md", "CHANGELOG.md")
    return {ROOT / path: unfenced(text_of(path)) for path in paths}


def test_links_lead_somewhere():
    pages = text_pages()
    for path, text in pages.items():
        for file, anchor in re.findall(r"\]\(([\w./-]*)(?:#([^)]+))?\)", text):
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), (path, file)
            if anchor:
                linked = pages.get(target) or unfenced(target.read_text(encoding="utf-8"))
                assert anchor in map(anchor_of, re.findall(r"^#+ (.*)$", linked, re.MULTILINE)), (
                    path,
                    anchor,
                )


def anchor_of(title):
    """As on GitHub and on the site: lower case, no punctuation, hyphens for blanks."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_commands_and_options_in_sentences_are_there():
    commands = typer.main.get_command(build_app()).commands  # pyright: ignore[reportAttributeAccessIssue]
    options = {name: options_of(command) for name, command in commands.items()}
    for path in BOTH:
        text = unfenced(text_of(path))
        for said in IN_TEXT.findall(text):
            name, *words = said.split()
            assert {word for word in words if word.startswith("--")} <= options[name] | {"--help"}, said
        named = set(re.findall(r"`(--[a-z0-9-]+)", text))
        assert named <= OTHERS.union(*options.values()), path


def options_of(command):
    found = {option for one in command.params for option in one.opts + one.secondary_opts}
    for child in getattr(command, "commands", {}).values():
        found |= options_of(child)
    return found
