"""Codes of languages (BCP 47), and English names of the usual ones (ISO 639-1), for clients that show a list."""

from __future__ import annotations

from difflib import get_close_matches

from attendo.errors import AttendoError

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
    attendo.errors.AttendoError: `target_language` jp: no such language code (BCP 47); did you mean ja?
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
    remedy = f"did you mean {likely}?" if likely else "give one as en, ja or pt-BR"
    raise AttendoError(f"{option} {code}: no such language code (BCP 47); {remedy}")
