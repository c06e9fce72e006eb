"""How many examples of a costly property are tried: some in every run, more with the large counts."""

import os

LARGE = "ATTENDO_LARGE_COUNTS"
"""Set where tests marked `full` run, too."""


def examples(some: int, more: int) -> int:
    """`some`, or `more` where the large counts were asked for."""
    return more if os.environ.get(LARGE) else some
