"""Write docs/theory/ in both languages from the formulas, docstrings, claims and errata (make docs).

With --check nothing is written; the exit code is 1 if a page is not what would be written.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attendo.theory.algorithms import ALGORITHMS
from attendo.theory.claims import CLAIMS
from attendo.theory.errata import ERRATA
from attendo.theory.index import Formula, formulas, glossary
from attendo.theory.presets import PRESETS
from attendo.words import Language, Words

DOCS = Path(__file__).resolve().parent.parent / "docs" / "theory"


@dataclass(frozen=True)
class Source:
    """One page: how formulas.toml names the source, which claims and errata are its own, and what it is."""

    key: str
    page: str
    title: Words
    about: Words
    pattern: str


SOURCES = (
    Source(
        "S1",
        "nyu",
        Words(
            "NYU Deep Learning, week 12-3: attention and the Transformer",
            "NYU 深層学習 第12-3週：注意とTransformer",
        ),
        Words(
            "The lecture introduces hard and soft attention on columns, then queries, keys and values, and codes a"
            " classifier with tokens as rows. `attendo.theory.lecture` has its classes under its names.",
            "講義は、列で書かれたハード・ソフトな注意から始め、クエリ・キー・バリューを経て、行をトークンとする分類器の"
            "コードに至る。`attendo.theory.lecture` に、講義と同じ名前のクラスがある。",
        ),
        r"NYU|\bS1\b",
    ),
    Source(
        "S3",
        "weather",
        Words("The weather post", "天気の記事"),
        Words(
            "A draft of a blog post that predicts a Markov chain of rain, cloud and sun by attention, after the"
            " conventions of Phuong & Hutter 2022: columns, ids from 1.",
            "雨・曇り・晴れのマルコフ連鎖を注意で予測しようとする記事の草稿。Phuong & Hutter 2022 の記法"
            "（列がトークン、番号は 1 から）に従う。",
        ),
        r"[Ww]eather|\bS3\b|Shumi",
    ),
    Source(
        "S0",
        "exercises",
        Words(
            "Exercises on positions and attention (Kikuta 2025, chapter 3)",
            "位置符号化と注意の演習（菊田 2025、第3章）",
        ),
        Words(
            "Exercises 3.1 to 3.8: what a shift does to sinusoids, their heat map, attention by rows, look-up by"
            " distance, the softmax and its gradient.",
            "演習 3.1〜3.8。正弦波のずらし、ヒートマップ、行形式の注意、距離による検索、softmax とその勾配を扱う。",
        ),
        r"Kikuta|\bS0\b",
    ),
    Source(
        "S2",
        "bishop",
        Words("Exercises of Bishop & Bishop 2024, chapter 12", "Bishop & Bishop 2024 第12章の演習"),
        Words(
            "Tokens are rows of X; no biases. Exercises about the softmax's rows, the variance of products, heads as a"
            " sum, and permutations.",
            "トークンは X の行で、バイアスはない。softmax の行、内積の分散、ヘッドの和、置換に関する演習。",
        ),
        r"Bishop|\bS2\b",
    ),
    Source(
        "S4",
        "slides",
        Words("Slides: how the Transformer works", "スライド：Transformer の仕組み"),
        Words(
            "An introduction without code or 1/√d: self-attention, many heads, encoder and decoder.",
            "コードも 1/√d もない入門。自己注意、マルチヘッド、エンコーダとデコーダを扱う。",
        ),
        r"[Ss]lides|\bS4\b",
    ),
    Source(
        "R",
        "papers",
        Words("The papers they rest on", "もとになった論文"),
        Words(
            "Vaswani et al. 2017 (the Transformer, its recipe and sizes), and what builds on it.",
            "Vaswani et al. 2017（Transformer、その学習手順と大きさ）と、その後の研究。",
        ),
        r"",
    ),
)
COMMANDS = (
    ("attendo claims", Words("every claim, decided by numbers", "すべての主張を数値で確かめる")),
    ("attendo claims C08", Words("one: derivation, figures, picture", "一つの主張：導出、数値、図")),
    (
        "attendo claims --check FILE.py:FUNCTION",
        Words("your own attention against F07's properties", "自作の注意を F07 の性質で調べる"),
    ),
    ("attendo errata", Words("every mistake of the sources", "資料のすべての誤り")),
    ("attendo errata 21", Words("one: both forms, run", "一つ：両方の形を実行する")),
    ("attendo figure noam --out noam.svg", Words("figures for slides", "スライド用の図")),
)
HEADINGS = {
    "formulas": Words("Formulas and tasks", "式と課題"),
    "claims": Words("Claims and exercises", "主張と演習"),
    "errata": Words("Errata", "正誤"),
    "algorithms": Words("Algorithms", "アルゴリズム"),
    "condition": Words("Condition", "条件"),
    "why": Words("Why", "理由"),
    "wrong": Words("As printed", "原文"),
    "right": Words("Right", "正しくは"),
    "made": Words(
        "*Made from the code by `make docs`; change the code, not this page.*",
        "*`make docs` がコードから作る。このページではなくコードを直すこと。*",
    ),
    "run": Words("Run it", "実行"),
    "theory": Words("The theory, run", "動かして学ぶ理論"),
    "theory_about": Words(
        "Every formula, algorithm, claim and erratum of the sources, on the code that trains and serves.",
        "資料のすべての式・アルゴリズム・主張・誤りを、学習と推論に使うのと同じコードで動かす。",
    ),
    "glossary": Words("Glossary", "用語集"),
    "presets": Words("Presets", "プリセット"),
}


def owner(text: str) -> Source:
    """The source that a claim or erratum names; the papers' page takes what names none of the others.

    >>> owner("Kikuta 2025, exercise 3.1").page
    'exercises'
    """
    return next((s for s in SOURCES if s.pattern and re.search(s.pattern, text)), SOURCES[-1])


def formula_section(formula: Formula, language: Language) -> Iterator[str]:
    """The formula, rendered, and beside it the code."""
    yield f"### {formula.id} {formula.title.in_language(language)}\n"
    for latex in formula.latex:
        yield f"$$\n{latex}\n$$\n"
    for line in formula.code:
        path = f"src/{line.module.replace('.', '/')}.py"
        yield f"[`{line.module}.{line.name}`](../../../{path})\n\n```python\n{line.quoted()}\n```\n"


def algorithm_section(formula: Formula, language: Language) -> Iterator[str]:
    """The algorithm's signature and what its docstring says in the first paragraph."""
    function = dict(ALGORITHMS)[formula.id]
    yield f"### {formula.id} {formula.title.in_language(language)}\n"
    for latex in formula.latex:
        yield f"$$\n{latex}\n$$\n"
    parameters = ", ".join(inspect.signature(function).parameters)
    path = f"src/{function.__module__.replace('.', '/')}.py"
    yield f"[`{function.__module__}`](../../../{path})\n\n```python\n{function.__name__}({parameters})\n```\n"
    if language == "en":
        yield (inspect.getdoc(function) or "").split("\n\n")[0] + "\n"


