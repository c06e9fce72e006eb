"""The claims and exercises of the sources, C01 to C27: the book contains their text, and code checks them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from attendo.display.i18n import Localized
from attendo_course.book import CONDITION, WHY, Section, sections

if TYPE_CHECKING:
    from attendo_course.claims.claim import Claim

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
)
"""The modules whose `CLAIMS` contain the function that computes each claim."""


@cache
def all_claims() -> tuple[Claim, ...]:
    """Return the claims of the book in the order of their ids, each with the function that computes it.

    >>> len(all_claims()), all_claims()[-1].id
    (27, 'C27')
    """
    from attendo_course.claims.claim import Claim

    found: dict[str, Claim] = {}
    for module in _MODULES:
        for name, compute in import_module(f"{__name__}.{module}").CLAIMS.items():
            en, ja = sections("en")[name], sections("ja")[name]
            condition = None
            if en.find(CONDITION.en) is not None:
                condition = Localized(en.labeled(CONDITION.en), ja.labeled(CONDITION.ja))
            found[name] = Claim(
                name,
                source=Localized(en.title, ja.title),
                statement=Localized(en.blocks[0], ja.blocks[0]),
                derivation=Localized(_derivation(en, WHY.en), _derivation(ja, WHY.ja)),
                compute=compute,
                condition=condition,
            )
    return tuple(found[name] for name in sorted(found))


def _derivation(section: Section, label: str) -> str:
    """Return the blocks from a label to the last paragraph, which names the command. Formulas are indented."""
    lines: list[str] = []
    for block in section.blocks[section.index(label) + 1 : -1]:
        is_formula = block.startswith("```text\n")
        for line in block.removeprefix("```text\n").removesuffix("\n```").split("\n"):
            lines.append("  " * is_formula + line)
    return "\n".join(lines)
