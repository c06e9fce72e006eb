"""Write docs/theory/ in both languages from the formulas, docstrings, claims and errata (make docs).

With --check nothing is written; the exit code is 1 if a page is not what would be written.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from theory_words import COMMANDS, HEADINGS, MATHS_IN_JAPANESE, SOURCES, Source

from attendo.display.i18n import Language, Localized
from attendo_course.algorithms import ALGORITHMS
from attendo_course.claims import CLAIMS
from attendo_course.claims.claim import Claim
from attendo_course.errata import ERRATA
from attendo_course.errata.erratum import Erratum, Snippet
from attendo_course.index import CodeLine, Formula, formulas, glossary
from attendo_course.presets import PRESETS
from attendo_course.sources import cited

JAPANESE = "[ぁ-んァ-ヶー一-龠]"
"""A character of Japanese."""
DOCS = Path(__file__).resolve().parent.parent / "docs" / "theory"


def owner(text: str) -> Source:
    """The source that a claim or erratum names; the papers' page takes what names none of the others.

    >>> owner("Kikuta 2025, exercise 3.1").page
    'exercises'
    """
    return next((s for s in SOURCES if s.pattern and re.search(s.pattern, text)), SOURCES[-1])


def prose(text: str, language: Language) -> str:
    r"""A text of the code as Markdown shows it: what would be markup escaped; around Japanese, full-width brackets.

    What stands between backticks stays as it is.

    >>> print(prose("a_i < 1 of __init__(), `b*`", "en"))
    a_i < 1 of \_\_init_\_(), `b*`
    >>> prose("値(.9)と f(x) (検証)", "ja")
    '値（.9）と f(x) （検証）'
    """

    def plain(part: str) -> str:
        part = re.sub(
            r"(?<![^\W_])_(?=\S)|[\\*~$]|<(?=[\w/!?])|(?<=\])(?=\()", lambda found: "\\" + found[0], part
        )
        if language == "ja":
            inside, behind = rf"\(([^()]*{JAPANESE}[^()]*)\)", rf"(?<={JAPANESE})\(([^()]*)\)"
            part = re.sub(f"{inside}|{behind}", lambda found: f"（{found[1] or found[2]}）", part)
        return part

    return "".join(
        part if part.startswith("`") else plain(part) for part in re.split(r"(`[^`]*`)", text) if part
    )


def labelled(label: str, text: str, language: Language) -> str:
    """A paragraph behind a bold label.

    >>> labelled("right", "Σ a = 1", "ja")
    '**正：** Σ a = 1\\n'
    """
    colon = ":" if language == "en" else "："
    return f"**{HEADINGS[label].text(language)}{colon}** {prose(text, language)}\n"


def run_line(command: str, language: Language) -> str:
    """The command that shows it.

    >>> run_line("attendo claims C08", "ja")
    '実行：`attendo claims C08 --language ja`\\n'
    """
    return (
        f"Run it: `{command}`\n" if language == "en" else f"{HEADINGS['run'].ja}：`{command} --language ja`\n"
    )


def math(latex: Iterable[str], language: Language) -> Iterator[str]:
    r"""Blocks that GitHub gives to the renderer untouched; between $$ it would take \, and \\ for escapes.

    >>> print(next(math([r"a \quad \text{or} \quad b"], "ja")).splitlines()[1])
    a \quad \text{または} \quad b
    """
    for formula in latex:
        if language == "ja":
            formula = re.sub(
                r"\\text\{([^}]*)\}",
                lambda found: rf"\text{{{MATHS_IN_JAPANESE.get(found[1], found[1])}}}",
                formula,
            )
        yield f"```math\n{formula}\n```\n"


def code_blocks(lines: Iterable[CodeLine], signature: str | None = None) -> Iterator[str]:
    """The lines, those of one function together, each group under a link to its file.

    signature: of the first group's function, whose lines then stand indented below it. The links name no line, which
    any edit above it would move.
    """
    for (module, name), group in groupby(lines, lambda line: (line.module, line.name)):
        found = list(group)
        quoted = "\n".join(line.quoted() for line in found)
        if signature is not None:
            quoted = signature + "\n    ...\n" + "\n".join("    " + row for row in quoted.splitlines())
            signature = None
        is_file = name.endswith(".toml")
        where, fence = (found[0].path, "toml") if is_file else (f"{module}.{name}", "python")
        yield f"[`{where}`](../../../src/{found[0].path})\n\n```{fence}\n{quoted}\n```\n"


def formula_section(formula: Formula, language: Language) -> Iterator[str]:
    """The formula, rendered, and beside it the code."""
    yield f"### {formula.id} {formula.title.text(language)}\n"
    yield from math(formula.latex, language)
    yield from code_blocks(formula.code)


def algorithm_section(formula: Formula, language: Language) -> Iterator[str]:
    """The algorithm, what it does, its signature and its calls into the core."""
    function = dict(ALGORITHMS)[formula.id]
    yield f"### {formula.id} {formula.title.text(language)}\n"
    yield from math(formula.latex, language)
    about = first_words(function) if language == "en" else formula.about_ja
    yield prose(about, language) + "\n"
    yield from code_blocks(formula.code, f"def {function.__name__}({parameters(function)}):")


def first_words(function: object) -> str:
    """The first paragraph of an algorithm's docstring, without its number, which the heading has.

    >>> first_words(dict(ALGORITHMS)["A12"])
    'As A11, where each token turns into mask_token with probability p_mask.'
    """
    text = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    text = re.sub(r"^A\d+(?: \(\w+\))?: |(?: Phuong & Hutter 2022,)? [Aa]lgorithm \d+\.$", "", text)
    return re.sub("^as ", "As ", text)


def parameters(function: object) -> str:
    """The names of the parameters, as they are written.

    >>> def f(a, b=1, *, c): ...
    >>> parameters(f)
    'a, b, *, c'
    """
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():  # pyright: ignore[reportArgumentType]
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in names:
            names.append("*")
        names.append(parameter.name)
    return ", ".join(names)


def paragraphs(text: str, language: Language) -> str:
    """The lines of a derivation as a page has them: indented formulas apart, a line that ends in mid-sentence joined.

    >>> print(paragraphs("From\\n  a_b = 1\\nit follows, as\\nwas said.\\nSo it is.", "en"))
    From
    <BLANKLINE>
    ```text
    a_b = 1
    ```
    <BLANKLINE>
    it follows, as was said.\\
    So it is.
    """
    between = " " if language == "en" else ""
    parts: list[str] = []
    for is_formula, group in groupby(text.splitlines(), lambda line: line.startswith("  ")):
        if is_formula:
            parts.append("\n".join(["```text", *(line.strip() for line in group), "```"]))
            continue
        written = prose("\n".join(group), language)
        parts.append(re.sub(r"(?<![.。:：?])\n", between, written).replace("\n", "\\\n"))
    return "\n\n".join(parts)


def claim_section(claim: Claim, language: Language) -> Iterator[str]:
    """The statement, its condition, how it follows, and the command."""
    yield f"### {claim.id} {prose(cited(claim.source, language), language)}\n"
    yield prose(claim.statement.text(language), language) + "\n"
    if claim.condition is not None:
        yield labelled("condition", claim.condition.text(language), language)
    yield f"**{HEADINGS['why'].text(language)}**\n"
    yield paragraphs(claim.derivation.text(language), language) + "\n"
    yield run_line(f"attendo claims {claim.id}", language)


def outcome(snippet: Snippet) -> str:
    r"""What a snippet gives, as far as its pattern says: … stands for what the pattern leaves open.

    >>> outcome(Snippet("[1][2]", r"IndexError: list index out of range.*"))
    'IndexError: list index out of range…'
    """
    return re.sub(r"\\(.)", r"\1", re.sub(r"(?:\.|\\S)\*", "…", snippet.gives))


def form(label: str, text: Localized, snippet: Snippet | None, language: Language) -> Iterator[str]:
    """One of the forms of an erratum: in words, in code, and what the code gives."""
    yield labelled(label, text.text(language), language)
    if snippet is not None:
        yield f"```python\n{snippet.code.strip()}\n# → {outcome(snippet)}\n```\n"


def erratum_section(erratum: Erratum, language: Language) -> Iterator[str]:
    """Both forms, and the command."""
    yield f"### E{erratum.number:02} {prose(erratum.title.text(language), language)}\n"
    sentences = [prose(cited(erratum.source, language), language) + ("." if language == "en" else "。")]
    if erratum.mark == "shown by analogy":
        sentences.append(HEADINGS["analogy"].text(language))
    yield (" " if language == "en" else "").join(sentences) + "\n"
    yield from form("wrong", erratum.wrong, erratum.wrong_code, language)
    yield from form("right", erratum.right, erratum.right_code, language)
    yield run_line(f"attendo errata {erratum.number}", language)


def page(source: Source, language: Language) -> str:
    """The page of one source."""

    def word(name: str) -> str:
        return HEADINGS[name].text(language)

    parts = [
        f"# {source.title.text(language)}\n",
        source.about.text(language) + "\n",
        word("made") + "\n",
        f"## {word('formulas')}\n",
    ]
    own = [formula for formula in formulas() if source.key in formula.sources]
    parts += [part for formula in own for part in formula_section(formula, language)]
    claims = [claim for claim in CLAIMS if owner(claim.source) is source]
    if claims:
        parts.append(f"## {word('claims')}\n")
    parts += [part for claim in claims for part in claim_section(claim, language)]
    errata = [erratum for erratum in ERRATA if owner(erratum.source) is source]
    if errata:
        parts.append(f"## {word('errata')}\n")
    parts += [part for erratum in errata for part in erratum_section(erratum, language)]
    return "\n".join(parts)


def algorithms_page(language: Language) -> str:
    """The page of Phuong & Hutter 2022."""
    parts = [f"# {HEADINGS['algorithms_title'].text(language)}\n"]
    parts += [HEADINGS[name].text(language) + "\n" for name in ("algorithms_about", "made")]
    own = [formula for formula in formulas() if formula.sources == ("A",)]
    parts.append(f"## {HEADINGS['algorithms'].text(language)}\n")
    return "\n".join([*parts, *(part for formula in own for part in algorithm_section(formula, language))])


def glossary_page(language: Language) -> str:
    """The conventions: one term in both languages, the sources' ways, and ours."""

    def word(name: str) -> str:
        return HEADINGS[name].text(language)

    rows = []
    for term in glossary():
        names = (term.name.en, term.name.ja) if language == "en" else (term.name.ja, term.name.en)
        ways = (prose(text.text(language), language) for text in (term.variants, term.here))
        rows.append("| " + " | ".join((*names, *ways)) + " |")
    top = [f"# {word('glossary_title')}", "", word("made"), "", word("glossary_head"), "|---|---|---|---|"]
    return "\n".join([*top, *rows, ""])


