"""Labeled texts: readers, labels, class weights, the validation split, and the treatment of long texts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendo.data.corpora import Columns, read_rows
from attendo.data.data_files import TABLES, expanded
from attendo.data.formats import RawRow, Wanted
from attendo.data.held_out import HeldOut, held_out, source_hash
from attendo.data.row_report import RowReport
from attendo.data.tokenizers import Tokenizer
from attendo.display.formats import plural
from attendo.errors import AttendoError

LABELLED = ("label", "text")
"""The roles of the columns of labeled texts, for `parse_columns`."""
SECOND = "second"
"""The role of the column with the second text of each row, if the rows are pairs."""
BETWEEN = "\t"
"""The character between the two texts of a pair."""


class RowForm(NamedTuple):
    """The form of labeled rows in data files: the roles of the columns, for example the label and the text.

    `reader` reads a file, and checks and converts the labels (default: any text is a label). `suffixes` are the
    suffixes of the files in a folder.
    """

    roles: tuple[str, ...] = LABELLED
    reader: Callable[[Path, Wanted], Iterator[RawRow]] | None = None
    suffixes: tuple[str, ...] = TABLES

    @property
    def may_differ(self) -> bool:
        """Whether a text can have several labels: answers to a question, or numbers such as the ratings of people."""
        return self.roles[0] in ("question", "prompt", "number")


LABELS = RowForm()

MOST_LABELS = 10_000
"""The maximum number of different labels. A column with more different values is rejected as the wrong column."""

UNBALANCED = 3.0
"""With class weights "auto", classes are weighted if the largest has more than 3 times the rows of the smallest."""

ClassWeights = Literal["none", "balanced", "auto"]


class LabelledRow(NamedTuple):
    """The text of a row, with its label and row number."""

    number: int
    label: str
    text: str


@dataclass(frozen=True)
class LabelledSource:
    """The location of labeled texts: files with a label column and a text column.

    Attributes:
        file: The name of a file, folder or pattern; see `expanded`.
        columns: The label and text columns, by name or 1-based number (default: columns named label and text, or the
            only two columns, in this order). A third column is a second text.
        header: Whether a .tsv file starts with a header. A header is also expected if `columns` contains a name.
        form: The form of the rows.
    """

    file: Path
    columns: Columns | None = None
    header: bool = False
    form: RowForm = LABELS

    @property
    def name(self) -> str:
        return str(self.file)

    def paths(self) -> tuple[Path, ...]:
        """Return the files in reading order. Raises AttendoError if the name matches no file."""
        return expanded(self.file, self.form.suffixes)


def read_labelled(
    source: LabelledSource, strict: bool = False, row_report: RowReport | None = None
) -> Iterator[LabelledRow]:
    """Yield the usable labeled texts of data files, in reading order.

    A label is a string, for example "pos", "1" or "true". Integers and booleans from JSON and Parquet are converted to
    their JSON form. White space around a label is removed, and white space inside it becomes one space.

    Args:
        source: The location of the labeled texts.
        strict: Whether the first unusable row raises an error (default: unusable rows are skipped and counted).
        row_report: The report in which the rows are counted (default: a new report).

    Raises:
        AttendoError: A file is missing, empty or unusable, or `strict` is set and a row is unusable.
    """
    form = source.form
    roles = (*form.roles, SECOND)[: len(source.columns or form.roles)]
    for number, (label, *texts) in read_rows(
        source.file, roles, source.columns, source.header, strict, row_report, form.reader, form.suffixes
    ):
        yield LabelledRow(number, " ".join(label.split()), joined_texts(texts))


def has_pairs(columns: str | None) -> bool:
    """Return whether the option `columns` names a second text for each row.

    >>> has_pairs("label=relation,text=premise,second=claim"), has_pairs("1,2")
    (True, False)
    """
    return any(part.partition("=")[0].strip() == SECOND for part in (columns or "").split(","))


def joined_texts(texts: Sequence[str]) -> str:
    """Return one text unchanged, or two texts with BETWEEN between them, which is a space in the texts.

    >>> joined_texts(["a cat", "an\\tanimal"])
    'a cat\\tan animal'
    """
    return texts[0] if len(texts) == 1 else BETWEEN.join(text.replace(BETWEEN, " ") for text in texts)


@dataclass(frozen=True)
class PairEncoder:
    """Encodes pairs of texts: the tokens of the first text, a separator, and the tokens of the second text.

    The separator is the token that ends a text (for BERT, [SEP]).
    """

    tokenizer: Tokenizer

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of pairs of texts, separated by a tab. Raises AttendoError for any other text with content."""
        for text in texts:
            if BETWEEN not in text and text.strip():
                raise AttendoError(
                    f"{shown(text)} is one text, but this model reads two. Write a tab between the first and the second"
                )
        specials = self.tokenizer.specials
        separator = specials.around_text[1][:1] or (specials.eos_id,)
        halves = [text.partition(BETWEEN) for text in texts]
        first = self.tokenizer.encode_batch([half[0] for half in halves])
        second = self.tokenizer.encode_batch([half[2] for half in halves])
        return [[*a, *separator, *b] for a, b in zip(first, second, strict=True)]


