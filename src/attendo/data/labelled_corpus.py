"""The labeled texts of a run: training and validation rows, and their token store."""

import itertools
import json
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.typing import NDArray

from attendo.data.batches import Batch, EpochBatches, Rows, TokenDataset, pad_rows, token_batches
from attendo.data.corpora import parse_columns, raw_rows
from attendo.data.corpus_base import RowCorpus
from attendo.data.data_files import require_file, suffix
from attendo.data.formats import RawRow, Wanted
from attendo.data.held_out import HeldOut, held_out, source_hash
from attendo.data.labelled import (
    LABELS,
    SECOND,
    ClassWeights,
    LabelledRow,
    LabelledSource,
    LabelSet,
    Long,
    LongTexts,
    PairEncoder,
    RowForm,
    class_weights,
    count_labels,
    has_pairs,
    held_out_texts,
    read_labelled,
    shown,
    similar_label,
)
from attendo.data.labelled_doctor import SeenRows
from attendo.data.row_report import RowError, RowReport
from attendo.data.store import LabelledStore, RowLengths, labelled_store
from attendo.data.tokenizers import OWN, SpecialTokens, Tokenizer
from attendo.display.formats import plural
from attendo.errors import AttendoError

TOKENIZER_ROWS = 500_000
MOST_TOLD = 3
"""The maximum number of labels with a single row that are named in warnings."""
NO_CLASS = -1
"""The value in a batch's targets where nothing is predicted. Every other value is a class."""
_WINDOWS = 1  # separates the random numbers for windows from those for shuffling


