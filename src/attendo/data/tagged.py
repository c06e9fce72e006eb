"""Tagged texts: spans with labels, from CoNLL files or tables, and their classes for the tokens of a tokenizer."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from attendo.data.corpora import raw_rows
from attendo.data.data_files import TABLES, suffix, text_lines
from attendo.data.formats import Fields, RawRow, Wanted
from attendo.data.labelled import LabelledRow, Long, RowForm, shown
from attendo.data.labelled_corpus import LabelledData, ListCorpus
from attendo.data.row_report import RowError
from attendo.data.tokenizers import Tokenizer, is_spaced

Borders = Sequence[tuple[int, int]]
"""The start and end of each token of a text, in characters."""
_TAG = re.compile(r"O|[BIELSU]-(\S.*)")
_CLOSING = re.compile(r"[.,;:!?%)\]}…]+|'\w+|n't")
_OPENING = ("(", "[", "{")


class Span(NamedTuple):
    """A part of a text with a label. `start` and `end` (exclusive) are numbers of characters from 0."""

    start: int
    end: int
    label: str


def parse_spans(value: str, text: str) -> list[Span] | RowError:
    """Return the sorted spans of a text from their JSON form, or the reason why they cannot be used.

    `value` is a list of [start, end, label] or {"start": …, "end": …, "label": …}, in JSON. White space at the border
    of a span is removed.

    >>> parse_spans('[[0, 4, "PER"]]', "Anna sings")
    [Span(start=0, end=4, label='PER')]
    >>> str(parse_spans('[[0, 40, "PER"]]', "Anna sings"))
    "invalid spans ([0, 40, 'PER'] is not within the 10 characters of the text)"
    """
    try:
        items = json.loads(value)
    except (ValueError, RecursionError):
        items = None
    if not isinstance(items, list):
        return RowError("invalid spans", f"{value[:40]!r} is not a list")
    spans = []
    for item in items:
        parts: Any = [item.get(key) for key in Span._fields] if isinstance(item, dict) else item
        if not (isinstance(parts, list) and [type(part) for part in parts] == [int, int, str]):
            return RowError("invalid spans", f"{json.dumps(item, ensure_ascii=False)[:60]} is not a span")
        start, end, label = parts
        inside = text[start:end]
        if not 0 <= start < end <= len(text):
            return RowError("invalid spans", f"{parts} is not within the {len(text):,} characters of the text")
        if not inside.strip() or not label.strip():
            return RowError("invalid spans", f"{parts} has no {'text' if label.strip() else 'label'}")
        start += len(inside) - len(inside.lstrip())
        spans.append(Span(start, start + len(inside.strip()), " ".join(label.split())))
    spans.sort()
    for first, second in itertools.pairwise(spans):
        if second.start < first.end:
            return RowError("overlapping spans", f"{[*first]} and {[*second]}")
    return spans


def spans_of(row: LabelledRow) -> list[Span]:
    """Return the spans of a row that has been read. The label of a row is the JSON form of its spans."""
    return [Span(*parts) for parts in json.loads(row.label)]


def read_conll(path: Path) -> Iterator[RawRow]:
    """Yield the text and the spans (as JSON) of each sentence of a CoNLL file, numbered by its first line.

    A line has a token in the first column and its tag in the last column. A blank line ends a sentence. Tags are O, or
    B-, I-, E- (or L-) and S- (or U-) with a label. An I- or E- that continues no span begins a span, as in conlleval.
    """
    words: list[tuple[str, str]] = []
    first = 0
    row_error: tuple[int, RowError] | None = None
    for number, line in itertools.chain(text_lines(path), [(0, "")]):
        if isinstance(line, RowError):
            row_error = row_error or (number, line)
            continue
        fields = line.split("\t" if "\t" in line else None)
        if not line.strip() or fields[0] == "-DOCSTART-":
            if row_error or words:
                yield row_error or (first, _sentence(words))
            words, first, row_error = [], 0, None
        elif not words and line.startswith("# ") and not _TAG.fullmatch(fields[-1]):
            continue  # a comment before the sentence
        elif len(fields) < 2:
            row_error = row_error or (
                number,
                RowError("wrong number of columns", "1 column found, 2 expected: a token and its tag"),
            )
        elif not _TAG.fullmatch(tag := fields[-1].strip()):
            row_error = row_error or (number, RowError("invalid tag", shown(tag)))
        else:
            words.append((fields[0], tag))
            first = first or number


def _sentence(words: Sequence[tuple[str, str]]) -> Fields:
    """Return the spans and the text of a sentence. The text has no space before closing punctuation marks."""
    space = " " if is_spaced(word for word, _ in words) else ""
    text = ""
    spans: list[Span] = []
    before = "O"
    for word, tag in words:
        if text and not _CLOSING.fullmatch(word) and not text.endswith(_OPENING):
            text += space
        start = len(text)
        text += word
        label = " ".join(tag[2:].split())
        goes_on = tag[0] in "IEL" and before[0] in "BI" and before[2:] == tag[2:]
        if goes_on:
            start = spans.pop().start
        if tag != "O":
            spans.append(Span(start, len(text), label))
        before = tag
    return json.dumps(spans, ensure_ascii=False), text


def _read_tagged(path: Path, wanted: Wanted) -> Iterator[RawRow]:
    """Yield the spans (as JSON) and the text of each row of a table or of a CoNLL file."""
    if suffix(path) not in (".jsonl", ".csv", ".parquet"):
        yield from read_conll(path)
        return
    spans, text = wanted.columns or wanted.roles
    for number, fields in raw_rows(path, wanted._replace(roles=("text",), columns=(text, spans))):
        if not isinstance(fields, RowError):
            found = parse_spans(fields[1], fields[0])
            is_error = isinstance(found, RowError)
            fields = found if is_error else (json.dumps(found, ensure_ascii=False), fields[0])
        yield number, fields


SPANS = RowForm(("spans", "text"), _read_tagged, (*TABLES, ".conll", ".bio", ".iob"))


@dataclass(frozen=True)
class TagSet:
    """The sorted labels of a tagger and the classes of tokens: 0 is outside, and each label has a B and an I class.

    >>> tags = TagSet(("LOC", "PER"))
    >>> tags.classes([(0, 4), (5, 7), (8, 9)], [Span(0, 7, "PER")])
    [3, 4, 0]
    >>> tags.spans([3, 4, 0], [(0, 4), (5, 7), (8, 9)])
    [(Span(start=0, end=7, label='PER'), slice(0, 2, None))]
    """

    labels: tuple[str, ...]

    def __len__(self) -> int:
        return 1 + 2 * len(self.labels)

    def classes(self, borders: Borders, spans: Sequence[Span]) -> list[int]:
        """Return the class of each token. A token that overlaps several spans belongs to the first of these spans.

        The spans are sorted, do not overlap, and have known labels.
        """
        classes = []
        at = 0
        last = -1
        for start, end in borders:
            while at < len(spans) and spans[at].end <= start:
                at += 1
            is_inside = at < len(spans) and start < end and spans[at].start < end
            classes.append(1 + 2 * self._ids[spans[at].label] + (last == at) if is_inside else 0)
            last = at if is_inside else last
        return classes

    def spans(self, classes: Sequence[int], borders: Borders) -> list[tuple[Span, slice]]:
        """Return the spans of a valid sequence of classes, and the tokens of each span."""
        found: list[tuple[Span, slice]] = []
        ends = [*(i for i, c in enumerate(classes) if c == 0 or c % 2), len(classes)]
        for first, after in itertools.pairwise(ends):
            span = Span(borders[first][0], borders[after - 1][1], self.labels[(classes[first] - 1) // 2])
            # two spans can share a character that consists of several tokens
            if classes[first] and span.start < span.end and (not found or found[-1][0].end <= span.start):
                found.append((span, slice(first, after)))
        return found

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {label: i for i, label in enumerate(self.labels)}


@dataclass(frozen=True, kw_only=True)
class TaggedData(LabelledData):
    """The tagged texts of a run: CoNLL files, or tables with the columns text and spans.

    Attributes:
        train: A file of tagged texts, or a folder or pattern of such files.
        columns: Columns of spans and text in tables, for example `spans=entities,text=body`.
        header: No effect: a table with spans has column names.
        long: Treatment of texts above `max_tokens`. `window` averages the logits of overlapping windows.
        class_weights: Only `auto`: all tokens have the same weight.
        contrastive: Only `false`: the classes of tokens are not compared.
    """

    form: ClassVar[RowForm] = SPANS
    long: Long = "window"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long != "window" or self.class_weights != "auto" or self.contrastive:
            raise ValueError("tags have no class weights, no contrast and windows. Leave out these settings")


class TaggedCorpus(ListCorpus):
    """The tagged training and validation texts of a run."""

    per_token = True
    counted = "spans"

    @staticmethod
    def labels_of(row: LabelledRow) -> list[str]:
        return [span.label for span in spans_of(row)]

    def model_facts(self) -> dict[str, Any]:
        return {"n_classes": len(TagSet(tuple(self.counts)))}

    def _classes(self, tokenizer: Tokenizer) -> Callable[[LabelledRow], Sequence[int]]:
        tags = TagSet(tuple(self.counts))
        return lambda row: tags.classes(tokenizer.encode_spans(row.text)[1], spans_of(row))


def dictionary(rows: Iterator[LabelledRow]) -> dict[str, str]:
    """Return the most frequent label of each text that is a span in the training rows."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        for start, end, label in spans_of(row):
            counts.setdefault(row.text[start:end], Counter())[label] += 1
    return {text: labels.most_common(1)[0][0] for text, labels in counts.items()}


def dictionary_spans(text: str, borders: Borders, known: Mapping[str, str]) -> list[Span]:
    """Return the spans of a text that are in a dictionary, longest first from left to right.

    This is the baseline of Tjong Kim Sang & De Meulder 2003, section 3.4, but a text with several labels has the most
    frequent label (see `dictionary`). A span begins and ends at the borders of tokens.
    """
    longest = max(map(len, known), default=0)
    found: list[Span] = []
    for first, (start, _) in enumerate(borders):
        if found and start < found[-1].end:
            continue
        ends = itertools.takewhile(lambda end, start=start: end <= start + longest, (e for _, e in borders[first:]))
        if best := max((end for end in ends if text[start:end] in known), default=0):
            found.append(Span(start, best, known[text[start:best]]))
    return found
