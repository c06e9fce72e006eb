"""The checks of the data doctor, which compare one short record per row in constant memory.

The hash of the normalized source assigns each row to a bucket, so possible copies are always in the same bucket. A
bucket is kept in memory up to a fixed size, and in a temporary file above this size.
"""

import tempfile
from collections.abc import Iterator
from typing import Self

import numpy as np

from attendo.data.corpora import PairSource
from attendo.data.doctor_report import CHECKS, Finding, LikeLabels, Side
from attendo.data.languages import UNSPACED
from attendo.data.scripts import HAN, JAPANESE, SCRIPTS, USUAL_SHARE, usual_script

N_BUCKETS = 64
HELD_ROWS = 1 << 19
"""The number of records of all buckets in memory: 2**19 records of 51 bytes are 27 MB."""

RECORD = np.dtype(
    [
        ("near_source", "i8"),  # hashes of the normalized and of the exact texts
        ("source", "i8"),
        ("near_target", "i8"),
        ("target", "i8"),
        ("line", "i8"),
        ("source_length", "u4"),  # in characters
        ("target_length", "u4"),
        ("source_script", "u1"),  # codes of scripts.SCRIPTS
        ("target_script", "u1"),
        ("flags", "u1"),  # properties of the row alone, as the bits below
    ]
)
NOT_NFC = 1
ODD_CHARACTERS = 2
SOUNDS_SWAPPED = 4
HAS_LETTERS = 8
SOURCE_APART = 16
TARGET_APART = 32


class RowTable:
    """Append-only table of records with dtype RECORD, as a context manager that removes its temporary files."""

    def __init__(self) -> None:
        most = HELD_ROWS // N_BUCKETS * RECORD.itemsize
        self._files = [tempfile.SpooledTemporaryFile(most) for _ in range(N_BUCKETS)]  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()

    def append(self, records: np.ndarray) -> None:
        """Add a batch of records `[rows]` with dtype RECORD."""
        bucket = records["near_source"] & (N_BUCKETS - 1)
        order = np.argsort(bucket, kind="stable")
        edges = np.searchsorted(bucket[order], np.arange(1, N_BUCKETS))
        for file, part in zip(self._files, np.split(records[order], edges), strict=True):
            file.write(part.tobytes())

    def buckets(self) -> Iterator[np.ndarray]:
        """Yield all records, one bucket at a time. Equal source texts have the same bucket number in every table."""
        for file in self._files:
            file.seek(0)
            yield np.frombuffer(file.read(), RECORD)


MOST_LABELS = 20
ROWS_A_LABEL = 10
"""A column looks like labels if it has at most 20 different texts and, on average, at least 10 rows per text."""

ODD_RATIO = 3.0
SMOOTHING = 10
"""The number of characters that is added to both lengths before the check of their ratio, to tolerate short texts."""

_APART = {"source": SOURCE_APART, "target": TARGET_APART}

_RATIO_STEP = 0.01
_RATIO_BINS = 3_000


