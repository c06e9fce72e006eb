"""attendo translate --temperature and --stream: translations drawn by chance, or shown as they are found."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from attendo.decoding.filters import SamplingConfig

_LIMITS = ("max_length_ratio", "max_length_extra")
OF_DRAWS = (*_LIMITS, "length_penalty", "length_norm", "batch_tokens")
OF_STREAMS = (*_LIMITS, "min_length", "no_repeat_ngram")
"""The settings of a search that also say something about a draw, and about the search of a stream."""


@dataclasses.dataclass(frozen=True)
class Drawing:
    """How translations are drawn; alone: one text, which has the config's own seed."""

    config: SamplingConfig
    alone: bool

    def configs(self, number: int, n: int) -> list[SamplingConfig]:
        """Those of `n` lines from this number."""
        from attendo.inference.seeds import of_lines

        return [self.config] if self.alone else of_lines(self.config, number, n)


def drawing_of(options: Mapping[str, Any], n_texts: int, *, in_files: bool) -> tuple[Drawing, str] | None:
    """How to draw with these options of SamplingConfig, and what to say at the end; None without a temperature.

    A file that is gone on with needs the same seed again: it is 0 if nobody chose one. BadParameter for an option that
    is out of range, or is given without a temperature.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if "temperature" not in given:
        if given:
            name = next(iter(given)).replace("_", "-")
            raise typer.BadParameter(
                f"--{name} is for draws; give --temperature too (1 is the model's own law)"
            )
        return None
    from attendo.decoding.filters import SamplingConfig
    from attendo.decoding.sampling import fresh_seed

    try:
        config = SamplingConfig(**given, max_tokens=2**31)  # the search's limit is the one that counts
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    note = ""
    if config.seed is None:
        config = dataclasses.replace(config, seed=0 if in_files else fresh_seed())
        if not in_files and config.temperature > 0 and config.top_k != 1:  # else nothing was drawn
            note = f"(--seed {config.seed} draws this again)"
    return Drawing(config, alone=n_texts == 1), note


def refuse(
    way: str, others: Mapping[str, bool], settings: Sequence[str] = (), allowed: Sequence[str] = ()
) -> None:
    """BadParameter where an option is given that says nothing about this way to translate, or such a setting."""
    if wrong := [name for name, is_given in others.items() if is_given]:
        raise typer.BadParameter(f"{way} and {wrong[0]} do not go together; leave one of them out")
    names = [assignment.partition("=")[0].removeprefix("decoding.") for assignment in settings]
    if wrong := [name for name in names if name not in allowed]:
        raise typer.BadParameter(
            f"{way} and --set decoding.{wrong[0]} do not go together; with it are {', '.join(allowed)}"
        )


def show(pieces: Iterator[str]) -> None:
    """Writes a text on one line as it comes, line breaks as spaces."""
    lines = io.IncrementalNewlineDecoder(None, translate=True)  # a CR waits for its LF
    for piece in pieces:
        sys.stdout.write(lines.decode(piece).replace("\n", " "))
        sys.stdout.flush()
    sys.stdout.write(lines.decode("", final=True).replace("\n", " ") + "\n")
