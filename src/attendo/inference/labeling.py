"""Labeling of texts by a person: the order of the texts, and the file that gets each label at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from attendo.data.data_files import suffix
from attendo.data.labelled import LabelledSource, read_labelled
from attendo.errors import AttendoError
from attendo.files import locked, write_atomic
from attendo.inference.classifier import Classification, Classifier
from attendo.inference.tables import csv_line

SUFFIXES = (".csv", ".jsonl")


def margin(found: Classification) -> float:
    """Return the difference between the two largest probabilities, which is small if unsure (Scheffer et al. 2001)."""
    first, second, *_ = found.probabilities.values()
    return first - second


class LabelFile:
    """A growing file of labeled texts in a format that training reads. Each label is on the disk when `add` returns.

    The file is replaced as a whole, so it never has a part of a record. Raises AttendoError if the suffix is neither
    .csv nor .jsonl, if an existing file has other columns or an unusable row, or if another process writes it.
    """

    def __init__(self, path: Path, columns: tuple[str, str] = ("label", "text")) -> None:
        if suffix(path) not in SUFFIXES or path.suffix == ".gz":
            raise AttendoError(f"`out` {path} must end in {' or '.join(SUFFIXES)}")
        self._place = path.resolve()  # links to the file share its lock
        if path.is_dir() or not self._place.parent.is_dir():
            raise AttendoError(f"`out` {path} is not a possible output file. Give a file in an existing folder")
        self.columns = columns
        self._is_csv = suffix(path) == ".csv"
        self._sizes: list[int] = []
        head = csv_line(columns).encode() if self._is_csv else b""
        self.labels: dict[str, str] = {}
        with ExitStack() as held:
            if not held.enter_context(locked(self._place.with_name(f".{self._place.name}.lock"))):
                raise AttendoError(f"{path} is being written by another process. Wait until it ends")
            self._data = self._place.read_bytes() if self._place.exists() else b""
            if self._data and not self._data.endswith(b"\n"):
                self._data += b"\n"  # the next label starts a line of its own
            if self._data and not self._data.startswith(head):
                raise AttendoError(f"{path} has other columns (expected {','.join(columns)}). Give a new file")
            if len(self._data) > len(head):
                source = LabelledSource(path, columns)
                self.labels = {row.text: row.label for row in read_labelled(source, strict=True)}
            else:
                self._write(head)
            self._held = held.pop_all()

    def add(self, label: str, text: str) -> None:
        """Append a labeled text. After an error of the system, the file is unchanged."""
        row = dict(zip(self.columns, (label, text), strict=True))
        line = csv_line((label, text)) if self._is_csv else json.dumps(row, ensure_ascii=False) + "\n"
        size = len(self._data)
        self._write(self._data + line.encode())
        self._sizes.append(size)
        self.labels[text] = label

    def undo(self, text: str) -> None:
        """Remove the label that was added last, that of `text`."""
        self._write(self._data[: self._sizes.pop()])
        del self.labels[text]

    def close(self) -> None:
        """Let other processes write the file."""
        self._held.close()

    def _write(self, data: bytes) -> None:
        write_atomic(self._place, data)
        self._data = data


class Labeling:
    """The labeling of the texts of a queue in their order, with skipped texts and undo."""

    def __init__(self, queue: Sequence[Classification], file: LabelFile) -> None:
        self.queue = queue
        self.file = file
        self._is_labeled: list[bool] = []  # otherwise, the text was skipped

    @property
    def place(self) -> int:
        """The place of the current text in the queue, from 0."""
        return len(self._is_labeled)

    @property
    def current(self) -> Classification | None:
        """The current text, or None after the last text."""
        return self.queue[self.place] if self.place < len(self.queue) else None

    def label(self, name: str) -> None:
        """Give the current text a label, which is written at once."""
        self.file.add(name, self.queue[self.place].text)
        self._is_labeled.append(True)

    def skip(self) -> None:
        """Go to the next text. The current text gets no label."""
        self._is_labeled.append(False)

    def undo(self) -> None:
        """Go back to the previous text of this session and remove its label. At the first text, nothing changes."""
        if self.place and self._is_labeled.pop():
            self.file.undo(self.queue[self.place].text)


def to_label(classifier: Classifier, texts: Iterable[str], file: LabelFile) -> list[Classification]:
    """Return the different texts that have no label in a file, the texts of which the classifier is least sure first.

    Texts without content are left out.
    """
    new = [text for text in dict.fromkeys(texts) if text.strip() and text not in file.labels]
    return sorted(classifier.classify(new), key=margin)
