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
"""The code of a language that nobody has told (ISO 639-2, undetermined)."""

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
    """The name of a language; with its region or script where the code has one, the code where it is not known.

    >>> name_of("ja"), name_of("pt-BR"), name_of("tlh")
    ('Japanese', 'Portuguese (BR)', 'tlh')
    """
    language, _, rest = code.replace("_", "-").partition("-")
    name = NAMES.get(language.lower())
    return code if name is None else f"{name} ({rest})" if rest else name


def require_code(option: str, code: str | None) -> None:
    """Raise AttendoError, naming the likely code, unless `code` is a language code or None.

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
    # the code of a country is taken for that of the language spoken there
    likely = codes[near[0]] if near else LIKELY_SUBTAGS.get(f"und-{code.upper()}", "").partition("-")[0]
    remedy = f"did you mean {likely}?" if likely else "use a code such as en, ja or pt-BR"
    raise AttendoError(f"{option} {code}: not a language code (BCP 47); {remedy}")


_TEXTS = 200  # more change no verdict
_STRETCH = 300  # a verdict is given for each 300 characters
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
"""Languages that the library takes for one another, or knows by another code."""


def language_of(texts: Sequence[str]) -> str:
    """The language code of texts, ignoring dates, numbers and names; "" if there are too few or it is unclear.

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
    """Return whether texts of one language may be identified as another; True if either is unknown.

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
"""Languages by script; those with several in use, as Serbian, are left out."""

UNSPACED = ("Han", "Japanese", "Thai", "Lao", "Myanmar", "Khmer")
"""Scripts whose languages write no spaces between words; between phrases or sentences some do."""

Sides = tuple[str, str]
"""The languages of the source, and of the target; "" where one is not told."""


def scripts_of(language: str) -> frozenset[str]:
    """The scripts that a text of a language may be in; none where the code or its script is not known.

    >>> sorted(scripts_of("ja")), sorted(scripts_of("pt-BR")), sorted(scripts_of("ja-Latn"))
    (['Han', 'Japanese'], ['Latin'], [])
    """
    name, *rest = language.replace("_", "-").lower().split("-")
    if {"latn", "cyrl", "arab"} & set(rest):
        return frozenset()
    return frozenset(script for script, names in _BY_SCRIPT.items() if name in names.split())


class Seen(NamedTuple):
    """The detected script and language code of a side's texts; "" if unclear."""

    script: str = ""
    language: str = ""


def fits(language: str, seen: Seen) -> bool:
    """Return whether texts may be of a language; True if either is unknown.

    >>> fits("ja", Seen("Latin")), fits("en", Seen("Latin", "fr")), fits("", Seen("Latin")), fits("ja", Seen())
    (False, False, True, True)
    """
    return _in_script(language, seen) and may_be(language, seen.language)


def _in_script(language: str, seen: Seen) -> bool:
    wanted = scripts_of(language)
    return not wanted or not seen.script or seen.script in wanted


class Misfit(NamedTuple):
    """The first side that is not in its language, with the script or language found.

    swapped: both sides fit once exchanged. both: neither side fits.
    """

    side: str
    language: str
    what: str
    swapped: bool
    both: bool

    @property
    def is_sure(self) -> bool:
        """Whether each side is in the language or script of the other, which means swapped sides."""
        return self.swapped and self.both


def misfit(languages: Sides, seen: tuple[Seen, Seen]) -> Misfit | None:
    """The mismatch between expected and detected languages; None if there is none.

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