@dataclass(frozen=True, eq=False)
class LabelledDataset(TokenDataset):
    """The training texts of a classifier as token ids. Each text occurs once per epoch.

    Attributes:
        weights: The loss weight of each class (default: equal weights).
        token_dropout: The share of input tokens that are replaced by the unknown token, drawn again for each row and
            epoch (Iyyer et al. 2015, "word dropout").
        per_token: Whether each token has a class, instead of each text.
        decisions: Whether each text has several classes, 0 or 1 (no or yes).
        contrastive: Whether the loss compares the vectors of texts.
    """

    store: LabelledStore
    long_texts: LongTexts
    weights: tuple[float, ...] | None = None
    token_dropout: float = 0.0
    specials: SpecialTokens = OWN
    per_token: bool = False
    decisions: bool = False
    contrastive: bool = False

    def __post_init__(self) -> None:
        if self.token_dropout and self._dropped < 0:
            raise AttendoError(
                f"token_dropout={self.token_dropout} requires an unknown or mask token, but the tokenizer has "
                "neither. Set it to 0"
            )

    @cached_property
    def lengths(self) -> RowLengths:
        """The number of tokens that an epoch reads from each text."""
        return self.store.lengths.capped(self.long_texts.max_tokens)

    @property
    def n_tokens(self) -> int:
        return self.lengths.sum() + self.n_rows * self.specials.n_around_text

    @property
    def n_long(self) -> int:
        """The number of texts with more than the maximum number of tokens (`LongTexts.max_tokens`)."""
        return sum(int((piece > self.long_texts.max_tokens).sum()) for piece in self.store.lengths.pieces())

    def _epoch(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        rows = token_batches(self.lengths, None, batch_tokens, seed, epoch)
        return EpochBatches(rows, partial(self._collate, seed, epoch))

    def _collate(self, seed: int, epoch: int, rows: Rows) -> Batch:
        texts = [self.specials.text(self._tokens(seed, epoch, int(row)).tolist()) for row in rows]
        src, lengths = pad_rows(texts, self.specials.pad_id)
        inputs = {"src": src} if lengths is None else {"src": src, "src_lengths": lengths}
        n_tokens = sum(map(len, texts))
        if self.per_token:
            before, behind = ([NO_CLASS] * len(ids) for ids in self.specials.around_text)
            tags = [self.part(self.store.tags(row), seed, epoch, row).tolist() for row in rows.tolist()]
            targets, _ = pad_rows([[*before, *own, *behind] for own in tags], NO_CLASS)
            return Batch(inputs, targets, sum(map(len, tags)), rows, NO_CLASS, n_tokens=n_tokens)
        if self.decisions:
            wanted = torch.from_numpy(self.store.labels.reshape(self.n_rows, -1)[rows].astype(np.float32))
            return Batch(inputs, wanted, wanted.numel(), rows, NO_CLASS, n_tokens=n_tokens)
        classes = self.store.labels[rows].astype(np.int64)
        weights = None if self.weights is None else torch.tensor(self.weights)[classes]
        wanted = torch.from_numpy(classes)
        return Batch(inputs, wanted, len(rows), rows, NO_CLASS, weights, n_tokens, self.contrastive)

    def part(self, ids: NDArray[Any], seed: int, epoch: int, row: int) -> NDArray[Any]:
        """Return the part of a row's tokens, or of their classes, that an epoch reads."""
        if not self.long_texts.is_long(len(ids)):
            return ids
        # the row selects a position in one random series, so no number needs to be stored
        numbers = np.random.PCG64(np.random.SeedSequence((seed, epoch, _WINDOWS))).advance(row)
        return self.long_texts.training_part(ids, np.random.Generator(numbers).random())

    def _tokens(self, seed: int, epoch: int, row: int) -> NDArray[Any]:
        """Return the tokens of a row that this epoch reads."""
        ids = self.part(self.store.texts[row], seed, epoch, row)
        if not self.token_dropout:
            return ids
        dropped = np.random.default_rng((seed, epoch, row)).random(len(ids)) < self.token_dropout
        return np.where(dropped, self._dropped, ids)

    @property
    def _dropped(self) -> int:
        """The id that replaces a dropped token: the unknown token, or the mask token if there is none."""
        return self.specials.unk_id if self.specials.unk_id >= 0 else self.specials.mask_id


@dataclass(frozen=True, kw_only=True)
class RowData:
    """The data settings that labeled texts and conversations have in common.

    Attributes:
        train: A file of labeled texts, or a folder or pattern of such files.
        valid: A validation file, folder or pattern (default: a share of the training rows is held out).
        valid_share: Share of the training rows that is held out without `valid`: 100 to 2,000 rows, at most a fifth.
        header: Whether the first line of a .tsv file contains column names.
        strict: Whether the first bad row raises an error. By default, bad rows are skipped and counted.
    """

    form: ClassVar[RowForm] = LABELS

    train: tuple[str, ...]
    valid: tuple[str, ...] = ()
    valid_share: float = 0.01  # for runs that did not store it; new runs use the default of their task
    columns: str | None = None
    header: bool = False
    strict: bool = False

    def __post_init__(self):
        for name, files in (("train", self.train), ("valid", self.valid)):
            if len(files) > 1 or (name == "train" and not files):
                raise ValueError(
                    f"{name} names {len(files)} files (expected one). Give one file with --{name}, or a folder or"
                    " quoted pattern for several"
                )
        if not 0.0 < self.valid_share <= 0.2:
            raise ValueError(f"valid_share={self.valid_share} must be above 0 and at most 0.2")

    def check(self) -> None:
        for name in (*self.train, *self.valid):
            for file in self.source(Path(name)).paths():
                require_file(file)

    def source(self, file: Path, columns: str | None = None, header: bool | None = None) -> LabelledSource:
        """Return the rows of a file, folder or pattern. By default, columns and header are as in training."""
        columns = self.columns if columns is None else columns
        roles = (*self.form.roles, SECOND) if has_pairs(columns) else self.form.roles
        chosen = None if columns is None else parse_columns(columns, roles)
        return LabelledSource(file, chosen, self.header if header is None else header, self.form)


@dataclass(frozen=True, kw_only=True)
class LabelledData(RowData):
    """The labeled texts of a run. The run stores absolute paths, so it can be resumed from any folder.

    Attributes:
        columns: Columns of label and text by name or by number from 1, for example `label=category,text=body`. For
            pairs of texts, add the column of the second text: `label=relation,text=claim,second=source`.
        max_tokens: Maximum number of tokens of a text that the model reads at once.
        long: Treatment of texts above `max_tokens`. `cut` keeps start and end; `window` averages the logits of
            overlapping windows.
        class_weights: Weights of classes in the loss. `balanced` gives all classes equal total weight; `auto` does so
            only if the largest class has more than 3 times the rows of the smallest.
        token_dropout: Share of the input tokens that are hidden at random during training.
        contrastive: Whether the encoder learns to give texts of one class similar vectors, and logistic regression fits
            the output layer. For few rows and a pretrained encoder.
    """

    max_tokens: int = 256
    long: Long = "cut"
    class_weights: ClassWeights = "auto"
    token_dropout: float = 0.2
    contrastive: bool = False

    def __post_init__(self):
        super().__post_init__()
        if not 0.0 <= self.token_dropout < 1.0:
            raise ValueError(f"token_dropout={self.token_dropout} must be at least 0 and below 1")
        LongTexts(max_tokens=self.max_tokens, long=self.long)

    @property
    def long_texts(self) -> LongTexts:
        return LongTexts(max_tokens=self.max_tokens, long=self.long)


def n_known(data: LabelledData, rows: Sequence[LabelledRow]) -> int:
    """Return the number of rows whose text is in a run's training file, or 0 if the training file cannot be read."""
    texts = {row.text for row in rows}
    try:
        known = {row.text for row in read_labelled(data.source(Path(data.train[0]))) if row.text in texts}
    except AttendoError:
        return 0
    return sum(row.text in known for row in rows)


class SourceCorpus(RowCorpus[LabelledRow]):
    """A corpus whose rows are read from one `LabelledSource`: labeled texts or conversations."""

    @property
    def _source(self) -> LabelledSource:
        return self.data.source(Path(self.data.train[0]))

    def _usable(self, row_report: RowReport | None = None) -> Iterator[LabelledRow]:
        return read_labelled(self._source, self.data.strict, row_report)

    def _given(self) -> Iterator[LabelledRow]:
        return read_labelled(self.data.source(Path(self.data.valid[0])), self.data.strict)

    def _split(self, trained: Callable[[int], bool]) -> HeldOut:
        texts = map(self.text_of, self._usable())
        return held_out(texts, self._source.name, self.data.valid_share, trained)

    def _reported_rows(self, row_report: RowReport | None = None) -> Iterator[LabelledRow]:
        """Yield all rows, and print the report on skipped and repeated rows at the end."""
        row_report = row_report or RowReport(self._source.name)
        seen = SeenRows()
        yield from seen.watch(self._usable(row_report))
        for line in (row_report.line(), *seen.repeats(self._source.form.may_differ).lines(row_report)):
            self.say(line)

    def validation(self, most: int) -> tuple[list[LabelledRow], list[LabelledRow]]:
        """Return at most `most` validation rows (0: all), and more rows for the end of a run."""
        return self._validation(most, {})


class LabelledCorpus(SourceCorpus):
    """The labeled training and validation texts of a run, which are read as streams whenever they are needed."""

    data: LabelledData
    noun = "text"
    hashed = "text"
    per_token: ClassVar[bool] = False
    decisions: ClassVar[bool] = False

    @staticmethod
    def text_of(row: LabelledRow) -> str:
        return row.text

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of training rows per label. The first access prints the row report."""
        row_report = RowReport(self._source.name)
        every = count_labels(self._reported_rows(row_report), self._source.name, row_report)
        counts = every if self.held is None else dict.fromkeys(every, 0) | Counter(r.label for r in self.rows())
        if empty := [label for label, count in counts.items() if not count]:
            [message] = self._rare(empty[:1], "no row is left for training with", counts)
            raise AttendoError(f"{message}, or give a validation file with `valid`")
        self._say_counts(f"{len(counts)} labels", counts)
        return counts

    def _say_counts(self, title: str, counts: Mapping[str, int]) -> None:
        parts = [f"{label} {count:,}" for label, count in counts.items()]
        self.say(f"{title}: {', '.join(parts[:8])}{', …' if len(parts) > 8 else ''}")
        single = [label for label, count in counts.items() if count == 1]
        for message in self._rare(single[:MOST_TOLD], "only 1 training row has", counts) if single else ():
            self.say(f"warning: {message}")
        if n := len(single[MOST_TOLD:]):
            self.say(f"warning: {plural(n, 'other label')} {'has' if n == 1 else 'have'} only 1 training row")

    def _rare(self, labels: Sequence[str], what: str, counts: Mapping[str, int]) -> Iterator[str]:
        """Yield a message on each rare label: the place of its row, and a more frequent similar label."""
        row_report = RowReport(self._source.name)
        rows = self.rows if counts[labels[0]] else self._usable
        numbers: dict[str, int] = {}
        for row in rows(row_report):
            for label in self.labels_of(row):
                numbers.setdefault(label, row.number)
        often = [label for label, count in counts.items() if count > 1]
        for label in labels:
            like = similar_label(label, often)
            yield (
                f"{row_report.place(numbers[label])}: {what} the label {shown(label)}"
                f"{f' ({like})' if like else ''}. Fix the label, or add or delete rows"
            )

    def validation(self, most: int) -> tuple[list[LabelledRow], list[LabelledRow]]:
        """Return the rows for evaluations and the final checkpoint choice, and warn about training texts among them."""
        if self.data.valid:
            hashes = Counter(source_hash(row.text) for row in self._all_validation())
            known = hashes.keys() & (source_hash(row.text) for row in self.rows())
            n_rows = hashes.total()
            if n := sum(hashes[key] for key in known):
                self.say(f"{n:,} of {n_rows:,} validation texts are training texts: scores will be inflated")
        return super().validation(most)

    @property
    def validation_name(self) -> str:
        return self.data.valid[0] if self.data.valid else self._source.name

    @property
    def size(self) -> tuple[int, str]:
        n = sum(self.counts.values())
        return n, f"{n:,} texts"

    def texts(self) -> Iterator[str]:
        return (row.text for row in itertools.islice(self.rows(), TOKENIZER_ROWS))

    def material(self, tokenizer: Tokenizer) -> LabelledDataset:
        """Return the training texts as token ids, from the token store in the cache."""
        data = self.data
        options: dict[str, Any] = {"labels": tuple(self.counts)}
        files = self._source.paths()
        row_report = RowReport(self._source.name)
        if not data.valid and data.valid_share != 0.01:
            options["valid_share"] = data.valid_share
        if len(files) > 1:
            options["files"] = [len(files)]
        several = self.per_token or self.decisions
        if several:
            options["per_token"] = self.per_token
        key = self._store_key(files, options, tokenizer)
        encoder = PairEncoder(tokenizer) if has_pairs(data.columns) else tokenizer
        store = labelled_store(self.rows(row_report), row_report, self._classes(tokenizer), encoder, key)
        weights = None if several else class_weights(list(self.counts.values()), data.class_weights)
        kind = self.per_token, self.decisions, data.contrastive
        material = LabelledDataset(store, data.long_texts, weights, data.token_dropout, tokenizer.specials, *kind)
        if material.n_long:
            self.say(data.long_texts.summary(material.n_long, material.n_rows))
        if weights is not None:
            label, n = min(self.counts.items(), key=lambda item: item[1])
            self.say(
                f"rare classes get a larger weight (the rarest, {shown(label)}, has {plural(n, 'row')}), and macro-F1"
                " selects the checkpoint. For equal weights, use `data.class_weights=none`"
            )
        return material

    def _classes(self, tokenizer: Tokenizer) -> LabelSet | Callable[[LabelledRow], Sequence[int]]:
        """Return the labels, or a function that returns several classes of a row."""
        return LabelSet(tuple(self.counts))

    def facts(self) -> dict[str, Any]:
        return {"labels": self.counts}

    def model_facts(self) -> dict[str, Any]:
        return {"n_classes": len(self.counts)}

    def _split(self, trained: Callable[[int], bool]) -> HeldOut:
        return held_out_texts(self._usable, self._source.name, self.data.valid_share, trained)

    def _given(self) -> Iterator[LabelledRow]:
        source = self.data.source(Path(self.data.valid[0]))
        row_report = RowReport(source.name)
        labels = LabelSet(tuple(self.counts))
        for row in read_labelled(source, self.data.strict, row_report):
            for label in self.labels_of(row):
                labels.id_of(label, row_report.place(row.number))  # the file name is known here
            yield row

    @staticmethod
    def labels_of(row: LabelledRow) -> Iterable[str]:
        """Return the labels of a row."""
        return (row.label,)


class ListCorpus(LabelledCorpus):
    """The base class of corpora whose rows have any number of labels."""

    counted: ClassVar[str]
    """What the labels of a row are, for messages."""

    @staticmethod
    @abstractmethod
    def labels_of(row: LabelledRow) -> Iterable[str]: ...

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of times that each label occurs in training rows. The first access prints the row report."""
        every = {label for row in self._reported_rows() for label in self.labels_of(row)}
        if not every:
            raise AttendoError(f"{self._source.name}: no row has a label. Check the columns")
        counts = dict.fromkeys(sorted(every), 0)
        for row in self.rows():
            for label in self.labels_of(row):
                counts[label] += 1
        self._say_counts(self.counted, counts)
        return counts

    @property
    def size(self) -> tuple[int, str]:
        _ = self.counts  # prints the row report
        return self.n_rows, f"{self.n_rows:,} texts"

    @cached_property
    def n_rows(self) -> int:
        """The number of training rows."""
        return sum(1 for _ in self.rows())

    def _split(self, trained: Callable[[int], bool]) -> HeldOut:
        return SourceCorpus._split(self, trained)


# ---- texts with any number of labels, or with a number: both are decisions between no and yes


MOST_STEPS = 32
"""The maximum number of values between which a number is decided."""


def parse_labels(value: str) -> str | RowError:
    """Return the labels of a field as a sorted JSON list, or the reason why they cannot be used.

    `value` is a JSON list of labels, which can be empty, or labels with | between them.

    >>> parse_labels("refund | billing"), parse_labels("[]")
    ('["billing", "refund"]', '[]')
    """
    labels: Any = value.split("|")
    if value.lstrip().startswith("["):
        try:
            labels = json.loads(value)
        except (ValueError, RecursionError):
            labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) and label.strip() for label in labels):
        return RowError("invalid labels", repr(value[:40]))
    return label_list(sorted({" ".join(label.split()) for label in labels}))


