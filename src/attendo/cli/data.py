"""attendo doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from attendo.cli.options import OneJson


def add_data_commands(app: typer.Typer) -> None:
    """Adds the commands that look at data."""
    app.command("doctor", short_help="Check pairs before training on them.")(doctor)


def doctor(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="F...", help="Pairs: a file, a folder, 'a quoted/*.tsv'; or two parallel."),
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="F", help="Test pairs, whose sources must not be in F; twice for two parallel."),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="source=en,target=ja or 1,2.")] = None,
    header: Annotated[bool, typer.Option("--header", help="The .tsv file starts with a header.")] = False,
    as_json: OneJson = False,
) -> int:
    """Check training data: bad rows, duplicates, leaks, odd lengths, swapped columns, wrong script, and more.

    Each finding comes with a count, three line numbers and the --drop that leaves those rows out of training. The
    exit code is 1 if anything was found. Of many files the line numbers come with their names.

    Example: attendo doctor train.tsv --against test.tsv

    Example: attendo doctor train.ja train.en --against test.ja --against test.en
    """
    from attendo.data.corpora import PairSource, parse_columns
    from attendo.data.doctor import examine

    chosen = None if columns is None else parse_columns(columns)
    pair = None if chosen is None else (chosen[0], chosen[1])
    source = PairSource(tuple(files), pair, header)
    other = None
    if against:  # two parallel files have no columns, whatever F has
        other = PairSource(tuple(against), *((pair, header) if len(against) == 1 else ()))
    report = examine(source, other)
    print(
        json.dumps(report.as_json(), ensure_ascii=False, indent=1) if as_json else "\n".join(report.lines())
    )
    return 1 if report.found else 0
