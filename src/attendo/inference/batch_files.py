"""Processing of files of any size, in chunks and in constant memory. A killed command can be resumed.

Finished lines are written to `OUT.part`. The journal `OUT.part.json` contains the options of the command and the
number of valid lines and bytes in `OUT.part`. After each chunk is written to the disk, the journal is replaced
atomically. A resumed command continues after the valid lines. At the end, `OUT.part` is renamed to `OUT`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedRandom
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from attendo.data.data_files import decode, physical_lines, text_lines
from attendo.data.row_report import RowError, refusal
from attendo.errors import AttendoError
from attendo.files import sha256_file, write_atomic

CHUNK_LINES = 1000
CHUNK_CHARACTERS = 1 << 22
"""A chunk ends with the line that reaches one of these limits. After a kill, at most a chunk is computed again."""

Chunk = tuple[int, list[str]]
"""The number of the first line, and the lines."""

Done = tuple[Sequence[str], Mapping[str, int]]
"""One result per line of a chunk, without a trailing line feed, and counts of lines with special properties."""


@dataclass(frozen=True)
class Ahead:
    """Work that accepts further chunks before earlier results are ready. `done` yields all results in order."""

    done: Callable[[Iterator[Chunk]], Iterator[Done]]


Work = Callable[[int, list[str]], Done] | Ahead
"""A function from a chunk to its results, or an `Ahead` object."""


@dataclass(frozen=True)
class Progress:
    """The numbers of lines that are done, in the file, and done by an earlier command (`resumed`).

    `counts` contains the number of finished lines with each special property, for example truncated prompts.
    """

    done: int
    total: int
    resumed: int
    counts: Mapping[str, int]


@dataclass
class _Journal:
    """The request, and the valid part of the output: number of lines and bytes, SHA-256 and counts."""

    request: dict[str, Any]
    lines: int = 0
    size: int = 0
    sha256: str = hashlib.sha256().hexdigest()
    counts: dict[str, int] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        write_atomic(path, json.dumps({"format": 1, **vars(self)}, ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> _Journal:
        try:
            values = json.loads(path.read_bytes())
            if values.pop("format") != 1:
                raise ValueError
            return cls(**values)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise AttendoError(f"{path} is damaged. To fix this, {_begin_anew(path.with_suffix(''))}") from None


def through_file(source: Path, out: Path, work: Work, request: Mapping[str, Any]) -> Iterator[Progress]:
    """Write the result of each line of `source` to `out`, and yield the progress at the start and after each chunk.

    The whole input (UTF-8, optionally gzipped) is checked before the work starts. A partial output with an equal
    `request` is resumed. The results must not depend on chunks or neighboring lines, except for rounding. Chunk borders
    are fixed, so even rounding is reproducible. Raises AttendoError if the input is unreadable, if the output exists,
    or if a partial output is damaged, in use or from another request. After an OSError, all finished lines are kept.

    >>> import tempfile
    >>> def shout(first, lines):
    ...     return [f"{number}: {line.upper()}" for number, line in enumerate(lines, first)], {"empty": lines.count("")}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, out = Path(folder, "in.txt"), Path(folder, "out.txt")
    ...     _ = source.write_text("rain\\n\\nsnow")
    ...     *_, last = through_file(source, out, shout, {"style": "loud"})
    ...     out.read_text(), last.done, dict(last.counts)
    ('1: RAIN\\n2: \\n3: SNOW\\n', 3, {'empty': 1})
    """
    part = out.with_name(out.name + ".part")
    journal_file = out.with_name(out.name + ".part.json")
    total = _checked(source, out)
    wanted = json.loads(json.dumps(dict(request) | {"input": sha256_file(source)}))
    journal = _begun(source, part, journal_file, wanted)
    if _is_finished(journal, total, out, part):
        journal_file.unlink()
        yield Progress(total, total, total, journal.counts)
        return
    require_absent(out)
    if journal.lines == 0:
        journal.save(journal_file)
    resumed = journal.lines
    counts = Counter(journal.counts)
    yield Progress(resumed, total, resumed, dict(counts))
    with _open_part(part) as file:
        digest = _to_the_end(file, part, journal)
        for results, found in _done(work, _chunks(source, journal.lines)):
            data = "".join(f"{result}\n" for result in results).encode("utf-8", "replace")
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            digest.update(data)
            counts.update(found)
            journal.lines = journal.lines + len(results)
            journal.size = journal.size + len(data)
            journal.sha256 = digest.hexdigest()
            journal.counts = dict(counts)
            journal.save(journal_file)
            yield Progress(journal.lines, total, resumed, journal.counts)
        part.replace(out)
    journal_file.unlink()


def _checked(source: Path, out: Path) -> int:
    """Check all lines of the input, and return their number. A later correction would invalidate finished lines."""
    if out.is_dir() or not out.parent.is_dir():
        raise AttendoError(f"{out} is not a possible output file. Give a file in an existing folder")
    n_lines = 0
    for n_lines, text in text_lines(source):
        if isinstance(text, RowError):
            raise refusal(f"{source}:{n_lines}", text)
    if out.exists() and out.samefile(source):
        raise AttendoError(f"{out} is also the input. Give the output another name")
    return n_lines


def _begun(source: Path, part: Path, journal_file: Path, wanted: dict[str, Any]) -> _Journal:
    """Return the journal of an earlier command, or a new journal. Raises AttendoError if the requests differ."""
    if not journal_file.exists():
        if part.exists():
            raise AttendoError(f"{part} exists, but {journal_file.name} does not. Move {part} away")
        return _Journal(wanted)
    journal = _Journal.load(journal_file)
    remedy = _begin_anew(part)
    for key in sorted(journal.request.keys() | wanted.keys(), key=lambda key: (key == "input", key)):
        old = journal.request.get(key)
        new = wanted.get(key)
        if old != new and key == "input":
            raise AttendoError(f"{source} has changed since {part} was started. Restore it, or {remedy}")
        if old != new:
            raise AttendoError(
                f"{part} was started with {key} {_shown(old)}, now it is {_shown(new)}. Use the same options, or"
                f" {remedy}"
            )
    return journal


def _is_finished(journal: _Journal, total: int, out: Path, part: Path) -> bool:
    """Return whether a command was killed after it renamed the output and before it removed the journal."""
    whole = journal.lines == total and not part.exists() and out.is_file()
    return whole and out.stat().st_size == journal.size and sha256_file(out) == journal.sha256


@contextmanager
def _open_part(part: Path) -> Iterator[BufferedRandom]:
    """Open the partial output and lock it for this process."""
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    with os.fdopen(descriptor, "r+b") as file:
        if not lock_descriptor(file.fileno(), blocking=False):
            raise AttendoError(f"{part} is being written by another process. Wait until it ends")
        yield file


def _to_the_end(file: BufferedRandom, part: Path, journal: _Journal) -> hashlib._Hash:
    """Seek to the end of the valid part and remove all later bytes. Raises AttendoError if the part was changed."""
    digest = hashlib.sha256()
    left = journal.size
    while left and (block := file.read(min(left, 1 << 20))):
        digest.update(block)
        left -= len(block)
    if left or digest.hexdigest() != journal.sha256:
        raise AttendoError(f"{part} was changed after it was written. Restore it, or {_begin_anew(part)}")
    file.truncate(journal.size)
    file.seek(journal.size)
    return digest


def _done(work: Work, chunks: Iterator[Chunk]) -> Iterator[Done]:
    if isinstance(work, Ahead):
        yield from work.done(chunks)
        return
    for first, texts in chunks:
        yield whole(texts, work(first, texts))


def whole(texts: Sequence[str], done: Done) -> Done:
    """Check that there is one result per text, and return the results."""
    assert len(done[0]) == len(texts), "a result for each line"
    return done


def _chunks(source: Path, skip: int) -> Iterator[Chunk]:
    """Yield the lines after the first `skip` lines in chunks."""
    first = skip + 1
    texts = []
    characters = 0
    for number, line in physical_lines(source):
        if number <= skip:
            continue
        text = decode(line or b"")
        assert isinstance(text, str) and line is not None, "all lines were checked"
        texts.append(text)
        characters += len(text)
        if len(texts) == CHUNK_LINES or characters >= CHUNK_CHARACTERS:
            yield first, texts
            first = number + 1
            texts = []
            characters = 0
    if texts:
        yield first, texts


def _begin_anew(part: Path) -> str:
    return f"remove {part} and {part.name}.json to start again"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:12]}…"


def require_absent(out: Path) -> None:
    """Raise AttendoError if an output file already exists, because results are never overwritten."""
    if out.exists():
        raise AttendoError(f"{out} already exists. Choose another name, or remove it")
