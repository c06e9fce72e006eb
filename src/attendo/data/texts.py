"""Documents for language modeling: a user's texts of any size, streamed in chunks, and Python's own source code.

A document is a text file, a line or a paragraph of a text file, or the text of a row of a table (.csv, .xlsx, ...).
Each file can be gzipped (.gz). A folder selects its text files. At most one chunk or row is in memory at a time.
"""

import codecs
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attendo.data.corpora import read_lines
from attendo.data.data_files import TABLES, expanded, is_pattern, open_binary, suffix, text_lines
from attendo.data.held_out import source_hash
from attendo.data.row_report import RowError, RowReport, refusal
from attendo.display.formats import plural
from attendo.errors import AttendoError

Documents = Literal["file", "line", "blank"]
Part = Literal["train", "valid"]

STDLIB = "stdlib"
"""The name of a corpus that is available on every machine: the source code of Python's standard library."""

VALID_ONE_IN = 20
"""One in 20 files of the standard library is used for validation. A hash of the path selects these files."""

_BLOCK = 1 << 16  # bytes read at a time
_CHUNK = 1 << 14  # maximum number of characters in a chunk
_NO_SOURCE = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3"}


class Chunk(NamedTuple):
    """A non-empty part of a document. `starts` is True for the first chunk of a document."""

    text: str
    starts: bool


@dataclass(frozen=True)
class TextSource:
    """The location of documents for language modeling.

    Attributes:
        files: The names of files, folders or patterns; see `expanded`.
        column: The text column of files with columns, by name or 1-based number (default: see `read_lines`).
        header: Whether a .tsv file starts with a header.
        documents: The unit of a document in a text file: the whole file, a line, or the lines between blank lines
            ("blank"). The text of a whole file is unchanged, except that a byte-order mark is removed.
        suffixes: The file extensions that a folder selects.
        tolerant: Whether files that are not UTF-8 text are skipped and counted (default: such files raise an error).
        label: The name of the texts in messages (default: the file names).
    """

    files: tuple[Path, ...]
    column: str | None = None
    header: bool = False
    documents: Documents = "file"
    suffixes: tuple[str, ...] = (".txt",)
    tolerant: bool = False
    label: str = ""

    def __post_init__(self) -> None:
        if not self.files:
            raise AttendoError("no text is given. Give a file, a folder or stdlib")
        named = (expanded(name, self.suffixes) if is_pattern(name) else (name,) for name in self.files)
        with_rows = [has_rows(path) for paths in named for path in paths]
        if all(with_rows) and self.documents != "file":
            raise AttendoError(f"{self.name}: each row is a document. Remove documents={self.documents!r}")
        is_text = not any(with_rows) and not set(self.suffixes) & set(TABLES)
        if is_text and (self.column or self.header):
            raise AttendoError(f"{self.name}: a text file has no columns. Remove the column and the header")

    @property
    def name(self) -> str:
        names = [str(path) for path in self.files]
        few = " + ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"
        return self.label or few

    def paths(self) -> list[Path]:
        """Return the files, sorted by name within each folder. Raises AttendoError for a folder without files."""
        return [path for name in self.files for path in expanded(name, self.suffixes)]

    def options(self) -> dict[str, Any]:
        """Return the options that select the documents to read. The key of a token store depends on these options."""
        return {"column": self.column, "header": self.header, "documents": self.documents}


