"""Which language texts are in, by py3langid, where nearly all of them say the same for sure."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_TEXTS = 200  # more change no verdict
_STRETCH, _FEWEST_STRETCHES = 300, 4  # a verdict is given for each 300 characters
_SURE, _NEARLY_ALL = 0.99, 0.9

_KIN = (
    "nb nn no",
    "bs hr sh sr",
    "fil tl",
    "cmn wuu yue zh",
    "ar ary arz",
    "fa prs",
    "ckb ku sdh",
    "he hbo",
    "el grc",
    "lv ltg",
    "uz uzs",
)
"""Languages that the library takes for one another, or knows by another code."""


def language_of(texts: Sequence[str]) -> str:
    """The code of the language that texts are in; "" where they are too few, or it is not clear.

    Dates, numbers, single letters and made-up words are in no language.

    >>> language_of(["It rains in the north, and the wind blows from the sea."] * 30)
    'en'
    >>> language_of(["2026-11-23 12:30"] * 100), language_of(["It rains."])
    ('', '')
    """
    joined = " ".join(text[:_STRETCH] for text in texts[:: max(1, len(texts) // _TEXTS)])
    stretches = [joined[i : i + _STRETCH] for i in range(0, len(joined) - _STRETCH + 1, _STRETCH)]
    if len(stretches) < _FEWEST_STRETCHES:
        return ""
    votes = Counter(code for code, sure in map(_identifier().classify, stretches) if sure > _SURE)
    code, n = next(iter(votes.most_common(1)), ("", 0))
    return code if n >= _NEARLY_ALL * len(stretches) and code != "zxx" else ""  # zxx: nothing linguistic


def may_be(language: str, identified: str) -> bool:
    """Whether texts of a language may be identified as this one; so they may where one of them is not known.

    >>> may_be("en-GB", "en"), may_be("fr", "en"), may_be("nb", "no"), may_be("tlh", "en"), may_be("fr", "")
    (True, False, True, True, True)
    """
    if not (language and identified):
        return True
    base = language.replace("_", "-").partition("-")[0].lower()
    names = next((group.split() for group in _KIN if base in group.split()), [base])
    return identified in names or set(names).isdisjoint(_identifier().labels)


@functools.cache
def _identifier() -> LanguageIdentifier:
    """The library's model, which takes half a second and 100 MB to load."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