class Statistics:
    """Running totals over all records: scripts, lengths and a histogram of the length ratio."""

    def __init__(self) -> None:
        self.n_rows = self.n_swapped = 0
        self.last_line = 0
        self._scripts = {side: np.zeros(len(SCRIPTS), np.int64) for side in ("source", "target")}
        self._characters = {"source": 0, "target": 0}
        self._n_apart = {"source": 0, "target": 0}
        self._longest = {"source": (0, 0), "target": (0, 0)}  # length, line
        self._ratios = np.zeros(_RATIO_BINS, np.int64)
        # only as many as needed to detect labels
        self._different: dict[str, set[int]] = {"source": set(), "target": set()}

    def add(self, records: np.ndarray) -> None:
        self.n_rows += len(records)
        self.n_swapped += int(((records["flags"] & SOUNDS_SWAPPED) > 0).sum())
        self.last_line = max(self.last_line, int(records["line"].max()))
        for side in ("source", "target"):
            lengths = records[f"{side}_length"]
            at = int(lengths.argmax())
            if lengths[at] > self._longest[side][0]:
                self._longest[side] = int(lengths[at]), int(records["line"][at])
            self._characters[side] += int(lengths.sum())
            self._n_apart[side] += int(((records["flags"] & _APART[side]) > 0).sum())
            self._scripts[side] += np.bincount(records[f"{side}_script"], minlength=len(SCRIPTS))
            if len(self._different[side]) <= MOST_LABELS:
                self._different[side].update(np.unique(records[side]).tolist())
        ratios = np.log(records["target_length"] / records["source_length"])
        bins = np.rint(ratios / _RATIO_STEP).astype(np.int64) + _RATIO_BINS // 2
        self._ratios += np.bincount(np.clip(bins, 0, _RATIO_BINS - 1), minlength=_RATIO_BINS)

    def ratio(self, quantile: float) -> float:
        """Return a quantile of target length / source length, with a precision of 1%."""
        reached = np.searchsorted(np.cumsum(self._ratios), quantile * self.n_rows)
        return float(np.exp((reached - _RATIO_BINS // 2) * _RATIO_STEP))

    def usual_script(self, side: str) -> tuple[int, float]:
        return usual_script(self._scripts[side])

    def is_reverse_of(self, other: "Statistics") -> bool:
        """Return whether source and target are swapped in comparison with `other`, judged by scripts or letters."""
        scripts, theirs = [[rows.usual_script(side)[0] for side in ("source", "target")] for rows in (self, other)]
        by_script = all(theirs) and theirs[0] != theirs[1] and scripts == theirs[::-1]
        return by_script or self.n_swapped > USUAL_SHARE * self.n_rows

    @property
    def apart(self) -> int:
        """The flags of columns in which most rows have spaces between words, although the script uses no spaces."""
        return sum(
            flag
            for side, flag in _APART.items()
            if SCRIPTS[self.usual_script(side)[0]] in UNSPACED and 2 * self._n_apart[side] > self.n_rows
        )

    def side(self, side: str) -> Side:
        """Return the statistics of the source or target column."""
        code, share = self.usual_script(side)
        length, line = self._longest[side]
        mean = self._characters[side] / self.n_rows
        return Side(SCRIPTS[code] if code else "", share if code else 0.0, mean, length, line)

    def like_labels(self, source: PairSource) -> LikeLabels | None:
        """Return the column that looks like labels of the texts in the other column, or None."""
        columns = (source.columns or ("1", "2"))[:: -1 if source.reverse else 1]
        numbers = [len(self._different[side]) for side in ("source", "target")]
        label, text = (0, 1) if numbers[0] <= numbers[1] else (1, 0)
        most = min(MOST_LABELS, self.n_rows // ROWS_A_LABEL)
        if not 2 <= numbers[label] <= most or numbers[text] <= MOST_LABELS:
            return None
        named = f"label={columns[label]},text={columns[text]}"
        return LikeLabels(("source", "target")[label], numbers[label], named)


class Comparison:
    """The results of all checks, which run on one bucket at a time: counts, first three lines, and verdicts."""

    def __init__(self, statistics: Statistics, drop: frozenset[str]) -> None:
        self.usual = statistics.usual_script("source")[0], statistics.usual_script("target")[0]
        self.scripts_differ = all(self.usual) and self.usual[0] != self.usual[1]
        self.verdicts = np.zeros(statistics.last_line + 1 if drop else 0, np.uint8)
        self._ratio, self._apart = statistics.ratio(0.5), statistics.apart
        self._drop = drop
        self._counts = {check.name: 0 for check in CHECKS}
        self._lines: dict[str, list[int]] = {check.name: [] for check in CHECKS}

    def add(self, records: np.ndarray, other: np.ndarray) -> None:
        """Check the records of one bucket. `other` contains the records of the other file in the same bucket."""
        found = self._checked_alone(records)
        found["duplicates"], found["near-duplicates"] = later_rows(
            records, ("near_source", "near_target"), ("source", "target")
        )
        _, found["several-targets"] = later_rows(records, ("source",), ("target",))
        found["leaks"] = np.isin(records["source"], other["source"])
        for position, check in reversed(list(enumerate(CHECKS, 1))):
            lines = records["line"][found[check.name]]
            self._counts[check.name] += len(lines)
            self._lines[check.name] = sorted([*self._lines[check.name], *np.sort(lines)[:3].tolist()])[:3]
            if check.name in self._drop:
                self.verdicts[lines] = position

    def findings(self, not_checked: dict[str, str]) -> tuple[Finding, ...]:
        return tuple(
            Finding(
                check,
                self._counts[check.name],
                tuple(self._lines[check.name]),
                not_checked.get(check.name, ""),
            )
            for check in CHECKS
        )

    def _checked_alone(self, records: np.ndarray) -> dict[str, np.ndarray]:
        flags = records["flags"]
        sides = [records["source_script"].copy(), records["target_script"].copy()]
        if JAPANESE in self.usual and HAN not in self.usual:
            for scripts in sides:
                scripts[scripts == HAN] = JAPANESE
        copies = ((flags & HAS_LETTERS) > 0) & (records["near_source"] == records["near_target"])
        swapped = (flags & SOUNDS_SWAPPED) > 0
        if self.scripts_differ:
            swapped |= (sides[0] == self.usual[1]) & (sides[1] == self.usual[0])
        wrong = np.zeros(len(records), bool)
        for scripts, usual in zip(sides, self.usual, strict=True):
            if usual:
                wrong |= (scripts > 0) & (scripts != usual)
        expected = records["source_length"] + SMOOTHING
        ratios = np.log((records["target_length"] / self._ratio + SMOOTHING) / expected)
        return {
            "untranslated": copies,
            "swapped": swapped,
            "wrong-script": wrong & ~swapped & ~copies,
            "length-ratio": np.abs(ratios) > np.log(ODD_RATIO),
            "control-characters": (flags & ODD_CHARACTERS) > 0,
            "normalization": (flags & NOT_NFC) > 0,
            "spaced": (flags & self._apart) > 0,
        }


def later_rows(records: np.ndarray, outer: tuple[str, ...], inner: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return two bool arrays `[rows]`: rows that repeat an earlier row in all keys, and variants of an earlier row.

    A group is all rows with equal outer keys. In a group, the variants are the first rows of each further combination
    of inner keys. The earliest row of a group is in neither array.
    """
    order = np.lexsort((records["line"], *(records[key] for key in (*inner, *outer))))
    changes = np.zeros(len(records), bool)
    starts = {}
    for keys in (outer, inner):
        for key in keys:
            column = records[key][order]
            changes[:1] = True
            changes[1:] |= column[1:] != column[:-1]
        starts[keys] = changes.copy()
    equal, variant = np.zeros((2, len(records)), bool)
    equal[order] = ~starts[inner]
    lines = records["line"][order]
    if len(records):
        earliest = np.minimum.reduceat(lines, np.flatnonzero(starts[outer]))
        variant[order] = starts[inner] & (lines != earliest[np.cumsum(starts[outer]) - 1])
    return equal, variant