@dataclass
class Reading:
    """The progress of reading documents: the used and skipped files, and a row report for each file with rows.

    >>> Reading("notes", n_files=3, n_documents=2, left_out={"empty file": ["b.txt"]}).line()
    'notes: 3 files, 2 documents, 1 file skipped (empty file: b.txt)'
    """

    name: str
    n_files: int = 0
    n_documents: int = 0
    left_out: dict[str, list[str]] = field(default_factory=dict)
    row_reports: list[RowReport] = field(default_factory=list)

    def line(self) -> str:
        """Return the counts of files and documents in one line for display, without the row reports."""
        text = f"{self.name}: {plural(self.n_files, 'file')}, {plural(self.n_documents, 'document')}"
        n_left_out = sum(map(len, self.left_out.values()))
        return f"{text}, {plural(n_left_out, 'file')} skipped ({self.reasons()})" if n_left_out else text

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "files": self.n_files,
            "documents": self.n_documents,
            "left_out": self.left_out,
            "accounts": [report.as_json() for report in self.row_reports],
        }

    def leave_out(self, path: Path, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(str(path))

    def reasons(self) -> str:
        """Return why files were skipped, with the names of the first files."""
        parts = []
        for reason, files in self.left_out.items():
            more = "" if len(files) < 4 else f" and {len(files) - 3:,} more"
            parts.append(f"{reason}: {', '.join(files[:3])}{more}")
        return "; ".join(parts)


def has_rows(path: Path) -> bool:
    """Return whether each row of a file is a document: a suffix in TABLES, optionally followed by .gz."""
    return suffix(path) in TABLES


def standard_library(part: Part) -> TextSource:
    """Return the source files of Python's standard library as documents, without tests, IDLE and installed packages.

    A hash of each path selects the validation files, so different Python versions select the same files. Raises
    AttendoError if this Python has no source files.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    chosen = [
        folder / inside
        for inside in _library_files(folder)
        if (source_hash(inside.as_posix()) % VALID_ONE_IN == 0) == (part == "valid")
    ]
    if not chosen:
        raise AttendoError(f"{folder}: this Python has no source files. Name a text file to train on")
    return TextSource(tuple(chosen), tolerant=True, label=f"{STDLIB} ({part})")


def read_documents(source: TextSource, strict: bool = False, reading: Reading | None = None) -> Iterator[Chunk]:
    """Read documents, and yield their text in chunks.

    Together, the chunks of a document contain its whole text. If possible, a chunk begins at a space or a new line. The
    tokens of the chunk are then the same as in the whole text.

    Args:
        source: The location of the documents.
        strict: Whether the first unusable row or line raises an error (default: the row is skipped and counted).
        reading: The progress report, which is updated while reading (default: a new report).

    Raises:
        AttendoError: There is no document, or a text file that is read whole or by paragraph contains an invalid line.
    """
    reading = Reading(source.name) if reading is None else reading
    for path in source.paths():
        reading.n_files += 1
        if source.tolerant and not _is_text(path):
            reading.leave_out(path, "not UTF-8 text")
            continue
        n_before = reading.n_documents
        for chunk in _chunks(_pieces(path, source, strict, reading)):
            reading.n_documents += chunk.starts
            yield chunk
        if reading.n_documents == n_before:
            reading.leave_out(path, "no text" if path.stat().st_size else "empty file")
    if reading.n_documents == 0:
        raise AttendoError(f"{source.name}: no document ({reading.reasons()}). Give a file with text")


def _library_files(folder: Path) -> list[Path]:
    """Return the source files in the folder of the standard library, sorted by name."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NO_SOURCE]
        inside = Path(place).relative_to(folder)
        # _sysconfigdata contains the build settings of this Python, not source code
        found += [inside / name for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata")]
    return sorted(found, key=Path.as_posix)


_Pieces = Iterator[str | None]
"""Parts of texts, with None at the end of each document."""


def _pieces(path: Path, source: TextSource, strict: bool, reading: Reading) -> _Pieces:
    rows = has_rows(path)
    if rows or source.documents == "line":
        row_report = RowReport(str(path), option="`column`")
        reading.row_reports.append(row_report)
        column, header = (source.column, source.header) if rows else (None, False)
        for _, text in read_lines(path, column, header, strict, row_report):
            yield text
            yield None
    elif source.documents == "blank":
        yield from _paragraphs(path)
    else:
        yield from _whole(path)


def _chunks(pieces: _Pieces) -> Iterator[Chunk]:
    """Yield the documents in chunks of at most _CHUNK characters."""
    held, starts = "", True
    for piece in pieces:
        held += piece or ""
        while len(held) > _CHUNK:
            end = _end_of_chunk(held)
            yield Chunk(held[:end], starts)
            held, starts = held[end:], False
        if piece is None:
            if held:
                yield Chunk(held, starts)
            held, starts = "", True


def _end_of_chunk(text: str) -> int:
    """Return the end of the first chunk: before the last space, otherwise after a line, otherwise at the limit."""
    # a line is cut only where white space begins or ends, because no tokenizer joins text across such a place
    space = text.rfind(" ", 1, _CHUNK)
    if space > 0:
        return space
    line = text.rfind("\n", 1, _CHUNK)
    if line > 0 and not text[line + 1].isspace():
        return line + 1
    return line if line > 0 and not text[line - 1].isspace() else _CHUNK


def _whole(path: Path) -> _Pieces:
    """Yield a file as one document, or nothing if it contains only white space."""
    pieces = _decoded(path)
    first = next(pieces, "")
    second = next(pieces, None)
    if first.strip() or second is not None:
        yield first
        yield second or ""
        yield from pieces
        yield None


def _paragraphs(path: Path) -> _Pieces:
    """Yield the documents that are separated by blank lines. The lines of each document are joined by LF."""
    inside = False
    for number, text in text_lines(path):
        if isinstance(text, RowError):
            raise refusal(f"{path}:{number}", text)
        if "\0" in text:
            raise refusal(f"{path}:{number}", RowError("NUL character"))
        if text.strip():
            yield f"\n{text}" if inside else text
            inside = True
        elif inside:
            yield None
            inside = False
    if inside:
        yield None


def _decoded(path: Path) -> Iterator[str]:
    """Yield the text of a file block by block. Raises AttendoError that names the first invalid line."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line = 1
    with open_binary(path) as stream:
        while True:
            block = stream.read(_BLOCK)
            if line == 1 and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise AttendoError(f"{path} is UTF-16 (expected UTF-8). Save it as UTF-8")
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start)
                row_error = RowError("invalid UTF-8", f"byte 0x{error.object[error.start]:02x}")
                raise refusal(f"{path}:{line}", row_error) from None
            if "\0" in text:
                line += text.count("\n", 0, text.index("\0"))
                raise refusal(f"{path}:{line}", RowError("NUL character"))
            line += text.count("\n")
            if text:
                yield text
            if not block:
                return


def _is_text(path: Path) -> bool:
    """Return whether the whole file is valid UTF-8 text."""
    try:
        for _ in _decoded(path):
            pass
    except AttendoError:
        return False
    return True
