"""Data files: the expansion of file patterns, and readers for plain or gzipped lines of limited length."""

import glob
import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from attendo.data.row_report import LINE_CAP, RowError
from attendo.errors import AttendoError

BINARY = (".parquet", ".xlsx")
TABLES = (".tsv", ".csv", ".jsonl", *BINARY)
"""The suffixes of files with rows and columns. A folder selects these files. Each suffix may be followed by .gz."""


def expanded(name: Path, suffixes: tuple[str, ...] | None) -> tuple[Path, ...]:
    """Return the files that a name matches, sorted by path. Raises AttendoError if a folder or pattern matches no file.

    A folder matches all visible files in it, at any depth, that end in one of `suffixes` (None: any suffix). A name
    with `*`, `?` or `[…]` is a pattern, in which `**` matches any folders. Any other name is returned unchanged.
    """
    if name.is_dir():
        return _inside(name, suffixes)
    if name.exists():
        return (name,)
    base, rest = Path(name.anchor), list(name.relative_to(name.anchor).parts)
    while (base / rest[0]).is_dir():  # the name of a folder may contain wildcards
        base /= rest.pop(0)
    pattern = Path(*rest)
    if not is_pattern(pattern):
        return (name,)
    found = glob.glob(str(pattern), root_dir=base, recursive=True)  # noqa: PTH207 (Path's finds hidden files)
    files = [Path(file) for file in found if (base / file).is_file()]
    if not files:
        raise AttendoError(f"{name}: no file matches this pattern. Fix it, or check the files")
    return tuple(base / file for file in sorted(files, key=Path.as_posix))


def is_pattern(name: Path) -> bool:
    """Return whether a name contains a wildcard.

    >>> is_pattern(Path("shards/*.tsv")), is_pattern(Path("train.tsv"))
    (True, False)
    """
    return glob.has_magic(str(name))


def _inside(folder: Path, suffixes: tuple[str, ...] | None) -> tuple[Path, ...]:
    inside = sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix())
    files = tuple(
        path
        for path in inside
        if (suffixes is None or suffix(path) in suffixes)
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        ends = "" if suffixes is None else f" ends in {' or '.join(suffixes)}"
        raise AttendoError(
            f"{folder}: no file in this folder{ends}. Name files or a quoted pattern, such as '{folder}/*'"
        )
    return files


TOO_LONG = RowError("too long")
_BOM = b"\xef\xbb\xbf"


def suffix(path: Path) -> str:
    """Return the suffix that determines the file format, in lower case and without a final .gz.

    >>> suffix(Path("train.TSV.gz"))
    '.tsv'
    """
    return (Path(path.stem) if path.suffix.lower() == ".gz" else path).suffix.lower()


def require_file(path: Path) -> None:
    """Raise AttendoError if the path does not exist or is not a regular file."""
    if not path.exists():
        raise AttendoError(f"{path}: no such file; check the path")
    if not path.is_file():
        raise AttendoError(f"{path} is not a regular file. Data is read more than once, so save it to a file first")


@contextmanager
def open_binary(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """Open a file for reading bytes, and decompress it if its name ends in .gz.

    Raises AttendoError if the file is missing or damaged.
    """
    require_file(path)
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            yield stream
    except EOFError:
        raise AttendoError(f"{path} is truncated: its gzip data ends too early. Copy or download it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise AttendoError(f"{path} is not a valid gzip file ({error}). Copy it again, or rename it") from None


def physical_lines(path: Path, keep_ends: bool = False) -> Iterator[tuple[int, bytes | None]]:
    """Yield the numbered lines of a file as bytes. A line longer than LINE_CAP is yielded as None.

    A byte-order mark is removed. A UTF-16 file raises AttendoError. A last line without LF counts as a line.
    """
    with open_binary(path) as stream:
        number = 0
        while chunk := stream.readline(LINE_CAP + 2):
            number += 1
            if number == 1:
                if chunk.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise AttendoError(f"{path} is UTF-16 (expected UTF-8). Save it as UTF-8")
                if chunk.startswith(b"PK\x03\x04"):
                    raise AttendoError(f"{path} is a zip archive, perhaps a renamed spreadsheet. Rename it to .xlsx")
                chunk = chunk.removeprefix(_BOM)
            if chunk.endswith(b"\n"):
                line = chunk[:-2] if chunk.endswith(b"\r\n") else chunk[:-1]
            else:
                line = chunk
                while chunk and not chunk.endswith(b"\n"):  # skip the rest of an over-long line
                    chunk = stream.readline(LINE_CAP)
            if len(line) > LINE_CAP:
                yield number, None
            else:
                yield number, chunk if keep_ends and chunk else line


def taken_off(paths: Iterable[Path]) -> str:
    """Return a description of what a reader removes from the lines of these files, or "" if nothing is removed.

    Only the first line of each file is checked.
    """
    has_mark = has_ends = False
    for path in paths:
        if suffix(path) not in BINARY:
            with open_binary(path) as stream:
                first = stream.readline(LINE_CAP)
            has_mark |= first.startswith(_BOM)
            has_ends |= first.endswith(b"\r\n")
    found = {"byte order marks": has_mark, "Windows line endings": has_ends}
    return " and ".join(words for words, is_there in found.items() if is_there)


def count_lines(path: Path) -> int:
    """Return the number of lines that `physical_lines` yields, without splitting the file into lines."""
    count = 0
    last = b"\n"
    with open_binary(path) as stream:
        while block := stream.read(LINE_CAP):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def decode(line: bytes) -> str | RowError:
    """Return the text of a line, or the row error "invalid UTF-8" with the first invalid byte.

    >>> decode(b"ab\\xff").detail
    'byte 0xff at position 3'
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        return not_utf8(error)


def not_utf8(error: UnicodeDecodeError) -> RowError:
    """Return the row error for the first invalid byte of a line."""
    return RowError("invalid UTF-8", f"byte 0x{error.object[error.start]:02x} at position {error.start + 1}")


def text_lines(path: Path) -> Iterator[tuple[int, str | RowError]]:
    """Yield the decoded lines of a text file with their numbers."""
    for number, line in physical_lines(path):
        yield number, TOO_LONG if line is None else decode(line)
