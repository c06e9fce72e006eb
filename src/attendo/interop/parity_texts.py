"""Texts on which two programs are compared: the run's validation rows, a file of the user's, or built-in ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from attendo.bundle import Bundle
from attendo.data import forecasts
from attendo.data.labelled import read_labelled
from attendo.data.labelled_corpus import LabelledCorpus
from attendo.data.pair_corpus import PairCorpus
from attendo.errors import AttendoError
from attendo.runs.settings import section
from attendo.runs.task_specs import family_of

BUILT_IN = 200
"""Sources of the weather forecasts, where there is nothing better."""


@dataclass(frozen=True)
class Examples:
    """name: what they are, with their number; references: what a translator should say, None where nobody knows."""

    name: str
    texts: tuple[str, ...]
    references: tuple[str, ...] | None = None


def examples_of(bundle: Bundle, valid: Sequence[Path] = (), most: int = 500) -> Examples:
    """At most `most` rows of the files in `valid`, else of the run's own validation rows, else built-in texts.

    Files are read as the run's are. Raises AttendoError for one in `valid` that cannot be read.

    >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    >>> bundle = Bundle({"data": {"train": ["gone.tsv"]}}, train_tokenizer(["a"], TokenizerConfig(kind="byte")))
    >>> bundle.card["task"] = "translation"
    >>> examples_of(bundle).name, examples_of(bundle).references
    ('200 built-in English sentences, without references', None)
    """
    table: dict[str, Any] = dict(bundle.tables.get("data", {}))
    if valid:
        names = [str(path) for path in valid]
        table |= {"train": names, "valid": names, "drop": ""}
        return _read(bundle, table, most, f"rows of {', '.join(names)}")
    try:
        return _read(bundle, table, most, "validation rows of the run")
    except AttendoError:  # imported, or its files are not here any more
        texts = tuple(source for source, _ in forecasts.pairs(min(most, BUILT_IN), "valid"))
        return Examples(f"{len(texts)} built-in English sentences, without references", texts)


def _read(bundle: Bundle, table: dict[str, Any], most: int, what: str) -> Examples:
    family = family_of(bundle.card.get("task", ""))
    data: Any = section(family.data, {"data": table}, "data", "config.toml")
    data.check()
    corpus: Any = family.open(data, lambda line: None)
    references = None
    match corpus:
        case PairCorpus():
            pairs, _ = corpus.validation(most)
            texts, references = tuple(source for source, _ in pairs), tuple(target for _, target in pairs)
        case LabelledCorpus() if data.valid:  # the labels don't matter here, nor do the training rows
            rows = islice(read_labelled(data.source(Path(data.valid[0]))), most)
            texts = tuple(row.text for row in rows)
        case LabelledCorpus():
            texts = tuple(row.text for row in corpus.validation(most)[0])
        case _:
            texts = tuple(chunk.text for chunk in islice(corpus.chunks("valid"), most))
    return Examples(f"{len(texts)} {what}", texts, references)
