"""The lesson `attendo lesson imdb` (T04): film review classifiers of the lecture and attendo, and a linear model."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from attendo.data.data_files import text_lines
from attendo.data.held_out import source_hash
from attendo.data.labelled import LabelledRow, LabelledSource, count_labels, read_labelled
from attendo.display.i18n import Localized
from attendo.errors import AttendoError
from attendo.inference.classifier import Classifier
from attendo.inspecting.recording import recording
from attendo.model_config import ModelConfig
from attendo.models import EncoderClassifier, parameter_count
from attendo.runs.settings import preset_tables
from attendo.runs.task_specs import CLASSIFICATION
from attendo.runs.training_run import new_run
from attendo_course.book import passage, translated
from attendo_course.lessons.arrays import ArrayTask, Examples, curve, measures, seeded, trained
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table
from attendo_course.pictures import Picture

UNKNOWN_ID, PAD_ID = 0, 1
"""The special ids of the lecture."""
CLASSES = ("neg", "pos")
VALIDATION = 10
"""One of this number of training reviews is used for validation."""
HOME = "https://ai.stanford.edu/~amaas/data/sentiment"


@dataclass(frozen=True)
class Reviews:
    """Labeled film reviews for training, validation and test. `labels` contains the sorted label names."""

    labels: tuple[str, ...]
    train: Sequence[LabelledRow]
    valid: Sequence[LabelledRow]
    test: Sequence[LabelledRow]

    @property
    def n_known(self) -> int:
        """The number of test reviews whose text also occurs in the training or validation data."""
        known = {row.text for row in (*self.train, *self.valid)}
        return sum(row.text in known for row in self.test)

    def ids(self, rows: Iterable[LabelledRow]) -> list[int]:
        """Return the class id of each row, which is the index of its label."""
        return [self.labels.index(row.label) for row in rows]


def reviews(files: Sequence[Path]) -> Reviews:
    """Read the reviews from the folder aclImdb, or from a training file and a test file.

    The training reviews whose hash is a multiple of ten are used for validation. Therefore, no text is in both the
    training and the validation data. Raises AttendoError for other files, for unreadable files, and for a test label
    that does not occur in training.
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
    """Return the texts in the folders of their labels, as in the dataset: neg/*.txt and pos/*.txt."""
    found = [(label, path) for label in CLASSES for path in sorted((folder / label).glob("*.txt"))]
    if not found:
        raise AttendoError(f"{folder}: no neg/*.txt and pos/*.txt in it; give the folder that holds train and test")
    return [LabelledRow(number, label, path.read_text("utf-8")) for number, (label, path) in enumerate(found, 1)]


def _file(path: Path) -> list[LabelledRow]:
    """Return the rows of a file. Without column names, the first column is the label and the last is the text."""
    columns = None
    if ".tsv" in path.suffixes and path.is_file():
        line = next((line for _, line in text_lines(path)), "")
        columns = ("1", str(line.count("\t") + 1)) if isinstance(line, str) else None
    return list(read_labelled(LabelledSource(path, columns)))


