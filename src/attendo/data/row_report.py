"""The report of a data file's rows: each row is used, or skipped for a counted reason."""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from attendo.display.formats import plural
from attendo.display.i18n import Language
from attendo.errors import AttendoError

LINE_CAP = 1_048_576
"""The maximum number of bytes of a line or CSV record. A longer line is skipped as "too long"."""

MANY_ROWS = 20
"""In a file with at least this many rows, an error is raised if most rows are not UTF-8."""

_FILL = "fill the field or delete the row"
REASONS = {
    "empty line": ("delete the line", "空行"),
    "no source": (_FILL, "原文なし"),
    "no target": (_FILL, "訳文なし"),
    "no label": (_FILL, "ラベルなし"),
    "no labels": (_FILL, "ラベルなし"),
    "no number": (_FILL, "数値なし"),
    "no text": (_FILL, "テキストなし"),
    "no second": (_FILL, "2 番目のテキストなし"),
    "wrong number of columns": ("fix the row, or choose columns with {option}", "列の数の誤り"),
    "invalid UTF-8": ("save the file as UTF-8", "UTF-8 でない"),
    "NUL character": ("remove the character", "NUL 文字"),
    "too long": (f"split the row (a line may have at most {LINE_CAP:,} bytes)", "長すぎる行"),
    "broken quoting": ("double each quote inside a quoted field and close the field", "引用符の誤り"),
    "invalid JSON": ("write one JSON object per line", "JSON の誤り"),
    "missing key": ("add the key, or choose keys with {option}", "キーなし"),
    "not text": ("write text into the field", "テキストでない値"),
    "invalid spans": ("write a list of [start, end, label], in characters from 0", "スパンの誤り"),
    "overlapping spans": ("delete one of both", "重なるスパン"),
    "invalid labels": ("write labels with | between them, or a JSON list of labels", "ラベルの誤り"),
    "invalid number": ("write a finite number such as 3.5 or -2e3", "数値の誤り"),
    "invalid tag": ("write O, B-LABEL or I-LABEL into the last column", "タグの誤り"),
    "invalid messages": ("write a list of objects with the texts role and content", "メッセージの誤り"),
    "unknown role": ("use system, user or assistant", "未知の役割"),
    "empty content": ("write the content or delete the turn", "空の内容"),
    "wrong order of turns": (
        "begin with the user, after at most one system message, and alternate user and assistant",
        "発言の順序の誤り",
    ),
    "no answer": ("add the turn of the assistant", "回答なし"),
    "equal answers": ("give two different answers", "同じ回答"),
    "lone surrogate": (r"write the character as a pair of \u escapes, or as UTF-8", "単独のサロゲート"),
}
"""For each reason why a reader skips a row: the suggested fix, in which {option} is the option that selects columns,
and the Japanese name of the reason.
"""


@dataclass(frozen=True, slots=True)
class RowError:
    """The reason why a row cannot be used, which is a key of `REASONS`, and the invalid value."""

    reason: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


def refusal(place: str, row_error: RowError) -> AttendoError:
    """Return an error with a place ("file:line"), the reason and the suggested fix, for text files without columns."""
    return AttendoError(f"{place}: {row_error}; {REASONS[row_error.reason][0]}")


@dataclass(slots=True)
class Skipped:
    """The rows that are skipped for one reason: their number, the first three lines, and details of the first row."""

    count: int = 0
    lines: list[int] = field(default_factory=list)
    detail: str = ""


@dataclass(slots=True)
class FilePart:
    """One of several files in a row report: the number of rows before this file, and the counts of this file."""

    file: str
    start: int
    read: int = 0
    used: int = 0


