"""The book: every fact of the sources has its section in both languages, its function and its test."""

import ast
import inspect
import re
import textwrap
import tomllib
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import get_args

import pytest
from source_trees import files_of, nodes

from attendo_course import book
from attendo_course.algorithms import ALGORITHMS
from attendo_course.book import Quotation, Section, read_blocks, sections
from attendo_course.claims import all_claims
from attendo_course.commands.terminal import AboutTopic, FromSource
from attendo_course.errata import all_errata
from attendo_course.presets import PRESETS

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "src" / "attendo_course" / "book"
SOURCES = ROOT.parent / "shared" / "sources"
"""The texts of the sources, which are not part of the repository."""
PAGES = sorted(path.name for path in (BOOK / "en").glob("*.md"))
FACTS = tomllib.loads((ROOT / "tests" / "course" / "facts.toml").read_text(encoding="utf-8"))
EXPECTED = [
    *(f"F{n:02}" for n in range(1, 31)),
    "T01",
    "T02",
    "T03",
    "T11",
    *(f"A{n}" for n in range(1, 16)),
    *sorted(name for name in sections("en") if name[0] == "C"),
    *(f"E{n:02}" for n in range(1, 51) if n not in (39, 40, 43)),
]
FORMULAS = [name for name in EXPECTED if name[0] in "FTA"]
FENCED = re.compile(r"^```(\w*)\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
MATHS_IN_JAPANESE = {
    " even": " が偶数",
    " odd": " が奇数",
    "hard: ": "ハード：",
    "soft: ": "ソフト：",
    " (optional)": "（任意）",
    " parameters": " 個のパラメータ",
    "or": "または",
    "once per sentence": "（一文につき一度）",
    " until ": "（次に至るまで） ",
    "beam ": "ビーム幅 ",
}


@cache
def words_of(language):
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((BOOK / language).glob("*.md")))


@cache
def running_words(language):
    """The pages without their code and the targets of their links."""
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", FENCED.sub("", words_of(language)))


@cache
def section(fact, language):
    """The one section of a fact, from its heading on."""
    (found,) = re.findall(rf"^##+ {fact} .*?(?=^##|\Z)", words_of(language), re.DOTALL | re.MULTILINE)
    return found


