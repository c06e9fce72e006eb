"""The check of the wording finds what the style bans and accepts what it allows."""

import ast

import check_style
import pytest

GOOD_PAGE = """# Resume a run

The command continues after a crash; `else` and [a link](behind.md) are code. It is 99.9% exact.

```sh
attendo train translation  # goes on, or else
```

## Use a GPU
"""
GOOD_CODE = '''
def resume(folder, *, steps=0):
    """Resume a run and return it.

    Args:
        folder: The run folder.
        steps: The number of further steps.

    Raises:
        ValueError: There is no checkpoint.
    """
    raise ValueError("no checkpoint in this folder; train again")
'''


@pytest.fixture(autouse=True)
def spellings(monkeypatch):
    monkeypatch.setattr(check_style, "british", lambda: {"labelled": "labeled"})


def rules(found):
    return [finding.rule for finding in found]


def definition(code):
    return ast.parse(code).body[0]


def test_a_page_in_style_has_no_finding():
    assert rules(check_style.of_page("a.md", GOOD_PAGE)) == []


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("The command says it.", "software prints, returns or raises"),
        ("It wants a file.", "software requires"),
        ("The row stands there.", "files are in folders, text appears"),
        ("It starts anew.", "write again"),
        ("The run goes on.", "write continue or resume"),
        ("the line behind it", "write after"),
        ("Else it ends.", "write otherwise, or (default: ...)"),
        ("three storeys", "no metaphors"),
        ("It tries in vain.", "no archaic words"),
        ("'x' is none of a, b", "write must be, or valid"),
        ("The file, too.", "no trailing clause"),
        ("1.6 bits a byte", "write per"),
        ("99.9 % of them", "write % without a space"),
        ("Labelled texts", "American spelling"),
    ],
)
def test_what_the_style_bans_is_found_in_its_line(sentence, rule):
    for text in (f"# A\n\n{sentence}\n", f"`a\nb`\n{sentence}"):
        assert [(found.line, found.rule) for found in check_style.of_page("a.md", text)] == [(3, rule)]


@pytest.mark.parametrize("text", ["a server behind the proxy", "'b' stands for base", "nothing else"])
def test_what_reads_alike_is_allowed(text):
    assert rules(check_style.of_page("a.md", text)) == []


def test_a_heading_occurs_once_on_a_page():
    found = list(check_style.of_page("a.md", "# A\n## Options\n## B\n## options\n"))
    assert [(each.line, each.rule) for each in found] == [(4, "headings are unique")]


def test_messages_and_help_strings_are_checked_and_code_is_not():
    code = '"""It goes on."""\nx = "else"\nerror(f"{x} is wrong: mend the row, or else leave it")'
    code += '\ny = "if (a) {\\n}else{b c d"'
    found = list(check_style.of_source("a.py", code))
    assert [(each.line, each.rule) for each in found] == [
        (3, "write otherwise, or (default: ...)"),
        (3, "no archaic words"),
    ]
    for bad in ('option("N", "Of the search.")', 'x(help="Where they are.")', 'switch("--a", "As B.")'):
        assert rules(check_style.of_source("a.py", bad)) == ["begin with a noun or verb"]
    assert rules(check_style.of_source("a.py", 'option("N", "Number of threads.")')) == []


def test_a_public_docstring_has_its_sections():
    assert rules(check_style.of_docstrings("a.py", definition(GOOD_CODE))) == []
    bare = 'def f(a, *, b=1) -> int:\n    """Count rows that labelled files have."""\n    raise ValueError'
    assert rules(check_style.of_docstrings("a.py", definition(bare))) == [
        "American spelling",
        "Args",
        "Returns",
        "Raises",
    ]
    half = GOOD_CODE.replace("        steps: The number of further steps.\n", "")
    assert [found.text for found in check_style.of_docstrings("a.py", definition(half))] == ["resume.resume: steps"]


def test_a_class_is_checked_with_its_constructor_and_public_methods():
    code = """class A:
    def __init__(self, n): ...
    def _private(self, n): ...
    @property
    def size(self) -> int: ...
    @staticmethod
    def make(n): ...
    @contextmanager
    def held(self) -> Iterator[int]:
        "Hold it."
"""
    found = check_style.of_docstrings("a.py", definition(code))
    assert [each.text for each in found] == ["A.__init__: n", "A.make: n"]


@pytest.fixture
def project(tmp_path):
    """A project of two pages and a package, one page of which is not in style."""
    package = tmp_path / "src" / "attendo"
    (package / "part").mkdir(parents=True)
    (tmp_path / "docs" / "en").mkdir(parents=True)
    (package / "__init__.py").write_text("from attendo.part import f as g\n__all__ = ['g']\n")
    (package / "part" / "__init__.py").write_text("from attendo.part.inner import f\n__all__ = ['f']\n")
    (package / "part" / "inner.py").write_text(GOOD_CODE.replace("resume", "f"))
    (tmp_path / "README.md").write_text(GOOD_PAGE)
    (tmp_path / "docs" / "en" / "old.md").write_text("It goes on.\n")
    return tmp_path


def test_findings_are_printed_with_their_places(project, capsys):
    assert check_style.main(project) == 1
    assert capsys.readouterr().out == "docs/en/old.md:1: write continue or resume: It goes on.\n"


def test_names_are_followed_to_their_definitions(project):
    inner = project / "src" / "attendo" / "part" / "inner.py"
    assert list(check_style.public(project / "src")) == [(inner, "f")]