def as_json_lines(rows: Iterable[LabelledRow], path: Path) -> Path:
    """Write the rows as a file for `attendo train classification`, and return its path."""
    lines = (json.dumps({"label": row.label, "text": row.text}, ensure_ascii=False) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def words_of(text: str, most: int) -> list[str]:
    """Return the first words of a text as in the lecture: in lower case, split at white space.

    >>> words_of("A GOOD film, really", 3)
    ['a', 'good', 'film,']
    """
    return text.lower().split()[:most]


def vocabulary(rows: Iterable[LabelledRow], most: int) -> dict[str, int]:
    """Return the ids of the most frequent words, starting at 2. Id 0 is the unknown word, and id 1 is padding.

    >>> vocabulary([LabelledRow(1, "pos", "so so good"), LabelledRow(2, "neg", "so bad")], 2)
    {'so': 2, 'bad': 3}
    """
    counts = Counter(word for row in rows for word in row.text.lower().split())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
    return {word: number for number, (word, _) in enumerate(ranked, PAD_ID + 1)}


def word_examples(
    rows: Sequence[LabelledRow], classes: Sequence[int], ids: Mapping[str, int], length: int, *, masked: bool
) -> Examples:
    """Return each text as the ids of its first words, padded to `length`.

    With `masked`, the input `src_lengths` contains the real lengths, and the model masks the padding.
    """
    src = torch.full((len(rows), length), PAD_ID)
    lengths = torch.empty(len(rows), dtype=torch.int64)
    for i, row in enumerate(rows):
        found = [ids.get(word, UNKNOWN_ID) for word in words_of(row.text, length)] or [UNKNOWN_ID]
        src[i, : len(found)], lengths[i] = torch.tensor(found), len(found)
    inputs = {"src": src, "src_lengths": lengths} if masked else {"src": src}
    return Examples(inputs, torch.tensor(classes))


KNOWN_WORDS, LENGTH, BATCH_ROWS, EPOCHS, RATE = 50_000, 200, 164, 10, 1e-3
"""The settings of the lecture: the vocabulary size, the words per review, and the training with AdamW."""
OURS: dict[str, dict[str, Any]] = {
    "tokenizer": {"vocab_size": 10_000},
    "model": {
        "n_encoder_layers": 1,
        "positions": "alibi",
        "dropout": 0.5,
        "norm": "layer",
        "activation": "gelu",
        "attention_bias": True,
        "feed_forward_gated": False,
        "feed_forward_bias": True,
    },
    "data": {"max_tokens": 400, "token_dropout": 0.5},
    "training": {"epochs": 4, "learning_rate": 1e-3},
}
"""Our settings in addition to `--columns`. The command `attendo train classification` chooses the other settings."""
SHOWN_WORDS = 8


@dataclass(frozen=True, eq=False)
class Result:
    """The results of one model: its number of parameters, its accuracy, its training losses and CPU seconds."""

    name: Localized
    parameters: int
    valid: float
    test: float
    cpu_seconds: float
    losses: Sequence[float] = ()

    def row(self) -> tuple[Cell, ...]:
        """Return the cells of the model's row in the table."""
        minutes = f"{self.cpu_seconds / 60:.1f}"
        return self.name, self.parameters, f"{self.valid:.1%}", f"{self.test:.1%}", minutes


def lecture_config(vocab_size: int, n_classes: int) -> ModelConfig:
    """Return the configuration of the lecture: 1,612,802 parameters for 50,002 words and two classes.

    >>> config = lecture_config(50_002, 2)
    >>> config.d_model, config.n_heads, config.d_ff, config.pooling
    (32, 2, 128, 'max')
    """
    there = {"architecture": "classifier", "vocab_size": vocab_size, "n_classes": n_classes, "pad_id": PAD_ID}
    return ModelConfig(**preset_tables("lecture")["model"] | there)


def lecture_model(config: ModelConfig, seed: int) -> EncoderClassifier:
    """Return the lecture's model with random weights. As in the notebook, embeddings are N(0, 1), but 0 for padding."""

    def build() -> EncoderClassifier:
        model = EncoderClassifier(config)
        nn.init.normal_(model.embedding.tokens.weight)
        nn.init.zeros_(model.embedding.tokens.weight[PAD_ID].detach())
        return model

    return seeded(build, seed)


def lecture_run(
    data: Reviews, ids: dict[str, int], name: Localized, options: Options, *, masked: bool
) -> tuple[Result, EncoderClassifier]:
    """Train the classifier of the lecture. With `masked`, the classifier ignores padding."""
    train, valid, test = (
        word_examples(part, data.ids(part), ids, LENGTH, masked=masked) for part in (data.train, data.valid, data.test)
    )
    model = lecture_model(lecture_config(len(ids) + 2, len(data.labels)), seed=1)
    steps = options.steps(EPOCHS * -(-len(train) // BATCH_ROWS))
    began = time.process_time()
    run = trained(model, ArrayTask(train, valid, BATCH_ROWS), steps, RATE, seed=1, weight_decay=0.01)
    seconds = time.process_time() - began
    accuracy = run.measures["accuracy"], measures(model, test)["accuracy"]
    return Result(name, parameter_count(model), *accuracy, seconds, run.losses), model


def our_run(data: Reviews, options: Options) -> Result:
    """Run `attendo train classification` with the settings of `OURS` on the same reviews, and return the result."""
    settings = OURS["training"]
    training = settings | {"epochs": settings["epochs"] * options.effort}
    with TemporaryDirectory() as place:
        folder, began = Path(place), time.process_time()
        parts = (("train", data.train), ("valid", data.valid))
        files = {name: (str(as_json_lines(rows, folder / f"{name}.jsonl")),) for name, rows in parts}
        tables = OURS | {"training": training, "data": OURS["data"] | files}
        run = new_run(CLASSIFICATION, tables, folder / "run")
        losses = [report.loss for report in run.reports() if report.kind == "step"]
        seconds = time.process_time() - began
        classifier = Classifier.load(folder / "run")
        classifier.share = 1.0  # the Transformer alone
        classifier.temperature = classifier.encoder_temperature
        valid, test = (classifier.evaluate(rows).measures["accuracy"] for rows in (data.valid, data.test))
        name = translated("attendo train classification")
        return Result(name, parameter_count(classifier.model), valid, test, seconds, losses)


def linear_run(data: Reviews) -> Result:
    """Train a logistic regression on the TF-IDF of words with scikit-learn, and return the result."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    began = time.process_time()
    features = TfidfVectorizer(min_df=min(3, len(data.train)), sublinear_tf=True)
    x = features.fit_transform(row.text for row in data.train)
    model = LogisticRegression(C=5.0, max_iter=300).fit(x, data.ids(data.train))
    seconds = time.process_time() - began
    valid, test = (
        float(model.score(features.transform(row.text for row in rows), data.ids(rows)))
        for rows in (data.valid, data.test)
    )
    return Result(translated("TF-IDF + logistic regr."), len(features.vocabulary_) + 1, valid, test, seconds)


def pooled_from(model: EncoderClassifier, src: Int[Tensor, " len"]) -> Int[np.ndarray, " d_model"]:
    """Return the position from which the maximum over time takes each feature."""
    with torch.no_grad(), recording(model.eval(), "encoder.output") as record:
        record.model.hidden(src[None])
        return record["encoder"].output[0].argmax(0).numpy()


def chosen_words(model: EncoderClassifier, row: LabelledRow, ids: dict[str, int]) -> list[tuple[str, int]]:
    """Return the words of a review that contribute most features to its vector, with their numbers of features.

    Padding is shown as "…".
    """
    words = words_of(row.text, LENGTH)
    src = word_examples([row], [0], ids, LENGTH, masked=False).inputs["src"][0]
    places, counts = np.unique(pooled_from(model, src), return_counts=True)
    order = sorted(range(len(places)), key=lambda i: (-counts[i], places[i]))[:SHOWN_WORDS]
    return [(words[places[i]] if places[i] < len(words) else "…", int(counts[i])) for i in order]


def teach(options: Options) -> Iterator[Piece]:
    """Train the lecture's model with and without padding mask, attendo's model and a linear model on the same data."""
    data = reviews(options.files)
    yield _about(data)
    ids = vocabulary(data.train, KNOWN_WORDS)
    lecture, model = lecture_run(data, ids, translated("the lecture's"), options, masked=False)
    masked, _ = lecture_run(data, ids, translated("the same, padding masked"), options, masked=True)
    results = [lecture, masked, our_run(data, options), linear_run(data)]
    columns = (
        translated("model"),
        translated("numbers"),
        translated("valid"),
        translated("test"),
        translated("CPU min"),
    )
    yield Table("imdb", IMDB.title, columns, tuple(result.row() for result in results))
    yield _curves(results[:3])
    yield from _choices(model, data, ids)
    yield Conclusion(_conclusion(results, data))


def _about(data: Reviews) -> Localized:
    n = [f"{len(rows):,}" for rows in (data.train, data.valid, data.test)]
    known = data.n_known
    return passage("imdb.about", n=n, known=known, LENGTH=LENGTH)


def _curves(results: Sequence[Result]) -> Picture:
    values = [curve(result.losses) for result in results]
    longest = max(map(len, values))
    stretched = [np.interp(np.linspace(0, 1, longest), np.linspace(0, 1, len(v)), v) for v in values]
    title = translated("Training loss from the first step to each model's last")
    return Picture("curves", title, np.stack(stretched), ("lecture", "masked", "ours"), ("0", "1"))


def _choices(model: EncoderClassifier, data: Reviews, ids: dict[str, int]) -> Iterator[Piece]:
    rows: list[tuple[Cell, ...]] = []
    for label in data.labels[:2]:
        row = next(row for row in data.test if row.label == label)
        listed = ", ".join(f"{word} {count}" for word, count in chosen_words(model, row, ids))
        rows.append((label, listed))
    title = passage("imdb.choices")
    yield Table("pooled", title, (translated("label"), translated("words")), tuple(rows))


def _conclusion(results: Sequence[Result], data: Reviews) -> Localized:
    best = max(results, key=lambda result: result.test)
    lecture, masked = results[:2]
    change = 100 * (masked.test - lecture.test)
    gap = 100 * (lecture.valid - lecture.test)
    other_films, other_films_ja = "", ""
    if gap > 1 and data.n_known < 0.05 * len(data.test):
        other_films = " Where a test has other films than the training, what is learned of names does not carry over."
        other_films_ja = "テストが別の映画のレビューなら、固有名詞について学んだことは役に立たない。"
    return passage(
        "imdb.conclusion",
        best=best,
        change=change,
        gap=gap,
        other_films=other_films,
        other_films_ja=other_films_ja,
    )


IMDB = Lesson(
    "imdb",
    "NYU Deep Learning 2020, week 12, notebook 15",
    translated("Is a film review kind?"),
    passage("imdb.question"),
    15.0,
    teach,
    takes_files=True,
)
LESSONS = (IMDB,)
