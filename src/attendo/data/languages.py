"""Languages: their codes and names, their scripts, and the detection of languages and scripts."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from attendo.errors import AttendoError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier


UNKNOWN = "und"
"""The code of an unknown language (ISO 639-2, "undetermined")."""

_NAMES = (
    "af Afrikaans|am Amharic|ar Arabic|az Azerbaijani|be Belarusian|bg Bulgarian|bn Bengali|bs Bosnian|ca Catalan"
    "|cs Czech|cy Welsh|da Danish|de German|el Greek|en English|eo Esperanto|es Spanish|et Estonian|eu Basque"
    "|fa Persian|fi Finnish|fr French|ga Irish|gl Galician|gu Gujarati|ha Hausa|he Hebrew|hi Hindi|hr Croatian"
    "|hu Hungarian|hy Armenian|id Indonesian|is Icelandic|it Italian|ja Japanese|ka Georgian|kk Kazakh|km Khmer"
    "|kn Kannada|ko Korean|ky Kyrgyz|la Latin|lo Lao|lt Lithuanian|lv Latvian|mk Macedonian|ml Malayalam"
    "|mn Mongolian|mr Marathi|ms Malay|my Burmese|nb Norwegian Bokmål|ne Nepali|nl Dutch|nn Norwegian Nynorsk"
    "|no Norwegian|pa Punjabi|pl Polish|ps Pashto|pt Portuguese|ro Romanian|ru Russian|sd Sindhi|si Sinhala|sk Slovak"
    "|sl Slovenian|so Somali|sq Albanian|sr Serbian|sv Swedish|sw Swahili|ta Tamil|te Telugu|tg Tajik|th Thai"
    "|tk Turkmen|tl Tagalog|tr Turkish|tt Tatar|ug Uyghur|uk Ukrainian|ur Urdu|uz Uzbek|vi Vietnamese|yo Yoruba"
    "|zh Chinese|zu Zulu|und Undetermined"
)
NAMES = {code: name for code, _, name in (entry.partition(" ") for entry in _NAMES.split("|"))}


def name_of(code: str) -> str:
    """Return the English name of a language, with its region or script if given. An unknown code is returned unchanged.

    >>> name_of("ja"), name_of("pt-BR"), name_of("tlh")
    ('Japanese', 'Portuguese (BR)', 'tlh')
    """
    language, _, rest = code.replace("_", "-").partition("-")
    name = NAMES.get(language.lower())
    return code if name is None else f"{name} ({rest})" if rest else name


def require_code(option: str, code: str | None) -> None:
    """Raise AttendoError unless `code` is a language code or None. The message suggests the most likely code.

    >>> require_code("`target_language`", "jp")
    Traceback (most recent call last):
    attendo.errors.AttendoError: `target_language` jp: not a language code (BCP 47); did you mean ja?
    """
    if code is None:
        return
    from langcodes import tag_is_valid
    from langcodes.data_dicts import LIKELY_SUBTAGS

    if tag_is_valid(code):
        return
    codes = {name.lower(): code for code, name in NAMES.items()}
    near = get_close_matches(code.lower(), codes, 1, 0.7)
    # a country code probably means the language of that country
    likely = codes[near[0]] if near else LIKELY_SUBTAGS.get(f"und-{code.upper()}", "").partition("-")[0]
    remedy = f"did you mean {likely}?" if likely else "use a code such as en, ja or pt-BR"
    raise AttendoError(f"{option} {code}: not a language code (BCP 47); {remedy}")


_TEXTS = 200  # more texts do not change the result
_STRETCH = 300  # one vote per 300 characters
_FEWEST_STRETCHES = 4
_SURE = 0.99
_NEARLY_ALL = 0.9

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
"""Languages that the library confuses with each other, or whose code in the library is different."""


def language_of(texts: Sequence[str]) -> str:
    """Return the language code of texts, ignoring dates, numbers and names, or "" if the texts are too few or unclear.

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
    """Return whether the detector can identify texts in `language` as `identified`. For unknown codes, return True.

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
    """Return the library's model, which takes half a second and 100 MB to load."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


