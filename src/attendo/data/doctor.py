"""The data doctor for sentence pairs, which finds problems in two streaming passes with bounded memory.

The first pass samples rows evenly and learns how source and target texts differ. The second pass converts each row to a
record of 51 bytes with hashes, lengths, scripts and flags (`doctor_checks.RowTable`). A hash divides the records into
buckets, and the records of each bucket are compared. The text of the rows is not stored. With `drop`, `filtered` reads
the corpus again, and skips and counts the rows with the chosen problems.
"""

import functools
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from attendo.data.corpora import Pair, PairSource, read_pairs
from attendo.data.data_files import taken_off
from attendo.data.doctor_checks import (
    HAS_LETTERS,
    NOT_NFC,
    ODD_CHARACTERS,
    RECORD,
    SOUNDS_SWAPPED,
    SOURCE_APART,
    TARGET_APART,
    Comparison,
    RowTable,
    Statistics,
)
from attendo.data.doctor_report import CHECKS, OTHER_WAY_ROUND, Report
from attendo.data.row_report import RowReport
from attendo.data.scripts import (
    USUAL_SHARE,
    code_points,
    letter_profile,
    profile_scores,
    scripts_and_controls,
    words_apart,
)
from attendo.errors import AttendoError, nearest

SAMPLE_ROWS = 8_192
SAMPLE_CHARACTERS = 400
FEWEST_FOR_PROFILE = 100
SURE_NATS = 5.0
"""A row counts as swapped if both texts resemble the other column by more than these odds (e**5 = 148 to 1)."""

_BATCH_ROWS = 2_048
_BATCH_CHARACTERS = 1 << 18


def parse_drop(text: str) -> frozenset[str]:
    """Parse the option `drop` into names of checks. Raises AttendoError for an unknown name, and suggests the most
    similar known name.

    >>> sorted(parse_drop("leaks,duplicates"))
    ['duplicates', 'leaks']
    """
    known = [check.name for check in CHECKS if not check.instead]
    instead = {check.name: check.instead for check in CHECKS if check.instead}
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name in instead:
            raise AttendoError(f"`drop` {name}: this would remove most rows. Instead, {instead[name]}")
        if name not in known:
            raise AttendoError(f"`drop` {name}: no such check; {nearest(name, known, 'known checks')}")
    return frozenset(names)


def examine(
    source: PairSource,
    against: PairSource | None = None,
    drop: frozenset[str] = frozenset(),
    strict: bool = False,
    validation: PairSource | None = None,
) -> Report:
    """Check sentence pairs for duplicates, leaks and other problems.

    The files are read twice. A million pairs of 50 characters per side take about 12 CPU-seconds. Memory is constant,
    about 100 MB (with `drop`, plus one byte per line). Above half a million rows, temporary files take 51 bytes per
    row.

    Args:
        source: The location of the sentence pairs.
        against: A test set, whose source texts should not occur in the examined pairs (default: none).
        drop: The names of the checks for which `filtered` removes rows with problems (default: none).
        strict: Whether the first unusable row raises an error (default: unusable rows are skipped and counted).
        validation: Validation pairs, whose source texts should also not occur in the examined pairs (default: none).

    Returns:
        The report with the findings of each check.

    Raises:
        AttendoError: A file cannot be read, or `drop` contains "leaks" without a test or validation set.
    """
    others = [other for other in (against, validation) if other is not None]
    if "leaks" in drop and not others:
        raise AttendoError("`drop` leaks requires a second file to compare with. Give one with `against` F")
    sample = even_sample(read_pairs(source, strict), SAMPLE_ROWS)
    profile = _learned_profile(sample)
    with RowTable() as table, RowTable() as compared:
        row_report, statistics = _read(source, strict, profile, table)
        read = [_read(other, strict, profile, compared) for other in others]
        comparison = Comparison(statistics, drop)
        for records, other_records in zip(table.buckets(), compared.buckets(), strict=True):
            comparison.add(records, other_records)
    not_checked = {} if others else {"leaks": "no file to compare with"}
    if is_reversed := any(theirs.is_reverse_of(statistics) for _, theirs in read):
        not_checked["leaks"] = OTHER_WAY_ROUND
    if profile is None and not comparison.scripts_differ:
        not_checked["swapped"] = "the columns are too alike, or there are too few rows"
    if not all(comparison.usual):
        not_checked["wrong-script"] = "one column has no dominant script"
    return Report(
        row_report=row_report,
        against=None if against is None else read[0][0],
        findings=comparison.findings(not_checked),
        source=statistics.side("source"),
        target=statistics.side("target"),
        ratios=(statistics.ratio(0.01), statistics.ratio(0.5), statistics.ratio(0.99)),
        drop=drop,
        verdicts=comparison.verdicts.tobytes(),
        like_labels=None if len(source.files) > 1 else statistics.like_labels(source),  # never parallel files
        against_reversed=is_reversed,
        taken_off=taken_off(source.paths()),
        sample=tuple(sample),
    )


