"""Every row of the sources' facts has its function, its test and its line in both languages' documents."""

import ast
import re
import textwrap
from functools import cache
from pathlib import Path

import pytest
from theory_docs import DOCS, main, outcome, pages, paragraphs, prose

from attendo_course.algorithms import ALGORITHMS
from attendo_course.claims import CLAIMS
from attendo_course.errata import ERRATA
from attendo_course.index import checked_by, formulas, glossary
from attendo_course.sources import cited

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = [
    *(f"F{n:02}" for n in range(1, 31)),
    *("T01", "T02", "T03", "T11"),
    *(f"A{n}" for n in range(1, 16)),
    *(f"C{n:02}" for n in range(1, 28)),
    *(f"E{n:02}" for n in range(1, 51) if n not in (39, 40, 43)),
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
            [erratum] = (one for one in ERRATA if one.number == int(fact[1:]))
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


@cache
def running_words(language):
    """The pages without their code and the targets of their links."""
    text = re.sub(r"^```.*?^```$", "", words_of(language), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


@pytest.mark.parametrize("entry", formulas(), ids=lambda entry: entry.id)
@pytest.mark.parametrize("language", ["en", "ja"])
def test_a_formula_stands_beside_its_lines_of_code(entry, language):
    assert entry.latex
    assert entry.code
    (section,) = set(
        re.findall(rf"^### {entry.id} .*?(?=^##|\Z)", words_of(language), re.DOTALL | re.MULTILINE)
    )
    for latex in entry.latex:
        assert language == "ja" or f"```math\n{latex}\n```" in section
    for line in entry.code:
        assert line.quoted() in section or textwrap.indent(line.quoted(), "    ") in section
        assert f"(../../../src/{line.path})" in section
        assert (ROOT / "src" / line.path).is_file()


@pytest.mark.parametrize(
    ("fact", "parts"),
    [
        ("F10", ["self.in_proj(x)", "self.activation(inner)", "self.out_proj("]),
        ("F12", [".sin()", ".cos()", "base **"]),
        ("F16", ["F.embedding(", "x + self.positions(", "self.norm(x)"]),
        ("F20", [".amax(1)", "self.output_proj(hidden)"]),
        ("A5", ["attention.Attention(", "functional_call(module"]),
    ],
)
def test_every_part_of_a_formula_has_its_line(fact, parts):
    quoted = "\n".join(line.quoted() for entry in formulas() if entry.id == fact for line in entry.code)
    assert [part for part in parts if part not in quoted] == []


def test_maths_is_fenced_and_speaks_the_language_of_the_page():
    assert "$$" not in words_of("en") + words_of("ja")
    n_formulas = [words_of(language).count("```math\n") for language in ("en", "ja")]
    assert n_formulas[0] == n_formulas[1] >= len(formulas())
    assert r"\qquad \text{or}\quad" in words_of("en")
    assert set(re.findall(r"\\text\{([ -|~]*)\}", words_of("ja"))) == {"Adam"}


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda erratum: f"E{erratum.number:02}")
def test_an_erratum_shows_both_forms_and_what_each_gives(erratum):
    for language, wrong, right in (("en", "**Wrong:** ", "**Right:** "), ("ja", "**誤：** ", "**正：** ")):
        _, _, section = words_of(language).partition(f"### E{erratum.number:02} ")
        section, _, _ = section.partition("\n### ")
        before, _, after = section.partition(right)
        assert wrong in before
        for part, snippet in ((before, erratum.wrong_code), (after, erratum.right_code)):
            assert snippet is None or f"{snippet.code.strip()}\n# → {outcome(snippet)}\n```" in part
    for snippet in (erratum.wrong_code, erratum.right_code):
        # what the page says is what the pattern lets the code give
        assert snippet is None or snippet.matches(outcome(snippet))


def test_the_japanese_pages_name_the_sources_in_japanese():
    english = r"exercises?|sections?|weeks?|notebooks?|slides?|posts?|drafts?|algorithms?|tables?|chapters?|solutions?"
    assert re.findall(rf"^.*\b(?:{english})\b.*$", running_words("ja"), re.MULTILINE | re.IGNORECASE) == []
    for source in {fact.source for fact in (*CLAIMS, *ERRATA)}:
        assert not re.search(r"\b(and|of|the|to|with)\b|[,;] ", cited(source, "ja")), source
        assert cited(source, "en") in running_words("en").replace("\\", "")
        assert not re.match(r"(S\d|R) ", cited(source, "en"))


def test_the_japanese_pages_run_in_japanese():
    commands = re.findall(r"attendo (?:claims|errata|figure)\b[^`\n#]*", words_of("ja"))
    shown = [command for command in commands if re.match(r"attendo \w+ C?\d", command)]
    assert len(shown) == len(CLAIMS) + len(ERRATA) + 2  # two more on the front page
    assert [command for command in shown if "--language ja" not in command] == []
    assert "--language" not in words_of("en")


def test_the_japanese_terms_are_one():
    ours = "\n".join(running_words("ja").splitlines())
    assert "**理由" not in ours
    assert "原文:" not in ours
    # half-width brackets around Japanese stand in code only
    assert re.findall(r"\([^()\n]*[ぁ-んァ-ヶ一-龠][^()\n]*\)", ours) == []


def test_prose_is_escaped_where_it_would_be_markup():
    assert prose("a_i of __init__", "en") == r"a_i of \_\_init__"  # nothing to close what is escaped
    assert prose("1 < 2, <b>, a*b, [x](y), `*_<`", "en") == r"1 < 2, \<b>, a\*b, [x]\(y), `*_<`"
    assert prose("値(1)と (例)", "ja") == "値（1）と （例）"
    assert prose("値 (1)", "en") == "値 (1)"


def test_a_derivation_joins_what_its_lines_divide():
    text = "From\n  a = 1\n  b = 2\nit follows, as\nwas said.\nSo it is."
    shown = "From\n\n```text\na = 1\nb = 2\n```\n\nit follows, as was said.\\\nSo it is."
    assert paragraphs(text, "en") == shown
    assert paragraphs("一つの\n積である。\n終わり。", "ja") == "一つの積である。\\\n終わり。"


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
        for text in (term.name.ja, term.variants.ja, term.here.ja):
            assert not re.search(
                r"\b(the|and|of|or|from|in|is|over|only|may)\b", re.sub("`[^`]*`", "", text)
            ), text
