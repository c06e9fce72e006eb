"""Data in many files: what a name stands for, which is a file, a folder, or a pattern of files."""

import glob
from pathlib import Path

from attendo.data.lines import suffix
from attendo.errors import AttendoError

TABLES = (".tsv", ".csv", ".jsonl", ".parquet")
"""The suffixes of files with rows and columns, for which a folder stands; each may be followed by .gz."""


def expanded(name: Path, suffixes: tuple[str, ...] | None) -> tuple[Path, ...]:
    """The files that a name stands for, in the order of their paths.

    A folder stands for the files with these suffixes (None: all files) anywhere in it, a name with `*`, `?` or `[…]`
    for those that match it (`**` for any folders), but no hidden ones; any other name, and that of a file, for itself.
    Raises AttendoError where there is none.
    """
    if name.is_dir():
        return _inside(name, suffixes)
    if name.exists():
        return (name,)
    base, rest = Path(name.anchor), list(name.relative_to(name.anchor).parts)
    while (base / rest[0]).is_dir():  # a folder may have such signs in its name
        base /= rest.pop(0)
    pattern = Path(*rest)
    if not is_pattern(pattern):
        return (name,)
    found = glob.glob(str(pattern), root_dir=base, recursive=True)  # noqa: PTH207 (Path's finds hidden files)
    files = [Path(file) for file in found if (base / file).is_file()]
    if not files:
        raise AttendoError(f"{name}: no file matches this pattern; check it, and that the files are there")
    return tuple(base / file for file in sorted(files, key=Path.as_posix))


def is_pattern(name: Path) -> bool:
    """Whether a name has a sign of a pattern in it.

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
            f"{folder}: no file in this folder{ends}; name the files, or a quoted pattern, as '{folder}/*'"
        )
    return files