def quoted_code(text):
    """(name, path, code) for each link to a file and the code below it."""
    return re.findall(r"^\[`([^`]+)`\]\(([^)]+)\)\n\n```\w+\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)


@cache
def functions_of(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@cache
def source_of(name):
    """The text of a function, a method or a TOML file by the name over its code."""
    if name.endswith(".toml"):
        return (ROOT / "src" / name).read_text(encoding="utf-8")
    module, part = name.rsplit(".", 1)
    try:
        home = import_module(module)
    except ModuleNotFoundError:
        module, class_name = module.rsplit(".", 1)
        home, part = import_module(module), f"{class_name}.{part}"
    return textwrap.dedent(inspect.getsource(attrgetter(part)(home)))


# ---- both languages


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_have_the_same_sections_and_blocks_of_code(page):
    en, ja = ((BOOK / language / page).read_text(encoding="utf-8") for language in ("en", "ja"))
    ids = [re.findall(r"^##+ ([A-Z]\d+) ", text, re.MULTILINE) for text in (en, ja)]
    assert ids[0] == ids[1]
    assert len(re.findall("^##", en, re.MULTILINE)) == len(re.findall("^##", ja, re.MULTILINE))
    blocks = [[found for found in FENCED.findall(text) if found[0] != "sh"] for text in (en, ja)]
    for one, other in zip(*blocks, strict=True):
        if one[0] == "math":
            for english, japanese in MATHS_IN_JAPANESE.items():
                one = one[0], one[1].replace(rf"\text{{{english}}}", rf"\text{{{japanese}}}")
        if one[0] == "text":
            one, other = (tuple(part.rstrip(",") for part in block) for block in (one, other))
        assert one == other


def test_both_languages_have_the_same_pages():
    assert sorted(path.name for path in (BOOK / "ja").glob("*.md")) == PAGES


# ---- facts


def test_the_list_of_tests_has_every_fact_and_no_other():
    assert list(FACTS) == EXPECTED


@pytest.mark.parametrize("fact", EXPECTED)
def test_a_fact_has_its_section_its_function_and_its_tests(fact):
    for test in FACTS[fact]:
        file, _, name = test.partition("::")
        assert functions_of(file), test
        assert not name or name in functions_of(file), test
    for language in ("en", "ja"):
        assert section(fact, language)
    match fact[0]:
        case "A":
            assert callable(dict(ALGORITHMS)[fact])
        case "C":
            assert [claim.id for claim in all_claims() if claim.id == fact] == [fact]
        case "E":
            assert [one.number for one in all_errata() if one.number == int(fact[1:])] == [int(fact[1:])]
        case _:
            assert quoted_code(section(fact, "en"))


@pytest.mark.parametrize("fact", FORMULAS)
def test_a_formula_stands_beside_its_lines_of_code(fact):
    """If a line is not found: the code has changed; quote it again in both languages."""
    text = section(fact, "en")
    assert "```math\n" in text
    found = quoted_code(text)
    assert found
    for name, path, code in found:
        source = source_of(name)
        assert (BOOK / "en" / path).resolve().is_file()
        first, *rest = code.split("\n    ...\n")
        if rest:  # an algorithm: its signature, then the lines of its body
            function = dict(ALGORITHMS)[fact]
            wanted = re.fullmatch(r"def (\w+)\((.*)\):", first)
            assert wanted is not None
            parameters = inspect.signature(function).parameters
            assert wanted[1] == function.__name__
            assert [part for part in wanted[2].split(", ") if part != "*"] == list(parameters)
        for line in (rest[0] if rest else first).splitlines():
            assert line.strip() in {row.strip() for row in source.splitlines()}, (fact, name, line)


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
    quoted = "\n".join(code for _, _, code in quoted_code(section(fact, "en")))
    assert [part for part in parts if part not in quoted] == []


@pytest.mark.parametrize("language", ["en", "ja"])
def test_every_formula_is_listed_on_the_page_of_a_source(language):
    listed = set(re.findall(r"\[([FT]\d\d) [^\]]*\]\(formulas.md#", words_of(language)))
    assert listed == {name for name in EXPECTED if name[0] in "FT"}


# ---- language


def test_maths_is_fenced_and_speaks_the_language_of_the_page():
    assert "$$" not in words_of("en") + words_of("ja")
    assert r"\qquad \text{or}\quad" in words_of("en")
    without_quotations = re.sub("^> .*", "", words_of("ja"), flags=re.MULTILINE)
    assert set(re.findall(r"\\text\{([ -|~]*)\}", without_quotations)) == {"Adam"}


def test_the_japanese_pages_name_the_sources_in_japanese():
    english = r"exercises?|sections?|weeks?|notebooks?|slides?|posts?|drafts?|algorithms?|tables?|chapters?|solutions?"
    named = re.findall(rf"^.*\b(?:{english})\b.*$", running_words("ja"), re.MULTILINE | re.IGNORECASE)
    assert [line for line in named if not line.startswith("- **")] == []  # the titles of the sources
    for source in {fact.source for fact in (*all_claims(), *all_errata())}:
        assert not re.search(r"\b(and|of|the|to|with)\b|[,;] ", source.ja), source
        assert not re.match(r"(S\d|R) ", source.en)


def test_the_japanese_pages_run_in_japanese():
    commands = re.findall(r"attendo (?:claims|errata|figure)\b[^`\n#]*", words_of("ja"))
    shown = [command for command in commands if re.match(r"attendo \w+ C?\d", command)]
    assert len(shown) == len(all_claims()) + len(all_errata()) + 2  # two more on the front page
    assert [command for command in shown if "--language ja" not in command] == []
    assert "--language" not in words_of("en")


def test_the_japanese_terms_are_one():
    ours = running_words("ja")
    assert "**理由" not in ours
    assert "原文:" not in ours
    # half-width brackets around Japanese stand in code only
    assert re.findall(r"\([^()\n]*[ぁ-んァ-ヶ一-龠][^()\n]*\)", ours) == []


def test_the_conventions_have_both_languages():
    rows = {}
    for language in ("en", "ja"):
        text = (BOOK / language / "glossary.md").read_text(encoding="utf-8")
        rows[language] = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert len(rows["en"]) == len(rows["ja"]) >= 20
    for english, japanese in zip(rows["en"][1:], rows["ja"][1:], strict=True):
        assert english[:2] == japanese[1::-1]
        assert english[0].isascii() or "β" in english[0]
        assert not japanese[2].isascii()
        for text in (japanese[0], *japanese[2:]):
            shown = re.sub("`[^`]*`", "", text)
            assert not re.search(r"\b(the|and|of|or|from|in|is|over|only|may)\b", shown), text


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_front_page_lists_the_presets_and_every_page(language):
    text = (BOOK / language / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| ([\d,]+) \|$", text, re.MULTILINE)
    shown = {name: int(n.replace(",", "")) for name, _, _, n in rows}
    assert shown == {name: preset.n_parameters for name, preset in PRESETS.items()}
    assert set(re.findall(r"^- \[.*\]\((\w+\.md)\)$", text, re.MULTILINE)) == {*PAGES} - {"index.md"}


# ---- quotations, topics and links


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.parametrize("page", book.SOURCE_PAGES)
def test_a_page_names_its_sources_with_author_title_and_link(page, language):
    of_page = {key: source for key, source in book.sources().items() if source.page == page}
    text = (BOOK / language / f"{page}.md").read_text(encoding="utf-8")
    assert re.findall(r"^- \*\*(\w+)\*\* (.*)$", text, re.MULTILINE) == [
        (key, source.markdown(language)) for key, source in of_page.items()
    ]


def quotations(language):
    return [(name, *one.__dict__.values()) for name, part in sections(language).items() for one in part.quotations]


def numbers(place):
    return re.findall(r"\d+", place)


def test_the_quotations_are_the_same_in_both_languages():
    assert [(name, source, numbers(place), words) for name, source, place, words, _ in quotations("en")] == [
        (name, source, numbers(place), words) for name, source, place, words, _ in quotations("ja")
    ]


def test_a_quotation_is_from_a_known_source_and_japanese_words_are_translated():
    for name, source, _, words, remark in quotations("en"):
        assert source in book.sources(), name
        assert remark or not re.search("[ぁ-んァ-ヶ一-龠]{2}", words), (
            name,
            "translate the words in parentheses",
        )


@pytest.mark.skipif(not SOURCES.is_dir(), reason=f"{SOURCES} has no texts of the sources to compare")
def test_every_quotation_stands_in_its_source_at_its_lines():
    checked = 0
    for name, source, place, words, _ in quotations("en"):
        if not re.fullmatch(r"S\d", source):
            continue
        (file,) = SOURCES.glob(f"00{source[1]}_*.txt")
        first, last = (numbers(place) * 2)[:2]
        lines = file.read_text(encoding="utf-8").splitlines()[int(first) - 1 : int(last)]
        assert re.fullmatch(r"lines? \d+(-\d+)?", place), (name, place)
        found, start = " ".join(" ".join(lines).split()), 0
        for part in " ".join(words.split()).split(" … "):
            start = found.find(part, start) + len(part)
            assert start >= len(part), f"{name}: {source}, {place} has not: {part}"
        checked += 1
    assert checked == sum(bool(re.fullmatch(r"S\d", source)) for _, source, *_ in quotations("en"))


def test_each_claim_and_erratum_has_one_topic():
    items = [name for key in book.topics() for name in book.table("book/topics.toml")[key]["items"].split()]
    assert sorted(items) == sorted(sections("en"))
    (options,) = (one for one in get_args(get_args(AboutTopic)[0]) if one is not type(None))
    assert get_args(options) == tuple(book.topics())
    (pages,) = (one for one in get_args(get_args(FromSource)[0]) if one is not type(None))
    assert get_args(pages) == book.SOURCE_PAGES
    assert {source.page for source in book.sources().values()} == set(book.SOURCE_PAGES)


@pytest.mark.parametrize("language", ["en", "ja"])
def test_links_between_claims_and_errata_go_both_ways(language):
    related = {name: part.related for name, part in sections(language).items()}
    assert {name: part.related for name, part in sections("en").items()} == related
    for name, others in related.items():
        assert [other for other in others if name not in related[other]] == [], name


@pytest.mark.parametrize("language", ["en", "ja"])
def test_links_between_pages_of_the_book_have_a_heading(language):
    """As on GitHub and on the site: lower case, no punctuation, hyphens for blanks."""
    pages = {page: (BOOK / language / page).read_text(encoding="utf-8") for page in PAGES}
    anchors = {
        page + "#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for page, text in pages.items()
        for heading in re.findall(r"^##+ (.*)", text, re.MULTILINE)
    }
    links = re.findall(r"\]\((\w+\.md#[^)]+)\)", "".join(pages.values()))
    assert len(links) > 100
    assert [link for link in links if link not in anchors] == []


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("> S1, line 3: `a\\_b` (“c”)\\", Quotation("S1", "line 3", "a\\_b", " (“c”)")),
        ("> S2、3-4 行：`` a `b` ``（訳）", Quotation("S2", "3-4 行", "a `b`", "（訳）")),
    ],
)
def test_a_quotation_is_read_word_by_word(line, wanted):
    (block,) = read_blocks(line + "\n")
    assert book._quotation(block, "") == wanted


def test_a_quotation_in_another_form_is_named():
    with pytest.raises(LookupError, match=r"^here: the quotation is not '> SOURCE, line N: `words`': > S1 words$"):
        book._quotation("> S1 words", "here")


# ---- short texts and passages


@cache
def texts_called_for(*functions):
    """The first argument of each call of these functions in the course, where it is written out."""
    calls = (node for file in files_of("attendo_course") for node in nodes(file))
    return {
        node.args[0].value
        for node in calls
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in functions
        if node.args and isinstance(node.args[0], ast.Constant)
    }


def test_every_short_text_has_its_japanese():
    table = tomllib.loads((BOOK / "ja" / "messages.toml").read_text(encoding="utf-8"))
    assert texts_called_for("translated", "equals", "below", "above", "shown") <= set(table)


def test_every_passage_is_called_for_and_has_both_languages():
    en, ja = (tomllib.loads((BOOK / one / "passages.toml").read_text(encoding="utf-8")) for one in ("en", "ja"))
    found = {f"{module}.{name}" for module, parts in en.items() for name in parts}
    assert texts_called_for("passage") == found
    assert {module: list(parts) for module, parts in ja.items()} == {
        module: list(parts) for module, parts in en.items()
    }
    for module, parts in en.items():
        for name, english in parts.items():
            assert names_in(english) == names_in(ja[module][name]), name


def names_in(text):
    """The values that a text is filled with, by names without their language."""
    return {re.sub(r"(^|_)(en|ja)$", "", name) for name in re.findall(r"\{(\w+)[^{}]*\}", text)}


# ---- the reader


def test_paragraphs_and_code_are_read_without_markdown():
    text = "a\\_b\\\nof `c\\_d`, \\*\n\n```text\nx\n\ny\n```\n\n**Why**\n"
    assert read_blocks(text) == ("a_b\nof `c\\_d`, *", "```text\nx\n\ny\n```", "**Why**")


def test_a_missing_paragraph_is_named_with_its_file():
    part = Section("nyu", "book/en/nyu.md, E01", "title", ("source.", "**Wrong:** words"))
    assert part.labeled("**Wrong:**") == "words"
    with pytest.raises(LookupError, match=r"^book/en/nyu\.md, E01 has no paragraph \*\*Right:\*\*$"):
        part.labeled("**Right:**")


def test_an_id_given_twice_is_named_with_both_files(tmp_path, monkeypatch):
    folder = tmp_path / "book" / "en"
    folder.mkdir(parents=True)
    for page in ("one", "two"):
        (folder / f"{page}.md").write_text("# Page\n\n### C01 title\n\ntext\n", encoding="utf-8")
    monkeypatch.setattr(book, "files", lambda _: tmp_path)
    monkeypatch.setattr(book, "SOURCE_PAGES", ("one", "two"))
    with pytest.raises(LookupError, match=r"^book/en/two\.md has C01, as has book/en/one\.md, C01$"):
        sections.__wrapped__("en")