def paragraphs(text: str) -> str:
    """Lines of a derivation as lines of a page."""
    return "\n".join(line + "  " if line.strip() else "" for line in text.splitlines())


def page(source: Source, language: Language) -> str:
    """The page of one source."""

    def word(name: str) -> str:
        return HEADINGS[name].in_language(language)

    parts = [
        f"# {source.title.in_language(language)}\n",
        source.about.in_language(language) + "\n",
        word("made") + "\n",
    ]
    own = [f for f in formulas() if source.key in f.sources]
    parts += [f"## {word('formulas')}\n", *(part for f in own for part in formula_section(f, language))]
    claims = [claim for claim in CLAIMS if owner(claim.source) is source]
    if claims:
        parts.append(f"## {word('claims')}\n")
    for claim in claims:
        parts.append(f"### {claim.id} {claim.source}\n")
        parts.append(claim.statement.in_language(language) + "\n")
        if claim.condition is not None:
            parts.append(f"**{word('condition')}:** {claim.condition.in_language(language)}\n")
        parts.append(f"**{word('why')}:**\n\n{paragraphs(claim.derivation.in_language(language))}\n")
        parts.append(f"{word('run')}: `attendo claims {claim.id}`\n")
    errata = [erratum for erratum in ERRATA if owner(erratum.source) is source]
    if errata:
        parts.append(f"## {word('errata')}\n")
    for erratum in errata:
        parts.append(f"### E{erratum.number:02} {erratum.title.in_language(language)}\n")
        parts.append(f"*{erratum.source}*\n")
        parts.append(f"**{word('wrong')}:** {erratum.wrong.in_language(language)}\n")
        parts.append(f"**{word('right')}:** {erratum.right.in_language(language)}\n")
        if erratum.right_code is not None:
            parts.append(f"```python\n{erratum.right_code.code.strip()}\n```\n")
        parts.append(f"{word('run')}: `attendo errata {erratum.number}`\n")
    return "\n".join(parts)


