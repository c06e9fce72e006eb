"""The command `attendo doctor`."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attendo.cli.evaluate import ONE_NAME
from attendo.cli.options import OneJson, argument, option, refuse_if, switch
from attendo.cli.reporting import with_flags
from attendo.data.corpora import AGAINST, PairSource, parse_columns
from attendo.data.formats import by_name
from attendo.display.width import shown

if TYPE_CHECKING:
    from attendo.data.doctor_report import Report
    from attendo.data.labelled_corpus import RowData
    from attendo.data.labelled_doctor import LabelledReport


def doctor(
    files: list[Path] = argument("F...", "Data to check: a file, a folder, 'a quoted/*.tsv' or two parallel files."),
    against: list[Path] | None = option(
        "F", "Test data to check for leaks. Give the option twice for two parallel files."
    ),
    columns: str | None = option("C", "Columns, for example source=en,target=ja or label=category,text=body or 1,2."),
    header: bool = switch("--header", "Treat the first line of a .tsv file as a header."),
    as_json: OneJson = False,
) -> int:
    """Check training data: sentence pairs, labeled texts, conversations or preferences.

    Labeled texts are checked if --columns names the text and its label. The column of the label is label, labels
    (several labels per text), number or spans. Conversations and preferences are recognized by --columns or by the keys
    of a .jsonl file: messages, or question and answer, or prompt, chosen and rejected.

    Sentence pairs are checked for unusable rows, duplicates, leaks (test rows in the training data), unusual lengths,
    swapped columns, wrong scripts and other problems. For each finding, the command prints the number of rows and three
    line numbers. It also prints the option --drop, with which `attendo train` skips these rows. Labeled texts are
    checked for unusable rows, duplicates, contradicting labels, leaks and rare labels, and conversations for unknown
    roles, empty contents, wrong order of turns, duplicates and leaks. If there are several files, each
    line number is printed with the file name. The exit code is 1 if there are findings.

    Example: attendo doctor train.tsv --against test.tsv

    Example: attendo doctor train.ja train.en --against test.ja --against test.en

    Example: attendo doctor tickets.csv --columns label=category,text=body
    """
    kind = _kind(files[0], columns)
    if kind is None:
        report = _pairs(files, against, columns, header)
    else:
        report = _labelled(kind, files, against, columns, header)
    facts = json.dumps(report.as_json(), ensure_ascii=False, indent=1)
    print(with_flags(facts if as_json else shown("\n".join(report.lines()))))
    return 1 if report.found else 0


def _pairs(files: list[Path], against: list[Path] | None, columns: str | None, header: bool) -> Report:
    from attendo.data.doctor import examine
    from attendo.data.labelled import LABELLED

    chosen = None if columns is None else parse_columns(columns)
    instead = f" for pairs, {by_name(LABELLED)} for labeled texts"
    source = PairSource(tuple(files), chosen, header, instead=instead)
    if not against:
        return examine(source)
    if len(against) == 1:
        return examine(source, PairSource((against[0],), chosen, header, both=AGAINST, instead=instead))
    return examine(source, PairSource(tuple(against)))  # parallel files have no columns


def _kind(file: Path, columns: str | None) -> type[RowData] | None:
    """Return the kind of rows other than pairs, by the roles in --columns or the keys of a .jsonl file, or None."""
    from attendo.data.chat_corpus import ChatData, PreferenceData
    from attendo.data.labelled_corpus import LabelledData, MultiLabelData, NumberData
    from attendo.data.tagged import TaggedData

    kinds = (LabelledData, MultiLabelData, NumberData, TaggedData, ChatData, PreferenceData)
    forms = {data.form.roles[0]: data for data in kinds} | {"text": LabelledData, "messages": ChatData}
    roles = [part.partition("=")[0].strip() for part in (columns or "").split(",")]
    if columns is None and file.suffix == ".jsonl" and file.is_file():
        with file.open(encoding="utf-8", errors="replace") as lines, suppress(ValueError, RecursionError):
            keys = json.loads(next(lines, "{}"))
            roles = [key for key in keys if key in ("messages", "question", "prompt")]
    return next((forms[role] for role in forms if role in roles), None)


def _labelled(
    kind: type[RowData], files: list[Path], against: list[Path] | None, columns: str | None, header: bool
) -> LabelledReport:
    from attendo.data.labelled_doctor import examine_labelled

    refuse_if(len(files) > 1 or len(against or []) > 1, ONE_NAME)
    data = kind(train=(str(files[0]),), columns=columns, header=header)
    return examine_labelled(data.source(files[0]), data.source(against[0]) if against else None)
