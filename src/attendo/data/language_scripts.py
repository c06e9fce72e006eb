"""The scripts that languages are written in, and whether the two sides of pairs stand the wrong way round."""

from typing import NamedTuple

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


class Misfit(NamedTuple):
    """The first side whose script is not its language's.

    swapped: whether both sides fit once they change places; both: whether neither does as they are.
    """

    side: str
    language: str
    script: str
    swapped: bool
    both: bool

    @property
    def is_sure(self) -> bool:
        """Whether each side is in the script of the other one's language: no accident, but the wrong order."""
        return self.swapped and self.both


def misfit(languages: Sides, scripts: Sides) -> Misfit | None:
    """What does not fit the scripts of source and target; None if nothing is known to.

    >>> found = misfit(("ja", "en"), ("Latin", "Japanese"))
    >>> found.side, found.language, found.script, found.is_sure
    ('source', 'ja', 'Latin', True)
    >>> misfit(("en", "ja"), ("Latin", "Latin"))
    Misfit(side='target', language='ja', script='Latin', swapped=False, both=False)
    """
    sides = list(zip(("source", "target"), languages, scripts, strict=True))
    wrong = [side for side in sides if not fits(*side[1:])]
    if not wrong:
        return None
    return Misfit(*wrong[0], all(map(fits, languages, reversed(scripts))), len(wrong) == 2)