@dataclass
class RowReport:
    """The counts of read, used and skipped rows of one or more files. After every row, `read == used + n_skipped`.

    Rows are numbered by line, and the numbers continue from file to file. Messages show the line number in each file.

    Attributes:
        option: The option that selects the columns, for the suggested fixes.

    >>> row_report = RowReport("train.tsv", read=3, used=2)
    >>> row_report.skip(17, RowError("no label"))
    >>> row_report.line()
    'train.tsv: 3 rows read, 2 used, 1 skipped (1 no label: line 17)'
    """

    file: str
    read: int = 0
    used: int = 0
    skipped: dict[str, Skipped] = field(default_factory=dict)
    option: str = "`columns`"
    parts: list[FilePart] = field(default_factory=list)

    def begin(self, file: str, start: int) -> None:
        """Begin to count the rows of another file.

        Args:
            file: The name of the file.
            start: The number of the last row before this file.
        """
        self.end()
        self.parts.append(FilePart(file, start, self.read, self.used))

    def end(self) -> None:
        """Finish the current file. The counts of the file are the rows counted since `begin`."""
        if self.parts:
            part = self.parts[-1]
            part.read = self.read - part.read
            part.used = self.used - part.used

    def place(self, number: int) -> str:
        """Return the file and line number of a row, in the form "file:line".

        Args:
            number: The number of the row.
        """
        if len(self.parts) < 2:
            return f"{self.file}:{number}"
        part = self.parts[bisect_right(self.parts, number - 1, key=lambda part: part.start) - 1]
        return f"{part.file}:{number - part.start}"

    def places(self, numbers: list[int], count: int) -> str:
        """Return the line numbers of some rows for display, with file names if there are several files.

        Args:
            numbers: The numbers of the first rows to list.
            count: The total number of rows. If this number is larger than the list, "…" is appended.

        >>> RowReport("train.tsv").places([3, 5, 8], 40)
        'lines 3, 5, 8, …'
        """
        several = len(self.parts) > 1
        word = "" if several else "line " if count == 1 else "lines "
        places = map(self.place, numbers) if several else map(str, numbers)
        return f"{word}{', '.join(places)}{', …' if count > len(numbers) else ''}"

    @property
    def n_skipped(self) -> int:
        return sum(entry.count for entry in self.skipped.values())

    def skip(self, number: int, row_error: RowError, strict: bool = False) -> None:
        """Count a skipped row.

        Args:
            number: The number of the row.
            row_error: The reason why the row cannot be used.
            strict: Whether an error is raised instead of counting the row.

        Raises:
            AttendoError: `strict` is set. The message contains the file, the line, the reason and the suggested fix.
        """
        if strict:
            raise AttendoError(
                f"{self.place(number)}: {row_error}; {self._remedy(row_error.reason)}, or remove `strict` to "
                "skip such rows"
            )
        entry = self.skipped.setdefault(row_error.reason, Skipped(detail=row_error.detail))
        entry.count += 1
        if len(entry.lines) < 3:
            entry.lines.append(number)

    def drop(self, number: int, reason: str) -> None:
        """Move a row that was counted as used to the skipped rows.

        Args:
            number: The number of the row.
            reason: The reason why the row is dropped.
        """
        self.used -= 1
        self.skip(number, RowError(reason))

    def require_used(self) -> None:
        """Check that at least one row is usable.

        Raises:
            AttendoError: No row is usable, or the file has many rows and most of them are not UTF-8.
        """
        if self.read == 0:
            raise AttendoError(f"{self.file} is empty (expected at least one row of data)")
        encoded = self.skipped.get("invalid UTF-8", Skipped()).count
        if self.used and self.read >= MANY_ROWS and 2 * encoded > self.read:
            raise AttendoError(
                f"{self.file}: {encoded:,} of {plural(self.read, 'row')} are not UTF-8. Save the file as UTF-8"
            )
        if self.used == 0:
            reason, worst = max(self.skipped.items(), key=lambda item: item[1].count)
            detail = f" ({worst.detail})" if worst.detail else ""
            raise AttendoError(
                f"{self.file}: none of {plural(self.read, 'row')} can be used: "
                f"{self._reasons()}{detail}; {self._remedy(reason)}"
            )

    def line(self, language: Language = "en") -> str:
        """Return the report in one line for display.

        Args:
            language: The language of the line, "en" or "ja".

        >>> RowReport("train.tsv", read=2000, used=2000).line("ja")
        'train.tsv：2,000 行を読み、2,000 行を使用、0 行を除外'
        """
        if language == "ja":
            counts = f"{self.read:,} 行を読み、{self.used:,} 行を使用、{self.n_skipped:,} 行を除外"
            reasons = "、".join(
                f"{REASONS.get(reason, ('', reason))[1]} {e.count:,} 行：{'、'.join(map(self.place, e.lines))}"
                + ("、…" if e.count > len(e.lines) else "")
                for reason, e in self.skipped.items()
            )
            return f"{self.file}：{counts}" + (f"（{reasons}）" if reasons else "")
        text = f"{self.file}: {self.counts()}"
        return f"{text} ({self._reasons()})" if self.skipped else text

    def counts(self) -> str:
        """Return the numbers of read, used and skipped rows, and the number of files if there are several."""
        files = f"{len(self.parts):,} files, " if len(self.parts) > 1 else ""
        return f"{files}{plural(self.read, 'row')} read, {self.used:,} used, {self.n_skipped:,} skipped"

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON output and for the run folder."""
        skipped = {
            reason: {"count": entry.count, "lines": self.places_json(entry.lines)}
            for reason, entry in self.skipped.items()
        }
        values = {"file": self.file, "read": self.read, "used": self.used, "skipped": skipped}
        if len(self.parts) > 1:
            values["files"] = [{"file": p.file, "read": p.read, "used": p.used} for p in self.parts]
        return values

    def places_json(self, numbers: list[int]) -> list[int] | list[str]:
        """Return the locations of rows for JSON output: line numbers, or "file:line" if there are several files.

        Args:
            numbers: The numbers of the rows.
        """
        return [*map(self.place, numbers)] if len(self.parts) > 1 else numbers

    def _remedy(self, reason: str) -> str:
        return REASONS.get(reason, ("remove `drop`, or name fewer checks", ""))[0].format(option=self.option)

    def _reasons(self) -> str:
        return ", ".join(f"{e.count:,} {reason}: {self.places(e.lines, e.count)}" for reason, e in self.skipped.items())
