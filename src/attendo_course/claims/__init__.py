"""The claims and exercises of the sources, C01 to C27, each decided by numbers.

`CLAIMS` holds them all, ordered by id; it is gathered when it is first used, so that one claim's module can be
imported without the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attendo_course.claims.claim import Claim

    CLAIMS: tuple[Claim, ...]

_MODULES = (
    "positions",
    "attention",
    "symmetries",
    "temperature",
    "architecture",
    "softmax",
    "bishop",
    "lookup",
)

__all__ = ["CLAIMS"]


def __getattr__(name: str) -> Any:
    """`CLAIMS`: the claims of every module of this package, in the order of their ids."""
    if name != "CLAIMS":
        raise AttributeError(f"module 'attendo_course.claims' has no attribute {name!r}")
    found = [claim for module in _MODULES for claim in import_module(f"{__name__}.{module}").CLAIMS]
    gathered = tuple(sorted(found, key=lambda claim: claim.id))
    assert len({claim.id for claim in gathered}) == len(gathered), "two claims have one id"
    globals()[name] = gathered  # the next look-up no longer comes here
    return gathered
