"""`attendo lesson imdb` (T04): is a film review kind? The lecture's classifier, ours, and a linear one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from attendo.data.labelled import LabelledRow
from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.inference.classifier import Classifier
from attendo.inspecting.recording import recording
from attendo.model_config import ModelConfig
from attendo.models import EncoderClassifier, parameter_count
from attendo.runs.settings import preset_tables
from attendo.runs.task_specs import CLASSIFICATION
from attendo.runs.training_run import new_run
from attendo_course.lessons.arrays import ArrayTask, curve, measures, seeded, trained
from attendo_course.lessons.imdb_reviews import (
    PAD_ID,
    Reviews,
    as_json_lines,
    reviews,
    vocabulary,
    word_examples,
    words_of,
)
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table

KNOWN_WORDS, LENGTH, BATCH_ROWS, EPOCHS, RATE = 50_000, 200, 164, 10, 1e-3
"""The lecture's: words with an id, words of a review that are read, and its training by AdamW."""
OURS: dict[str, dict[str, Any]] = {
    "tokenizer": {"vocab_size": 10_000},
    "model": {"n_encoder_layers": 1, "positions": "alibi", "dropout": 0.5},
    "data": {"max_tokens": 400, "token_dropout": 0.5},
    "training": {"epochs": 4, "learning_rate": 1e-3},
}
"""What ours sets beside `--columns`; the rest is `attendo train classification`'s own choice."""
SHOWN_WORDS = 8


@dataclass(frozen=True, eq=False)
class Result:
    """A contender: its numbers, its training losses, and the CPU seconds that training took."""

    name: Localized
    parameters: int
    valid: float
    test: float
    cpu_seconds: float
    losses: Sequence[float] = ()

    def row(self) -> tuple[Cell, ...]:
        """The cells of its line in the table."""
        minutes = f"{self.cpu_seconds / 60:.1f}"
        return self.name, self.parameters, f"{self.valid:.1%}", f"{self.test:.1%}", minutes


def lecture_config(vocab_size: int, n_classes: int) -> ModelConfig:
    """The lecture's shape: 1,612,802 parameters for 50,002 entries and two classes.

    >>> config = lecture_config(50_002, 2)
    >>> config.d_model, config.n_heads, config.d_ff, config.pooling
    (32, 2, 128, 'max')
    """
    there = {"architecture": "classifier", "vocab_size": vocab_size, "n_classes": n_classes, "pad_id": PAD_ID}
    return ModelConfig(**preset_tables("lecture")["model"] | there)


def lecture_model(config: ModelConfig, seed: int) -> EncoderClassifier:
    """A fresh one; embeddings start from N(0, 1), as the notebook's do, and padding's from 0."""

    def build() -> EncoderClassifier:
        model = EncoderClassifier(config)
        nn.init.normal_(model.embedding.tokens.weight)
        nn.init.zeros_(model.embedding.tokens.weight[PAD_ID].detach())
        return model

    return seeded(build, seed)


