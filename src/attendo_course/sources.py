"""What the sources of claims, errata and presets are called for a reader, in both languages."""

from __future__ import annotations

import re

from attendo.display.i18n import Language

IN_JAPANESE = (
    (r"Queries, keys and values, and ", "クエリ・キー・バリュー、"),
    (r"Hard Attention and Soft Attention", "ハードアテンションとソフトアテンション"),
    (r"(EncoderLayer) and (Encoder)", r"\1 と \2"),
    (r"(?:the )?shapes of W_q, W_k, W_v and W_p", "W_q・W_k・W_v・W_p の形"),
    (r"implementation of algorithms? (\d+) to (\d+) of (\S+)", r"実装（\3 のアルゴリズム \1〜\2）"),
    (r"(\w+)'s 実装", r"\1 の実装"),
    (r"solutions to Kikuta 2025, (.*)", r"菊田 2025 の解答、\1"),
    (r"solutions to (Bishop & Bishop 2024)", r"\1 の解答"),
    (r"plot of the positional embedding", "位置埋め込みのプロット"),
    (r"reading of the plot", "プロットの読み取り"),
    (r"the context of attention", "アテンションの文脈"),
    (r"the softmax example", "softmax の例"),
    (r"training loop and tasks", "学習ループとタスク"),
    (r"training step and plot", "学習ステップとプロット"),
    (r"training and evaluation", "学習と評価"),
    (r"encoder and decoder", "エンコーダとデコーダ"),
    (r"multi-head attention", "マルチヘッドアテンション"),
    (r"self-attention", "セルフアテンション"),
    (r"positional encoding", "位置符号化"),
    (r"positional embedding", "位置埋め込み"),
    (r"[Ww]eather post", "天気の記事"),
    (r"finished version", "完成版"),
    (r"\bdraft\b", "草稿"),
    (r"Japanese page", "日本語版"),
    (r"Slides on the Transformer", "Transformer のスライド"),
    (r"slides (ChatGPT\S+ 3)", r"スライド「\1」"),
    (r"\bslides\b", "スライド"),
    (r"Example Use", "使用例"),
    (r"Semantic Representations", "意味の表現"),
    (r"Decoder Module", "デコーダモジュール"),
    (r"PyTorch examples", "PyTorch の例"),
    (r"NYU Deep Learning \(?2020\)?", "NYU 深層学習 2020"),
    (r"\bKikuta\b", "菊田"),
    (r"\bweek 12\b(-3)?", r"第 12\1 週"),
    (r"\bnotebook (\S+)", r"ノートブック \1"),
    (r"\bexercises? ", "演習 "),
    (r"\balgorithms? ", "アルゴリズム "),
    (r"\bsection (\S+)", r"\1 節"),
    (r"\btable ", "表 "),
    (r"\bchapter (\d+)", r"第 \1 章"),
    (r"(\d) to (?=\d)", r"\1〜"),
    (r",? and (?=\d)", "、"),
    (r",? and ", "と"),
    (r"; ", "；"),
    (r", ", "、"),
)
"""What a source is called in English, a pattern, and in Japanese; one after the other."""


def cited(source: str, language: Language) -> str:
    """A source as a reader is told it: without its key, in the page's language.

    >>> cited("S1 NYU Deep Learning 2020, week 12-3, and notebook 15-transformer", "en")
    'NYU Deep Learning 2020, week 12-3, and notebook 15-transformer'
    >>> cited("Kikuta 2025, exercise 3.1", "ja")
    '菊田 2025、演習 3.1'
    """
    text = re.sub(r"^(S\d|R) ", "", source)
    if language == "en":
        return re.sub("^(notebook|slides|solutions|weather)", lambda found: found[0].capitalize(), text)
    for pattern, japanese in IN_JAPANESE:
        text = re.sub(pattern, japanese, text)
    return text
