"""The words of docs/theory/ that stand nowhere in the code: pages, headings, commands."""

from __future__ import annotations

from dataclasses import dataclass

from attendo.display.i18n import Localized


@dataclass(frozen=True)
class Source:
    """One page: how formulas.toml names the source, which claims and errata are its own, and what it is."""

    key: str
    page: str
    title: Localized
    about: Localized
    pattern: str


SOURCES = (
    Source(
        "S1",
        "nyu",
        Localized(
            "NYU Deep Learning, week 12-3: attention and the Transformer",
            "NYU 深層学習 第 12-3 週：アテンションと Transformer",
        ),
        Localized(
            "The lecture introduces hard and soft attention on columns, then queries, keys and values, and codes a"
            " classifier with tokens as rows. `attendo_course.lecture` has its classes under its names.",
            "講義は、列で書かれたハードアテンションとソフトアテンションから始まり、クエリ・キー・バリューを経て、行をトークンとする分類器の"
            "コードに至る。講義と同じ名前のクラスが `attendo_course.lecture` にある。",
        ),
        r"NYU|\bS1\b",
    ),
    Source(
        "S3",
        "weather",
        Localized("The weather post", "天気の記事"),
        Localized(
            "A draft of a blog post that predicts a Markov chain of rain, cloud and sun by attention, after the"
            " conventions of Phuong & Hutter 2022: columns, ids from 1.",
            "雨・曇り・晴れのマルコフ連鎖をアテンションで予測しようとする記事の草稿。Phuong & Hutter 2022 の記法"
            "（列がトークン、番号は 1 から）に従う。",
        ),
        r"[Ww]eather|\bS3\b|Shumi",
    ),
    Source(
        "S0",
        "exercises",
        Localized(
            "Exercises on positions and attention (Kikuta 2025, chapter 3)",
            "位置符号化とアテンションの演習（菊田 2025、第 3 章）",
        ),
        Localized(
            "Exercises 3.1 to 3.8: what a shift does to sinusoids, their heat map, attention by rows, look-up by"
            " distance, the softmax and its gradient.",
            "演習 3.1〜3.8。正弦波のずらし、ヒートマップ、行形式のアテンション、距離による検索、"
            "softmax とその勾配を扱う。",
        ),
        r"Kikuta|\bS0\b",
    ),
    Source(
        "S2",
        "bishop",
        Localized("Exercises of Bishop & Bishop 2024, chapter 12", "Bishop & Bishop 2024 第 12 章の演習"),
        Localized(
            "Tokens are rows of X; no biases. Exercises about the softmax's rows, the variance of products, heads as a"
            " sum, and permutations.",
            "トークンは X の行で、バイアスはない。softmax の行、内積の分散、ヘッドの和、置換に関する演習。",
        ),
        r"Bishop|\bS2\b",
    ),
    Source(
        "S4",
        "slides",
        Localized("Slides: how the Transformer works", "スライド：Transformer の仕組み"),
        Localized(
            "An introduction without code or 1/√d: self-attention, many heads, encoder and decoder.",
            "コードも 1/√d もない入門。セルフアテンション、マルチヘッド、エンコーダとデコーダを扱う。",
        ),
        r"[Ss]lides|\bS4\b",
    ),
    Source(
        "R",
        "papers",
        Localized("The papers they rest on", "もとになった論文"),
        Localized(
            "Vaswani et al. 2017 (the Transformer, its recipe and sizes), and what builds on it.",
            "Vaswani et al. 2017（Transformer、その学習手順と大きさ）と、その後の研究。",
        ),
        r"",
    ),
)
COMMANDS = (
    ("attendo claims", Localized("every claim, decided by numbers", "すべての主張を数値で確かめる")),
    ("attendo claims C08", Localized("one: derivation, figures, picture", "一つの主張：導出、数値、図")),
    (
        "attendo claims --check FILE.py:FUNCTION",
        Localized("your own attention against F07's properties", "自作のアテンションを F07 の性質で調べる"),
    ),
    ("attendo errata", Localized("every mistake of the sources", "資料のすべての誤り")),
    ("attendo errata 42", Localized("one: both forms, run", "一つの誤り：誤った形と正しい形を実行する")),
    ("attendo figure noam --out noam.svg", Localized("figures for slides", "スライド用の図")),
)
HEADINGS = {
    "formulas": Localized("Formulas and tasks", "式とタスク"),
    "claims": Localized("Claims and exercises", "主張と演習"),
    "errata": Localized("Errata", "正誤"),
    "algorithms": Localized("Algorithms", "アルゴリズム"),
    "condition": Localized("Condition", "条件"),
    "why": Localized("Why", "導出"),
    "wrong": Localized("Wrong", "誤"),
    "right": Localized("Right", "正"),
    "analogy": Localized("The code shows it by analogy.", "コードは類例である。"),
    "made": Localized(
        "*Made from the code by `make docs`; change the code, not this page.*",
        "*このページは `make docs` がコードから生成する。直すときはコードを直す。*",
    ),
    "run": Localized("Run it", "実行"),
    "theory": Localized("The theory, run", "動かして学ぶ理論"),
    "theory_about": Localized(
        "Every formula, algorithm, claim and erratum of the sources, on the code that trains and serves.",
        "資料のすべての式・アルゴリズム・主張・誤りを、学習と推論に使うのと同じコードで動かす。",
    ),
    "teaching": Localized(
        "Begin with three tokens by hand, figures and an exercise for a class.",
        "三つのトークンの手計算、図、授業の演習から始められる。",
    ),
    "glossary": Localized("Glossary", "用語集"),
    "presets": Localized("Presets", "プリセット"),
    "presets_about": Localized(
        "The models of the sources, built by `attendo_course.presets.PRESETS[name].build()`:",
        "資料のモデルは `attendo_course.presets.PRESETS[name].build()` で組み立てられる。",
    ),
    "presets_head": Localized("| name | source | parameters |", "| 名前 | 資料 | パラメータ数 |"),
    "glossary_title": Localized("Glossary: one way to say it", "用語集：呼び方をそろえる"),
    "glossary_head": Localized(
        "| term | 日本語 | in the sources | here |", "| 用語 | English | 資料では | ここでは |"
    ),
    "algorithms_title": Localized(
        "Formal Algorithms for Transformers (Phuong & Hutter 2022)",
        "Transformer の形式的アルゴリズム（Phuong & Hutter 2022）",
    ),
    "algorithms_about": Localized(
        "The paper's names and signatures on the core: columns are tokens, ids count from 1.",
        "論文の名前と引数のまま、コアの上で動く。列がトークン、番号は 1 から。",
    ),
    "commands": Localized("Commands", "コマンド"),
    "pages": Localized("Pages", "ページ"),
}
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
"""The words within the formulas."""
