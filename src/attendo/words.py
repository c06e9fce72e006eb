"""A text in the two languages that theory and lessons speak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Language = Literal["en", "ja"]


@dataclass(frozen=True)
class Words:
    """One text, in English and in Japanese.

    >>> Words("row", "行").in_language("ja")
    '行'
    """

    en: str
    ja: str

    def in_language(self, language: Language) -> str:
        """The text in English ("en") or Japanese ("ja")."""
        return self.ja if language == "ja" else self.en


def labelled(label: Words, text: str, language: Language) -> str:
    """A text behind its label, in one line.

    >>> labelled(Words("Why", "導出"), "1 + 1 = 2", "ja")
    '導出：1 + 1 = 2'
    """
    return f"{label.in_language(language)}{'：' if language == 'ja' else ': '}{text}"