_BY_SCRIPT = {
    "Latin": (
        "af bs ca cs cy da de en eo es et eu fi fr ga gl hr hu id is it la lt lv nb nl nn no pl pt ro sk sl sq sv sw"
        " tl tr vi zu"
    ),
    "Greek": "el",
    "Cyrillic": "be bg ky mk ru uk",
    "Armenian": "hy",
    "Georgian": "ka",
    "Japanese": "ja",
    "Han": "ja zh",
    "Hangul": "ko",
    "Hebrew": "he",
    "Arabic": "ar fa ps ur",
    "Devanagari": "hi mr ne",
    "Bengali": "bn",
    "Gujarati": "gu",
    "Tamil": "ta",
    "Telugu": "te",
    "Kannada": "kn",
    "Malayalam": "ml",
    "Sinhala": "si",
    "Thai": "th",
    "Lao": "lo",
    "Myanmar": "my",
    "Ethiopic": "am",
    "Khmer": "km",
}
"""Languages by script. Languages that are written in several scripts, such as Serbian, are omitted."""

UNSPACED = ("Han", "Japanese", "Thai", "Lao", "Myanmar", "Khmer")
"""Scripts without spaces between words. Some of them have spaces between phrases or sentences."""

Sides = tuple[str, str]
"""The language codes of source and target. An unknown language is ""."""


def scripts_of(language: str) -> frozenset[str]:
    """Return the scripts in which a language is written, or no scripts if the language or its script is unknown.

    >>> sorted(scripts_of("ja")), sorted(scripts_of("pt-BR")), sorted(scripts_of("ja-Latn"))
    (['Han', 'Japanese'], ['Latin'], [])
    """
    name, *rest = language.replace("_", "-").lower().split("-")
    if {"latn", "cyrl", "arab"} & set(rest):
        return frozenset()
    return frozenset(script for script, names in _BY_SCRIPT.items() if name in names.split())


class Seen(NamedTuple):
    """The detected script and language code of the texts on one side, each "" if it is unclear."""

    script: str = ""
    language: str = ""


def fits(language: str, seen: Seen) -> bool:
    """Return whether texts with this detected script and language can be in `language`. Unknown values always fit.

    >>> fits("ja", Seen("Latin")), fits("en", Seen("Latin", "fr")), fits("", Seen("Latin")), fits("ja", Seen())
    (False, False, True, True)
    """
    return _in_script(language, seen) and may_be(language, seen.language)


def _in_script(language: str, seen: Seen) -> bool:
    wanted = scripts_of(language)
    return not wanted or not seen.script or seen.script in wanted


class Misfit(NamedTuple):
    """The first side ("source" or "target") whose texts are not in the expected language.

    `what` is the detected script or language, in words. `swapped` means that both sides would fit if they were
    exchanged, and `both` that neither side fits.
    """

    side: str
    language: str
    what: str
    swapped: bool
    both: bool

    @property
    def is_sure(self) -> bool:
        """Whether each side has the language or script of the other side, which means that the sides are swapped."""
        return self.swapped and self.both


def misfit(languages: Sides, seen: tuple[Seen, Seen]) -> Misfit | None:
    """Return the mismatch between the expected and the detected languages, or None if both sides fit.

    >>> found = misfit(("ja", "en"), (Seen("Latin"), Seen("Japanese")))
    >>> found.side, found.language, found.what, found.is_sure
    ('source', 'ja', 'Latin', True)
    >>> misfit(("fr", "en"), (Seen("Latin", "en"), Seen("Latin", "fr")))
    Misfit(side='source', language='fr', what='English', swapped=True, both=True)
    """
    wrong = [side for side in zip(("source", "target"), languages, seen, strict=True) if not fits(*side[1:])]
    if not wrong:
        return None
    side, language, found = wrong[0]
    what = name_of(found.language) if _in_script(language, found) else found.script
    return Misfit(side, language, what, all(map(fits, languages, reversed(seen))), len(wrong) == 2)