def count_labels(rows: Iterable[LabelledRow], name: str, row_report: RowReport | None = None) -> dict[str, int]:
    """Count the rows of each label, and return the counts sorted by label.

    Raises AttendoError for fewer than two labels, for a column of nearly unique values, and for a header read as a row.

    >>> count_labels([LabelledRow(i, label, "…") for i, label in enumerate("baba", 1)], "f.tsv")
    {'a': 2, 'b': 2}
    """
    counts: dict[str, int] = {}
    n_rows = 0
    in_line_1 = ""
    for row in rows:
        n_rows += 1
        counts[row.label] = counts.get(row.label, 0) + 1
        if row.number == 1:
            in_line_1 = row.label
        if len(counts) > MOST_LABELS:
            break
    if len(counts) < 2:
        found = f"only one label, {', '.join(map(shown, counts))}," if counts else "no label"
        raise AttendoError(f"{name}: {found} in {plural(n_rows, 'row')} (expected at least two labels)")
    if len(counts) > min(MOST_LABELS, max(2, n_rows / 2)):
        raise AttendoError(
            f"{name}: {len(counts):,} different labels in {plural(n_rows, 'row')} ({_listed(list(counts))}). "
            "This is not a label column: choose columns with `columns` label=…,text=…"
        )
    n_files = 1 if row_report is None else max(1, len(row_report.parts))
    others = [count for label, count in counts.items() if label != in_line_1]
    if counts.get(in_line_1) == n_files and len(others) > 1 and min(others) > n_files:
        found = "no other row has" if n_files == 1 else f"as few rows as files, {n_files:,}, have"
        raise AttendoError(
            f"{(row_report or RowReport(name)).place(1)}: {found} the label {shown(in_line_1)}. If the line "
            "is a header, add `header`; otherwise delete it, since each class needs more than one text"
        )
    return dict(sorted(counts.items()))