def _read(
    source: PairSource, strict: bool, profile: np.ndarray | None, table: RowTable
) -> tuple[RowReport, Statistics]:
    """Add the records of all usable rows to the table, and return the row report and the statistics of these rows."""
    row_report = RowReport(source.name)
    statistics = Statistics()
    for batch in _batches(read_pairs(source, strict, row_report)):
        records = _records(batch, profile)
        statistics.add(records)
        table.append(records)
    return row_report, statistics


def filtered(pairs: Iterable[Pair], report: Report, row_report: RowReport) -> Iterator[Pair]:
    """Yield the pairs that the report does not drop. Each dropped pair is counted as skipped in the row report.

    `pairs` must be read from the examined files with the same `row_report`. Raises AttendoError if a file has new rows.
    """
    for pair in pairs:
        number = pair[0]
        if number >= len(report.verdicts):
            if report.drop:
                raise AttendoError(f"{row_report.place(number)}: the file changed while it was examined. Start again")
            yield pair
        elif verdict := report.verdicts[number]:
            row_report.drop(number, CHECKS[verdict - 1].reason)
        else:
            yield pair
    row_report.require_used()


def even_sample(pairs: Iterable[Pair], most: int) -> list[tuple[str, str]]:
    """Return every k-th pair, truncated, as a sample of `most` / 2 to `most` pairs. `most` must be even.

    If there are at most `most` pairs, all are returned. Whenever the sample is full, k is doubled.
    """
    sample: list[tuple[str, str]] = []
    distance = 1
    for position, (_, source, target) in enumerate(pairs):
        if position % distance == 0:
            if len(sample) == most:
                del sample[1::2]
                distance *= 2  # `position` is most * the old distance: with `most` even, it stays in step
            sample.append((source[:SAMPLE_CHARACTERS], target[:SAMPLE_CHARACTERS]))
    return sample


def _learned_profile(sample: list[tuple[str, str]]) -> np.ndarray | None:
    """Return weights that distinguish source from target texts, or None for too few rows or similar columns."""
    if len(sample) < FEWEST_FOR_PROFILE:
        return None
    learned, asked = sample[::2], sample[1::2]  # tested on other rows, to avoid overfitting
    half = letter_profile([source for source, _ in learned], [target for _, target in learned])
    sources = profile_scores(code_points([source for source, _ in asked]), half)
    targets = profile_scores(code_points([target for _, target in asked]), half)
    if np.mean((sources > 0) & (targets < 0)) < USUAL_SHARE:
        return None
    return letter_profile([source for source, _ in sample], [target for _, target in sample])


def _batches(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Yield the pairs in batches with a limited number of rows and characters."""
    for first in pairs:
        batch, characters = [first], len(first[1]) + len(first[2])
        for pair in islice(pairs, _BATCH_ROWS - 1):
            batch.append(pair)
            characters += len(pair[1]) + len(pair[2])
            if characters > _BATCH_CHARACTERS:
                break
        yield batch


def _hashes(batch: list[Pair]) -> np.ndarray:
    """Return the records of a batch with the line, hash and length fields."""
    # Python's 64-bit hash, keyed per process: false matches in ten million rows have odds of 1 to 400,000
    numbers, sources, targets = zip(*batch, strict=True)
    records = np.zeros(len(batch), RECORD)
    records["line"] = numbers
    for side, texts in (("source", sources), ("target", targets)):
        records[side] = np.fromiter(map(hash, texts), np.int64, len(batch))
        records[f"near_{side}"] = np.fromiter((hash(_letters_only(text)) for text in texts), np.int64, len(batch))
        records[f"{side}_length"] = np.fromiter(map(len, texts), np.int64, len(batch))
    return records


def _records(batch: list[Pair], profile: np.ndarray | None) -> np.ndarray:
    records = _hashes(batch)
    sources, targets = [source for _, source, _ in batch], [target for _, _, target in batch]
    points = code_points(sources), code_points(targets)
    source_script, source_letters, source_odd = scripts_and_controls(points[0])
    target_script, target_letters, target_odd = scripts_and_controls(points[1])
    records["source_script"], records["target_script"] = source_script, target_script
    not_nfc = [not unicodedata.is_normalized("NFC", source + "\n" + target) for _, source, target in batch]
    flags = np.array(not_nfc) * NOT_NFC
    flags |= (source_odd | target_odd) * ODD_CHARACTERS
    flags |= (source_letters > 0) * HAS_LETTERS
    flags |= words_apart(points[0], source_letters) * SOURCE_APART
    flags |= words_apart(points[1], target_letters) * TARGET_APART
    if profile is not None:
        sounds_target = profile_scores(points[0], profile) < -SURE_NATS
        sounds_source = profile_scores(points[1], profile) > SURE_NATS
        flags |= (sounds_target & sounds_source) * SOUNDS_SWAPPED
    records["flags"] = flags
    return records


class _Letters(dict[int, int | None]):
    """A table for str.translate that keeps letters and marks and removes all others. Entries are added on demand."""

    def __missing__(self, code: int) -> int | None:
        kept = self[code] = code if unicodedata.category(chr(code))[0] in "LM" else None
        return kept


_letters_table = functools.cache(_Letters)


def _letters_only(text: str) -> str:
    """Return the letters of a text, case-folded and in form NFKC. A text without letters is returned unchanged."""
    folded = text.casefold() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return folded.translate(_letters_table()) or text
