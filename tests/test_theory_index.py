"""Every row of the sources' facts has its function, its test and its line in both languages' documents."""

import ast
from functools import cache
from pathlib import Path

import pytest
from theory_docs import DOCS, main, pages

from attendo.theory.algorithms import ALGORITHMS
from attendo.theory.claims import CLAIMS
from attendo.theory.errata import ERRATA
from attendo.theory.index import checked_by, formulas, glossary

ROOT = Path(__file__).resolve().parent.parent
EXPECTED = [
    *(f"F{n:02}" for n in range(1, 31)),
    *("T01", "T02", "T03", "T11"),
    *(f"A{n}" for n in range(1, 16)),
    *(f"C{n:02}" for n in range(1, 28)),
    *(f"E{n:02}" for n in range(1, 51)),
]


@cache
def functions_of(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@cache
def words_of(language):
    return "\n".join(text for path, text in pages().items() if path.parent.name == language)


def home(fact):
    """What computes it: functions for a formula or task, an algorithm or a claim; the snippets of an erratum."""
    match fact[0]:
        case "F" | "T":
            return [line.home() for entry in formulas() if entry.id == fact for line in entry.code]
        case "A":
            return [function for name, function in ALGORITHMS if name == fact]
        case "C":
            return [claim.compute for claim in CLAIMS if claim.id == fact]
        case _:
            erratum = ERRATA[int(fact[1:]) - 1]
            assert erratum.number == int(fact[1:])
            return [erratum.right_code if erratum.mark != "words only" else erratum.right]


def test_the_index_has_every_row_and_no_other():
    assert list(checked_by()) == EXPECTED
    listed = [entry.id for entry in formulas()]
    assert sorted(listed) == sorted(name for name in EXPECTED if name[0] in "FTA")


@pytest.mark.parametrize("fact", EXPECTED)
def test_a_row_has_its_function_its_tests_and_its_line(fact):
    found = home(fact)
    assert found
    assert all(part is not None for part in found)
    tests = checked_by()[fact]
    assert tests
    for test in tests:
        file, _, name = test.partition("::")
        assert functions_of(file), test
        assert not name or name in functions_of(file), test
    for language in ("en", "ja"):
        assert f"### {fact} " in words_of(language)


@pytest.mark.parametrize("entry", [entry for entry in formulas() if entry.code], ids=lambda entry: entry.id)
def test_a_formula_stands_beside_its_line_of_code(entry):
    assert entry.latex
    for line in entry.code:
        assert line.quoted() in words_of("en")
        assert "attendo." in line.module


def test_the_pages_are_what_the_code_says(capsys):
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert set(DOCS.rglob("*.md")) == set(pages())


def test_a_line_that_is_gone_is_noticed():
    line = formulas()[0].code[0]
    with pytest.raises(LookupError, match="has no line with 'no such line'"):
        type(line)(line.module, line.name, "no such line").quoted()


def test_the_glossary_has_both_languages():
    assert len(glossary()) >= 20
    for term in glossary():
        assert term.name.en.isascii() or "β" in term.name.en
        assert not term.name.ja.isascii()
        assert not term.variants.ja.isascii()