def front_page(language: Language) -> str:
    """What there is, and the commands."""

    def word(name: str) -> str:
        return HEADINGS[name].text(language)

    option = "" if language == "en" else " --language ja"
    width = max(len(command) for command, _ in COMMANDS) + len(option) + 2
    commands = [f"{command + option:{width}}# {what.text(language)}" for command, what in COMMANDS]
    links = [f"- [{s.title.text(language)}]({s.page}.md)" for s in SOURCES]
    links.append(f"- [{word('algorithms_title')}](algorithms.md)")
    links.append(f"- [{word('glossary_title')}](glossary.md)")
    first = f"[{word('teaching')}](../../{language}/teaching.md)"
    presets = [
        f"| `{name}` | {prose(cited(preset.source, language), language)} | {preset.n_parameters:,} |"
        for name, preset in PRESETS.items()
    ]
    top = [f"# {word('theory')}", "", word("theory_about"), first, "", word("made"), ""]
    top += [
        f"## {word('pages')}",
        "",
        *links,
        "",
        f"## {word('commands')}",
        "",
        "```sh",
        *commands,
        "```",
        "",
    ]
    top += [f"## {word('presets')}", "", word("presets_about"), "", word("presets_head"), "|---|---|--:|"]
    return "\n".join([*top, *presets, ""])


def pages() -> dict[Path, str]:
    """Every page by its path."""
    found: dict[Path, str] = {}
    languages: tuple[Language, ...] = ("en", "ja")
    for language in languages:
        folder = DOCS / language
        found |= {folder / f"{source.page}.md": page(source, language) for source in SOURCES}
        found[folder / "algorithms.md"] = algorithms_page(language)
        found[folder / "glossary.md"] = glossary_page(language)
        found[folder / "index.md"] = front_page(language)
    return found


def main(arguments: list[str]) -> int:
    """Writes the pages, or compares them."""
    written = pages()
    if "--check" in arguments:
        stale = [
            path
            for path, text in written.items()
            if not path.is_file() or path.read_text(encoding="utf-8") != text
        ]
        for path in stale:
            print(f"error: {path} is not what the code says; run: make docs")
        return int(bool(stale))
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
