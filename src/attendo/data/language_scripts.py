"""The scripts that languages are written in, and whether the two sides of pairs stand the wrong way round."""

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

Sides = tuple[str, str]
"""What is said of the source, and of the target; "" where nothing is."""


def scripts_of(language: str) -> frozenset[str]:
    """The scripts that a text of a language may be in; none where the code or its script is not known.

    >>> sorted(scripts_of("ja")), sorted(scripts_of("pt-BR")), sorted(scripts_of("ja-Latn"))
    (['Han', 'Japanese'], ['Latin'], [])
    """
    name, *rest = language.replace("_", "-").lower().split("-")
    if {"latn", "cyrl", "arab"} & set(rest):
        return frozenset()
    return frozenset(script for script, names in _BY_SCRIPT.items() if name in names.split())


def fits(language: str, script: str) -> bool:
    """Whether a text in a script may be of a language; so it may be where one of them is not known.

    >>> fits("ja", "Latin"), fits("en", "Latin"), fits("", "Latin"), fits("ja", "")
    (False, True, True, True)
    """
    wanted = scripts_of(language)
    return not wanted or not script or script in wanted


def misfit(languages: Sides, scripts: Sides) -> tuple[str, str, str, bool] | None:
    """The first side whose script is not its language's: side, language, script, and whether swapping mends both.

    >>> misfit(("ja", "en"), ("Latin", "Japanese"))
    ('source', 'ja', 'Latin', True)
    >>> misfit(("en", "ja"), ("Latin", "Latin"))
    ('target', 'ja', 'Latin', False)
    """
    sides = zip(("source", "target"), languages, scripts, strict=True)
    for side, language, script in sides:
        if not fits(language, script):
            swapped = all(map(fits, languages, reversed(scripts)))
            return side, language, script, swapped
    return None