def label_list(labels: Iterable[str]) -> str:
    """Return the JSON form of labels, which is the label of a row."""
    return json.dumps([*labels], ensure_ascii=False)


def parse_number(value: str) -> str | RowError:
    """Return a finite number unchanged, or the reason why it cannot be used.

    >>> parse_number("3.50"), str(parse_number("3,5"))
    ('3.50', "invalid number ('3,5')")
    """
    try:
        is_finite = math.isfinite(float(value))
    except ValueError:
        is_finite = False
    return value if is_finite else RowError("invalid number", repr(value[:40]))


def _read(parse: Callable[[str], str | RowError], path: Path, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the rows of a table with their first field checked and converted. An empty first field is unchanged.

    In formats with types, a list is read as a kept column, which is returned as JSON.
    """
    label, *texts = wanted.columns or wanted.roles
    typed = suffix(path) in (".jsonl", ".parquet") and not "".join((label, *texts)).isdecimal()
    kept = wanted._replace(roles=wanted.roles[1:], columns=(*texts, label))
    for number, fields in raw_rows(path, kept if typed else wanted):
        if not isinstance(fields, RowError):
            fields = (fields[-1], *fields[:-1]) if typed else fields
            parsed = parse(fields[0]) if fields[0].strip() else ""
            fields = parsed if isinstance(parsed, RowError) else (parsed, *fields[1:])
        yield number, fields


class MultiLabelData(LabelledData):
    """The texts of a run, each with any number of labels."""

    form: ClassVar[RowForm] = RowForm(("labels", "text"), partial(_read, parse_labels))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights != "auto" or self.contrastive:
            raise ValueError("class_weights and contrastive require one label per text. Leave out both settings")


class NumberData(MultiLabelData):
    """The texts of a run, each with a number."""

    form: ClassVar[RowForm] = RowForm(("number", "text"), partial(_read, parse_number))


class MultiLabelCorpus(ListCorpus):
    """The training and validation texts of a run, each with any number of labels."""

    decisions = True
    counted = "labels"

    @staticmethod
    def labels_of(row: LabelledRow) -> Sequence[str]:
        return json.loads(row.label)

    def facts(self) -> dict[str, Any]:
        return {"labels": self.counts, "n_rows": self.n_rows}

    def _classes(self, tokenizer: Tokenizer) -> Callable[[LabelledRow], Sequence[int]]:
        names = tuple(self.counts)
        return lambda row: has_labels([row], names)[0].tolist()


def has_labels(rows: Sequence[LabelledRow], names: Sequence[str]) -> Int[ndarray, "rows labels"]:
    """Return whether (1) or not (0) each row has each label."""
    owned = ({*MultiLabelCorpus.labels_of(row)} for row in rows)
    found = [[name in own for name in names] for own in owned]
    return np.array(found, np.int64).reshape(len(rows), len(names))


class NumberCorpus(MultiLabelCorpus):
    """The training and validation texts of a run, each with a number."""

    @staticmethod
    def labels_of(row: LabelledRow) -> tuple[str, ...]:
        return ()

    @cached_property
    def _numbers(self) -> Float[ndarray, " rows"]:
        for _ in self._reported_rows():
            pass
        return numbers_of(self.rows())

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of training rows above each step. The first access prints the row report."""
        found = self._numbers
        if found.min() == found.max():
            raise AttendoError(
                f"{self._source.name}: all rows have the number {found[0]:g} (expected at least two different numbers)."
                " Choose another column with `columns` number=…,text=…"
            )
        self.say(
            f"numbers from {found.min():g} to {found.max():g}, mean {found.mean():g},"
            f" standard deviation {found.std():g}"
        )
        return {repr(step): int((found > step).sum()) for step in steps_of(found)}

    def facts(self) -> dict[str, Any]:
        steps = np.array([float(step) for step in self.counts])
        places = np.searchsorted(steps, self._numbers)
        sums = np.bincount(places, self._numbers, len(steps) + 1)
        values = sums / np.bincount(places, minlength=len(steps) + 1)
        return super().facts() | {"values": values.tolist()}

    def _classes(self, tokenizer: Tokenizer) -> Callable[[LabelledRow], Sequence[int]]:
        names = tuple(self.counts)
        return lambda row: is_above([row], names)[0].tolist()


def numbers_of(rows: Iterable[LabelledRow]) -> Float[ndarray, " rows"]:
    """Return the numbers of rows that have been read."""
    return np.array([float(row.label) for row in rows])


def is_above(rows: Sequence[LabelledRow], steps: Sequence[str]) -> Int[ndarray, "rows steps"]:
    """Return whether (1) or not (0) the number of each row is above each step."""
    return (numbers_of(rows)[:, None] > np.array([*map(float, steps)])).astype(np.int64)


def steps_of(numbers: Float[ndarray, " rows"]) -> list[float]:
    """Return the values between which a number is decided: all but the largest, or MOST_STEPS quantiles.

    A row is above a step if its number is larger. Some rows are above each step, and some are not.

    >>> steps_of(np.array([1.0, 1.0, 2.0, 4.0]))
    [1.0, 2.0]
    """
    values = np.unique(numbers)[:-1]
    if len(values) > MOST_STEPS:
        shares = np.arange(1, MOST_STEPS + 1) / (MOST_STEPS + 1)
        values = np.unique(np.quantile(numbers, shares, method="lower"))
    return values[values < numbers.max()].tolist()
