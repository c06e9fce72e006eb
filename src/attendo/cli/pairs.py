"""Pairs of sources and targets: reading them, and warnings about their direction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attendo.cli.reporting import (
    say,
)
from attendo.data.accounting import Account

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attendo.data.accounting import Account
    from attendo.inference.translator import Translator


SCRIPT_PAIRS = 1000
"""The pairs that are examined, at most about this number."""


_OTHER_FILES = "give the files in the other order"


_OTHER_COLUMNS = "choose the columns with --columns SOURCE,TARGET"


def warn_of_order(
    languages: Mapping[str, str | None], pairs: Sequence[tuple[str, str]], are_parallel: bool
) -> None:
    """A line where some pairs are not in a run's languages; nothing where those are not known.

    Raises AttendoError where each side is in the other one's language, or script.
    """
    from attendo.data.language_scripts import misfit
    from attendo.data.scripts import seen_in
    from attendo.errors import AttendoError

    codes = languages.get("source") or "", languages.get("target") or ""
    if not (any(codes) and pairs):
        return
    sources, targets = zip(*pairs[:: max(1, len(pairs) // SCRIPT_PAIRS)], strict=True)
    if (found := misfit(codes, (seen_in(sources), seen_in(targets)))) is None:
        return
    remedy = _OTHER_FILES if are_parallel else _OTHER_COLUMNS
    way = "from" if found.side == "source" else "to"
    said = f"the run translates {way} {found.language}, but the {found.side} is {found.what}: "
    said += remedy if found.swapped else "look at the rows"
    if found.is_sure:
        raise AttendoError(said)
    say(f"warning: {said}")


def warn_of_guessing(translator: Translator, log_prob: float, n_tokens: int, are_parallel: bool) -> None:
    """A line where given targets are less likely than if every token were equally likely.

    log_prob: the natural log-probability of all their tokens together.
    """
    from attendo.metrics import perplexity

    size = translator.tokenizer.target.vocab_size
    if (found := perplexity(log_prob, n_tokens)) > size:
        remedy = _OTHER_FILES if are_parallel else _OTHER_COLUMNS
        say(
            f"warning: perplexity {found:,.0f} is above {size:,}, the size of the vocabulary: the model has"
            f" hardly been trained, or source and target are swapped; {remedy}"
        )


def pairs_of(
    folder: Path, files: list[Path], columns: str | None, header: bool | None
) -> tuple[Iterator[tuple[int, str, str]], Account]:
    """The usable pairs of files, read in the run's direction, and their account, complete at the end."""
    from attendo.data.accounting import Account
    from attendo.data.corpora import read_pairs
    from attendo.runs.settings import data_of
    from attendo.runs.task_specs import family_of

    source = data_of(family_of("translation"), folder).source(files, columns, header)
    account = Account(source.name)
    return read_pairs(source, account=account), account
