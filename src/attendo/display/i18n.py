"""Texts in English and Japanese."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

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


def sentence(key: str, **values: Any) -> Localized:
    """Return a text of `assets/words/sentences.json` with its values, of which some can be Localized.

    >>> sentence("why.same", whole=Localized("score", "スコア"), mine="-1.2").en
    'This is the text that the search found; its score is -1.2.'
    """
    texts = _sentences()[key]

    def filled(language: Language) -> str:
        own = {k: v.text(language) if isinstance(v, Localized) else v for k, v in values.items()}
        return texts[language].format(**own)

    return Localized(filled("en"), filled("ja"))


@cache
def _sentences() -> dict[str, dict[Language, str]]:
    file = files("attendo") / "assets" / "words" / "sentences.json"
    return json.loads(file.read_text(encoding="utf-8"))
