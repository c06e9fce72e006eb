"""Film reviews with their labels, from the data set's folder or from files, and as the lecture's word ids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from attendo.data.held_out import source_hash
from attendo.data.labelled import LabelledRow, LabelledSource, count_labels, read_labelled
from attendo.data.lines import text_lines
from attendo.errors import AttendoError
from attendo_course.lessons.arrays import Examples

UNKNOWN_ID, PAD_ID = 0, 1
"""The lecture's."""
CLASSES = ("neg", "pos")
VALIDATION = 10
"""One training review in so many validates."""
HOME = "https://ai.stanford.edu/~amaas/data/sentiment"


@dataclass(frozen=True)
class Reviews:
    """Labelled reviews: to learn from, to choose by, and to be tested on; labels: their names, sorted."""

    labels: tuple[str, ...]
    train: Sequence[LabelledRow]
    valid: Sequence[LabelledRow]
    test: Sequence[LabelledRow]

    @property
    def n_known(self) -> int:
        """Test reviews whose text is also one to learn from or to choose by."""
        known = {row.text for row in (*self.train, *self.valid)}
        return sum(row.text in known for row in self.test)

    def ids(self, rows: Iterable[LabelledRow]) -> list[int]:
        """The class of each row: the place of its label."""
        return [self.labels.index(row.label) for row in rows]


def reviews(files: Sequence[Path]) -> Reviews:
    """The reviews of the folder aclImdb, or of a file to learn from and one for the test.

    The training reviews whose hash is a multiple of ten validate, so that equal texts are on one side. Raises
    AttendoError for other files than these, for unreadable ones, and for a test label that training has not.
    """
    match files:
        case [*given] if missing := [path for path in given if not path.exists()]:
            raise AttendoError(f"{missing[0]}: no such file or folder; film reviews are at {HOME}")
        case [folder] if folder.is_dir():
            train, test = _folder(folder / "train"), _folder(folder / "test")
        case [first, second]:
            train, test = _file(first), _file(second)
        case _:
            told = f"{len(files)} given; " if files else ""
            raise AttendoError(
                f"{told}the lesson needs film reviews: get them from {HOME} and give the folder, --train aclImdb, or"
                " two files of a label and a text a row, --train TRAIN.tsv --train TEST.tsv"
            )
    labels = tuple(count_labels(train, str(files[0])))
    if strange := next((row for row in test if row.label not in labels), None):
        raise AttendoError(
            f"{files[-1]}:{strange.number}: the label {strange.label!r} is none of {', '.join(labels)} of {files[0]}"
        )
    valid = [row for row in train if source_hash(row.text) % VALIDATION == 0]
    rest = [row for row in train if source_hash(row.text) % VALIDATION]
    for name, part in (("training", rest), ("validation", valid)):
        if {row.label for row in part} != set(labels):
            raise AttendoError(
                f"{files[0]}: of its {len(train)} texts {len(part)} are for {name}, which lack a label: give more texts"
            )
    return Reviews(labels, rest, valid, test)


def _folder(folder: Path) -> list[LabelledRow]:
    """Texts under the names of their labels, as the data set has them: neg/*.txt and pos/*.txt."""
    found = [(label, path) for label in CLASSES for path in sorted((folder / label).glob("*.txt"))]
    if not found:
        raise AttendoError(
            f"{folder}: no neg/*.txt and pos/*.txt in it; give the folder that holds train and test"
        )
    return [
        LabelledRow(number, label, path.read_text("utf-8")) for number, (label, path) in enumerate(found, 1)
    ]


def _file(path: Path) -> list[LabelledRow]:
    """Rows of a file. Of one without names of columns, the first is the label and the last the text."""
    columns = None
    if ".tsv" in path.suffixes and path.is_file():
        line = next((line for _, line in text_lines(path)), "")
        columns = ("1", str(line.count("\t") + 1)) if isinstance(line, str) else None
    return list(read_labelled(LabelledSource(path, columns)))


def as_json_lines(rows: Iterable[LabelledRow], path: Path) -> Path:
    """Writes the rows as a file that `attendo train classification` reads."""
    lines = (json.dumps({"label": row.label, "text": row.text}, ensure_ascii=False) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def words_of(text: str, most: int) -> list[str]:
    """The first words of a text as the lecture cuts it: lower case, what stands between white space.

    >>> words_of("A GOOD film, really", 3)
    ['a', 'good', 'film,']
    """
    return text.lower().split()[:most]


def vocabulary(rows: Iterable[LabelledRow], most: int) -> dict[str, int]:
    """The ids of the most frequent words, from 2 on: 0 is an unknown word, 1 the padding.

    >>> vocabulary([LabelledRow(1, "pos", "so so good"), LabelledRow(2, "neg", "so bad")], 2)
    {'so': 2, 'bad': 3}
    """
    counts = Counter(word for row in rows for word in row.text.lower().split())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
    return {word: number for number, (word, _) in enumerate(ranked, PAD_ID + 1)}


def word_examples(
    rows: Sequence[LabelledRow], classes: Sequence[int], ids: Mapping[str, int], length: int, *, masked: bool
) -> Examples:
    """Each text as the ids of its first words, padded to `length`; masked: `src_lengths` tell where the padding is."""
    src = torch.full((len(rows), length), PAD_ID)
    lengths = torch.empty(len(rows), dtype=torch.int64)
    for i, row in enumerate(rows):
        found = [ids.get(word, UNKNOWN_ID) for word in words_of(row.text, length)] or [UNKNOWN_ID]
        src[i, : len(found)], lengths[i] = torch.tensor(found), len(found)
    inputs = {"src": src, "src_lengths": lengths} if masked else {"src": src}
    return Examples(inputs, torch.tensor(classes))