def lecture_run(
    data: Reviews, ids: dict[str, int], name: Localized, options: Options, *, masked: bool
) -> tuple[Result, EncoderClassifier]:
    """Trains the lecture's classifier; masked: with its one mistake mended, that padding is read as words are."""
    train, valid, test = (
        word_examples(part, data.ids(part), ids, LENGTH, masked=masked)
        for part in (data.train, data.valid, data.test)
    )
    model = lecture_model(lecture_config(len(ids) + 2, len(data.labels)), seed=1)
    steps = options.steps(EPOCHS * -(-len(train) // BATCH_ROWS))
    began = time.process_time()
    run = trained(model, ArrayTask(train, valid, BATCH_ROWS), steps, RATE, seed=1, weight_decay=0.01)
    seconds = time.process_time() - began
    accuracy = run.measures["accuracy"], measures(model, test)["accuracy"]
    return Result(name, parameter_count(model), *accuracy, seconds, run.losses), model


def our_run(data: Reviews, options: Options) -> Result:
    """What `attendo train classification` with the settings of `OURS` makes of the same reviews."""
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
        valid, test = (classifier.evaluate(rows).measures["accuracy"] for rows in (data.valid, data.test))
        name = Localized("attendo train classification", "attendo train classification")
        return Result(name, parameter_count(classifier.model), valid, test, seconds, losses)


def linear_run(data: Reviews) -> Result:
    """Logistic regression on the TF-IDF of words, by scikit-learn."""
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
    return Result(
        Localized("TF-IDF + logistic regr.", "TF-IDF + ロジスティック回帰"),
        x.shape[1] + 1,
        valid,
        test,
        seconds,
    )


def pooled_from(model: EncoderClassifier, src: Int[Tensor, " len"]) -> Int[np.ndarray, " d_model"]:
    """Which position the maximum over time takes each feature of the text's vector from."""
    with torch.no_grad(), recording(model.eval(), "encoder.output") as record:
        record.model.hidden(src[None])
        return record["encoder"].output[0].argmax(0).numpy()


def chosen_words(model: EncoderClassifier, row: LabelledRow, ids: dict[str, int]) -> list[tuple[str, int]]:
    """The words of a review that most features of its vector come from, and from how many; the padding is "…"."""
    words = words_of(row.text, LENGTH)
    src = word_examples([row], [0], ids, LENGTH, masked=False).inputs["src"][0]
    places, counts = np.unique(pooled_from(model, src), return_counts=True)
    order = sorted(range(len(places)), key=lambda i: (-counts[i], places[i]))[:SHOWN_WORDS]
    return [(words[places[i]] if places[i] < len(words) else "…", int(counts[i])) for i in order]


def teach(options: Options) -> Iterator[Piece]:
    """Trains the lecture's model as it is and with padding masked, ours, and a linear one; tests all on one test."""
    data = reviews(options.files)
    yield _about(data)
    ids = vocabulary(data.train, KNOWN_WORDS)
    lecture, model = lecture_run(data, ids, Localized("the lecture's", "講義のモデル"), options, masked=False)
    masked, _ = lecture_run(
        data, ids, Localized("the same, padding masked", "同じ、パディングをマスク"), options, masked=True
    )
    results = [lecture, masked, our_run(data, options)]
    if find_spec("sklearn"):
        results.append(linear_run(data))
    else:
        yield Localized(
            'The linear model is left out. For it: pip install "attendo[lessons]"',
            '線形モデルは省略した。必要なら pip install "attendo[lessons]" を実行する。',
        )
    columns = (
        Localized("model", "モデル"),
        Localized("numbers", "パラメータ"),
        Localized("valid", "検証"),
        Localized("test", "テスト"),
        Localized("CPU min", "CPU 分"),
    )
    yield Table("imdb", IMDB.title, columns, tuple(result.row() for result in results))
    yield _curves(results[:3])
    yield from _choices(model, data, ids)
    yield Conclusion(_conclusion(results, data))


def _about(data: Reviews) -> Localized:
    n = [f"{len(rows):,}" for rows in (data.train, data.valid, data.test)]
    known = data.n_known
    return Localized(
        f"{n[0]} reviews are learned from, {n[1]} of the training reviews are held out for validation, and {n[2]} are"
        f" the test, of which {known:,} are also training reviews, word for word. The lecture's model reads the first"
        f" {LENGTH} words in lower case, cut at white space: one block of width 32, two heads, the maximum over"
        " time.",
        f"{n[0]} 件で学習し、学習用から取り分けた {n[1]} 件で検証し、{n[2]} 件でテストする（うち"
        f" {known:,} 件は学習用と一字一句同じ）。講義のモデルは小文字にして空白で区切った最初の {LENGTH} 語を読む。"
        "幅 32 の 1 層、ヘッド 2 個、時間方向の最大値プーリング。",
    )


def _curves(results: Sequence[Result]) -> Picture:
    values = [curve(result.losses) for result in results]
    longest = max(map(len, values))
    stretched = [np.interp(np.linspace(0, 1, longest), np.linspace(0, 1, len(v)), v) for v in values]
    title = Localized(
        "Training loss from the first step to each model's last", "学習時の損失（各モデルの最初から最後まで）"
    )
    return Picture("curves", title, np.stack(stretched), ("lecture", "masked", "ours"), ("0", "1"))


def _choices(model: EncoderClassifier, data: Reviews, ids: dict[str, int]) -> Iterator[Piece]:
    rows: list[tuple[Cell, ...]] = []
    for label in data.labels[:2]:
        row = next(row for row in data.test if row.label == label)
        listed = ", ".join(f"{word} {count}" for word, count in chosen_words(model, row, ids))
        rows.append((label, listed))
    title = Localized(
        "What the lecture's maximum takes its 32 features from: words of the first test review of a label, with the"
        " number of features",
        "講義のモデルの最大値が 32 個の特徴をどの語から取るか：各ラベルの最初のテスト文の語と特徴の数",
    )
    yield Table("pooled", title, (Localized("label", "ラベル"), Localized("words", "語")), tuple(rows))


def _conclusion(results: Sequence[Result], data: Reviews) -> Localized:
    best = max(results, key=lambda result: result.test)
    lecture, masked = results[:2]
    change = 100 * (masked.test - lecture.test)
    gap = 100 * (lecture.valid - lecture.test)
    other_films, other_films_ja = "", ""
    if gap > 1 and data.n_known < 0.05 * len(data.test):
        other_films = (
            " Where a test has other films than the training, what is learned of names does not carry over."
        )
        other_films_ja = "テストが別の映画のレビューなら、固有名詞について学んだことは役に立たない。"
    return Localized(
        f"Best on the test: {best.name.en}, {best.test:.1%}; the lecture reported 80.5% for its own. Masking the"
        f" padding changes the lecture's by {change:+.1f} points. On the validation reviews the lecture's differs by"
        f" {gap:+.1f} points from the test.{other_films}",
        f"テストで最良は {best.name.ja}({best.test:.1%})。講義の報告値は 80.5% である。パディングをマスクすると"
        f"講義のモデルは {change:+.1f} ポイント変わる。検証文とテストの差は講義のモデルで {gap:+.1f} ポイントである。"
        f"{other_films_ja}",
    )


IMDB = Lesson(
    "imdb",
    "NYU Deep Learning 2020, week 12, notebook 15",
    Localized("Is a film review kind?", "映画レビューは好意的か"),
    Localized(
        "How well does the lecture's one small block tell, what does its unmasked padding cost, and what does a better"
        " recipe give? Give the reviews with --train.",
        "講義の小さな 1 層はどこまで当てられるか。マスクされないパディングの代償は何か。より良い学習法なら何が得られる"
        "か。レビューは --train で与える。",
    ),
    15.0,
    teach,
    takes_files=True,
)
LESSONS = (IMDB,)