def algorithms_page(language: Language) -> str:
    """The page of Phuong & Hutter 2022."""
    title = Words(
        "Formal Algorithms for Transformers (Phuong & Hutter 2022)",
        "Transformer の形式的アルゴリズム（Phuong & Hutter 2022）",
    )
    about = Words(
        "The paper's names and signatures on the core: columns are tokens, ids count from 1.",
        "論文の名前と引数のまま、コアの上で動く。列がトークン、番号は 1 から。",
    )
    parts = [f"# {title.in_language(language)}\n", about.in_language(language) + "\n"]
    parts += [
        HEADINGS["made"].in_language(language) + "\n",
        f"## {HEADINGS['algorithms'].in_language(language)}\n",
    ]
    own = [f for f in formulas() if f.sources == ("A",)]
    return "\n".join([*parts, *(part for f in own for part in algorithm_section(f, language))])


def glossary_page(language: Language) -> str:
    """The conventions: one term in both languages, the sources' ways, and ours."""
    head = {
        "en": "# Glossary: one way to say it\n\n| term | 日本語 | in the sources | here |\n|---|---|---|---|",
        "ja": "# 用語集：呼び方をそろえる\n\n| 用語 | English | 資料では | ここでは |\n|---|---|---|---|",
    }
    other: Language = "ja" if language == "en" else "en"
    rows = [
        f"| {t.name.in_language(language)} | {t.name.in_language(other)} | {t.variants.in_language(language)}"
        f" | {t.here} |"
        for t in glossary()
    ]
    return "\n".join([head[language], *rows, "", HEADINGS["made"].in_language(language), ""])


def front_page(language: Language) -> str:
    """What there is, and the commands."""
    option = "" if language == "en" else " --language ja"
    width = max(len(command) for command, _ in COMMANDS) + len(option) + 2
    commands = [f"{command + option:{width}}# {what.in_language(language)}" for command, what in COMMANDS]
    links = [f"- [{s.title.in_language(language)}]({s.page}.md)" for s in SOURCES]
    links += [f"- [{HEADINGS[name].in_language(language)}]({name}.md)" for name in ("algorithms", "glossary")]
    presets = [
        f"| `{name}` | {preset.source} | {preset.n_parameters:,} |" for name, preset in PRESETS.items()
    ]
    head = ["| | | |", "|---|---|---|"]
    build = "`attendo.theory.presets.PRESETS[name].build()`"

    def word(name: str) -> str:
        return HEADINGS[name].in_language(language)

    top = [f"# {word('theory')}", "", word("theory_about"), "", *links, "", "```sh", *commands, "```", ""]
    return "\n".join([*top, f"## {word('presets')}", "", build, "", *head, *presets, "", word("made"), ""])


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
    stale = [
        path
        for path, text in pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in arguments:
        for path in stale:
            print(f"error: {path} is not what the code says; run: make docs")
        return int(bool(stale))
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
