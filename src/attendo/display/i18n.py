"""Texts in English and Japanese."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Language = Literal["en", "ja"]


@dataclass(frozen=True)
class Localized:
    """A text in English and in Japanese.

    >>> Localized("row", "行").text("ja")
    '行'
    """

    en: str
    ja: str

    def text(self, language: Language) -> str:
        """Return the text in a language.

        Args:
            language: The language, "en" or "ja".
        """
        return self.ja if language == "ja" else self.en


def accepted_language(headers: Mapping[str, str]) -> Language:
    """Return the language of a response: Japanese if the headers of the request prefer it, and English otherwise."""
    return "ja" if headers.get("accept-language", "").strip().lower().startswith("ja") else "en"


def labelled(label: Localized, text: str, language: Language) -> str:
    """Return a label and a text in one line, separated by a colon.

    >>> labelled(Localized("Why", "導出"), "1 + 1 = 2", "ja")
    '導出：1 + 1 = 2'
    """
    return f"{label.text(language)}{'：' if language == 'ja' else ': '}{text}"
