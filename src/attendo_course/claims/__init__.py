"""The claims and exercises of the sources, C01 to C41: the book contains their text, and code checks them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from attendo.display.i18n import Localized
from attendo_course.book import CONDITION, FALSE, WHY, Section, entry_facts, sections

if TYPE_CHECKING:
    from collections.abc import Callable

    from attendo_course.claims.claim import Claim, Finding

_MODULES = (
    "positions",
    "attention",
    "temperature",
    "architecture",
    "blocks",
    "contexts",
    "generation",
    "softmax",
    "bishop",
    "speed",
    "tokens",
)
"""The modules whose `CLAIMS` contain the function that computes each claim."""


@cache
def all_claims() -> tuple[Claim, ...]:
    """Return the claims of the book in the order of their ids, each with the function that computes it.

    >>> all_claims()[0].id
    'C01'
    """
    found = {
        name: _claim(name, compute)
        for module in _MODULES
        for name, compute in import_module(f"{__name__}.{module}").CLAIMS.items()
    }
    return tuple(found[name] for name in sorted(found))


def _claim(name: str, compute: Callable[[], Finding]) -> Claim:
    from attendo_course.claims.claim import Claim, Verdict

    en, ja = (sections(language)[name] for language in ("en", "ja"))
    verdict: Verdict = "true"
    limits = None
    kinds: tuple[tuple[Localized, Verdict], ...] = ((CONDITION, "true under a condition"), (FALSE, "false"))
    for label, kind in kinds:
        if en.find(label.en) is not None:
            verdict, limits = kind, Localized(en.labeled(label.en), ja.labeled(label.ja))
    return Claim(
        **entry_facts(name),
        statement=Localized(en.blocks[1], ja.blocks[1]),
        derivation=Localized(_derivation(en, WHY.en), _derivation(ja, WHY.ja)),
        compute=compute,
        verdict=verdict,
        limits=limits,
    )


def _derivation(section: Section, label: str) -> str:
    """Return the blocks from a label to the last paragraph, which names the command. Formulas are indented."""
    lines: list[str] = []
    for block in section.blocks[section.index(label) + 1 : -1]:
        is_formula = block.startswith("```text\n")
        for line in block.removeprefix("```text\n").removesuffix("\n```").split("\n"):
            lines.append("  " * is_formula + line)
    return "\n".join(lines)
