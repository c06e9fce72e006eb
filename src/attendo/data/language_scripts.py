"""The scripts that languages are written in, and whether the two sides of pairs stand the wrong way round."""

from typing import NamedTuple

from attendo.data.language_identification import may_be
from attendo.data.language_names import name_of

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
    """What the texts of a side are in: their script, and the code of their language; "" where it is not clear."""

    script: str = ""
    language: str = ""


def fits(language: str, seen: Seen) -> bool:
    """Whether texts may be of a language; so they may where it is not known, or not what they are in.

    >>> fits("ja", Seen("Latin")), fits("en", Seen("Latin", "fr")), fits("", Seen("Latin")), fits("ja", Seen())
    (False, False, True, True)
    """
    return _in_script(language, seen) and may_be(language, seen.language)


def _in_script(language: str, seen: Seen) -> bool:
    wanted = scripts_of(language)
    return not wanted or not seen.script or seen.script in wanted


class Misfit(NamedTuple):
    """The first side that is not in its language; what: the script or the language that it is in, for people.

    swapped: whether both sides fit once they change places; both: whether neither does as they are.
    """

    side: str
    language: str
    what: str
    swapped: bool
    both: bool

    @property
    def is_sure(self) -> bool:
        """Whether each side is in the language, or the script, of the other: no accident, but the wrong order."""
        return self.swapped and self.both


def misfit(languages: Sides, seen: tuple[Seen, Seen]) -> Misfit | None:
    """What does not fit that which source and target are in; None if nothing is known to.

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