@dataclass(frozen=True)
class LabelSet:
    """The sorted names of the classes. The id of a class is its index in `names`.

    >>> labels = LabelSet(("neg", "pos"))
    >>> labels.id_of("pos", "test.tsv:3"), labels.names[0]
    (1, 'neg')
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if list(self.names) != sorted(set(self.names)) or not self.names:
            raise ValueError(f"labels={self.names} must be different names in sorted order")

    def __len__(self) -> int:
        return len(self.names)

    def id_of(self, name: str, where: str) -> int:
        """Return the id of a label. Raises AttendoError for an unknown label at `where` ("file:line")."""
        if name not in self._ids:
            known = similar_label(name, self.names) or f"known: {_listed(self.names)}"
            raise AttendoError(
                f"{where}: the label {shown(name)} was not seen in training ({known}). "
                "Fix or delete the row, choose other `columns`, or train again with such rows"
            )
        return self._ids[name]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}


def class_weights(counts: Sequence[int], kind: ClassWeights) -> tuple[float, ...] | None:
    """Return the loss weight N / (K n_c) of each of K classes, or None for equal weights. Class c has n_c of N rows.

    The weights give all classes the same total weight. The learned probabilities therefore assume classes of equal
    size. The kind "auto" uses weights if the largest class has more than UNBALANCED times the rows of the smallest.

    >>> class_weights([30, 10], "balanced"), class_weights([30, 10], "auto"), class_weights([40, 10], "auto")
    ((0.6666666666666666, 2.0), None, (0.625, 2.5))
    """
    if kind == "none" or (kind == "auto" and max(counts) <= UNBALANCED * min(counts)):
        return None
    return tuple(sum(counts) / (len(counts) * count) for count in counts)


def held_out_texts(
    read: Callable[[], Iterable[LabelledRow]],
    name: str,
    share: float = 0.01,
    trained: Callable[[int], bool] = lambda key: False,
) -> HeldOut:
    """Choose validation texts by their hashes, as `held_out` does. `read` is called twice.

    Each class with at least two different texts that are new to the model occurs in training and in validation. Raises
    AttendoError if no text can be held out.
    """
    extremes: dict[str, tuple[int, int]] = {}

    def texts() -> Iterator[str]:
        for row in read():
            key = source_hash(row.text)
            if not trained(key):
                low, high = extremes.get(row.label, (key, key))
                extremes[row.label] = min(low, key), max(high, key)
            yield row.text

    held = held_out(texts(), name, share, trained)
    if not held.n_held_out:
        return held
    several = [(low, high) for low, high in extremes.values() if low != high]
    # held_out chooses the smallest hashes, so the smallest hash of a class is chosen first and its largest last
    hashes = held.hashes - {high for _, high in several} | {low for low, _ in several}
    chosen = HeldOut(hashes, held.n_rows, 0)
    return HeldOut(hashes, held.n_rows, sum(row.text in chosen for row in read()))


def shown(label: str) -> str:
    """Return a label for a message, in quotes and with at most 30 characters.

    >>> shown("pos"), shown("a" * 50)
    ("'pos'", "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaa…'")
    """
    return repr(label if len(label) <= 30 else f"{label[:29]}…")


def similar_label(label: str, known: Iterable[str]) -> str:
    """Return the question whether a similar label was meant, or "" if no known label is similar.

    Labels without letters are numbers or dates, which differ although they look similar.

    >>> similar_label("biling", ["account", "billing"]), similar_label("2021", ["2020", "2022"])
    ("did you mean 'billing'?", '')
    """
    if not any(map(str.isalpha, label)):
        return ""
    folded = {name.casefold(): name for name in known if name != label}
    like = get_close_matches(label.casefold(), folded, n=1, cutoff=0.75)
    return f"did you mean {shown(folded[like[0]])}?" if like else ""


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(map(shown, labels[:5])) + (", …" if len(labels) > 5 else "")


Long = Literal["cut", "window"]


@dataclass(frozen=True, kw_only=True)
class LongTexts:
    """The treatment of texts with more than `max_tokens` tokens.

    The option "cut" keeps the tokens at the start and at the end, half of the limit each (Sun et al. 2019, section
    5.3.1). The option "window" reads windows of `max_tokens` tokens that overlap by at least a quarter, and averages
    their logits. In training, each epoch draws one window per text.
    """

    max_tokens: int = 256
    long: Long = "cut"

    def __post_init__(self) -> None:
        if self.max_tokens < 4:
            raise ValueError(f"max_tokens={self.max_tokens} must be at least 4")

    def is_long(self, n_tokens: int) -> bool:
        """Return whether a text with this number of tokens exceeds the limit."""
        return n_tokens > self.max_tokens

    def parts(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """Return the parts of a text that the model reads: the whole text, a truncated text, or all windows.

        >>> LongTexts(max_tokens=4).parts(range(10)), LongTexts(max_tokens=4, long="window").parts(range(6))
        ([[0, 1, 8, 9]], [range(0, 4), range(2, 6)])
        """
        if not self.is_long(len(ids)):
            return [ids]
        if self.long == "cut":
            return [[*ids[: self._n_head], *ids[len(ids) - self.max_tokens + self._n_head :]]]
        last = len(ids) - self.max_tokens
        n_windows = 1 - (-last // (self.max_tokens - self.max_tokens // 4))
        starts = [last * i // (n_windows - 1) for i in range(n_windows)]
        return [ids[start : start + self.max_tokens] for start in starts]

    def training_part(self, ids: NDArray[Any], draw: float) -> NDArray[Any]:
        """Return the part of a text for one training epoch. With "window", `draw` in [0, 1) selects a single window."""
        if not self.is_long(len(ids)):
            return ids
        if self.long == "cut":
            return np.concatenate([ids[: self._n_head], ids[len(ids) - self.max_tokens + self._n_head :]])
        start = int(draw * (len(ids) - self.max_tokens + 1))
        return ids[start : start + self.max_tokens]

    def summary(self, n_long: int, n_texts: int) -> str:
        """Describe the number and the treatment of long texts in one sentence.

        >>> LongTexts(max_tokens=256).summary(1200, 25000)
        '1,200 of 25,000 texts have more than 256 tokens; only the first 128 and last 128 tokens are used'
        """
        head, tail = self._n_head, self.max_tokens - self._n_head
        fate = {
            "cut": f"only the first {head} and last {tail} tokens are used",
            "window": f"they are read in windows of {self.max_tokens} tokens",
        }
        return f"{n_long:,} of {n_texts:,} texts have more than {self.max_tokens} tokens; {fate[self.long]}"

    @property
    def _n_head(self) -> int:
        return self.max_tokens // 2
